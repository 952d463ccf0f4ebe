"""Unreadable checkpoint files: those torn by a power cut are set aside, any other stops the query."""

from dataclasses import replace
from pathlib import Path

import pytest

from onceflow.spark.errors import MarkerRefused
from onceflow.spark.exactly_once.checkpoint import TORN, CheckpointUnreadable, LocalCheckpoint
from onceflow.spark.exactly_once.proof import Proof, proof_of
from onceflow.spark.exactly_once.torn_files import set_aside, torn_files
from tests.spark.exactly_once.test_checkpoint import Disk, SparkFiles, files, offsets_text
from tests.spark.test_redis_sink_stream import Job, Send, job

__all__ = ["files", "job"]

KINDS = {
    "empty": lambda text: b"",
    "NUL bytes": lambda text: b"\0" * len(text),
    "cut": lambda text: text[: len(text) - 3],
    "cut after a page of zeros": lambda text: b"\0" * 4 + text[4:],
}


def tear(path: Path, kind: str = "NUL bytes") -> None:
    path.write_bytes(KINDS[kind](path.read_bytes()))


def proof(files: SparkFiles, number: int) -> Proof:
    """Return the proof that a sink holds after batch `number`."""
    batch = LocalCheckpoint(files.directory).batch(number, plan="p", plan_version=1)
    return proof_of(batch, "counts", None)


def after_restart(files: SparkFiles, held: Proof | None) -> LocalCheckpoint:
    checkpoint = LocalCheckpoint(files.directory)
    set_aside(checkpoint, torn_files(checkpoint), held)
    return checkpoint


@pytest.fixture
def two_batches(files: SparkFiles) -> SparkFiles:
    """Return a checkpoint in which batch 0 is finished and batch 1 is planned."""
    files.plan(0, {"clicks": {"0": 5}})
    files.commit(0)
    files.plan(1, {"clicks": {"0": 6}})
    return files


@pytest.mark.parametrize("kind", KINDS)
def test_torn_offsets_are_planned_again(two_batches: SparkFiles, kind: str) -> None:
    held = proof(two_batches, 0)
    tear(two_batches.directory / "offsets" / "1", kind)
    checkpoint = after_restart(two_batches, held)
    assert (checkpoint.newest_batch("offsets"), checkpoint.newest_batch("commits")) == (0, 0)
    assert checkpoint.names(TORN) == ["offsets-1"]


@pytest.mark.parametrize("kind", KINDS)
def test_torn_commit_is_written_again(two_batches: SparkFiles, kind: str) -> None:
    held = proof(two_batches, 0)
    tear(two_batches.directory / "commits" / "0", kind)
    checkpoint = after_restart(two_batches, held)
    assert (checkpoint.newest_batch("offsets"), checkpoint.newest_batch("commits")) == (1, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_torn_metadata_discards_plan_of_batch_0(files: SparkFiles, kind: str) -> None:
    files.plan(0, {"clicks": {"0": 5}})
    tear(files.directory / "metadata", kind)
    checkpoint = after_restart(files, None)
    assert (checkpoint.names("offsets"), checkpoint.query_id()) == ([], None)


def test_metadata_and_plan_torn_together(files: SparkFiles) -> None:
    files.plan(0, {"clicks": {"0": 5}})
    tear(files.directory / "metadata")
    tear(files.directory / "offsets" / "0")
    checkpoint = after_restart(files, None)
    assert (checkpoint.names("offsets"), sorted(checkpoint.names(TORN))) == ([], ["metadata", "offsets-0"])


def test_checksum_of_torn_file_is_deleted(two_batches: SparkFiles) -> None:
    checksum = two_batches.directory / "offsets" / ".1.crc"
    checksum.write_bytes(b"crc")
    tear(two_batches.directory / "offsets" / "1")
    after_restart(two_batches, None)
    assert not checksum.exists()


@pytest.mark.parametrize(("name", "held"), [("offsets/1", 1), ("commits/0", 1)])
def test_file_under_a_written_batch_is_damaged(two_batches: SparkFiles, name: str, held: int) -> None:
    written = proof(two_batches, held)
    tear(two_batches.directory / name)
    before = sorted(two_batches.directory.rglob("*"))
    with pytest.raises(CheckpointUnreadable, match=f"{name} cannot be parsed.*NUL bytes.*'counts' has written batch 1"):
        after_restart(two_batches, written)
    assert sorted(two_batches.directory.rglob("*")) == before


def test_partial_batch_counts_as_written(two_batches: SparkFiles) -> None:
    begun = replace(proof(two_batches, 1), complete=False)
    tear(two_batches.directory / "offsets" / "1")
    with pytest.raises(CheckpointUnreadable, match="has written batch 1"):
        after_restart(two_batches, begun)


@pytest.mark.parametrize("name", ["metadata", "offsets/0", "offsets/1", "commits/0"])
def test_file_under_a_finished_batch_is_damaged(two_batches: SparkFiles, name: str) -> None:
    two_batches.commit(1)
    two_batches.plan(2, {"clicks": {"0": 7}})
    two_batches.plan(1, {"clicks": {"0": 6}})
    tear(two_batches.directory / name)
    if name in ("offsets/0",):  # Spark reads only the two newest files.
        (two_batches.directory / "offsets" / "2").unlink()
    with pytest.raises(CheckpointUnreadable, match=f"{name} cannot be parsed.*batch 1 was finished since"):
        torn_files(LocalCheckpoint(two_batches.directory))


def test_format_of_another_spark_is_not_torn(two_batches: SparkFiles) -> None:
    (two_batches.directory / "offsets" / "1").write_text("v2\n{}\n{}")
    assert torn_files(LocalCheckpoint(two_batches.directory)) == ()


def test_power_cut_between_plan_and_sync(files: SparkFiles, tmp_path: Path) -> None:
    disk = Disk()
    checkpoint = LocalCheckpoint(files.directory, sync=disk.sync)
    files.plan(0, {"clicks": {"0": 5}})
    checkpoint.prepare(0)
    files.commit(0)
    files.plan(1, {"clicks": {"0": 6}})
    cut = LocalCheckpoint(disk.after_power_cut(files.directory, tmp_path / "cut", keep_unsynced_entries=True))
    set_aside(cut, torn_files(cut), proof(files, 0))
    assert (cut.newest_batch("offsets"), cut.newest_batch("commits")) == (0, -1)
    assert cut.read_text("offsets/0") == offsets_text({"clicks": {"0": 5}})
    assert torn_files(cut) == ()


# On Spark itself


def run_two_batches(job: Job, send: Send) -> None:
    """Run two batches: batch 1 has a and b, batch 2 has c."""
    send(["a", "b"])
    job.run(job.counted())
    send(["c"])
    job.run(job.counted())


def newest(job: Job, folder: str) -> Path:
    numbers = [int(path.name) for path in (job.checkpoint / folder).iterdir() if path.name.isdecimal()]
    return job.checkpoint / folder / str(max(numbers))


def plan_one_more(job: Job) -> Path:
    """Plan the next batch, as Spark does before its first write, and return the plan's file."""
    last = newest(job, "offsets")
    (job.checkpoint / "offsets" / str(int(last.name) + 1)).write_bytes(last.read_bytes())
    return newest(job, "offsets")


def test_spark_resumes_after_torn_offsets(job: Job, send: Send) -> None:
    run_two_batches(job, send)
    tear(plan_one_more(job), "NUL bytes")
    send(["d"])
    job.run(job.counted())
    assert job.counts() == dict.fromkeys([b"a", b"b", b"c", b"d"], 1)


def test_spark_resumes_after_torn_commit(job: Job, send: Send) -> None:
    run_two_batches(job, send)
    tear(newest(job, "commits"), "cut")
    tear(plan_one_more(job), "cut")
    send(["d"])
    job.run(job.counted())
    assert job.counts() == dict.fromkeys([b"a", b"b", b"c", b"d"], 1)


def test_spark_starts_after_torn_metadata(job: Job, send: Send) -> None:
    send(["a"])
    query = job.counted().writeStream.foreachBatch(lambda rows, number: 1 / 0)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="division by zero"):
        query.option("checkpointLocation", str(job.checkpoint)).trigger(availableNow=True).start().awaitTermination()
    assert newest(job, "offsets").name == "0"
    tear(job.checkpoint / "metadata")
    job.run(job.counted())
    assert job.counts() == {b"a": 1}


@pytest.mark.parametrize("name", ["offsets", "commits", "metadata"])
def test_damage_stops_the_query_before_spark(job: Job, send: Send, name: str) -> None:
    """The marker holds the batch that rests on the file."""
    run_two_batches(job, send)
    path = job.checkpoint / name if name == "metadata" else newest(job, name)
    if name == "commits":
        path = path.with_name(str(int(path.name) - 1))
    tear(path)
    for commit in (job.checkpoint / "commits").iterdir() if name == "offsets" else ():
        commit.unlink()
    with pytest.raises(CheckpointUnreadable, match=f"{path.name} cannot be parsed: .* NUL bytes"):
        job.run(job.counted())
    assert job.counts() == dict.fromkeys([b"a", b"b", b"c"], 1)


def test_metadata_torn_beside_a_marker(job: Job, send: Send) -> None:
    """The checkpoint shows no finished batch, the marker does."""
    run_two_batches(job, send)
    for folder in ("offsets", "commits"):
        for path in (job.checkpoint / folder).iterdir():
            path.unlink()
    tear(job.checkpoint / "metadata")
    with pytest.raises(MarkerRefused, match="this query's checkpoint is new"):
        job.run(job.counted())
    assert (job.checkpoint / "metadata").read_bytes().strip(b"\0") == b""
