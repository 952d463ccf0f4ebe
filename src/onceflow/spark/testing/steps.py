"""A user's sink with visible steps: each ends at a point where the driver can die, or its response is lost."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame

from onceflow.spark.exactly_once.checkpoint import Checkpoint
from onceflow.spark.sink import AttemptEnded, Batch, CommitUnknown, ExactlyOnce, Proof, Sink, TargetRolledBack, Wording
from onceflow.spark.testing.points import Reaper


class BatchSink(Protocol):
    """A sink for foreachBatch: an `ExactlyOnce`, or one that implements the protocol itself."""

    def open(self, session: Any) -> None:
        """Recover, before the first batch."""

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch unless it is already written."""

    def close(self) -> None:
        """Close the sink; the query has ended."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A response lost once: `error` is raised at this step, after it was done or instead of it."""

    step: str
    is_done: bool
    error: type[AttemptEnded]
    aborts: bool = True
    """False if the abort that follows fails, too."""

    def __str__(self) -> str:
        abort = "" if self.aborts else " and an abort that failed"
        return f"{self.error.__name__} {'after' if self.is_done else 'instead of'} {self.step}{abort}"


LOSSES = (
    Loss("write", True, AttemptEnded),
    Loss("commit", False, CommitUnknown),
    Loss("commit", True, CommitUnknown),
)
NO_ABORT = Loss("write", True, AttemptEnded, aborts=False)


class Steps(Sink):
    """The sink `inner` with visible steps, in the place of `inner`."""

    def __init__(self, inner: Sink, reaper: Reaper, loss: Loss | None) -> None:
        self.name = inner.name
        self.inner = inner
        self._reaper = reaper
        self._loss = loss
        self._aborts = loss is None or loss.aborts

    def open(self, session: Any, query: str | None) -> None:
        self.inner.open(session, query)

    def recover(self, query: str) -> Proof | None:
        proof = self.inner.recover(query)
        self._ended("recover")
        return proof

    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        self.inner.prepare(batch, previous)
        self._ended("prepare")

    def write(self, rows: DataFrame) -> None:
        self._step("write", lambda: self.inner.write(rows))

    def commit(self, proof: Proof) -> None:
        self._step("commit", lambda: self.inner.commit(proof))

    def abort(self) -> None:
        if not self._aborts:
            self._aborts = True
            raise ConnectionError("the target could not be reached to abort")
        self.inner.abort()
        self._ended("abort")

    def close(self) -> None:
        self.inner.close()

    def repair(self, lost: TargetRolledBack, target: Batch, checkpoint: Checkpoint) -> None:
        self.inner.repair(lost, target, checkpoint)

    @property
    def wording(self) -> Wording:
        return self.inner.wording

    def _step(self, name: str, step: Callable[[], None]) -> None:
        loss = self._loss if self._loss is not None and self._loss.step == name else None
        if loss is None or loss.is_done:
            step()
            self._ended(name)
        if loss is not None:
            self._loss = None
            self._reaper.losses += 1
            raise loss.error(str(loss))

    def _ended(self, step: str) -> None:
        self._reaper.visit("", step, 0, f"after {step}", step)


def with_steps(sink: BatchSink, reaper: Reaper, loss: Loss | None) -> BatchSink:
    """Return the sink, with visible steps if it is an `ExactlyOnce`."""
    if isinstance(sink, ExactlyOnce):
        sink.sink = Steps(sink.sink, reaper, loss)
    return sink


def files_of(sink: BatchSink) -> set[str]:
    """Return the files of a sink's own code: of its class and its base classes."""
    target: object = sink.sink if isinstance(sink, ExactlyOnce) else sink
    target = target.inner if isinstance(target, Steps) else target
    members = (member for kind in type(target).__mro__ if kind is not Sink for member in vars(kind).values())
    return {member.__code__.co_filename for member in members if inspect.isfunction(member)}
