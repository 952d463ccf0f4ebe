"""Options that several commands have, so that they look and behave the same everywhere."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from onceflow.client.addresses import Address, InvalidAddress, parse_address, parse_bootstrap

_Command = TypeVar("_Command", bound=Callable[..., Any])

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"


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


def bootstrap_option(command: _Command) -> _Command:
    """`--bootstrap`: the Kafka to talk to, ours or any other."""
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
