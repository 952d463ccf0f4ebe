"""`onceflow archive`, `onceflow query`, `onceflow report`: events as Parquet files, and questions about them."""

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onceflow.cli.clicks.job_options import job_options, job_settings, lower_priority
from onceflow.cli.command_group import Commands
from onceflow.cli.notes import note, quiet_option
from onceflow.cli.options import bootstrap_option, json_option, layout_options
from onceflow.cli.output import counted, print_rows, stdout_may_close, table
from onceflow.cli.security import open_cluster
from onceflow.cli.spark import ignore_pandas_warnings
from onceflow.cli.times import moment_ms, refuse_reversed
from onceflow.clicks import moments

if TYPE_CHECKING:
    from onceflow.clicks.queries import Events, Selection

_Command = TypeVar("_Command", bound=Callable[..., Any])

ARCHIVE = Path(".onceflow", "archive")
CHECKPOINT = "_checkpoint"
"""Default checkpoint, in the archive's directory."""
TRIGGER = "20 seconds"
_TIMES = {"start_ms", "end_ms", "time_ms"}


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=ARCHIVE)
@bootstrap_option
@click.option("--topic", default="user_events", show_default=True, help="Topic of the events, archived from its start.")
@click.option("--key-field", default="uid", show_default=True, help="Event field of the user.")
@click.option(
    "--value-field",
    default="click_count",
    show_default=True,
    help="Event field with the number of clicks; with '' each event is one click.",
)
@click.option("--time-field", default="event_time", show_default=True, help="Event field of the time.")
@click.option(
    "--checkpoint",
    help="Spark's checkpoint directory; keep it as long as the archive.  [default: DIRECTORY/_checkpoint]",
)
@job_options(trigger=TRIGGER)
@click.option(
    "--accept-data-loss",
    is_flag=True,
    help="Continue although events were deleted from the log before they were archived; for this run only.",
)
@quiet_option
@json_option
def archive(
    directory: Path,
    bootstrap: str,
    topic: str,
    key_field: str,
    value_field: str,
    time_field: str,
    checkpoint: str | None,
    accept_data_loss: bool,
    as_json: bool,
    **job: Any,
) -> None:
    """Write a topic's events to Parquet files by day and hour, each exactly once, until Ctrl-C.

    After a stop or a kill, start it with the same DIRECTORY; it resumes where it stopped. It merges small files.
    docs/archive.md shows how DuckDB, pandas and Spark read the files; 'onceflow query' queries them. Events that cannot
    be counted are not archived; they stay in the log.

    \b
    Examples:
      onceflow archive
      onceflow archive /data/clicks --topic visits --trigger available-now
    """
    from onceflow.clicks.archive import Archive
    from onceflow.clicks.archive_job import ArchiveJob
    from onceflow.clicks.events import WrongField
    from onceflow.clicks.job import run_jobs
    from onceflow.clicks.single_event import ArchivedFields

    fields = ArchivedFields(key_field, value_field or None, time_field)
    try:
        fields.check()
    except WrongField as error:
        raise click.UsageError(f"--key-field, --value-field and --time-field: {error}") from error
    running = ArchiveJob(
        bootstrap=bootstrap,
        topic=topic,
        directory=directory.absolute(),
        fields=fields,
        accept_data_loss=accept_data_loss,
        **job_settings(checkpoint or str(directory / CHECKPOINT), job),
    )
    lower_priority(job["nice"])
    running.check()
    note(f"archiving {topic} at {bootstrap} into {directory}; Ctrl-C stops")
    ignore_pandas_warnings()
    run_jobs([running])
    version = Archive(directory).newest()
    events, files = (0, 0) if version is None else (version.rows, len(version.files))
    if as_json:
        click.echo(json.dumps({"directory": str(directory), "events": events, "files": files}))
    else:
        archived_topic = topic if version is None else version.topic
        click.echo(f"{directory} has {counted(events, 'event')} of {archived_topic} in {counted(files, 'file')}")


@click.group(cls=Commands)
def query() -> None:
    """Query archived events and the newer events in the log, exact at one point.

    Dimensions are uid, os and every other field of the events.
    """


def archive_options(command: _Command) -> _Command:
    """Add the options of what to read, as `archive`, `archive_only` and `bootstrap`."""
    options = (
        click.option(
            "--archive",
            type=click.Path(file_okay=False, path_type=Path),
            default=ARCHIVE,
            show_default=True,
            help="Directory of 'onceflow archive'.",
        ),
        click.option("--archive-only", is_flag=True, help="Ignore events that are only in the log; needs no broker."),
        bootstrap_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def query_options(command: _Command) -> _Command:
    """Add the options of every query: those of what to read, the selection and the layout."""
    options = (
        click.option(
            "--from",
            "begin",
            metavar="TIME",
            help="Start: ms or s since 1970, 2026-02-14, 2026-02-14T10:00Z, or -2h before now.  [default: no limit]",
        ),
        click.option("--to", "end", metavar="TIME", help="End, exclusive.  [default: no limit]"),
        click.option(
            "--where",
            multiple=True,
            metavar="DIM=VALUE",
            help="Select events with this value, such as os=iOS. May be repeated: events match one of the values of "
            "each dimension.",
        ),
        layout_options,
        archive_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


@query.command()
@click.option(
    "--per",
    type=click.Choice(["minute", "hour", "day"]),
    default="hour",
    show_default=True,
    help="Size of a bucket, in UTC.",
)
@click.option("--by", metavar="DIM", help="Count each value of a dimension, such as os, instead of the total.")
@click.option("--users", is_flag=True, help="Count distinct users too.")
@query_options
def counts(per: str, by: str | None, users: bool, **options: Any) -> None:
    """Show events and clicks per minute, hour or day; empty ones are not listed.

    \b
    Example:
      onceflow query counts --per hour --from -24h --by os --where country=DE
    """
    with _asked(options, by) as (events, selection):
        rows = events.counts(per, selection, by=by, users=users)
    _show(rows, options["layout"])


@query.command()
@click.argument("dimension")
@click.option("--count", default=10, show_default=True, type=click.IntRange(1, 100_000), help="Number of values.")
@query_options
def top(dimension: str, count: int, **options: Any) -> None:
    """Show the values of DIMENSION with most clicks.

    \b
    Example:
      onceflow query top page --from 2026-02-14 --to 2026-02-15
    """
    with _asked(options, dimension) as (events, selection):
        rows = events.top(dimension, selection, count=count)
    _show(rows, options["layout"])


@query.command()
@query_options
def totals(**options: Any) -> None:
    """Show the number of events, clicks and distinct users.

    no_time counts events without a valid time, future those with a time more than 24 hours after their record. Both
    have the timestamp of their record.
    """
    with _asked(options) as (events, selection):
        rows = [events.totals(selection)]
    _show(rows, options["layout"])


@query.command()
@click.argument("uid")
@click.option("--count", default=100, show_default=True, type=click.IntRange(1, 100_000), help="Number of events.")
@query_options
def timeline(uid: str, count: int, **options: Any) -> None:
    """Show the newest events of one user, newest first."""
    with _asked(options) as (events, selection):
        rows = events.timeline(uid, selection, count=count)
    _show(rows, options["layout"])


@click.command()
@click.argument("day", metavar="DAY", type=click.DateTime(["%Y-%m-%d"]))
@click.option("--week", is_flag=True, help="Report the seven days from DAY on.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.  [default: report-DAY.html]",
)
@click.option(
    "--dimension",
    "dimensions",
    multiple=True,
    default=["uid", "os"],
    show_default=True,
    metavar="DIM",
    help="List the top values of this dimension; may be repeated.",
)
@archive_options
@json_option
def report(
    day: datetime.datetime,
    week: bool,
    output: Path | None,
    dimensions: Sequence[str],
    archive: Path,
    archive_only: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Write a report of one day or week as an HTML file with plots.

    The numbers are those of 'onceflow query' for the same time. The file loads nothing. Days are in UTC.

    \b
    Example:
      onceflow report 2026-02-14 --dimension page --dimension country
    """
    from onceflow.clicks.report import build_report, render

    path = output or Path(f"report-{day:%Y-%m-%d}.html")
    with _opened(archive, archive_only, bootstrap) as events:
        numbers = build_report(events, day.date(), 7 if week else 1, dimensions)
    path.write_text(render(numbers))
    if as_json:
        click.echo(json.dumps({"file": str(path), **asdict(numbers)}, ensure_ascii=False))
    else:
        click.echo(f"{path} has {numbers.period}: {counted(numbers.totals['events'], 'event')}")


@contextlib.contextmanager
def _asked(options: dict[str, Any], by: str | None = None) -> "Iterator[tuple[Events, Selection]]":
    """Open the events and parse the selection of a query's options; note dimensions that no event has."""
    from onceflow.clicks.queries import Selection

    now_ms = time.time_ns() // 1_000_000
    begin, end = (None if text is None else moment_ms(text, now_ms) for text in (options["begin"], options["end"]))
    refuse_reversed(begin, end)
    selection = Selection(begin, end, [_condition(text) for text in options["where"]])
    with _opened(options["archive"], options["archive_only"], options["bootstrap"]) as events:
        for name in dict.fromkeys([*(name for name, _ in selection.where), *([] if by is None else [by])]):
            if doubt := events.doubt(name, selection):
                note(doubt)
        yield events, selection


@contextlib.contextmanager
def _opened(archive: Path, archive_only: bool, bootstrap: str) -> "Iterator[Events]":
    from onceflow.clicks.queries import open_events

    with contextlib.ExitStack() as opened:
        cluster = None if archive_only else opened.enter_context(open_cluster(bootstrap))
        yield opened.enter_context(open_events(archive, cluster))


def _condition(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"'{text}' is not DIM=VALUE, as in os=iOS", param_hint="--where")
    return name, value


def _show(rows: Sequence[dict[str, Any]], layout: str | None) -> None:
    with stdout_may_close():
        if layout is not None:
            print_rows(rows, layout)
        elif not rows:
            note("no event matches")
        else:
            table([[_heading(name) for name in rows[0]], *([_cell(*cell) for cell in row.items()] for row in rows)])


def _heading(name: str) -> str:
    return name.removesuffix("_ms").upper().replace("_", "-")


def _cell(name: str, value: Any) -> Any:
    return moments.iso_text(value) if name in _TIMES else value
