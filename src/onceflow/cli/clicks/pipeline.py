"""`onceflow run` and `onceflow verify`: count events exactly once, and check the counts."""

import json
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceflow.cli import missing_extra
from onceflow.cli.clicks.results import totals
from onceflow.cli.options import bootstrap_option, json_option, redis_options
from onceflow.cli.output import stdout_may_close
from onceflow.cli.security import kafka_settings, security
from onceflow.cli.spark import ignore_pandas_warnings, is_submitted, java_home
from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onceflow.clicks.pipeline import ClickPipeline
    from onceflow.clicks.verify import Difference, Verdict

CHECKPOINTS = Path(".onceflow", "checkpoints")
DIFFERENCES_SHOWN = 20
_TRIGGER = re.compile(r"available-now|[1-9]\d* (millisecond|second|minute|hour)s?")
_MASTER = re.compile(r"local|local\[(\*|[1-9]\d*)(,\d+)?\]|spark://.+|k8s://.+|yarn")


def _trigger(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not _TRIGGER.fullmatch(value):
        raise click.BadParameter(
            f"'{value}' is not a valid trigger; expected available-now or a pause like '5 seconds'", context, parameter
        )
    return value


def _master(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _MASTER.fullmatch(value):
        raise click.BadParameter(
            f"'{value}' is not a valid master; expected local[2], local[*], spark://HOST:PORT, yarn or k8s://…"
        )
    return value


@click.command()
@click.argument("master_argument", metavar="[MASTER]", required=False, callback=_master)
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
    help="Directory of Spark's checkpoint: one per hash key, to be kept as long as the counts.  [default: a directory "
    "in .onceflow/checkpoints, named after topic and hash key]",
)
@click.option(
    "--master",
    default=None,
    callback=_master,
    help="Spark master: local[2], local[*], spark://HOST:PORT, yarn, k8s://…  [default: local[2], or spark-submit's]",
)
@click.option(
    "--ui-port",
    type=click.IntRange(0, 65535),
    help="Serve Spark's UI at this port of 127.0.0.1 and print its address; 0 for any free port.  [default: no UI]",
)
@click.option(
    "--trigger",
    default="5 seconds",
    show_default=True,
    callback=_trigger,
    help="Interval between micro-batches, or available-now: count the current events and exit.",
)
@click.option(
    "--spark-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for Spark's own log.  [default: CHECKPOINT.log; standard error if the checkpoint is a URL or with "
    "spark-submit]",
)
@click.option(
    "--accept-data-loss",
    is_flag=True,
    help="Continue in this run although the log lacks events: deleted before they were counted, or of a topic that was "
    "deleted and created again. The marker records the losses, and 'onceflow verify' reports them.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Maximum restarts in a row (0: none) after Spark, the broker or Redis was unavailable.",
)
@click.option(
    "--max-restart-seconds",
    type=click.FloatRange(min=0),
    default=600,
    show_default=True,
    help="Maximum time of restarts since the first failure in a row, in seconds.",
)
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
    master: str | None,
    ui_port: int | None,
    trigger: str,
    spark_log: Path | None,
    accept_data_loss: bool,
    max_restarts: int,
    max_restart_seconds: float,
    as_json: bool,
) -> None:
    """Count a topic's click events into Redis, each exactly once, until Ctrl-C.

    Stopped or killed at any moment and started again with the same checkpoint, it resumes where it stopped; no event
    is counted twice or left out. Events that cannot be counted are kept for 'onceflow dead'.

    The query restarts when Spark's JVM has ended, a Python worker of Spark started too slowly, or the broker or Redis
    is unavailable: after 1 s, then after twice the pause up to 30 s. A completed micro-batch resets the limits.

    MASTER is the Spark master, as in --master.

    \b
    Examples:
      onceflow run
      onceflow run spark://HOST:7077 --ui-port 4040
      onceflow run --topic visits --hash-key site::visits --trigger available-now
    """
    _check_fields(key_field, value_field)
    master = _chosen_master(master_argument, master)
    _check_ui_port(ui_port)
    from onceflow.clicks.pipeline import ClickPipeline
    from onceflow.clicks.restarts import RestartLimits

    location = _location(checkpoint or str(checkpoint_of(topic, hash_key)))
    pipeline = ClickPipeline(
        bootstrap=bootstrap,
        topic=topic,
        checkpoint=location,
        redis_url=redis_url,
        hash_key=hash_key,
        key_field=key_field,
        value_field=value_field or None,
        master=master,
        trigger=trigger,
        java_home=java_home(),
        log_file=spark_log or _log_beside(location),
        ui_port=ui_port,
        on_session=None if ui_port is None else _print_ui,
        kafka=kafka_settings(),
        accept_data_loss=accept_data_loss,
        restarts=RestartLimits(max_restarts, max_restart_seconds),
    )
    _run(pipeline, as_json)


def _chosen_master(argument: str | None, option: str | None) -> str | None:
    if argument is not None and option not in (None, argument):
        raise click.UsageError(f"the master is given twice: {argument} and --master {option}; leave one out")
    return argument or option or (None if is_submitted() else "local[2]")


def _check_ui_port(ui_port: int | None) -> None:
    if ui_port is not None and is_submitted():
        raise click.UsageError(f"--ui-port does not apply with spark-submit; pass --conf spark.ui.port={ui_port} to it")


def _run(pipeline: "ClickPipeline", as_json: bool) -> None:
    """Run the query until it ends, and print the counts."""
    from onceflow.clicks.results import Results

    pipeline.check()
    _print_start(pipeline)
    ignore_pandas_warnings()
    pipeline.run()
    with Results(pipeline.redis_url, pipeline.hash_key) as results:
        snapshot = results.snapshot()
    shown = json.dumps(snapshot.as_json(), ensure_ascii=False) if as_json else totals(snapshot, pipeline.redis_url)
    click.echo(shown)


def _log_beside(location: str) -> Path | None:
    """Return the log file next to a local checkpoint; None if Spark's log goes to standard error."""
    return None if is_submitted() or "://" in location else Path(f"{location}.log")


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
    click.echo("\n".join(lines), err=True)


def _print_ui(spark: "SparkSession") -> None:
    """Print the address of Spark's UI; if the port is in use, Spark takes the next one."""
    click.echo(f"Spark's UI is at {spark.sparkContext.uiWebUrl}", err=True)


def checkpoint_of(topic: str, hash_key: str) -> Path:
    """Return the default checkpoint, `user_events.app-users-click.651a8a8b`; the checksum separates similar keys."""
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", hash_key)[:60].strip("-")
    return CHECKPOINTS / f"{topic}.{readable}.{zlib.crc32(hash_key.encode()):08x}"


def _location(checkpoint: str) -> str:
    """Return a URL unchanged and a path as absolute, because the JVM may have another working directory."""
    return checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())


@click.command()
@bootstrap_option
@click.option("--topic", default="user_events", show_default=True, help="Topic that was counted.")
@redis_options
@json_option
def verify(bootstrap: str, topic: str, redis_url: str, hash_key: str, as_json: bool) -> None:
    """Recount the log and compare with Redis, field by field; also while the stream is running.

    Counts exactly the offsets that the pipeline has recorded as counted, by the same fields but with separate code.
    Later events are reported as not yet counted.

    Exit codes: 0 equal; 1 different, with a list of the fields; 2 inconclusive, with the reason.
    """
    try:
        from onceflow.clicks import verify as verifying

        verdict = verifying.verify(bootstrap, topic, redis_url, hash_key, security())
        text = json.dumps(verdict.as_json(), ensure_ascii=False) if as_json else _format_verdict(verdict)
    except OnceflowError as error:
        click.echo(f"onceflow: inconclusive: {error}", err=True)
        click.get_current_context().exit(2)
    except ModuleNotFoundError as error:
        click.echo(f"onceflow: inconclusive: {missing_extra('verify', error)}", err=True)
        click.get_current_context().exit(2)
    except Exception as error:  # noqa: BLE001 - Python would exit with 1, which means "different" here.
        click.echo(f"onceflow: inconclusive: verify itself failed ({type(error).__name__}: {error})", err=True)
        click.get_current_context().exit(2)
    with stdout_may_close():
        click.echo(text)
    click.get_current_context().exit(0 if verdict.is_equal else 1)


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
