"""The base of every exactly-once sink: a `Sink` writes, and `ExactlyOnce` calls it for each micro-batch.

    writeStream.foreachBatch(ExactlyOnce(MySink(), checkpoint=checkpoint, plan="visits"))

A batch's data and the proof that it was written become visible in one atomic step, in the same system. Spark repeats
a batch after a crash, with the same number and the same offsets; the proof in the sink says whether it is already
written. This module has everything that does not depend on the target: locking and syncing the checkpoint, the
decision, the attempts, reading rows that need not be written. docs/sinks.md describes how to write a sink, `proof` the
format of the proof, `decision` the table of decisions.
"""

import abc
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark import failure
from onceflow.spark.errors import AttemptEnded, CommitUnknown, MarkerRefused, SinkStopped
from onceflow.spark.exactly_once import torn_files
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import METADATA, Checkpoint, LocalCheckpoint, checkpoint_at, other_query
from onceflow.spark.exactly_once.checkpoint_lock import CheckpointLock, take_lock, take_name
from onceflow.spark.exactly_once.decision import (
    Decision,
    Refuse,
    Skip,
    TargetRolledBack,
    Wording,
    decide,
    refusal_at_start,
)
from onceflow.spark.exactly_once.proof import Proof, proof_of
from onceflow.spark.reader.accepted_losses import AcceptDataLoss

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

ATTEMPTS_MAX = 5
"""Attempts at one batch. An ended one is aborted, and the next one recovers."""

__all__ = [
    "AttemptEnded",
    "Batch",
    "CommitUnknown",
    "ExactlyOnce",
    "MarkerRefused",
    "Proof",
    "Sink",
    "SinkStopped",
    "TargetRolledBack",
    "Wording",
    "sinks",
]


class Sink(abc.ABC):
    """A target of batches. One instance serves one start of a query, and one thread of the driver calls it.

    Each batch is `recover`, `prepare`, `write`, `commit`, in this order; only `recover` if the batch is already
    written. A step may raise AttemptEnded if another attempt, from `recover` on, may succeed. `commit` raises
    CommitUnknown if its outcome is unknown. Any other exception stops the query.
    """

    name: str
    """Unique within the query, and the same at every start."""

    def open(self, session: Any, query: str | None) -> None:  # noqa: B027 (optional)
        """Connect, and refuse an unsuitable target; called first. `query` is None before its first start."""

    @abc.abstractmethod
    def recover(self, query: str) -> Proof | None:
        """Fence earlier attempts and starts of `query`, then return the newest proof.

        Nothing that they do from now on may become visible. Also called when the query starts.
        """

    @abc.abstractmethod
    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        """Open the batch that follows the proof `previous`. Nothing of it is visible yet.

        If `previous` is of this very batch, it is not complete, and the sink must finish the batch.
        """

    @abc.abstractmethod
    def write(self, rows: DataFrame) -> None:
        """Bring all rows to the target, hidden from readers of committed data.

        Nothing may depend on the order of rows or on tasks: Spark repeats a batch with others.
        """

    @abc.abstractmethod
    def commit(self, proof: Proof) -> None:
        """Make the rows and `proof` visible in one atomic step. Raises CommitUnknown."""

    def abort(self) -> None:  # noqa: B027
        """Roll back what the attempt wrote, as far as possible now; `recover` does the rest.

        Called after `prepare`, `write` or `commit` has failed; its own errors are only logged.
        """

    def close(self) -> None:  # noqa: B027
        """Close connections; the query has ended."""

    def repair(self, lost: TargetRolledBack, target: Batch, checkpoint: Checkpoint) -> None:
        """Write again what the target lost, up to batch `target`; by default raise MarkerRefused."""
        del target, checkpoint
        raise MarkerRefused(lost.reason)

    @property
    def wording(self) -> Wording:
        """Names that messages about this sink use."""
        return Wording(
            marker=f"proof of sink {self.name!r}",
            target=f"the target of sink {self.name!r}",
            data="data",
            elsewhere="another target",
            remedy=Remedy.START_OVER,
            remedy_after_loss=Remedy.START_OVER_AFTER_LOSS,
        )


class ForeachBatch(Protocol):
    """A sink as `sinks` takes it: it returns whether it has read the rows."""

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """Write one micro-batch; return false if the rows were not read, because the batch is already written."""


class RecordsFailure:
    """Keeps the error that stopped the query: one message, while Spark's own error is many lines."""

    def __init__(self) -> None:
        self.failure: OnceflowError | None = None
        """The error, if this sink stopped the query."""

    @contextlib.contextmanager
    def _record_failure(self) -> Iterator[None]:
        try:
            yield
        except OnceflowError as error:
            self.failure = error
            raise
        except PySparkException as error:
            message = failure.own_message(error)
            if message is None:
                raise
            # A task has stopped the query, and Spark's error is pages long.
            self.failure = SinkStopped(message)
            raise self.failure from error


class ExactlyOnce(RecordsFailure):
    """Writes each micro-batch to a sink exactly once; pass it to `foreachBatch`.

    `checkpoint` is the query's own checkpointLocation. `plan` names the written data (the sink's name by default),
    `plan_version` the version of the code that produces it. One instance serves one start of one query: call `open`
    before `start()`, so that a mismatch stops the query at once, and `close` when it has ended. `accept_data_loss`,
    the options of a stream with failOnDataLoss=false, lets this run continue past missing records; the proof lists
    them.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        checkpoint: str,
        plan: str = "",
        plan_version: int = 1,
        accept_data_loss: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._accept = None if accept_data_loss is None else AcceptDataLoss(accept_data_loss)
        self.sink = sink
        self._location = checkpoint
        self._plan = plan or sink.name
        self._plan_version = plan_version
        self._checkpoint: Checkpoint | None = None
        self._lock: CheckpointLock | None = None

    def open(self, session: Any, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Lock the checkpoint, recover the sink and compare its proof with the checkpoint.

        `sleep` may raise to end the wait for another driver's lock. The first batch opens the sink if needed. Raises
        CheckpointInUse, MarkerRefused and the sink's errors, and releases the checkpoint then.
        """
        if self._checkpoint is not None:
            return
        try:
            self._checkpoint = self._opened(session, sleep)
        except BaseException:
            self.release()
            raise

    def _opened(self, session: Any, sleep: Callable[[float], None]) -> Checkpoint:
        checkpoint = checkpoint_at(session, self._location)
        if isinstance(checkpoint, LocalCheckpoint):
            self._lock = take_lock(session, checkpoint.directory, self.sink.name, sleep=sleep)
        else:
            self._lock = take_name(checkpoint.location, self.sink.name)
        within_attempts(f"sink {self.sink.name!r} could not be opened", lambda: self._check_start(session, checkpoint))
        return checkpoint

    def close(self) -> None:
        """Release the checkpoint and close the sink; the query must have ended."""
        try:
            self.release()
        finally:
            self.sink.close()

    def release(self) -> None:
        """Release this sink's share of the checkpoint; `open` takes it again."""
        lock, self._lock, self._checkpoint = self._lock, None, None
        if lock is not None:
            lock.release()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch unless it is already written. Raises an OnceflowError, kept in `failure`."""
        if not self.process(rows, batch_id):
            consume(rows)

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """Write one micro-batch; return false if its rows need not be written, so that the caller reads them."""
        with self._record_failure():
            self.open(rows.sparkSession)
            assert self._checkpoint is not None
            mismatch = other_query(rows.sparkSession, self._checkpoint)
            if mismatch is not None:
                raise MarkerRefused(mismatch)
            batch = self._batch(self._checkpoint, batch_id)
            # The batch's offsets must survive a power cut before anything of it is written.
            self._checkpoint.prepare(batch_id)
            return write_batch(self.sink, rows, batch, self._checkpoint, self._accept)

    def _batch(self, checkpoint: Checkpoint, number: int) -> Batch:
        return checkpoint.batch(number, plan=self._plan, plan_version=self._plan_version)

    def _check_start(self, session: Any, checkpoint: Checkpoint) -> None:
        torn = torn_files.torn_files(checkpoint)
        query = None if METADATA in {file.name for file in torn} else checkpoint.query_id()
        self.sink.open(session, query)
        if query is None:
            torn_files.set_aside(checkpoint, torn, None)
            return
        # Read before the marker: another driver may finish batches until `recover` fences it.
        committed = checkpoint.newest_batch("commits")
        proof = self.sink.recover(query)
        if proof is None or proof.query == query:
            torn_files.set_aside(checkpoint, torn, proof)
            committed = min(committed, checkpoint.newest_batch("commits"))
        refusal = refusal_at_start(
            proof,
            query=query,
            sink=self.sink.name,
            committed=committed,
            planned=checkpoint.newest_batch("offsets"),
            wording=self.sink.wording,
            plan=self._plan,
        )
        if isinstance(refusal, TargetRolledBack):
            self.sink.repair(refusal, self._batch(checkpoint, committed), checkpoint)
        elif refusal is not None:
            raise MarkerRefused(refusal.reason)


def write_batch(
    sink: Sink, rows: DataFrame, batch: Batch, checkpoint: Checkpoint, accept: Callable[[Batch], Batch] | None = None
) -> bool:
    """Write `batch` in a bounded number of attempts; return false if its rows were not read: it is already written.

    `accept` adds the losses that this run accepts. Raises MarkerRefused, SinkStopped and the sink's errors.
    """
    was_read = False

    def attempt() -> bool:
        nonlocal was_read
        measured = batch if accept is None else accept(batch)
        previous, decision = _decided(sink, measured, checkpoint)
        if isinstance(decision, Skip):
            return was_read
        with _aborted_on_failure(sink):
            sink.prepare(measured, previous)
            sink.write(rows)
            was_read = True
            if accept is not None and accept(batch) != measured:
                raise AttemptEnded("records were deleted from the log while they were read")
            sink.commit(proof_of(measured, sink.name, previous))
        return True

    return within_attempts(f"batch {batch.number} of sink {sink.name!r} could not be written", attempt)


def within_attempts(failed: str, attempt: Callable[[], _T]) -> _T:
    """Return the result of the first attempt that succeeds. Raises SinkStopped; `failed` starts its message."""
    reason = ""
    for _ in range(ATTEMPTS_MAX):
        try:
            return attempt()
        except AttemptEnded as ended:
            reason = str(ended)
            # As text: a log that keeps its records would keep the attempt's connections with the exception.
            _log.warning("%s; retrying: %s", failed, reason)
    raise SinkStopped(
        f"{failed} in {ATTEMPTS_MAX} attempts (last reason: {reason}); no data was lost: "
        f"{Remedy.FIX_CAUSE}, then {Remedy.START_AGAIN}"
    )


@contextlib.contextmanager
def _aborted_on_failure(sink: Sink) -> Iterator[None]:
    try:
        yield
    except Exception:
        try:
            sink.abort()
        except Exception as error:  # noqa: BLE001 - the first failure decides whether there is another attempt
            # Spark's error for a stopped query has the whole stack of its JVM.
            _log.warning("sink %r could not abort; its recovery does so: %s", sink.name, failure.describe(error))
        raise


def _decided(sink: Sink, batch: Batch, checkpoint: Checkpoint) -> tuple[Proof | None, Decision]:
    """Return the sink's proof and the decision, after a repair if the sink lost batches.

    Raises MarkerRefused, and AttemptEnded if the sink lost batches again meanwhile.
    """
    proof = sink.recover(batch.query)
    decision = decide(proof, batch, sink.name, sink.wording)
    if isinstance(decision, TargetRolledBack):
        before = checkpoint.batch(batch.number - 1, plan=batch.plan, plan_version=batch.plan_version)
        sink.repair(decision, before, checkpoint)
        proof = sink.recover(batch.query)
        decision = decide(proof, batch, sink.name, sink.wording)
        if isinstance(decision, TargetRolledBack):
            raise AttemptEnded(f"batches were lost again during the repair: {decision.reason}")
    if isinstance(decision, Refuse):
        raise MarkerRefused(decision.reason)
    return proof, decision


def consume(rows: DataFrame) -> None:
    """Read rows that need not be written: without it, a stateful checkpoint would become unusable."""
    rows.write.format("noop").mode("append").save()


Part = ForeachBatch | tuple[ForeachBatch, Callable[[DataFrame], DataFrame]]
"""A sink, or a sink and a function that selects its rows of the micro-batch."""


def sinks(rows: DataFrame, batch_id: int, *parts: Part) -> None:
    """Write one micro-batch to several sinks, one after the other; the rows are computed once.

        foreachBatch(lambda rows, batch_id: sinks(rows, batch_id, copy, (counts, to_counts)))

    Each sink decides by its own proof, so after a crash between two of them the first skips the batch and the second
    writes it. Each is exactly once; they are not atomic together. The first failure stops the query.
    """
    if not write_each(rows, batch_id, parts):
        consume(rows)


def write_each(rows: DataFrame, batch_id: int, parts: Sequence[Part]) -> bool:
    """Write one micro-batch to several sinks; return false if no sink read the rows, so that the caller reads them."""
    # Rows already persisted are the caller's to unpersist, such as `sinks` around a TaggedRedisSink.
    is_ours = not rows.is_cached
    cached = rows.persist() if is_ours else rows
    try:
        read = False
        for part in parts:
            sink, shape = part if isinstance(part, tuple) else (part, _identity)
            read |= sink.process(shape(cached), batch_id)
        return read
    finally:
        if is_ours:
            cached.unpersist()


def _identity(rows: DataFrame) -> DataFrame:
    return rows
