"""The base of every exactly-once sink: a `Sink` says how to write, `ExactlyOnce` calls it for each micro-batch.

    writeStream.foreachBatch(ExactlyOnce(MySink(), checkpoint=checkpoint, plan="visits"))

A batch's data and the proof that it was written become visible in one atomic step, in the same system. Spark repeats
a batch after a crash, with the same number and the same offsets; the proof in the sink says whether it is already
done. All that follows from this rule and does not depend on the target is here: the checkpoint's lock and its way to
the disk, the decision, the attempts, the reading of rows that need not be written. docs/sinks.md tells how to write a
sink, `proof` has the format of what it keeps, `decision` the table.
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
from onceflow.spark.exactly_once import failure, torn_files
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import METADATA, Checkpoint, LocalCheckpoint, checkpoint_at, other_query
from onceflow.spark.exactly_once.checkpoint_lock import CheckpointLock, take_lock, take_name
from onceflow.spark.exactly_once.decision import Decision, Refuse, Skip, WentBack, Wording, decide, refusal_at_start
from onceflow.spark.exactly_once.proof import Proof, proof_of
from onceflow.spark.exactly_once.sink_errors import AttemptEnded, CommitUnknown, MarkerRefused, SinkStopped
from onceflow.spark.reader.accepted_losses import AcceptDataLoss

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

ATTEMPTS_MAX = 5
"""At one batch; each ended one is aborted, and the next begins with what it finds."""

__all__ = [
    "AttemptEnded",
    "Batch",
    "CommitUnknown",
    "ExactlyOnce",
    "MarkerRefused",
    "Proof",
    "Sink",
    "SinkStopped",
    "WentBack",
    "Wording",
    "sinks",
]


class Sink(abc.ABC):
    """Where batches are written. One instance serves one start of a query, and one thread of the driver calls it.

    Each batch is `recover`, `prepare`, `write`, `commit`, in this order; where the batch is already there, only
    `recover`. A step may raise AttemptEnded where it is worth to begin with `recover` again, CommitUnknown in
    `commit` where nobody knows whether it happened; any other exception stops the query.
    """

    name: str
    """One for each sink of a query; it stays the same from start to start."""

    def open(self, session: Any, query: str | None) -> None:  # noqa: B027 (nothing to do is a fine answer)
        """Connects, and looks whether the target is fit, before anything else; `query` is None before its first start.

        What does not fit is refused here, before the query starts.
        """

    @abc.abstractmethod
    def recover(self, query: str) -> Proof | None:
        """Ends what earlier attempts and earlier starts of `query` left open, then returns the newest proof.

        Nothing that they do from now on may become visible: that is the fence. Called when the query starts too.
        """

    @abc.abstractmethod
    def prepare(self, batch: Batch, found: Proof | None) -> None:
        """Opens the batch, which follows the one of `found`. Nothing of it is visible.

        Where `found` is of this very batch it is not complete, and the sink is to finish what it has begun.
        """

    @abc.abstractmethod
    def write(self, rows: DataFrame) -> None:
        """Brings all rows to the target, where readers of committed data do not see them yet.

        Nothing may depend on the order of rows or on tasks, which are others when Spark repeats a batch.
        """

    @abc.abstractmethod
    def commit(self, proof: Proof) -> None:
        """Makes what was written and `proof` visible in one atomic step. Raises CommitUnknown."""

    def abort(self) -> None:  # noqa: B027
        """Takes back what the attempt wrote, as far as that can be done now; `recover` does the rest.

        Called where `prepare`, `write` or `commit` has failed; where it fails itself, that is logged.
        """

    def close(self) -> None:  # noqa: B027
        """Gives connections back; the query has ended."""

    def repair(self, lost: WentBack, target: Batch, checkpoint: Checkpoint) -> None:
        """Writes again what the target lost, up to `target`; by default it raises MarkerRefused."""
        del target, checkpoint
        raise MarkerRefused(lost.sentence)

    @property
    def wording(self) -> Wording:
        """How sentences about this sink name things."""
        return Wording(
            marker=f"proof of sink {self.name!r}",
            target=f"the target of sink {self.name!r}",
            data="data",
            elsewhere="another target",
            anew=Remedy.START_OVER,
            anew_after_loss=Remedy.START_OVER_AFTER_LOSS,
        )


class ForeachBatch(Protocol):
    """What `sinks` takes: a sink that says whether it has read the rows."""

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """Writes one micro-batch; false where the rows were not read, because the batch is there."""


class FailureKept:
    """Remembers what stopped the query: one sentence, where Spark's own error is many lines."""

    def __init__(self) -> None:
        self.failure: OnceflowError | None = None
        """Why the query stopped, if this sink stopped it."""

    @contextlib.contextmanager
    def _failure_kept(self) -> Iterator[None]:
        try:
            yield
        except OnceflowError as error:
            self.failure = error
            raise
        except PySparkException as error:
            said = failure.own_sentence(error)
            if said is None:
                raise
            # A task has stopped the query, and Spark tells it in pages.
            self.failure = SinkStopped(said)
            raise self.failure from error


class ExactlyOnce(FailureKept):
    """Writes each micro-batch to a sink exactly once; pass it to `foreachBatch`.

    `checkpoint` is the query's own checkpointLocation. `plan` names what is written (the sink's name by default),
    `plan_version` the code that makes it. One serves one start of one query: call `open` before `start()`, so that
    what does not fit stops the query at once, and `close` when it has ended. `accept_data_loss`, the options of a
    stream with failOnDataLoss=false, lets this run write on where the log lacks records; the proof keeps which.
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
        """Locks the checkpoint, recovers the sink and holds its proof against the checkpoint.

        `sleep` may raise to end the wait for another driver's lock. The first batch calls it where nobody has. Raises
        CheckpointInUse, MarkerRefused and what the sink raises; this sink keeps nobody from the checkpoint then.
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
        """Gives the checkpoint back and closes the sink; the query must have ended."""
        try:
            self.release()
        finally:
            self.sink.close()

    def release(self) -> None:
        """Gives this sink's share of the checkpoint back; `open` takes it again."""
        lock, self._lock, self._checkpoint = self._lock, None, None
        if lock is not None:
            lock.release()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Writes one micro-batch, or finds that it is written. Raises an OnceflowError, kept in `failure`."""
        if not self.process(rows, batch_id):
            consume(rows)

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """As a call, but rows that need not be written are left for the caller to read: false."""
        with self._failure_kept():
            self.open(rows.sparkSession)
            assert self._checkpoint is not None
            batch = self._batch(self._checkpoint, batch_id)
            strange = other_query(rows.sparkSession, batch, self._location)
            if strange is not None:
                raise MarkerRefused(strange)
            # Nothing of the batch may be at the target before a power cut can no longer unsay its offsets.
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
        found = self.sink.recover(query)
        if found is None or found.query == query:
            torn_files.set_aside(checkpoint, torn, found)
            committed = min(committed, checkpoint.newest_batch("commits"))
        refusal = refusal_at_start(
            found,
            query=query,
            sink=self.sink.name,
            committed=committed,
            planned=checkpoint.newest_batch("offsets"),
            wording=self.sink.wording,
            plan=self._plan,
        )
        if isinstance(refusal, WentBack):
            self.sink.repair(refusal, self._batch(checkpoint, committed), checkpoint)
        elif refusal is not None:
            raise MarkerRefused(refusal.sentence)


def write_batch(
    sink: Sink, rows: DataFrame, batch: Batch, checkpoint: Checkpoint, accept: Callable[[Batch], Batch] | None = None
) -> bool:
    """Writes `batch` in a bounded number of attempts; false where the rows were not read, because it is there.

    `accept` adds the losses that this run accepts.
    Raises MarkerRefused, SinkStopped and what the sink raises.
    """
    was_read = False

    def attempt() -> bool:
        nonlocal was_read
        measured = batch if accept is None else accept(batch)
        found, decision = _decided(sink, measured, checkpoint)
        if isinstance(decision, Skip):
            return was_read
        with _aborted_where_it_fails(sink):
            sink.prepare(measured, found)
            sink.write(rows)
            was_read = True
            if accept is not None and accept(batch) != measured:
                raise AttemptEnded("records were deleted from the log while they were read")
            sink.commit(proof_of(measured, sink.name, found))
        return True

    return within_attempts(f"batch {batch.number} of sink {sink.name!r} could not be written", attempt)


def within_attempts(failed: str, attempt: Callable[[], _T]) -> _T:
    """What the first attempt that does not end returns. Raises SinkStopped, with what has `failed`."""
    reason = ""
    for _ in range(ATTEMPTS_MAX):
        try:
            return attempt()
        except AttemptEnded as ended:
            reason = str(ended)
            # As text: a log that keeps its records would keep the attempt's connections with the exception.
            _log.warning("%s, and is tried again: %s", failed, reason)
    raise SinkStopped(
        f"{failed} in {ATTEMPTS_MAX} attempts, the last of which ended because {reason}: nothing is lost; "
        f"{Remedy.FIX_CAUSE}, then {Remedy.START_AGAIN}"
    )


@contextlib.contextmanager
def _aborted_where_it_fails(sink: Sink) -> Iterator[None]:
    try:
        yield
    except Exception:
        try:
            sink.abort()
        except Exception as error:  # noqa: BLE001 - what failed before it decides whether there is another attempt
            # Of a query that is stopped: Spark's error has the whole stack of its JVM.
            _log.warning(
                "sink %r could not abort, which is left to its recovery: %s", sink.name, failure.sentence(error)
            )
        raise


def _decided(sink: Sink, batch: Batch, checkpoint: Checkpoint) -> tuple[Proof | None, Decision]:
    """What the sink holds and what to do about it, after a repair where it holds too little. Raises MarkerRefused."""
    found = sink.recover(batch.query)
    decision = decide(found, batch, sink.name, sink.wording)
    if isinstance(decision, WentBack):
        before = checkpoint.batch(batch.number - 1, plan=batch.plan, plan_version=batch.plan_version)
        sink.repair(decision, before, checkpoint)
        found = sink.recover(batch.query)
        decision = decide(found, batch, sink.name, sink.wording)
    if isinstance(decision, Refuse):
        raise MarkerRefused(decision.sentence)
    return found, decision


def consume(rows: DataFrame) -> None:
    """Reads rows that need not be written: returning without it would make a stateful checkpoint unusable."""
    rows.write.format("noop").mode("append").save()


Part = ForeachBatch | tuple[ForeachBatch, Callable[[DataFrame], DataFrame]]
"""A sink, or a sink and what it gets of the micro-batch's rows."""


def sinks(rows: DataFrame, batch_id: int, *each: Part) -> None:
    """Writes one micro-batch to several sinks, one after the other; the rows are computed once.

        foreachBatch(lambda rows, batch_id: sinks(rows, batch_id, copy, (counts, to_counts)))

    Each sink decides by its own proof, so after a crash between two of them the first skips the batch and the second
    writes it. Each is exactly once; that both appear at the same instant is not promised. The first failure stops.
    """
    if not write_each(rows, batch_id, each):
        consume(rows)


def write_each(rows: DataFrame, batch_id: int, parts: Sequence[Part]) -> bool:
    """As `sinks`, but rows that no sink had to write are left for the caller to read: false."""
    # Rows that somebody else has persisted are theirs to forget: those of `sinks` around a sink that is several.
    is_ours = not rows.is_cached
    cached = rows.persist() if is_ours else rows
    try:
        read = False
        for part in parts:
            sink, shape = part if isinstance(part, tuple) else (part, _as_it_is)
            read |= sink.process(shape(cached), batch_id)
        return read
    finally:
        if is_ours:
            cached.unpersist()


def _as_it_is(rows: DataFrame) -> DataFrame:
    return rows
