"""The options by which `onceflow sink` finds a sink."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from onceflow.spark.exactly_once.sink_state import CheckpointState

_Command = TypeVar("_Command", bound=Callable[..., Any])
MARKER_TOPIC = "onceflow-markers"


def _path(context: click.Context, parameter: click.Parameter, value: str | None) -> Path | None:
    from onceflow.spark.exactly_once.checkpoint import local_path

    path = None if value is None else local_path(value)
    if value is not None and path is None:
        raise click.BadParameter(f"'{value}' is on no file system of this machine: leave --checkpoint out")
    return None if path is None else Path(path)


def checkpoint_option(command: _Command) -> _Command:
    """`--checkpoint`: the query's own, on this machine."""
    return click.option(
        "--checkpoint", callback=_path, metavar="DIRECTORY", help="The query's own checkpointLocation, on this machine."
    )(command)


def kafka_options(command: _Command) -> _Command:
    """Which Kafka sinks: of one query or all, one by name or all."""
    command = click.option(
        "--marker-topic", default=MARKER_TOPIC, show_default=True, help="The topic in which the sinks keep markers."
    )(command)
    command = click.option(
        "--query", metavar="ID", help="The query's id, where its checkpoint is not on this machine."
    )(command)
    return click.option("--name", metavar="NAME", help="One sink of the query: its name=.  [default: all of them]")(
        command
    )


def query_of(at: "CheckpointState | None", query: str | None) -> str | None:
    """The query that the command is about: the checkpoint\'s, where one was named; None: all."""
    if at is not None and query not in (None, at.query):
        raise click.UsageError(f"--query {query} is not the query of the checkpoint, {at.query}: leave it out")
    return query if at is None else at.query
