"""The life cycle shared by all sinks, on a table in memory: the order of calls, and the rows after them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from onceflow.spark import sink
from onceflow.spark.errors import AttemptEnded, CommitUnknown, MarkerRefused, SinkStopped
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import Checkpoint, LocalCheckpoint
from onceflow.spark.exactly_once.checkpoint_lock import CheckpointInUse
from onceflow.spark.exactly_once.proof import Proof
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.sink import ATTEMPTS_MAX, ExactlyOnce, Sink, write_batch

Fault = Callable[[], None]


class Table:
    """A target that outlives its sinks, with rows and a proof."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.proof: Proof | None = None
        self.epoch = 0


class TableSink(Sink):
    """A sink that raises each of `faults` once, at its step; "committed" is after the commit."""

    def __init__(self, table: Table, **faults: Exception) -> None:
        self.name = "table"
        self.table = table
        self.faults = faults
        self.steps: list[str] = []
        self.staged: list[str] = []

    def recover(self, query: str) -> Proof | None:
        self._step("recover")
        self.table.epoch += 1
        self.epoch = self.table.epoch
        return self.table.proof

    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        self._step("prepare")
        self.staged = []

    def write(self, rows: Any) -> None:
        self._step("write")
        self.staged += rows

    def commit(self, proof: Proof) -> None:
        self._step("commit")
        if self.epoch == self.table.epoch:
            self.table.rows += self.staged
            self.table.proof = proof
        self._step("committed")

    def abort(self) -> None:
        self.steps.append("abort")

    def close(self) -> None:
        self.steps.append("close")

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.faults:
            raise self.faults.pop(name)


ALL = ["recover", "prepare", "write", "commit", "committed"]


def batch(number: int) -> Batch:
    part = OffsetRange("in", 0, max(0, 10 * number - 10), 10 * number)
    return Batch("query-1", number, (part,), "table", 1)


def write(sink: Sink, number: int) -> bool:
    rows: Any = [f"row of {number}"]
    return write_batch(sink, rows, batch(number), LocalCheckpoint(Path("nowhere")))


def rows_of(*numbers: int) -> list[str]:
    return [f"row of {number}" for number in numbers]


def test_repeated_batch_is_written_once() -> None:
    table = Table()
    sink = TableSink(table)
    assert write(sink, 0)
    assert sink.steps == ALL
    assert not write(TableSink(table), 0)
    assert write(TableSink(table), 1)
    assert not write(TableSink(table), 1)
    assert table.rows == rows_of(0, 1)
    assert table.proof is not None
    assert (table.proof.offsets, table.proof.since) == ({"in": {"0": 10}}, {"in": {"0": 0}})


@pytest.mark.parametrize("step", ["recover", "prepare", "write", "commit"])
def test_ended_attempt_is_aborted_and_repeated(step: str) -> None:
    sink = TableSink(Table(), **{step: AttemptEnded("the connection was lost")})
    assert write(sink, 0)
    # Without a recovery there is nothing to abort.
    aborted = [] if step == "recover" else ["abort"]
    assert sink.steps == [*ALL[: ALL.index(step) + 1], *aborted, *ALL]
    assert sink.table.rows == rows_of(0)


def test_commit_without_response_is_recognised() -> None:
    sink = TableSink(Table(), committed=CommitUnknown("no response"))
    assert write(sink, 0), "the rows were read"
    assert sink.steps == [*ALL, "abort", "recover"]
    assert sink.table.rows == rows_of(0)


def test_attempts_are_bounded() -> None:
    class Dead(TableSink):
        def write(self, rows: Any) -> None:
            self.steps.append("write")
            raise AttemptEnded("the target is full")

    sink = Dead(Table())
    with pytest.raises(SinkStopped, match=r"batch 0 of sink 'table' .* in 5 attempts .*the target is full"):
        write(sink, 0)
    assert sink.steps.count("write") == ATTEMPTS_MAX
    assert sink.table.proof is None


def test_other_errors_abort_and_stop_the_query() -> None:
    sink = TableSink(Table(), write=ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        write(sink, 0)
    assert sink.steps == ["recover", "prepare", "write", "abort"]


class Unabortable(TableSink):
    def abort(self) -> None:
        self.steps.append("abort")
        raise ConnectionError("the target is unreachable")


def test_failed_abort_hides_no_error(caplog: pytest.LogCaptureFixture) -> None:
    sink = Unabortable(Table(), write=AttemptEnded("the connection was lost"))
    assert write(sink, 0), "the next attempt succeeds"
    assert sink.table.rows == rows_of(0)
    assert "sink 'table' could not abort; its recovery does so: the target is unreachable" in caplog.text
    with pytest.raises(ZeroDivisionError):
        write(Unabortable(sink.table, commit=ZeroDivisionError()), 1)


def test_mismatched_proof_stops_before_prepare() -> None:
    table = Table()
    write(TableSink(table), 0)
    sink = TableSink(table)
    with pytest.raises(MarkerRefused, match="is at batch 0 and Spark has committed batch 1; restore the target"):
        write_batch(sink, [], batch(2), _Planned())  # type: ignore[arg-type]
    assert sink.steps == ["recover"]


class _Planned(LocalCheckpoint):
    def __init__(self) -> None:
        super().__init__(Path("nowhere"))

    def batch(self, number: int, *, plan: str, plan_version: int) -> Batch:
        return batch(number)


class Elsewhere(Checkpoint):
    """An unused checkpoint on storage without locks."""

    def __init__(self, location: str) -> None:
        self.location = location

    def read_text(self, name: str) -> str | None:
        return None

    def names(self, folder: str) -> list[str]:
        return []


def test_names_are_unique_without_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "checkpoint_at", lambda _session, location: Elsewhere(location))

    def opened(checkpoint: str, name: str = "kafka") -> ExactlyOnce:
        table_sink = TableSink(Table())
        table_sink.name = name
        started = ExactlyOnce(table_sink, checkpoint=checkpoint)
        started.open(None)
        return started

    first = opened("hdfs://host/a")
    with pytest.raises(CheckpointInUse, match=r"hdfs://host/a is in use by another sink .* with the name 'kafka'"):
        opened("hdfs://host/a")
    others = [opened("hdfs://host/a", "kafka 2"), opened("hdfs://host/b")]
    first.close()
    for opened_sink in (*others, opened("hdfs://host/a")):
        opened_sink.close()


def test_failed_open_releases_the_checkpoint(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook's next attempt has the same variable name, so the failed sink can no longer be closed."""
    refused = TableSink(Table())
    monkeypatch.setattr(refused, "open", Mock(side_effect=SinkStopped("there is no topic clean-vists")))
    with pytest.raises(SinkStopped, match="clean-vists"):
        ExactlyOnce(refused, checkpoint=str(tmp_path)).open(spark)
    again = ExactlyOnce(TableSink(Table()), checkpoint=str(tmp_path))
    again.open(spark)
    again.close()
    monkeypatch.setattr(sink, "checkpoint_at", lambda _session, location: Elsewhere(location))
    with pytest.raises(SinkStopped, match="clean-vists"):
        ExactlyOnce(refused, checkpoint="hdfs://host/d").open(None)
    again = ExactlyOnce(TableSink(Table()), checkpoint="hdfs://host/d")
    again.open(None)
    again.close()


def test_sink_is_closed_if_its_lock_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class LostLock:
        def release(self) -> None:
            raise OSError("the lock is lost")

    monkeypatch.setattr(sink, "checkpoint_at", lambda _session, location: Elsewhere(location))
    monkeypatch.setattr(sink, "take_name", lambda _location, _name: LostLock())
    table = TableSink(Table())
    started = ExactlyOnce(table, checkpoint="hdfs://host/c")
    started.open(None)
    with pytest.raises(OSError, match="the lock is lost"):
        started.close()
    started.close()
    assert table.steps == ["close", "close"]


def test_proof_survives_its_text_form() -> None:
    table = Table()
    write(TableSink(table), 0)
    assert table.proof is not None
    text = table.proof.text()
    assert Proof.parse("the table", text) == table.proof
    assert Proof.parse("the table", text).text() == text
    with pytest.raises(MarkerRefused, match=r"the table is not a proof \(KeyError: 'query'\) but"):
        Proof.parse("the table", '{"format":"1"}')
    with pytest.raises(MarkerRefused, match="the table is not a proof"):
        Proof.parse("the table", text[:-10])
    with pytest.raises(MarkerRefused, match="has format '2', this version of onceflow reads '1'"):
        Proof.parse("the table", text.replace('"format":"1"', '"format":"2"'))


class RolledBackSink(TableSink):
    """A sink whose table loses batch 1 before batch 2, and `losses` times again during its repair."""

    losses = 1
    proof_of_1: Proof | None = None

    def repair(self, lost: Any, target: Batch, checkpoint: Checkpoint) -> None:
        self.steps.append("repair")
        if self.losses:
            self.losses -= 1
            return
        self.table.rows += rows_of(1)
        self.table.proof = self.proof_of_1


@pytest.mark.parametrize("losses", [0, 1, ATTEMPTS_MAX - 1])
def test_repair_is_repeated_after_another_loss(losses: int) -> None:
    table = Table()
    sink = RolledBackSink(table)
    sink.losses = losses
    assert write(sink, 0)
    proof_of_0 = table.proof
    assert write(sink, 1)
    sink.proof_of_1, table.proof, table.rows = table.proof, proof_of_0, rows_of(0)
    checkpoint = Mock(spec=LocalCheckpoint)
    checkpoint.batch.return_value = batch(1)
    rows: Any = rows_of(2)
    assert write_batch(sink, rows, batch(2), checkpoint)
    assert table.rows == rows_of(0, 1, 2)
    assert sink.steps.count("repair") == losses + 1
