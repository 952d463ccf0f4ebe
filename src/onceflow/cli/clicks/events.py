"""`onceflow generate` and `onceflow replay`: write generated events, or those of log files, to a topic."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onceflow.cli.logs import print_error, print_line
from onceflow.cli.notes import note, quiet_option
from onceflow.cli.options import bootstrap_option, json_option
from onceflow.cli.output import counted, stdout_may_close
from onceflow.cli.security import security
from onceflow.remedies import Remedy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceflow.clicks.ingest.generator import Event
    from onceflow.clicks.ingest.mapping import MappedEvent
    from onceflow.clicks.ingest.replay import Progress, Rejects, Replay

_Command = TypeVar("_Command", bound=Callable[..., Any])
INTERRUPTED = 130


def target_options(command: _Command) -> _Command:
    """Add `--topic` and `--partitions`: where a command writes events."""
    command = click.option(
        "--partitions",
        default=2,
        show_default=True,
        type=click.IntRange(1),
        help="Number of partitions, if the topic is created.",
    )(command)
    return click.option(
        "--topic", default="user_events", show_default=True, help="Topic to write to; created if it does not exist."
    )(command)


@click.command()
@target_options
@click.option(
    "--users",
    type=click.IntRange(1, 10_000_000),
    help="Number of generated users; events are keyed by uid. Without it: ten users with fixed ids in turn and no "
    "key, as in the tutorial article that this pipeline follows.",
)
@click.option(
    "--interval-ms",
    default=200.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Average pause between two events, in ms; 0 is as fast as possible.",
)
@click.option(
    "--seed", default=0, show_default=True, help="Random seed: the same seed gives the same events, except event_time."
)
@click.option("--count", type=click.IntRange(1), help="Stop after this number of events.")
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    help="Stop when the topic holds about this number of bytes of events. Existing records are estimated to be as "
    "large as the new ones, because the protocol does not report a topic's size.",
)
@click.option(
    "--quiet/--echo",
    default=None,
    help="Whether to print each event.  [default: --echo; --quiet with --users or --json]",
)
@json_option
@bootstrap_option
def generate(
    topic: str,
    partitions: int,
    users: int | None,
    interval_ms: float,
    seed: int,
    count: int | None,
    max_bytes: int | None,
    quiet: bool | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Write click events to a topic until Ctrl-C, or until --count or --max-bytes is reached.

    An event is {"uid": …, "event_time": now in ms, "os_type": …, "click_count": 0 to 9}.

    \b
    Examples:
      onceflow generate --count 100
      onceflow generate --users 5000 --interval-ms 2 --seed 7
    """
    from onceflow.clicks.ingest import generator
    from onceflow.clicks.stopping import stop_on_signals
    from onceflow.client.producer import EventWriter

    if as_json and quiet is False:
        raise click.UsageError("--echo and --json both print to standard output; choose one")
    generator.ensure_topic(bootstrap, topic, partitions, security())
    before = generator.records_in(bootstrap, topic, security()) if max_bytes is not None else 0
    limits = generator.Limits(count, max_bytes, before)
    events: Iterator[Event]
    if users is None:
        events = generator.article_events(seed)
    else:
        events = generator.crowd_events(seed, users)
    sent = _ignore if (users is not None or as_json if quiet is None else quiet) else _echo
    due_s = generator.due_times_s(interval_ms, waves=users is not None)
    writer = EventWriter(bootstrap, topic, security=security(), notify=note)
    with stop_on_signals() as stop, writer, stdout_may_close():
        generator.send(events, writer, due_s, limits, wait=stop.wait, sent=sent)
    is_complete = count is None or writer.delivered >= count or not stop.is_set()
    if as_json:
        click.echo(json.dumps({"topic": topic, "sent": writer.delivered, "complete": is_complete}))
    else:
        print_line(f"{counted(writer.delivered, 'event')} acknowledged by {bootstrap} in topic {topic}")
    if not is_complete:
        click.get_current_context().exit(INTERRUPTED)


def _echo(value: bytes) -> None:
    sys.stdout.write(value.decode() + "\n")
    sys.stdout.flush()


def _ignore(value: bytes) -> None:
    """Print nothing."""


class Assignments(click.ParamType[tuple[str, str]]):
    """Parameter type `NAME=VALUE`; the value is a pair."""

    name = "NAME=VALUE"

    def convert(
        self, value: str | tuple[str, str], parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, separator, assigned = value.partition("=")
        if not (name and separator and assigned):
            self.fail(f"'{value}' is not {self.name}, such as uid=user_id", parameter, context)
        return name, assigned


class Speed(click.ParamType[float]):
    """Parameter type `max` (the value is 0) or a number above 0."""

    name = "max|NUMBER"

    def convert(self, value: str | float, parameter: click.Parameter | None, context: click.Context | None) -> float:
        try:
            speed = 0.0 if value == "max" else float(value)
        except ValueError:
            speed = -1.0
        if not (value == "max" or 0 < speed < float("inf")):
            self.fail(
                f"'{value}' is not a valid speed; expected max or a number above 0, such as 1 or 60", parameter, context
            )
        return speed


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@target_options
@click.option(
    "--input-format",
    type=click.Choice(["csv", "jsonl", "combined"]),
    help="Format of the files, gzip or not: CSV with a header (columns separated by commas, or by semicolons or tabs "
    "if the header has no comma), JSON lines, or Apache's combined log with the fields ip, time, method, path, status, "
    "bytes, referrer, agent.  [default: detected from the name or the first line]",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    type=Assignments(),
    help="EVENT_FIELD=FILE_FIELD, such as uid=user_id; may be repeated. Event fields are uid, event_time, os_type, "
    "click_count and any others. Not needed for a combined log: each line is one click of its ip.",
)
@click.option(
    "--const",
    "constants",
    multiple=True,
    type=Assignments(),
    help="EVENT_FIELD=VALUE for every event; may be repeated.",
)
@click.option(
    "--all-fields",
    is_flag=True,
    help="Keep every field of the files, with its type: JSON values as they are; a plain number of a CSV file or a "
    "combined log is a number. Without it: only the event's fields and those of --field, as text.",
)
@click.option(
    "--time-format",
    metavar="ms|s|iso|PATTERN",
    help="Format of event_time in the files: ms or s since 1970, ISO 8601, or a pattern like '%m/%d/%Y %H:%M'. Times "
    "without a zone are UTC.  [default: ms; for combined logs, their own format]",
)
@click.option(
    "--order",
    type=click.Choice(["file", "time"]),
    default="file",
    show_default=True,
    help="Send in the order of the files, or sorted by event_time (in bounded memory, with temporary files).",
)
@click.option(
    "--speed",
    type=Speed(),
    metavar="max|NUMBER",
    default="max",
    show_default=True,
    help="Replay speed relative to event time: 1 is real time, 60 replays an hour in a minute, max does not wait.",
)
@click.option(
    "--skip",
    default=0,
    type=click.IntRange(0),
    metavar="N",
    help="Skip the first N events, to resume an interrupted replay.",
)
@click.option(
    "--rejects",
    "rejects_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default="rejects.jsonl",
    show_default=True,
    help="File for rows that cannot become events: JSON lines with file, line, reason and text. Overwritten when the "
    "first row is rejected.",
)
@quiet_option
@json_option
@bootstrap_option
def replay(
    files: tuple[Path, ...],
    topic: str,
    partitions: int,
    input_format: str | None,
    fields: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, str], ...],
    all_fields: bool,
    time_format: str | None,
    order: str,
    speed: float,
    skip: int,
    rejects_path: Path,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Write log FILES to a topic as click events, keyed by uid.

    Files of any size are read as a stream. A row that cannot become a valid event goes to the rejects file; the replay
    continues. If no row can, the exit code is 1. Replaying a file twice counts it twice.

    \b
    Examples:
      onceflow replay access.log.gz --topic visits
      onceflow replay clicks.csv --field uid=user_id --field event_time=click_timestamp \\
        --field os_type=click_os --const click_count=1 --order time
    """
    from onceflow.clicks.ingest import generator
    from onceflow.clicks.ingest.mapping import FieldMapping, WrongMapping
    from onceflow.clicks.ingest.readers import InputFormat
    from onceflow.clicks.ingest.replay import Progress, Rejects, Replay

    mapping = FieldMapping(_by_name("--field", fields), _by_name("--const", constants), time_format, all_fields)
    try:
        mapping.check()
    except WrongMapping as error:
        raise click.UsageError(str(error)) from error
    plan = Replay(
        files,
        mapping,
        InputFormat(input_format) if input_format else None,
        order == "time",
        speed or None,
        skip,
    )
    plan.check()
    progress, started = Progress(), time.monotonic()
    with Rejects(rejects_path) as rejects:
        events = plan.events(rejects)
        generator.ensure_topic(bootstrap, topic, partitions, security())
        _send(plan, events, progress, bootstrap, topic)
    seconds = time.monotonic() - started
    document = _document(progress, rejects, topic, seconds)
    click.echo(json.dumps(document) if as_json else _summary(document, progress))
    _exit_unless_sent(progress, rejects)


def _exit_unless_sent(progress: "Progress", rejects: "Rejects") -> None:
    """Exit with a message after an interrupt, or if no row could become an event."""
    if not progress.is_complete:
        print_error(f"onceflow: interrupted; the same command with --skip {progress.position} resumes")
        click.get_current_context().exit(INTERRUPTED)
    if rejects.count and not progress.sent + progress.skipped:
        print_error(
            f"onceflow: no row could become an event: all reasons are in {rejects.path}, first: {rejects.first_reason}"
        )
        click.get_current_context().exit(1)


def _by_name(option: str, pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    names = [name for name, _ in pairs]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise click.UsageError(f"{option} gives '{repeated[0]}' twice; give it once")
    return dict(pairs)


def _send(plan: "Replay", events: "Iterator[MappedEvent]", progress: "Progress", bootstrap: str, topic: str) -> None:
    from onceflow.clicks.ingest import replay as replaying
    from onceflow.clicks.stopping import stop_on_signals
    from onceflow.client.producer import EventWriter

    writer = EventWriter(bootstrap, topic, linger_ms=20, security=security(), notify=note)
    with stop_on_signals() as stop, writer:

        def wait(pause_s: float) -> bool:
            return stop.wait(pause_s) if pause_s else stop.is_set()

        replaying.send(plan, events, writer, progress, _with_progress(progress, wait))


def _with_progress(progress: "Progress", wait: "Callable[[float], bool]") -> "Callable[[float], bool]":
    """Return `wait` that also prints the progress every 5 s, if standard error is a terminal."""
    if not sys.stderr.isatty():
        return wait
    printed_at = time.monotonic()

    def wait_and_print(pause_s: float) -> bool:
        nonlocal printed_at
        if progress.sent % 1000 == 0 and time.monotonic() - printed_at > 5:
            printed_at = time.monotonic()
            note(f"{counted(progress.position, 'event')} so far")
        return wait(pause_s)

    return wait_and_print


def _document(progress: "Progress", rejects: "Rejects", topic: str, seconds: float) -> dict[str, object]:
    return {
        "topic": topic,
        "sent": progress.sent,
        "skipped": progress.skipped,
        "without_time": progress.without_time,
        "rejected": rejects.count,
        "rejects_file": str(rejects.path) if rejects.count else None,
        "complete": progress.is_complete,
        "resume_with_skip": None if progress.is_complete else progress.position,
        "seconds": round(seconds, 3),
    }


def _summary(document: "dict[str, object]", progress: "Progress") -> str:
    seconds = float(str(document["seconds"]))
    rate = progress.sent / max(seconds, 0.001)
    sent = f"{counted(progress.sent, 'event')} sent to {document['topic']}"
    lines = [f"{sent} in {seconds:.1f} s ({rate:,.0f}/s), all acknowledged"]
    if progress.skipped:
        lines.append(f"{counted(progress.skipped, 'event')} skipped")
    if document["rejected"]:
        lines.append(
            f"{counted(int(str(document['rejected'])), 'row')} rejected; {document['rejects_file']} lists the reasons"
        )
    if progress.without_time:
        without = counted(progress.without_time, "event")
        lines.append(f"{without} without event_time, counted at the time of the record: {Remedy.NAME_TIME}")
    if progress.sent:
        lines.append("replaying the same files again counts them twice")
    return "\n".join(lines)
