"""`onceflow generate` and `onceflow replay`: events into a topic, made up or from real log files."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceflow.cli.options import bootstrap_option, json_option
from onceflow.cli.output import counted, stdout_may_close
from onceflow.cli.security import security

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceflow.clicks.generator import Event
    from onceflow.clicks.mapping import MappedEvent
    from onceflow.clicks.replay import Progress, Rejects, Replay

INTERRUPTED = 130


@click.command()
@click.option("--topic", default="user_events", show_default=True, help="Where to write; made if it is not there.")
@click.option("--partitions", default=2, show_default=True, type=click.IntRange(1), help="For a topic that is made.")
@click.option(
    "--users",
    type=click.IntRange(1, 10_000_000),
    help="A livelier crowd of so many seeded users, keyed by uid. Without it: ten users with fixed ids in turn, no "
    "key, as in the tutorial article that this pipeline comes from.",
)
@click.option(
    "--interval-ms",
    default=200.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Pause between two events, on average; 0 is as fast as possible.",
)
@click.option("--seed", default=0, show_default=True, help="The same seed makes the same events, but for event_time.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many events.")
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    help="Stop when the topic holds about so many bytes of events. The protocol does not tell a topic's size: the "
    "records that were there before are taken to be as large as those written now.",
)
@click.option(
    "--quiet/--echo",
    default=None,
    help="Print each event as it is sent, or not. Without --users they are printed, with it or --json they are not.",
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

    The events are the article's: {"uid": …, "event_time": now in ms, "os_type": …, "click_count": 0 to 9}.

    \b
    Examples:
      onceflow generate --count 100
      onceflow generate --users 5000 --interval-ms 2 --seed 7
    """
    from onceflow.clicks import generator
    from onceflow.clicks.stopping import stop_on_signals
    from onceflow.client.producer import EventWriter

    if as_json and quiet is False:
        raise click.UsageError("--echo and --json both print to standard output: choose one")
    generator.ensure_topic(bootstrap, topic, partitions, security())
    before = generator.records_in(bootstrap, topic, security()) if max_bytes is not None else 0
    limits = generator.Limits(count, max_bytes, before)
    events: Iterator[Event]
    if users is None:
        events = generator.article_events(seed)
    else:
        events = generator.crowd_events(seed, users)
    sent = _silent if (users is not None or as_json if quiet is None else quiet) else _echo
    due_s = generator.due_times_s(interval_ms, waves=users is not None)
    with stop_on_signals() as stop, EventWriter(bootstrap, topic, security=security()) as writer, stdout_may_close():
        generator.send(events, writer, due_s, limits, wait=stop.wait, sent=sent)
    is_complete = count is None or writer.delivered >= count or not stop.is_set()
    if as_json:
        click.echo(json.dumps({"topic": topic, "sent": writer.delivered, "complete": is_complete}))
    else:
        click.echo(f"{counted(writer.delivered, 'event')} acknowledged by {bootstrap} in topic {topic}", err=True)
    if not is_complete:
        click.get_current_context().exit(INTERRUPTED)


def _echo(value: bytes) -> None:
    sys.stdout.write(value.decode() + "\n")
    sys.stdout.flush()


def _silent(value: bytes) -> None:
    """Print nothing."""


class Assignments(click.ParamType[tuple[str, str]]):
    """`NAME=VALUE`, given to the command as a pair."""

    name = "NAME=VALUE"

    def convert(
        self, value: str | tuple[str, str], parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, separator, assigned = value.partition("=")
        if not (name and separator and assigned):
            self.fail(f"'{value}' is not {self.name}, as in uid=user_id", parameter, context)
        return name, assigned


class Speed(click.ParamType[float]):
    """`max`, given to the command as 0, or a number above 0."""

    name = "max|NUMBER"

    def convert(self, value: str | float, parameter: click.Parameter | None, context: click.Context | None) -> float:
        try:
            speed = 0.0 if value == "max" else float(value)
        except ValueError:
            speed = -1.0
        if not (value == "max" or 0 < speed < float("inf")):
            self.fail(f"'{value}' is neither 'max' nor a number above 0, as in 1 or 60", parameter, context)
        return speed


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--topic", default="user_events", show_default=True, help="Where to write; made if it is not there.")
@click.option("--partitions", default=2, show_default=True, type=click.IntRange(1), help="For a topic that is made.")
@click.option(
    "--input-format",
    type=click.Choice(["csv", "jsonl", "combined"]),
    help="What the files hold, gzip or not: CSV with a header, JSON lines, or Apache's combined log with the fields "
    "ip, time, method, path, status, bytes, referrer, agent. Without it: by the file's name, else by its first line.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    type=Assignments(),
    help="EVENT_FIELD=FILE_FIELD, as in uid=user_id; may be repeated. Event fields are uid, event_time, os_type, "
    "click_count and any other. A combined log needs none: each line is one click of its ip.",
)
@click.option(
    "--const",
    "constants",
    multiple=True,
    type=Assignments(),
    help="EVENT_FIELD=VALUE for every event; may be repeated.",
)
@click.option(
    "--time-format",
    metavar="ms|s|iso|PATTERN",
    help="How the file writes event_time: since 1970 in ms or s, ISO 8601, or a pattern like '%m/%d/%Y %H:%M'. Times "
    "without a zone are UTC.  [default: ms; a combined log's own]",
)
@click.option(
    "--order",
    type=click.Choice(["file", "time"]),
    default="file",
    show_default=True,
    help="Send in the files' order, or sorted by event_time (in bounded memory, through temporary files).",
)
@click.option(
    "--speed",
    type=Speed(),
    default="max",
    show_default=True,
    help="How many times as fast as it happened: 1 is as it happened, 60 an hour a minute; max does not wait.",
)
@click.option(
    "--skip", default=0, type=click.IntRange(0), help="Pass over the first so many events: goes on after a stop."
)
@click.option(
    "--rejects",
    "rejects_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default="rejects.jsonl",
    show_default=True,
    help="Where rows go that cannot become events, as JSON lines of file, line, reason, text. Made anew by the first.",
)
@json_option
@bootstrap_option
def replay(
    files: tuple[Path, ...],
    topic: str,
    partitions: int,
    input_format: str | None,
    fields: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, str], ...],
    time_format: str | None,
    order: str,
    speed: float,
    skip: int,
    rejects_path: Path,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Write real log FILES to a topic as click events, keyed by uid.

    Files are read as a stream, however large. A row that cannot become an event that counts goes into the rejects
    file and stops nothing. Replaying a file twice counts it twice.

    \b
    Examples:
      onceflow replay access.log.gz --topic visits
      onceflow replay clicks.csv --field uid=user_id --field event_time=click_timestamp \\
        --field os_type=click_os --const click_count=1 --order time
    """
    from onceflow.clicks import generator
    from onceflow.clicks.mapping import FieldMapping, WrongMapping
    from onceflow.clicks.readers import InputFormat
    from onceflow.clicks.replay import Progress, Rejects, Replay

    for option, pairs in (("--field", fields), ("--const", constants)):
        twice = [name for name, _ in pairs if [other for other, _ in pairs].count(name) > 1]
        if twice:
            raise click.UsageError(f"{option} gives '{twice[0]}' twice: name it once")
    mapping = FieldMapping(dict(fields), dict(constants), time_format)
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
    document = _replayed(progress, rejects, topic, seconds)
    click.echo(json.dumps(document) if as_json else _summary(document, progress))
    if not progress.is_complete:
        click.echo(f"onceflow: interrupted; the same command with --skip {progress.position} goes on", err=True)
        click.get_current_context().exit(INTERRUPTED)


def _send(plan: "Replay", events: "Iterator[MappedEvent]", progress: "Progress", bootstrap: str, topic: str) -> None:
    from onceflow.clicks import replay as replaying
    from onceflow.clicks.stopping import stop_on_signals
    from onceflow.client.producer import EventWriter

    with stop_on_signals() as stop, EventWriter(bootstrap, topic, linger_ms=20, security=security()) as writer:

        def wait(pause_s: float) -> bool:
            return stop.wait(pause_s) if pause_s else stop.is_set()

        replaying.send(plan, events, writer, progress, _told(progress, wait))


def _told(progress: "Progress", wait: "Callable[[float], bool]") -> "Callable[[float], bool]":
    """On a terminal, tell every few seconds how far it is."""
    if not sys.stderr.isatty():
        return wait
    told_at = time.monotonic()

    def wait_and_tell(pause_s: float) -> bool:
        nonlocal told_at
        if progress.sent % 1000 == 0 and time.monotonic() - told_at > 5:
            told_at = time.monotonic()
            click.echo(f"{counted(progress.position, 'event')} so far", err=True)
        return wait(pause_s)

    return wait_and_tell


def _replayed(progress: "Progress", rejects: "Rejects", topic: str, seconds: float) -> dict[str, object]:
    return {
        "topic": topic,
        "sent": progress.sent,
        "skipped": progress.skipped,
        "rejected": rejects.count,
        "rejects_file": str(rejects.path) if rejects.count else None,
        "complete": progress.is_complete,
        "go_on_with_skip": None if progress.is_complete else progress.position,
        "seconds": round(seconds, 3),
    }


def _summary(document: "dict[str, object]", progress: "Progress") -> str:
    seconds = float(str(document["seconds"]))
    rate = progress.sent / max(seconds, 0.001)
    sent = f"{counted(progress.sent, 'event')} sent to {document['topic']}"
    lines = [f"{sent} in {seconds:.1f} s ({rate:,.0f}/s), all acknowledged"]
    if progress.skipped:
        lines.append(f"{counted(progress.skipped, 'event')} passed over")
    if document["rejected"]:
        lines.append(
            f"{counted(int(str(document['rejected'])), 'row')} rejected: {document['rejects_file']} says which and why"
        )
    lines.append("replaying the same files again would count them twice")
    return "\n".join(lines)
