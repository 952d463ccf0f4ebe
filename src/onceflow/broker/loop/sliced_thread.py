"""Work for a thread in short slices, one work after the other: Python in a thread holds the interpreter's lock.

The loop has its turn after each slice. Work that must not keep others waiting is added in small parts.
"""

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import NamedTuple

from onceflow.broker.loop.background import Failed, run_in_thread
from onceflow.broker.loop.work_thread import WorkThread

SLICE_S = 0.002


class _Work(NamedTuple):
    steps: Iterator[object]
    done: Callable[[], None]
    failed: Failed
    is_wanted: Callable[[], bool]

    def run_slice(self) -> bool:
        """Run a slice in the thread; return whether the work is over."""
        ends_at = monotonic() + SLICE_S
        return all(monotonic() < ends_at for _ in self.steps)


class SlicedThread:
    """A thread with a queue of work. All methods run on the loop."""

    def __init__(self, name: str) -> None:
        self._thread = WorkThread(name)
        self._queue: deque[_Work] = deque()

    def add(
        self,
        steps: Iterator[object],
        done: Callable[[], None],
        *,
        failed: Failed,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Run the steps in the thread after all earlier work, then `done` on the loop; `failed` gets the reason of an
        unexpected error. Neither is called for work that is no longer wanted."""
        self._queue.append(_Work(steps, done, failed, is_wanted))
        if len(self._queue) == 1:
            self._run()

    def close(self) -> None:
        """End the thread after the present slice; drop what is queued."""
        self._queue.clear()
        self._thread.shutdown()

    def _run(self) -> None:
        """Run the next slice of the first work that is wanted."""
        while self._queue and not self._queue[0].is_wanted():
            self._queue.popleft()
        if self._queue:
            run_in_thread(self._thread, self._queue[0].run_slice, self._ran, self._failed)

    def _ran(self, is_over: bool) -> None:
        if not self._queue:
            # Closed meanwhile.
            return
        if not is_over:
            self._run()
            return
        work = self._queue.popleft()
        self._run()
        if work.is_wanted():
            work.done()

    def _failed(self, reason: str) -> None:
        if self._queue:
            work = self._queue.popleft()
            self._run()
            work.failed(reason)
