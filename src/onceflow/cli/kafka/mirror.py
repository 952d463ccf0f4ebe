"""`onceflow mirror`: topics of one cluster copied to another, exactly once."""

import contextlib
import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.metrics import metrics_options, serving_metrics
from onceflow.cli.notes import note, quiet_option
from onceflow.cli.options import checked_bootstrap, json_lines_option, security_option
from onceflow.cli.output import counted, stdout_may_close
from onceflow.cli.refusals import explaining
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.metrics_core import Metric

    from onceflow.client.cluster import Cluster
    from onceflow.mirror.progress import Progress
    from onceflow.mirror.run import Mirror
    from onceflow.mirror.session import Settings

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def _pattern(context: click.Context, parameter: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    if value == "":
        raise click.BadParameter("'' matches no name; '.*' matches every one")
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"'{value}' is not a valid regular expression: {error}") from error


def _name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not NAME.fullmatch(value):
        raise click.BadParameter(
            f"'{value}' is not a valid name; expected 1 to 100 ASCII letters, digits, '.', '_' and '-'"
        )
    return value


_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--from", "source", required=True, callback=checked_bootstrap, metavar="HOST:PORT[,...]", help="Cluster to read."
)
@click.option(
    "--to", "target", required=True, callback=checked_bootstrap, metavar="HOST:PORT[,...]", help="Cluster to write."
)
@click.option(
    "--topics",
    required=True,
    callback=_pattern,
    metavar="REGEX",
    help="Regular expression for the whole names of topics; also those that are created while the mirror runs.",
)
@click.option(
    "--name",
    default="mirror",
    show_default=True,
    callback=_name,
    help="Name of the mirror, under which the target keeps its positions. Of two with one name only the newer runs.",
)
@click.option(
    "--groups",
    callback=_pattern,
    metavar="REGEX",
    help="Regular expression for the whole names of consumer groups whose offsets are translated; groups with members "
    "in the target keep theirs.  [default: no groups]",
)
@click.option(
    "--groups-every",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two translations.",
)
@click.option("--once", is_flag=True, help="End when everything is mirrored that the source has at the start.")
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="read_uncommitted also mirrors aborted transactions, and open ones before their end.",
)
@click.option(
    "--compression", type=click.Choice(CODECS), help="Compression of the copies.  [default: that of the source]"
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help="Replicas of created topics.  [default: as in the source, at most the number of the target's brokers]",
)
@click.option("--append", is_flag=True, help="Also mirror to topics that have records which the mirror did not write.")
@click.option(
    "--accept-data-loss",
    is_flag=True,
    help="Continue after records were lost, or a topic was created again, as near to the position as possible.",
)
@click.option(
    "--interval-ms",
    type=click.IntRange(0, 10_000),
    default=100,
    show_default=True,
    help="Time in ms during which records are collected for one transaction.",
)
@click.option(
    "--retry-timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum time without progress while a cluster cannot be reached.",
)
@click.option(
    "--report-every",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reports of the progress.",
)
@click.option("--from-config", type=_FILE, metavar="FILE", help="TLS and SASL settings of --from only; overrides -X.")
@click.option("--to-config", type=_FILE, metavar="FILE", help="TLS and SASL settings of --to only; overrides -X.")
@security_option
@metrics_options
@quiet_option
@json_lines_option
def mirror(source: str, target: str, **options: Any) -> None:
    """Copy topics from one cluster to another, exactly once, until Ctrl-C.

    Records keep partition, order, key, value, headers and timestamp. Topics are created and enlarged as in the source.
    After whatever stopped it, the mirror continues where the target's transactions ended. The lag is that of the group
    onceflow-mirror.NAME in the source.

    \b
    Examples:
      onceflow mirror --from 127.0.0.1:9092 --to backup.example.org:9092 --topics 'visits|orders'
      onceflow mirror --from 127.0.0.1:9092 --to backup.example.org:9092 --topics '.*' --once --json
    """
    from onceflow.mirror.run import Mirror

    with (
        _cluster(source, options["from_config"]) as from_cluster,
        _cluster(target, options["to_config"]) as to_cluster,
        stdout_may_close(),
    ):
        running = Mirror(from_cluster, to_cluster, _settings(options))
        collect = _collector(running) if options["metrics_port"] is not None else _no_metrics
        with (
            serving_metrics(options["metrics_host"], options["metrics_port"], collect),
            _stopping() as stop,
            _reporting(running.progress, options["report_every"], as_json=options["as_json"]),
            _translating(source, target, options, stop),
            explaining(_refusals(target, options["replication_factor"])),
        ):
            running.run(stop.is_set, once=options["once"])


def _cluster(bootstrap: str, path: Path | None) -> "Cluster":
    from onceflow.cli.config_file import read
    from onceflow.cli.security import kafka_settings
    from onceflow.client.cluster import Cluster
    from onceflow.client.errors import InvalidSecurity
    from onceflow.client.security import read_security

    settings = kafka_settings() | ({} if path is None else read(path))
    try:
        return Cluster(bootstrap, security=read_security(settings))
    except InvalidSecurity as error:
        raise click.UsageError(f"{path}: {error}") from error


def _refusals(target: str, replication_factor: int | None) -> dict[ErrorCode, str]:
    if replication_factor is None:
        return {}
    reason = f"--replication-factor {replication_factor}: more than the brokers of {target}; {Remedy.FEWER_REPLICAS}"
    return {ErrorCode.invalid_replication_factor: reason}


def _settings(options: dict[str, Any]) -> "Settings":
    from onceflow.mirror.session import Settings
    from onceflow.wire.codecs import Codec

    compression = options["compression"]
    return Settings(
        name=options["name"],
        topics=options["topics"],
        read_committed=options["isolation"] == "read_committed",
        codec=None if compression is None else Codec[compression.upper()],
        accepts_loss=options["accept_data_loss"],
        appends=options["append"],
        replication_factor=options["replication_factor"],
        interval_ms=options["interval_ms"],
        retry_timeout_s=options["retry_timeout"],
    )


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM and SIGHUP set; a second signal interrupts at once."""
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise click.Abort
        stop.set()
        note("stopping after the current transaction; Ctrl-C again to stop at once")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, end) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _reporting(progress: "Progress", every_s: float, *, as_json: bool) -> Iterator[None]:
    """Report the progress in a thread, and a last time at the end, unless an error stopped it before any record."""
    ended = threading.Event()

    def report() -> None:
        if as_json:
            click.echo(json.dumps(progress.as_json()))
        else:
            note(
                f"{counted(progress.records, 'record')} in {counted(progress.transactions, 'transaction')}, "
                f"lag {counted(progress.lag_messages, 'message')}"
            )

    def repeat() -> None:
        while not ended.wait(every_s):
            report()

    thread = threading.Thread(target=repeat, name="mirror-report", daemon=True)
    thread.start()
    has_failed = True
    try:
        yield
        has_failed = False
    finally:
        ended.set()
        thread.join()
        if progress.records or not has_failed:
            report()


@contextlib.contextmanager
def _translating(source: str, target: str, options: dict[str, Any], stop: threading.Event) -> Iterator[None]:
    """Translate the offsets of groups in a thread, and a last time at the end; its error stops the mirror."""
    if options["groups"] is None:
        yield
        return
    from onceflow.errors import OnceflowError
    from onceflow.mirror.groups import GroupOffsets, follow_groups
    from onceflow.mirror.positions import Names

    ended = threading.Event()
    errors: list[OnceflowError] = []
    with _cluster(source, options["from_config"]) as from_cluster, _cluster(target, options["to_config"]) as to_cluster:
        offsets = GroupOffsets(from_cluster, to_cluster, Names(options["name"]), options["groups"])

        def follow() -> None:
            try:
                follow_groups(offsets, ended, options["groups_every"])
            except OnceflowError as error:
                errors.append(error)
                stop.set()

        thread = threading.Thread(target=follow, name="mirror-groups", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
    if errors:
        raise errors[0]


def _collector(running: "Mirror") -> "Callable[[], Iterable[Metric]]":
    from onceflow.mirror.metrics import collector

    return collector(running.progress)


def _no_metrics() -> "Iterable[Metric]":
    return ()
