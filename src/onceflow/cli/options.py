"""Options that several commands have, so that they look and behave the same everywhere."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from onceflow.cli import security as secured
from onceflow.client.addresses import Address, InvalidAddress, parse_address, parse_bootstrap
from onceflow.client.errors import ClientError

_Command = TypeVar("_Command", bound=Callable[..., Any])

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
DEMO_DIRECTORY = ".onceflow"
"""Directory of the demo, and of the checkpoints of `onceflow run`."""


def to_address(context: click.Context, parameter: click.Parameter, value: str) -> Address:
    """The callback of an option whose value is one `HOST:PORT`, such as `--listen`."""
    try:
        return parse_address(value)
    except InvalidAddress as error:
        raise click.BadParameter(str(error)) from error


def _checked_bootstrap(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        parse_bootstrap(value)
    except InvalidAddress as error:
        raise click.BadParameter(str(error)) from error
    return value


def to_settings(texts: Sequence[str], hint: str, example: str = "retention.ms=3600000") -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping. Raises click.BadParameter."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in settings:
            # What follows may be a password.
            reason = "is given twice" if name in settings else "is not NAME=VALUE"
            raise click.BadParameter(f"'{name}' {reason}, as in {example}", param_hint=hint)
        settings[name] = value
    return settings


def _checked_security(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> None:
    try:
        secured.require(context, to_settings(values, "-X", "security.protocol=SASL_SSL"))
    except ClientError as error:
        raise click.BadParameter(str(error), param_hint="-X, or the file of settings") from error


def bootstrap_option(command: _Command) -> _Command:
    """`--bootstrap`: the Kafka to talk to, ours or any other; and -X, as what and how secured."""
    command = click.option(
        "-X",
        multiple=True,
        callback=_checked_security,
        expose_value=False,
        metavar="NAME=VALUE",
        help="One of Kafka's settings of TLS and SASL, such as security.protocol=SASL_SSL; may be repeated. The file "
        "of settings (see 'onceflow --help') takes them too, and hides a password from the list of processes.",
    )(command)
    return click.option(
        "--bootstrap",
        callback=_checked_bootstrap,
        metavar="HOST:PORT[,...]",
        default=BOOTSTRAP_DEFAULT,
        envvar="ONCEFLOW_BOOTSTRAP",
        show_default=True,
        show_envvar=True,
        help="Where a broker listens: 'onceflow broker' or any Apache Kafka. One of a cluster is enough.",
    )(command)


def refuse_together(names: Sequence[str], sentence: str) -> None:
    """Raises click.UsageError if one of these parameters of the present command was given: it would have no effect."""
    context = click.get_current_context()
    if any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names):
        raise click.UsageError(sentence)


def json_option(command: _Command) -> _Command:
    """`--json`: the result for programs, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document, for programs.")(
        command
    )


def states_option(known: Sequence[str], example: str) -> Callable[[_Command], _Command]:
    """`--state` of a list command, in any case, several with commas or given again: the parameter `states`."""
    by_lower = {state.lower(): state for state in known}

    def checked(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> list[str]:
        words = [word.strip() for value in values for word in value.split(",")]
        for word in words:
            if word.lower() not in by_lower:
                raise click.BadParameter(f"'{word}' is no state: there are {', '.join(known)}")
        return [by_lower[word.lower()] for word in words]

    return click.option(
        "--state",
        "states",
        multiple=True,
        callback=checked,
        metavar="STATE[,...]",
        help=f"Only those in this state, such as {example}; several with commas. There are {', '.join(known)}.",
    )


def redis_options(command: _Command) -> _Command:
    """`--redis` and `--hash-key`: where the counts are."""
    command = click.option(
        "--hash-key",
        default="app::users::click",
        show_default=True,
        callback=not_empty,
        help="The hash of uid → clicks; everything else that belongs to it has names made from it.",
    )(command)
    return click.option(
        "--redis",
        "redis_url",
        default="redis://127.0.0.1:6379/1",
        show_default=True,
        envvar="ONCEFLOW_REDIS",
        show_envvar=True,
        metavar="URL",
        callback=checked_redis,
        help="Where the counts are; the last number is the database, and an address without one means 0, not 1. Also "
        "rediss://, redis+sentinel://HOST:PORT,…/SERVICE/DATABASE and redis+cluster://HOST:PORT,….",
    )(command)


def not_empty(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The callback of an option that is a name."""
    if not value:
        raise click.BadParameter("an empty name names nothing")
    return value


def checked_redis(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The callback of an option that is a Redis address: one that cannot be meant is wrong usage."""
    from onceflow.redis.address import RedisAddressInvalid, require_address

    if value is not None:
        try:
            require_address(value)
        except RedisAddressInvalid as error:
            raise click.BadParameter(str(error)) from error
    return value
