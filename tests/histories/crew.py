"""Workers that run together until an event is set."""

import sys
import threading
import time
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from tests.histories.workers import Run, Transactional, Worker

JOINED_WITHIN_S = 420.0
WATCH_S = 0.2


class Crew:
    """Workers of one kind of task; use as a context, which ends them and raises the error of one that failed.

    With `hang_s`, a worker that completes no step for that long is abandoned, and another one with its name takes its
    place, unless its sends are in no transaction: librdkafka 2.16 waits indefinitely for a group coordinator that
    Metadata has dropped (its issue 5511). Its consumers can also stand still for good: one thread waits for the lock of
    the client with that of a partition (rd_kafka_toppar_handle_OffsetForLeaderEpoch), another one for the partition's
    with the client's (rd_kafka_broker_fail), and `consume` for the partition's.
    """

    def __init__(
        self, work: Run, kinds: Iterable[type[Worker]], stopping: threading.Event, hang_s: float | None = None
    ) -> None:
        self._work = work
        self._stopping = stopping
        self._hang_s = hang_s
        self._running = [self._new(kind, f"{kind.__name__.lower()}-{number}") for number, kind in enumerate(kinds)]
        self.all = [*self._running]
        self._watch = threading.Thread(target=self._replace_hung, name="watch", daemon=True)
        self._ended = threading.Event()

    def _new(self, kind: type[Worker], name: str) -> Worker:
        return kind(self._work, name, self._stopping)

    def __enter__(self) -> Self:
        for worker in self._running:
            worker.start()
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        deadline = time.monotonic() + JOINED_WITHIN_S
        while any(map(_is_needed, self.all)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._ended.set()
        self._watch.join()
        for worker in self.all:
            assert not _is_needed(worker), f"{worker.name} does not end:\n{''.join(_stack_of(worker))}"
            if worker.failure is not None:
                raise worker.failure

    def _replace_hung(self) -> None:
        while self._hang_s is not None and not self._ended.wait(WATCH_S):
            for place, worker in enumerate(self._running):
                is_hung = worker.is_alive() and time.monotonic() - worker.progressed > self._hang_s
                if is_hung and worker.may_be_abandoned:
                    worker.is_replaced = True
                    self._running[place] = self._new(type(worker), worker.name)
                    self.all.append(self._running[place])
                    self._running[place].start()


def _stack_of(worker: Worker) -> list[str]:
    frame = sys._current_frames().get(worker.ident or 0)
    return traceback.format_stack(frame)


def _is_needed(worker: Worker) -> bool:
    """Return whether the worker runs, and what it does still belongs into the history."""
    is_committing = isinstance(worker, Transactional) and worker.is_committing
    return worker.is_alive() and (not worker.is_replaced or is_committing)
