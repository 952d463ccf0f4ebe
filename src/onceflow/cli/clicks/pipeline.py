"""`onceflow run` and `onceflow verify`: count events exactly once, and check the counts."""

import json
import re
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli import missing_extra
from onceflow.cli.clicks.archive import CHECKPOINT, TRIGGER
from onceflow.cli.clicks.job_options import CHECKPOINTS, job_options, job_settings, lower_priority, to_master
from onceflow.cli.clicks.results import totals
from onceflow.cli.logs import print_error
from onceflow.cli.metrics import metrics_options, serving_metrics
from onceflow.cli.notes import note, progress_bar, quiet_option
from onceflow.cli.options import bootstrap_option, json_option, redis_options, refuse_together
from onceflow.cli.output import stdout_may_close
from onceflow.cli.security import security
from onceflow.cli.spark import ignore_pandas_warnings
from onceflow.cli.times import duration_ms
from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from onceflow.clicks.archive_job import ArchiveJob
    from onceflow.clicks.pipeline import ClickPipeline
    from onceflow.clicks.verify import Difference, Verdict

DIFFERENCES_SHOWN = 20
WINDOW_MS_MIN, WINDOW_MS_MAX = 60_000, 31 * 86_400_000


def _to_window(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    window_ms = None if value is None else duration_ms(value)
    if value is not None and not WINDOW_MS_MIN <= (window_ms or 0) <= WINDOW_MS_MAX:
        raise click.BadParameter(f"'{value}' is not a valid duration; expected 1m to 31d", context, parameter)
    return window_ms


@click.command()
@click.argument("master_argument", metavar="[MASTER]", required=False, callback=to_master)
@bootstrap_option
@click.option("--topic", default="user_events", show_default=True, help="Topic of the events, counted from its start.")
@redis_options
@click.option("--key-field", default="uid", show_default=True, help="Event field to count by.")
@click.option(
    "--value-field",
    default="click_count",
    show_default=True,
    help="Event field to sum; --value-field '' counts events.",
)
@click.option(
    "--checkpoint",
    help="Spark's checkpoint directory: one per hash key; keep it as long as the counts.  [default: a directory in "
    ".onceflow/checkpoints, named after topic and hash key]",
)
@click.option(
    "--measures",
    "measure_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file of further measures: dimensions, minutes, hours and days, distinct users, sessions "
    "(docs/analytics.md).  [default: clicks per user and per os]",
)
@click.option(
    "--time-field",
    default="event_time",
    show_default=True,
    help="Event field of the time, with --measures or --archive.",
)
@click.option(
    "--event-ids",
    "event_ids_ms",
    callback=_to_window,
    metavar="DURATION",
    help="Count events with one event_id once in this time, such as 24h (docs/events.md).  [default: count each event]",
)
@click.option(
    "--archive",
    "archive_directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help=f"Also write the events to Parquet files in DIRECTORY every {TRIGGER}, as 'onceflow archive' does.",
)
@job_options(trigger="5 seconds")
@click.option(
    "--accept-data-loss",
    is_flag=True,
    help="Continue although events were deleted from the log before they were counted, or the topic was recreated; for "
    "this run only. The marker records the losses, and 'onceflow verify' reports them.",
)
@metrics_options
@quiet_option
@json_option
def run(
    master_argument: str | None,
    bootstrap: str,
    topic: str,
    redis_url: str,
    hash_key: str,
    key_field: str,
    value_field: str,
    checkpoint: str | None,
    measure_file: Path | None,
    time_field: str,
    event_ids_ms: int | None,
    archive_directory: Path | None,
    accept_data_loss: bool,
    as_json: bool,
    **job: Any,
) -> None:
    """Count a topic's click events into Redis, each exactly once, until Ctrl-C.

    After a stop or a kill, start it with the same checkpoint; it resumes where it stopped. No event is counted twice or
    skipped. Events that cannot be counted are kept for 'onceflow dead'.

    The query restarts when Spark's JVM has ended, a Python worker of Spark started too slowly, or the broker or Redis
    is unavailable. The first pause is 1 s; it doubles up to 30 s. A completed micro-batch resets the limits.

    MASTER is the Spark master, as in --master.

    \b
    Examples:
      onceflow run
      onceflow run spark://HOST:7077 --ui-port 4040
      onceflow run --topic visits --hash-key site::visits --trigger available-now
      onceflow run --event-ids 24h --measures measures.toml --archive .onceflow/archive
    """
    if measure_file is None and archive_directory is None:
        refuse_together(["time_field"], "--time-field has no effect without --measures or --archive")
    _check_fields(key_field, value_field)
    if master_argument is not None and job["master"] not in (None, master_argument):
        raise click.UsageError(f"the master is given twice: {master_argument} and --master {job['master']}; remove one")
    job["master"] = master_argument or job["master"]
    from onceflow.cli.clicks.measure_file import read_measure_file
    from onceflow.clicks.measures import MeasureSettings
    from onceflow.clicks.pipeline import ClickPipeline

    pipeline = ClickPipeline(
        bootstrap=bootstrap,
        topic=topic,
        redis_url=redis_url,
        hash_key=hash_key,
        key_field=key_field,
        value_field=value_field or None,
        time_field=time_field,
        measures=MeasureSettings() if measure_file is None else read_measure_file(measure_file),
        event_ids_ms=event_ids_ms,
        accept_data_loss=accept_data_loss,
        **job_settings(checkpoint or str(checkpoint_of(topic, hash_key)), job),
    )
    archive = None if archive_directory is None else _archiving(pipeline, archive_directory)
    lower_priority(job["nice"])
    _run_measured(pipeline, archive, as_json, job["metrics_host"], job["metrics_port"])


def _archiving(pipeline: "ClickPipeline", directory: Path) -> "ArchiveJob":
    """Return a job that archives the pipeline's events beside it."""
    from onceflow.clicks.archive_job import ArchiveJob
    from onceflow.clicks.job import AVAILABLE_NOW
    from onceflow.clicks.single_event import ArchivedFields

    return ArchiveJob(
        bootstrap=pipeline.bootstrap,
        topic=pipeline.topic,
        directory=directory.absolute(),
        checkpoint=str(directory.absolute() / CHECKPOINT),
        fields=ArchivedFields(pipeline.key_field, pipeline.value_field, pipeline.time_field),
        trigger=pipeline.trigger if pipeline.trigger == AVAILABLE_NOW else TRIGGER,
        kafka=pipeline.kafka,
        accept_data_loss=pipeline.accept_data_loss,
        restarts=pipeline.restarts,
    )


def _run_measured(
    pipeline: "ClickPipeline", archive: "ArchiveJob | None", as_json: bool, host: str, port: int | None
) -> None:
    """Run the queries, and serve their metrics if there is a port."""
    if port is None:
        _run(pipeline, archive, as_json)
        return
    from onceflow.clicks.run_metrics import RunMetrics

    metrics = RunMetrics(pipeline.bootstrap, security=security())
    with serving_metrics(host, port, metrics.collect):
        _run(metrics.watching(pipeline), archive and metrics.watching(archive), as_json)


def _run(pipeline: "ClickPipeline", archive: "ArchiveJob | None", as_json: bool) -> None:
    """Run the queries until they end, and print the counts."""
    from onceflow.clicks.job import run_jobs
    from onceflow.clicks.results import Results

    jobs = [pipeline] if archive is None else [pipeline, archive]
    for job in jobs:
        job.check()
    _print_start(pipeline)
    if archive is not None:
        note(f"archiving {archive.topic} into {archive.directory}")
    ignore_pandas_warnings()
    run_jobs(jobs)
    with Results(pipeline.redis_url, pipeline.hash_key) as results:
        snapshot = results.snapshot()
    shown = json.dumps(snapshot.as_json(), ensure_ascii=False) if as_json else totals(snapshot, pipeline.redis_url)
    click.echo(shown)


def _check_fields(key_field: str, value_field: str) -> None:
    from onceflow.clicks.events import Rules, WrongField

    try:
        Rules(key_field, value_field or None)
    except WrongField as error:
        raise click.UsageError(f"--key-field and --value-field: {error}") from error


def _print_start(pipeline: "ClickPipeline") -> None:
    from onceflow.redis.address import shown

    into = f"{pipeline.hash_key} at {shown(pipeline.redis_url)}"
    lines = [
        f"counting {pipeline.topic} at {pipeline.bootstrap} into {into}; Ctrl-C stops",
        "'onceflow clicks' and 'onceflow dashboard' show the counts, with the same --redis and --hash-key",
    ]
    if pipeline.log_file is not None:
        lines.append(f"Spark's own log is {pipeline.log_file}")
    note("\n".join(lines))


def checkpoint_of(topic: str, hash_key: str) -> Path:
    """Return the default checkpoint, `user_events.app-users-click.651a8a8b`; the checksum separates similar keys."""
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", hash_key)[:60].strip("-")
    return CHECKPOINTS / f"{topic}.{readable}.{zlib.crc32(hash_key.encode()):08x}"


@click.command()
@bootstrap_option
@click.option("--topic", help="Topic that was counted.  [default: the counts' own]")
@redis_options
@click.option("--record", is_flag=True, help="Record the result in Redis; the dashboard shows the last one.")
@quiet_option
@json_option
def verify(bootstrap: str, topic: str | None, redis_url: str, hash_key: str, record: bool, as_json: bool) -> None:
    """Recount the log and compare every field with Redis, also while the stream is running.

    It recounts exactly the offsets that the pipeline has recorded as counted, with separate code. Later events are
    reported as not yet counted.

    Exit codes: 0 equal; 1 different, with a list of the fields; 2 inconclusive, with the reason.
    """
    try:
        from onceflow.clicks import verify as verifying

        with progress_bar("events") as advance:
            verdict = verifying.verify(bootstrap, topic, redis_url, hash_key, security(), on_progress=advance)
        text = json.dumps(verdict.as_json(), ensure_ascii=False) if as_json else _format_verdict(verdict)
    except OnceflowError as error:
        print_error(f"onceflow: inconclusive: {error}")
        click.get_current_context().exit(2)
    except ModuleNotFoundError as error:
        print_error(f"onceflow: inconclusive: {missing_extra('verify', error)}")
        click.get_current_context().exit(2)
    except Exception as error:  # noqa: BLE001 - Python would exit with 1, which means "different" here.
        print_error(f"onceflow: inconclusive: verify itself failed ({type(error).__name__}: {error})")
        click.get_current_context().exit(2)
    with stdout_may_close():
        click.echo(text)
    if record:
        _record(verdict, redis_url)
    click.get_current_context().exit(0 if verdict.is_equal else 1)


def _record(verdict: "Verdict", redis_url: str) -> None:
    """Record the result; exit with 2 if that fails, with 1 if the counts differ, too."""
    from onceflow.clicks.beside import NotRecorded
    from onceflow.clicks.results import Keys

    try:
        verdict.recorded(int(time.time() * 1000)).record(redis_url, Keys(verdict.hash_key))
    except NotRecorded as error:
        print_error(f"onceflow: {error}")
        click.get_current_context().exit(2 if verdict.is_equal else 1)


def _format_verdict(verdict: "Verdict") -> str:
    recount = verdict.recount
    ranges = ", ".join(
        f"{partition}: from {verdict.marker.since.get(verdict.topic, {}).get(partition, end)} to {end}"
        for partition, end in sorted(verdict.marker.offsets[verdict.topic].items())
    )
    lines = [
        f"{verdict.topic} up to micro-batch {verdict.marker.batch} (offsets {ranges})",
        f"events           {recount.events:>14,}",
        f"clicks           {recount.clicks:>14,}",
        f"users            {len(recount.by_user):>14,}",
        *(f"  os {name[:40]:<11} {count:>14,}" for name, count in _largest(recount.by_os)),
        f"bad events       {recount.bad:>14,}",
        *(f"  {name:<15} {count:>14,}" for name, count in _largest(recount.by_reason)),
        *([f"duplicates       {recount.duplicates:>14,}"] if verdict.marker.counts_ids else []),
        f"not yet counted  {verdict.not_yet_counted:>14,}",
        f"accepted losses  {len(verdict.marker.losses):>14,}",
        *(f"  {loss}" for loss in verdict.marker.losses),
        f"differences      {len(verdict.differences):>14,}",
    ]
    return "\n".join([*lines, *_listed(verdict.differences)])


def _largest(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:20]


def _listed(differences: "list[Difference]") -> list[str]:
    more = len(differences) - DIFFERENCES_SHOWN
    rest = [f"  and {more:,} more; --json lists them all"] if more > 0 else []
    return [f"  {difference}" for difference in differences[:DIFFERENCES_SHOWN]] + rest
