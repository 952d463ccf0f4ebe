"""The remedies in messages about a checkpoint or a user's own sink, carried out."""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.cli import onceflow
from onceflow.remedies import Remedy
from onceflow.spark.errors import MarkerRefused
from onceflow.spark.exactly_once import checkpoint_lock
from onceflow.spark.exactly_once.checkpoint import (
    Checkpoint,
    CheckpointNotSynced,
    CheckpointUnreadable,
    LocalCheckpoint,
)
from onceflow.spark.exactly_once.checkpoint_lock import CheckpointInUse, take_lock
from onceflow.spark.exactly_once.proof import Proof, proof_of
from onceflow.spark.exactly_once.torn_files import set_aside, torn_files
from onceflow.spark.kafka_sink import kafka_sink
from onceflow.spark.offsets import MalformedOffsets
from onceflow.spark.sink import write_batch
from tests import remedies
from tests.spark.exactly_once.test_checkpoint import SparkFiles, files
from tests.spark.exactly_once.test_torn_files import tear, two_batches
from tests.spark.simulated_query import Services, Started
from tests.spark.slow_workers import finish
from tests.spark.test_hard_cases import chance, running
from tests.spark.test_redis_sink_stream import Job, Send, job, to_rows
from tests.spark.test_sink import Table, TableSink, batch, rows_of, write

__all__ = ["chance", "files", "job", "running", "two_batches"]


def planned(directory: Path, number: int) -> tuple[int, int]:
    """Return the offset range of the batch; its topic has one partition."""
    (part,) = LocalCheckpoint(directory).batch(number, plan="p", plan_version=1).ranges
    return part.begin, part.end


@pytest.mark.remedy(Remedy.OWN_CHECKPOINT)
def test_checkpoint_of_another_query(two_batches: SparkFiles, tmp_path: Path) -> None:
    """It is unused, has no plan of the batch, or lacks that plan when the sink syncs it."""
    other = SparkFiles(tmp_path / "other")
    with pytest.raises(CheckpointUnreadable) as without_plan:
        planned(other.directory, 1)
    with pytest.raises(CheckpointUnreadable) as unsynced:
        LocalCheckpoint(other.directory).prepare(1)
    with pytest.raises(CheckpointUnreadable) as empty:
        planned(tmp_path / "none", 1)
    for raised in (without_plan, unsynced, empty):
        remedies.find(Remedy.OWN_CHECKPOINT, raised.value)
    LocalCheckpoint(two_batches.directory).prepare(1)
    assert planned(two_batches.directory, 1) == (5, 6)


@pytest.mark.remedy(Remedy.ADD_CHECKPOINT)
@pytest.mark.parametrize("is_used", [False, True])
def test_query_without_checkpoint_location(job: Job, send: Send, is_used: bool) -> None:
    """Spark gives such a query a temporary one, which the sink does not have; its own may be new or not."""
    send(["a"])
    if is_used:
        job.run(job.counted())
    sink = job.sink()
    with pytest.raises(StreamingQueryException, match=r"query \S+ has no checkpointLocation: add") as raised:
        finish(job.counted().writeStream.foreachBatch(sink))
    sink.close()
    assert remedies.find(Remedy.ADD_CHECKPOINT, raised.value) == {"location": str(job.checkpoint)}
    job.run(job.counted())
    assert job.counts() == {b"a": 1}


@pytest.mark.remedy(Remedy.OWN_CHECKPOINT)
def test_query_with_another_checkpoint(job: Job, send: Send, tmp_path: Path) -> None:
    send(["a"])
    sink, own = job.sink(), tmp_path / "own"
    with pytest.raises(StreamingQueryException) as raised:
        finish(job.counted().writeStream.foreachBatch(sink).option("checkpointLocation", str(own)))
    sink.close()
    remedies.find(Remedy.OWN_CHECKPOINT, raised.value)
    assert f"has the checkpointLocation file:{own} and its sink has {job.checkpoint}: " in str(raised.value)
    job.run(job.counted())
    assert job.counts() == {b"a": 1}


@pytest.mark.remedy(Remedy.NEW_CHECKPOINT)
@pytest.mark.parametrize("lines", [[{"clicks": {"0": 6}}, {"views": {"0": 1}}], ["-", {"clicks": {"0": 6}}]])
def test_changed_sources(files: SparkFiles, tmp_path: Path, lines: list[Any]) -> None:
    """The query gained a source, or a source has its first offsets."""
    files.plan(0, *([{"clicks": {"0": 5}}] if len(lines) == 2 and lines[0] != "-" else ["-", "-"]))
    files.plan(1, *lines)
    with pytest.raises(CheckpointUnreadable) as raised:
        planned(files.directory, 1)
    remedies.find(Remedy.NEW_CHECKPOINT, raised.value)
    new = SparkFiles(tmp_path / "new")
    new.plan(0, *lines)
    assert LocalCheckpoint(new.directory).batch(0, plan="p", plan_version=1).ranges


@pytest.mark.remedy(Remedy.ONE_SOURCE_PER_TOPIC)
def test_topic_read_twice(job: Job, send: Send, tmp_path: Path) -> None:
    """A union of a DataFrame with itself does so, too."""
    files = SparkFiles(tmp_path / "twice")
    for number in range(2):
        ends: dict[str, object] = {"clicks": {"0": number}}
        files.plan(number, ends, ends)
    with pytest.raises(CheckpointUnreadable) as raised:
        planned(files.directory, 1)
    remedies.find(Remedy.ONE_SOURCE_PER_TOPIC, raised.value)
    send(["a"])
    both = F.explode(F.array(F.col("value"), F.concat("value", F.lit("!"))))
    job.run(to_rows(job.events().select(both.alias("value"))))
    assert job.counts() == {b"a": 1, b"a!": 1}


@pytest.mark.remedy(Remedy.ROWS_THROUGH_KAFKA)
def test_rows_of_another_source(job: Job, tmp_path: Path) -> None:
    """Spark's file source keeps its own kind of offsets."""
    files = SparkFiles(tmp_path / "lines")
    files.plan(0, {"logOffset": 0})
    with pytest.raises(MalformedOffsets, match="is damaged, or of a source other than") as raised:
        planned(files.directory, 0)
    remedies.find(Remedy.ROWS_THROUGH_KAFKA, raised.value)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lines.txt").write_text("ada\neve\n")
    lines = job.spark.readStream.text(str(tmp_path / "in"))
    to_kafka = kafka_sink(job.bootstrap, topic=job.topic, mode="at-least-once")
    finish(lines.writeStream.foreachBatch(to_kafka).option("checkpointLocation", str(tmp_path / "to-kafka")))
    to_kafka.close()
    job.run(job.counted())
    assert job.counts() == {b"ada": 1, b"eve": 1}


@pytest.mark.remedy(Remedy.LOOK_AT_DISK)
def test_disk_without_sync(two_batches: SparkFiles) -> None:
    """The message contains the operating system's error."""

    def broken(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with pytest.raises(CheckpointNotSynced, match=r"Input/output error: '.*'") as raised:
        LocalCheckpoint(two_batches.directory, sync=broken).prepare(1)
    remedies.find(Remedy.LOOK_AT_DISK, raised.value)
    LocalCheckpoint(two_batches.directory).prepare(1)


# Torn files


@pytest.mark.remedy(Remedy.PUT_FILE_BACK, Remedy.FORGET_SINK)
@pytest.mark.parametrize("has_copy", [True, False])
def test_damaged_checkpoint_file(
    running: Services, chance: random.Random, new_query: Started, tmp_path: Path, has_copy: bool
) -> None:
    query = new_query(running, chance, batches=4, with_kafka=False)
    path = query.checkpoint / "offsets" / str(query.committed)
    shutil.copy(path, tmp_path / "copy")
    tear(path)
    with pytest.raises(CheckpointUnreadable) as raised:
        query.start_once(query.committed + 1)
    remedies.find(Remedy.PUT_FILE_BACK, raised.value)
    remedies.find(Remedy.FORGET_SINK, raised.value)
    if has_copy:
        shutil.copy(tmp_path / "copy", path)
    else:
        where = ["--redis", running.redis.url, "--hash-key", query.name, "--checkpoint", str(query.checkpoint)]
        done = CliRunner().invoke(onceflow, ["sink", "reset", "redis", *where, "--execute"])
        assert done.exit_code == 0, done.output
        query.query_id = "00000000-0000-4000-8000-00000000000b"
    query.run(2)
    query.check()


class Remote(LocalCheckpoint):
    """A checkpoint on remote storage, where no file can be renamed."""

    set_aside = Checkpoint.set_aside


@pytest.mark.remedy(Remedy.RESTORE_FILE)
@pytest.mark.parametrize("is_deleted", [True, False])
def test_torn_file_on_remote_storage(two_batches: SparkFiles, tmp_path: Path, is_deleted: bool) -> None:
    path = two_batches.directory / "offsets" / "1"
    shutil.copy(path, tmp_path / "copy")
    held = proof_of(LocalCheckpoint(two_batches.directory).batch(0, plan="p", plan_version=1), "counts", None)
    tear(path)
    checkpoint = Remote(two_batches.directory)
    with pytest.raises(CheckpointUnreadable) as raised:
        set_aside(checkpoint, torn_files(checkpoint), held)
    remedies.find(Remedy.RESTORE_FILE, raised.value)
    if is_deleted:
        path.unlink()
    else:
        shutil.copy(tmp_path / "copy", path)
    set_aside(checkpoint, torn_files(checkpoint), held)
    assert checkpoint.newest_batch("offsets") == (0 if is_deleted else 1)


# Checkpoints in use


@pytest.mark.remedy(Remedy.CLOSE_SINK, Remedy.OTHER_NAME, Remedy.CHECKPOINT_OF_ITS_OWN, Remedy.STOP_QUERY)
def test_checkpoint_in_use(
    spark: SparkSession, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = take_lock(spark, checkpoint, "a")
    with pytest.raises(CheckpointInUse, match="another sink of this process") as by_sink:
        take_lock(spark, checkpoint, "a")
    remedies.find(Remedy.CLOSE_SINK, by_sink.value)
    remedies.find(Remedy.OTHER_NAME, by_sink.value)
    take_lock(spark, checkpoint, "b").release()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_lock, "_held", {})
        with pytest.raises(CheckpointInUse, match="another query of this JVM") as by_query:
            take_lock(spark, checkpoint, "a")
        remedies.find(Remedy.STOP_QUERY, by_query.value)
    for raised in (by_sink, by_query):
        remedies.find(Remedy.CHECKPOINT_OF_ITS_OWN, raised.value)
    take_lock(spark, tmp_path / "own", "a").release()
    first.release()
    take_lock(spark, checkpoint, "a").release()


# Users' own sinks


@pytest.mark.remedy(Remedy.START_OVER, Remedy.START_OVER_AFTER_LOSS)
def test_sink_that_starts_over() -> None:
    table = Table()
    for number in range(3):
        write(TableSink(table), number)
    other = replace(batch(0), query="query-2")
    rows: Any = rows_of(0)

    def begin(table: Table) -> None:
        write_batch(TableSink(table), rows, other, LocalCheckpoint(Path("nowhere")))
        assert table.rows == rows_of(0)

    with pytest.raises(MarkerRefused) as raised:
        begin(table)
    remedies.find(Remedy.START_OVER, raised.value)
    begin(Table())
    with pytest.raises(MarkerRefused) as lost:
        write(TableSink(Table()), 3)
    remedies.find(Remedy.START_OVER_AFTER_LOSS, lost.value)
    begin(Table())


@pytest.mark.remedy(Remedy.PUT_PROOF_BACK)
def test_changed_proof() -> None:
    proof = proof_of(batch(1), "table", None)
    with pytest.raises(MarkerRefused) as raised:
        Proof.parse("here", proof.text()[:-5])
    remedies.find(Remedy.PUT_PROOF_BACK, raised.value)
    assert Proof.parse("here", proof.text()) == proof
