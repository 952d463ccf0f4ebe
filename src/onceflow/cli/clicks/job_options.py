"""Options of the commands that run a streaming job."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onceflow.cli.notes import note
from onceflow.cli.security import kafka_settings
from onceflow.cli.spark import is_submitted, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Command = TypeVar("_Command", bound=Callable[..., Any])

CHECKPOINTS = Path(".onceflow", "checkpoints")
_TRIGGER = re.compile(r"available-now|[1-9]\d* (millisecond|second|minute|hour)s?")
NICE = 10
"""Default of --nice: at 20,000 events/s on two cores, live numbers wait up to 0.4 s for a driver of priority 0."""
_MASTER = re.compile(r"local|local\[(\*|[1-9]\d*)(,\d+)?\]|spark://.+|k8s://.+|yarn")


def _trigger(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not _TRIGGER.fullmatch(value):
        raise click.BadParameter(
            f"'{value}' is not a valid trigger; expected available-now or a pause like '5 seconds'", context, parameter
        )
    return value


def to_master(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check a Spark master, as the callback of an option or argument."""
    if value is not None and not _MASTER.fullmatch(value):
        raise click.BadParameter(
            f"'{value}' is not a valid master; expected local[2], local[*], spark://HOST:PORT, yarn or k8s://…"
        )
    return value


_SESSION_OPTIONS = (
    click.option(
        "--master",
        default=None,
        callback=to_master,
        help="Spark master: local[2], local[*], spark://HOST:PORT, yarn, k8s://…  [default: local[2], or "
        "spark-submit's]",
    ),
    click.option(
        "--ui-port",
        type=click.IntRange(0, 65535),
        help="Serve Spark's UI at this port of 127.0.0.1 and print its address; 0 for any free port.  [default: no UI]",
    ),
    click.option(
        "--spark-log",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File for Spark's own log.  [default: CHECKPOINT.log; standard error if the checkpoint is a URL or with "
        "spark-submit]",
    ),
)
_NICE_OPTION = click.option(
    "--nice",
    type=click.IntRange(0, 19),
    envvar="ONCEFLOW_NICE",
    show_envvar=True,
    help="Lower the priority of the driver and of Spark's processes on this machine to this nice value, so that "
    "broker, Redis and page stay fast; 0: not at all.  [default: 10, or spark-submit's]",
)
_RESTART_OPTIONS = (
    click.option(
        "--max-restarts",
        type=click.IntRange(min=0),
        default=20,
        show_default=True,
        help="Maximum restarts in a row (0: none) after Spark, the broker or the target was unavailable.",
    ),
    click.option(
        "--max-restart-seconds",
        type=click.FloatRange(min=0),
        default=600,
        show_default=True,
        help="Maximum time of restarts since the first failure in a row, in seconds.",
    ),
)


def session_options(command: _Command) -> _Command:
    """Add the options of a Spark session, which `session_settings` takes."""
    for option in reversed(_SESSION_OPTIONS):
        command = option(command)
    return command


def job_options(*, trigger: str) -> Callable[[_Command], _Command]:
    """Add the options of a streaming job; `trigger` is the default of --trigger.

    `job_settings` takes all except `nice`, which `lower_priority` takes.
    """

    def add(command: _Command) -> _Command:
        for option in reversed((*_SESSION_OPTIONS, _NICE_OPTION, *_RESTART_OPTIONS)):
            command = option(command)
        return click.option(
            "--trigger",
            default=trigger,
            show_default=True,
            callback=_trigger,
            help="Interval between micro-batches, or available-now: write the current events and exit.",
        )(command)

    return add


def job_settings(checkpoint: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a StreamingJob with this checkpoint; `options` are those of `job_options`."""
    from onceflow.clicks.restarts import RestartLimits

    location = _location(checkpoint)
    return {
        **session_settings(location, options),
        "checkpoint": location,
        "trigger": options["trigger"],
        "kafka": kafka_settings(),
        "restarts": RestartLimits(options["max_restarts"], options["max_restart_seconds"]),
    }


def lower_priority(nice: int | None) -> None:
    """Lower the priority of this process, and of those that it starts.

    With autogroups (sched(7)), Linux compares it with processes of the same session only. The session's own priority
    stays: a driver of low priority waits for minutes if other sessions keep all processors busy.
    """
    if is_submitted():
        # The driver's JVM is running already.
        if nice:
            raise click.UsageError(
                f"--nice does not apply with spark-submit: start it as 'nice -n {nice} spark-submit'"
            )
        return
    wanted = NICE if nice is None else nice
    if wanted > os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, wanted)


def session_settings(location: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a session, with the log `LOCATION.log`; `options` are those of `session_options`."""
    ui_port = options["ui_port"]
    if ui_port is not None and is_submitted():
        raise click.UsageError(f"--ui-port does not apply with spark-submit; pass --conf spark.ui.port={ui_port} to it")
    return {
        "master": options["master"] or (None if is_submitted() else "local[2]"),
        "java_home": java_home(),
        "log_file": options["spark_log"] or _log_beside(location),
        "ui_port": ui_port,
        "on_session": None if ui_port is None else _print_ui,
    }


def _location(checkpoint: str) -> str:
    """Return a URL unchanged and a path as absolute, because the JVM may have another working directory."""
    return checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())


def _log_beside(location: str) -> Path | None:
    """Return the log file next to a local checkpoint; None if Spark's log goes to standard error."""
    return None if is_submitted() or "://" in location else Path(f"{location}.log")


def _print_ui(spark: "SparkSession") -> None:
    """Print the address of Spark's UI; if the port is in use, Spark takes the next one."""
    note(f"Spark's UI is at {spark.sparkContext.uiWebUrl}")
