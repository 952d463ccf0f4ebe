"""A user's sink with its steps made visible: each ends at a point where the driver can die, or its answer is lost."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame

from onceflow.spark.exactly_once.checkpoint import Checkpoint
from onceflow.spark.sink import AttemptEnded, Batch, CommitUnknown, ExactlyOnce, Proof, Sink, WentBack, Wording
from onceflow.spark.testing.points import Reaper


class BatchSink(Protocol):
    """What foreachBatch gets: an `ExactlyOnce`, or a sink that keeps the protocol by itself."""

    def open(self, session: Any) -> None:
        """Recovers, before the first batch."""

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Writes one micro-batch, or finds that it is written."""

    def close(self) -> None:
        """The query has ended."""


@dataclass(frozen=True, slots=True)
class Loss:
    """An answer that does not arrive, once: `error` is raised at this step, after it was done or instead of it."""

    step: str
    is_done: bool
    error: type[AttemptEnded]
    aborts: bool = True
    """False where the abort that follows is not done either, and fails."""

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
    """The sink `inner`, as `ExactlyOnce` gets it."""

    def __init__(self, inner: Sink, reaper: Reaper, loss: Loss | None) -> None:
        self.name = inner.name
        self.inner = inner
        self._reaper = reaper
        self._loss = loss
        self._aborts = loss is None or loss.aborts

    def open(self, session: Any, query: str | None) -> None:
        self.inner.open(session, query)

    def recover(self, query: str) -> Proof | None:
        found = self.inner.recover(query)
        self._ended("recover")
        return found

    def prepare(self, batch: Batch, found: Proof | None) -> None:
        self.inner.prepare(batch, found)
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

    def repair(self, lost: WentBack, target: Batch, checkpoint: Checkpoint) -> None:
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
    """The same, its steps made visible where it has some."""
    if isinstance(sink, ExactlyOnce):
        sink.sink = Steps(sink.sink, reaper, loss)
    return sink


def files_of(sink: BatchSink) -> set[str]:
    """The files of a sink's own code: of its class and of what that inherits from."""
    target: object = sink.sink if isinstance(sink, ExactlyOnce) else sink
    target = target.inner if isinstance(target, Steps) else target
    members = (member for kind in type(target).__mro__ if kind is not Sink for member in vars(kind).values())
    return {member.__code__.co_filename for member in members if inspect.isfunction(member)}
