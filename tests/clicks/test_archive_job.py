"""The archive written by real Spark: each event once, whatever is killed."""

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from onceflow.cli import onceflow
from onceflow.clicks import archive as archives
from onceflow.clicks.archive import Archive, archive_files, plan_of
from onceflow.clicks.archive_errors import ArchiveUnreadable
from onceflow.clicks.archive_job import ArchiveSink
from onceflow.clicks.job import StreamingJob
from onceflow.clicks.queries import open_events
from onceflow.client.cluster import Cluster
from onceflow.redis import pool as redis_pool
from onceflow.remedies import Remedy
from onceflow.spark.sink import ExactlyOnce, Proof
from onceflow.spark.testing import BatchSink, NotExactlyOnce, Report, check_foreach_batch
from tests import remedies
from tests.clicks.archived import FIELDS, START_MS, TOPIC, event
from tests.clicks.counted import write
from tests.conftest import RedisProcess
from tests.end_to_end.pipeline import Pipeline
from tests.end_to_end.test_kills import Writer, wait_until


def check(directory: Path, spark: SparkSession, sink: type[ArchiveSink] = ArchiveSink, *, lines: bool) -> Report:
    """Put the archive's sink into the kit; each value is a user."""
    archive = Archive(directory)

    def start(checkpoint: str) -> BatchSink:
        return ExactlyOnce(sink(archive, FIELDS), checkpoint=checkpoint, plan=plan_of(TOPIC, FIELDS))

    def read() -> list[str]:
        version = archive.newest()
        if version is None or not version.files:
            return []
        return list(pandas.read_parquet(archive.paths(version))["uid"])

    def columns(rows: DataFrame) -> DataFrame:
        return rows.selectExpr(
            """binary(concat('{"click_count":1,"uid":"', value, '"}')) AS value""",
            "0 AS partition",
            "0L AS offset",
            f"timestamp_millis({START_MS}) AS timestamp",
        )

    watch = (archives,) if lines else ()
    return check_foreach_batch(start, read, spark=spark, columns=columns, lines=lines, watch=watch)


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two files of similar size be merged."""
    monkeypatch.setattr(archives, "MERGED_FILES", 2)


class WithoutFence(ArchiveSink):
    """Adds its files to the newest version, whatever it was when the batch began."""

    def commit(self, proof: Proof) -> None:
        self._base = self._archive.newest()
        super().commit(proof)


@pytest.mark.campaign
def test_a_sink_without_fence_fails(merges: None, spark: SparkSession, tmp_path: Path) -> None:
    """The conformance kit refuses an archive whose sink has no fence."""
    with pytest.raises(NotExactlyOnce):
        check(tmp_path, spark, WithoutFence, lines=False)


@pytest.mark.campaign
def test_the_sink_dies_at_each_line(merges: None, spark: SparkSession, tmp_path: Path) -> None:
    """The archive's sink passes the conformance kit at every line, merges included."""
    report = check(tmp_path, spark, lines=True)
    print(report)
    assert report.overtaken > 5 and report.blocked == 0, report


@pytest.fixture
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Let commands run in the test's session."""
    monkeypatch.setattr(StreamingJob, "session", lambda _job: contextlib.nullcontext(spark))
    return spark


def test_run_counts_and_archives(
    session: SparkSession, bootstrap: str, topic: str, new_redis: Callable[..., RedisProcess], tmp_path: Path
) -> None:
    """One command counts and archives the same events, also those that arrive before its second start."""
    server, directory = new_redis(), tmp_path / "archive"
    where = ["--bootstrap", bootstrap, "--topic", topic]
    counted = [*where, "--redis", server.url, "--json"]
    once = ["--checkpoint", str(tmp_path / "counts"), "--trigger", "available-now", "--archive", str(directory)]
    for archived in (2, 4):
        write(bootstrap, topic, {0: [event("ann", START_MS), b"nonsense"], 1: [event("bob", 5)]})
        done = CliRunner().invoke(onceflow, ["run", *counted, *once], catch_exceptions=False)
        counts = json.loads(done.stdout)
        assert counts["events"] - counts["bad"] == archived
        with open_events(directory) as events:
            assert events.totals()["events"] == archived
    assert CliRunner().invoke(onceflow, ["verify", *counted]).exit_code == 0
    redis_pool.close()


@pytest.mark.remedy(Remedy.START_ARCHIVE)
def test_archive_is_read_by_all(
    session: SparkSession, bootstrap: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts that archive everything available, through the command; Spark, pandas and DuckDB read the same events."""
    directory = tmp_path / "archive"
    with pytest.raises(ArchiveUnreadable) as raised:
        archive_files(directory)
    remedies.find(Remedy.START_ARCHIVE, raised.value)
    command = shlex.split(Remedy.START_ARCHIVE.format(directory=directory).split("'")[1])[1:]
    options = ["--bootstrap", bootstrap, "--topic", topic, "--trigger", "available-now", "--json"]
    for number in range(2):
        write(bootstrap, topic, {0: [event(f"ann-{number}", START_MS), b"nonsense"], 1: [event("bob", 5, page="/")]})
        done = CliRunner().invoke(onceflow, [*command, *options], catch_exceptions=False)
        archived = 2 * number + 2
        assert json.loads(done.stdout) == {"directory": str(directory), "events": archived, "files": archived}
    monkeypatch.setattr("onceflow.clicks.job.run_jobs", lambda _: None)
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(f"{topic}-2", 1)
    others = ["--bootstrap", bootstrap, "--topic", f"{topic}-2"]
    stopped = CliRunner().invoke(onceflow, [*command, *others], catch_exceptions=False)
    assert stopped.stdout == f"{directory} has 4 events of {topic} in 4 files\n"
    users = ["ann-0", "ann-1", "bob", "bob"]
    files = archive_files(directory)
    assert sorted(pandas.read_parquet(files)["uid"]) == users
    assert sorted(row.uid for row in session.read.parquet(*files).collect()) == users
    with open_events(directory) as events:
        assert events.totals() == {"events": 4, "clicks": 4, "users": 3, "no_time": 0, "future": 0}
        assert events.top("page", count=1) == [{"value": "/", "events": 2, "clicks": 2}]


class ArchivePipeline(Pipeline):
    """Broker and `onceflow archive`, ended by its pid."""

    @property
    def archive(self) -> Archive:
        return Archive(self.directory / "archive")

    def start_driver(self, *options: str, trigger: str = "100 milliseconds") -> None:
        self.start_command("archive", str(self.archive.directory), *self.topic_options, "--trigger", trigger, *options)

    def batch(self) -> int:
        version = self.archive.newest()
        return -1 if version is None else version.proof.batch

    @property
    def events(self) -> int:
        version = self.archive.newest()
        return 0 if version is None else version.rows


@pytest.fixture
def running(tmp_path: Path, java_home: str, spark_python: Path) -> Iterator[ArchivePipeline]:
    with ArchivePipeline(tmp_path, java_home, environment={"PYSPARK_PYTHON": str(spark_python)}) as pipeline:
        pipeline.onceflow("topic", "create", TOPIC, "--partitions", "2", "--bootstrap", pipeline.broker.bootstrap)
        yield pipeline


def archive_through_kills(pipeline: ArchivePipeline, kills: int) -> None:
    """Kill the driver with SIGKILL while events arrive, and then compare the archive with what was written."""
    writer = Writer(pipeline.broker.bootstrap, seed=7)
    writer.start()
    for number in range(kills):
        target = pipeline.batch() + 1 + number % 3
        wait_until(lambda target=target: pipeline.batch() >= target, pipeline)  # type: ignore[misc]
        pipeline.kill_driver(only_python=number % 2 == 1)
    writer.stopping.set()
    writer.join(timeout=90)
    assert not writer.is_alive()
    wait_until(lambda: pipeline.events >= writer.events, pipeline)
    rows = pandas.read_parquet(archive_files(pipeline.archive.directory))
    assert len(rows) == writer.events and not rows.duplicated(["partition", "offset"]).any()
    clicks = {uid: int(sum_) for uid, sum_ in rows.groupby("uid")["clicks"].sum().items()}
    assert clicks == writer.clicks


@pytest.mark.timeout(300)
def test_no_event_is_lost_after_a_kill(running: ArchivePipeline) -> None:
    archive_through_kills(running, 1)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
def test_archive_is_whole_after_twenty_kills(running: ArchivePipeline) -> None:
    """The archive has each event once after 20 kills of its driver."""
    archive_through_kills(running, 20)
