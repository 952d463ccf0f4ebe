"""The changes of a broker on ZooKeeper, applied one after another by a thread.

`when_applied` calls back when the changes recorded so far are applied. While ZooKeeper is away the queue waits. A
change that cannot be applied ends everything: the broker's state is then not that of ZooKeeper. Except where another
broker became the controller, and all changes left are of kinds that the next look at ZooKeeper undoes: these are
dropped.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from onceflow.broker.cluster.registry import Deposed, RegistryClosed
from onceflow.broker.loop.background import run_in_thread
from onceflow.broker.loop.work_thread import WorkThread
from onceflow.broker.storage.partitions import Synced
from onceflow.errors import OnceflowError
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

CHANGES_QUEUED_MAX = 1000

Step = Callable[[], None]
"""Part of a change, applied in the registry's thread."""
Result = TypeVar("Result")


class _Change(NamedTuple):
    steps: Sequence[Step]
    then: Callable[[], None] | None
    can_be_dropped: bool
    """Whether only the controller's own state has it, or the broker forgets it when it is not in ZooKeeper."""


class WriteQueue:
    """The queue and its thread. All methods belong to the event loop's thread."""

    def __init__(
        self,
        on_failed: Callable[[OnceflowError], None],
        on_applied: Callable[[], None],
        on_deposed: Callable[[OnceflowError], None],
    ) -> None:
        """`on_failed` is called once, with the error that ends everything; `on_applied` after each round;
        `on_deposed` after a controller's changes were dropped."""
        self._on_failed = on_failed
        self._on_deposed = on_deposed
        self._on_applied = on_applied
        self._thread = WorkThread("registry")
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Change] = deque()
        self._waiting: deque[tuple[int, Synced]] = deque()
        self.recorded = 0
        """Number of changes so far."""
        self._applied = 0
        self._is_applying = False
        self.failure: OnceflowError | None = None

    @property
    def is_full(self) -> bool:
        return len(self._queue) >= CHANGES_QUEUED_MAX

    @property
    def is_settled(self) -> bool:
        """Whether ZooKeeper has every change of this broker: any difference is another program's then."""
        return self._applied == self.recorded

    def add(
        self, steps: Sequence[Step], then: Callable[[], None] | None = None, *, can_be_dropped: bool = False
    ) -> None:
        """Apply a change after those before it, then call `then` in the loop's thread.

        `can_be_dropped`: only the controller's own state has it, or the broker forgets it when it is not in ZooKeeper.
        """
        if steps or then is not None:
            self._queue.append(_Change(steps, then, can_be_dropped))
            self.recorded += 1
            # In the loop's next turn: during the start `apply_all` does it.
            self._loop.call_soon(self._apply)

    def apply_all(self) -> None:
        """Block until every change is applied; for the start. Raises Superseded, RegistrationRefused."""
        while self._queue:
            change = self._queue.popleft()
            for step in change.steps:
                step()
            self._end(change)

    def when_applied(self, applied: Synced) -> None:
        """Call `applied` once the changes recorded so far are applied (at once if they are), or with the error."""
        if self.failure is not None:
            applied(ErrorCode.not_controller)
        elif self.is_settled:
            applied(ErrorCode.none)
        else:
            self._waiting.append((self.recorded, applied))

    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Run other work in the thread, between changes; `done` gets its result. Its OnceflowError ends everything."""

        def ended(result: Result | OnceflowError) -> None:
            if isinstance(result, OnceflowError):
                self.fail(result)
            elif self.failure is None:
                done(result)

        run_in_thread(self._thread, partial(_result_or_error, work), ended, self._end_unexpectedly)

    def call_from_thread(self, callback: Callable[[], None]) -> None:
        """Call in the loop's thread, from any other."""
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """End; a running write must have been ended before."""
        self._thread.shutdown(cancel_futures=True)

    def _apply(self) -> None:
        """Apply everything in the queue, after what is being applied."""
        if self._is_applying or not self._queue or self.failure is not None:
            return
        self._is_applying = True
        changes = list(self._queue)
        run_in_thread(
            self._thread, partial(_apply_changes, changes), partial(self._end_applying, changes), self._end_unexpectedly
        )

    def _end_applying(self, changes: Sequence[_Change], result: tuple[int, OnceflowError | None]) -> None:
        self._is_applying = False
        applied, error = result
        for change in changes[:applied]:
            self._queue.popleft()
            self._end(change)
        if isinstance(error, Deposed) and all(change.can_be_dropped for change in self._queue):
            self._drop(error)
        elif error is not None:
            self.fail(error)
            return
        self._apply()
        self._on_applied()

    def _drop(self, error: Deposed) -> None:
        """Forget the changes of a controller that another one has replaced."""
        self._queue.clear()
        self._applied = self.recorded
        while self._waiting:
            call(self._waiting.popleft()[1], ErrorCode.not_controller)
        self._on_deposed(error)

    def _end(self, change: _Change) -> None:
        self._applied += 1
        if change.then is not None:
            call(change.then)
        while self._waiting and self._waiting[0][0] <= self._applied:
            call(self._waiting.popleft()[1], ErrorCode.none)

    def _end_unexpectedly(self, reason: str) -> None:
        self._is_applying = False
        self.fail(OnceflowError(f"a change could not be written to ZooKeeper: {reason}"))

    def fail(self, error: OnceflowError) -> None:
        """Respond to everything that waits with an error; without effect when the broker stops."""
        if self.failure is not None:
            return
        self.failure = error
        while self._waiting:
            call(self._waiting.popleft()[1], ErrorCode.not_controller)
        if not isinstance(error, RegistryClosed):
            self._on_failed(error)


def call(callback: Callable[..., None], *arguments: object) -> None:
    """Call a waiting callback; a failure is logged and does not affect the others."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception("a callback of a change of the topics failed")


def _apply_changes(changes: Sequence[_Change]) -> tuple[int, OnceflowError | None]:
    """Apply changes in the registry's thread; return how many, and the error of the first that could not be."""
    for number, change in enumerate(changes):
        for step in change.steps:
            try:
                step()
            except OnceflowError as error:
                return number, error
    return len(changes), None


def _result_or_error(work: Callable[[], Result]) -> Result | OnceflowError:
    try:
        return work()
    except OnceflowError as error:
        return error
