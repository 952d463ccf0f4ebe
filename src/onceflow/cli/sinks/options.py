"""Options with which `onceflow sink` finds a sink."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onceflow.cli.internal import MARKER_TOPIC

if TYPE_CHECKING:
    from onceflow.spark.exactly_once.sink_state import CheckpointState

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _path(context: click.Context, parameter: click.Parameter, value: str | None) -> Path | None:
    from onceflow.spark.exactly_once.checkpoint import local_path

    path = None if value is None else local_path(value)
    if value is not None and path is None:
        raise click.BadParameter(f"'{value}' is not a local path; leave --checkpoint out")
    return None if path is None else Path(path)


def checkpoint_option(command: _Command) -> _Command:
    """Add `--checkpoint`, a local directory."""
    return click.option(
        "--checkpoint", callback=_path, metavar="DIRECTORY", help="The query's checkpointLocation, on this machine."
    )(command)


def kafka_options(command: _Command) -> _Command:
    """Add `--query`, `--name` and `--marker-topic`, which select Kafka sinks."""
    command = click.option(
        "--marker-topic", default=MARKER_TOPIC, show_default=True, help="Topic in which the sinks keep their markers."
    )(command)
    command = click.option("--query", metavar="ID", help="Query id, if the checkpoint is not on this machine.")(command)
    return click.option(
        "--name", metavar="NAME", help="Only the sink with this name=.  [default: all sinks of the query]"
    )(command)


def query_of(at: "CheckpointState | None", query: str | None) -> str | None:
    """Return the id of the selected query: the checkpoint's, if one was given; None: all queries."""
    if at is not None and query not in (None, at.query):
        raise click.UsageError(f"--query {query} differs from the checkpoint's query, {at.query}; leave --query out")
    return query if at is None else at.query
