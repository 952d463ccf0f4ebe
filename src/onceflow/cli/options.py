"""Options shared by several commands."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from onceflow.cli import security as secured
from onceflow.client.addresses import Address, InvalidAddress, parse_address, parse_bootstrap
from onceflow.client.errors import ClientError

_Command = TypeVar("_Command", bound=Callable[..., Any])

BROKER_PORT = 9092
REDIS_PORT = 6379
DASHBOARD_PORT = 8080
SERVE_PORT = 8090
BOOTSTRAP_DEFAULT = f"127.0.0.1:{BROKER_PORT}"
REDIS_DEFAULT = f"redis://127.0.0.1:{REDIS_PORT}/1"
DEMO_DIRECTORY = ".onceflow"
"""Directory of the demo and of the checkpoints of `onceflow run`."""
DEMO_LOG_BYTES = 1 << 30
"""Size of its log at which the demo stops generating."""
_META = "onceflow.addresses"
"""Key in click's context: the addresses of the configuration file."""


class AddressOption(click.Option):
    """An address that the configuration file can have; a command line and an environment override it."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, click.Parameter]) -> tuple[Any, ParameterSource]:
        """Return the value and where it is from."""
        value, source = super().consume_value(ctx, opts)
        addresses: dict[str, str] = ctx.meta.get(_META, {})
        if source is ParameterSource.DEFAULT and self.name in addresses:
            return addresses[self.name], ParameterSource.DEFAULT_MAP
        return value, source


def use_addresses(context: click.Context, addresses: Mapping[str, str]) -> None:
    """Use the addresses of the configuration file, by the names of parameters."""
    context.meta[_META] = dict(addresses)


def to_address(context: click.Context, parameter: click.Parameter, value: str) -> Address:
    """Parse one `HOST:PORT`, as the callback of an option such as `--listen`."""
    try:
        return parse_address(value)
    except InvalidAddress as error:
        raise click.BadParameter(str(error)) from error


def to_settings(texts: Sequence[str], hint: str, example: str = "retention.ms=3600000") -> dict[str, str]:
    """Return `NAME=VALUE` texts as a mapping. Raises click.BadParameter."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in settings:
            # The value may be a password.
            reason = "is given twice" if name in settings else f"is not NAME=VALUE, as in {example}"
            raise click.BadParameter(f"'{name}' {reason}", param_hint=hint)
        settings[name] = value
    return settings


def _checked_security(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> None:
    try:
        secured.require(context, to_settings(values, "-X", "security.protocol=SASL_SSL"))
    except ClientError as error:
        raise click.BadParameter(str(error), param_hint="-X or --config-file") from error


def security_option(command: _Command) -> _Command:
    """Add -X, Kafka's TLS and SASL settings."""
    return click.option(
        "-X",
        multiple=True,
        callback=_checked_security,
        expose_value=False,
        metavar="NAME=VALUE",
        help="Kafka TLS or SASL setting, such as security.protocol=SASL_SSL; may be repeated. Put passwords into the "
        "configuration file (see 'onceflow --help'), where the process list does not show them.",
    )(command)


def checked_bootstrap(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Check the address of a cluster, as the callback of an option."""
    try:
        parse_bootstrap(value)
    except InvalidAddress as error:
        raise click.BadParameter(str(error)) from error
    return value


def bootstrap_option(command: _Command) -> _Command:
    """Add `--bootstrap`, the address of any Kafka broker, and -X, its TLS and SASL settings."""
    return click.option(
        "--bootstrap",
        cls=AddressOption,
        callback=checked_bootstrap,
        metavar="HOST:PORT[,...]",
        default=BOOTSTRAP_DEFAULT,
        envvar="ONCEFLOW_BOOTSTRAP",
        show_default=True,
        show_envvar=True,
        help="Address of 'onceflow broker' or of any Apache Kafka broker. One broker of a cluster is enough.",
    )(security_option(command))


def refuse_together(names: Sequence[str], message: str) -> None:
    """Raise click.UsageError if one of these parameters was given, which would have no effect."""
    context = click.get_current_context()
    if any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names):
        raise click.UsageError(message)


def json_option(command: _Command) -> _Command:
    """Add `--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")(command)


def json_lines_option(command: _Command) -> _Command:
    """Add `--json` to a command that prints several results, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")(command)


def layout_options(command: _Command) -> _Command:
    """Add `--json` and `--csv` to a command that prints rows, as the parameter `layout`."""
    command = click.option("--csv", "layout", flag_value="csv", help="Print CSV with a heading.")(command)
    return click.option("--json", "layout", flag_value="json", help="Print one JSON document: a list of objects.")(
        command
    )


def states_option(known: Sequence[str], example: str) -> Callable[[_Command], _Command]:
    """Add `--state` to a list command, as the parameter `states`: case-insensitive, comma-separated, repeatable."""
    by_lower = {state.lower(): state for state in known}

    def checked(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> list[str]:
        words = [word.strip() for value in values for word in value.split(",")]
        for word in words:
            if word.lower() not in by_lower:
                raise click.BadParameter(f"'{word}' is not a valid state; expected {', '.join(known)}")
        return [by_lower[word.lower()] for word in words]

    return click.option(
        "--state",
        "states",
        multiple=True,
        callback=checked,
        metavar="STATE[,...]",
        help=f"List only these states, such as {example}. States: {', '.join(known)}.",
    )


def redis_options(command: _Command) -> _Command:
    """Add `--redis` and `--hash-key`."""
    command = click.option(
        "--hash-key",
        default="app::users::click",
        show_default=True,
        callback=not_empty,
        help="Redis hash of the counts, uid → clicks. The other keys of the count have names derived from it.",
    )(command)
    return click.option(
        "--redis",
        "redis_url",
        cls=AddressOption,
        default=REDIS_DEFAULT,
        show_default=True,
        envvar="ONCEFLOW_REDIS",
        show_envvar=True,
        metavar="URL",
        callback=checked_redis,
        help="Redis with the counts; the path is the database number, by default 0. Other forms: rediss://, "
        "redis+sentinel://HOST:PORT,…/SERVICE/DATABASE and redis+cluster://HOST:PORT,….",
    )(command)


def not_empty(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse an empty name, as the callback of an option."""
    if not value:
        raise click.BadParameter("the name must not be empty")
    return value


def checked_redis(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an invalid Redis address, as the callback of an option."""
    try:
        from onceflow.redis.address import RedisAddressInvalid, require_address
    except ModuleNotFoundError:
        return value  # A command that uses the address reports the package; 'onceflow doctor' works without it.
    if value is not None:
        try:
            require_address(value)
        except RedisAddressInvalid as error:
            raise click.BadParameter(str(error)) from error
    return value
