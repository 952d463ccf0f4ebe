"""A worker thread of the broker, which runs its tasks one after the other."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class WorkThread(Executor):
    """An executor of one thread, started by the first `submit`. Only one thread calls its methods.

    ThreadPoolExecutor refuses all work once the main thread has ended, while other threads of a program may still use
    the broker in it. This one works until `shutdown`.
    """

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_shut_down = False

    def submit(
        self, work: Callable[Arguments, Result], /, *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Future[Result]:
        """Return the work's future outcome. Raises RuntimeError after `shutdown`."""
        if self._is_shut_down:
            raise RuntimeError(f"thread {self._thread.name} is shut down and accepts no more work")
        outcome: Future[Result] = Future()
        self._work.put((outcome, lambda: work(*arguments, **named)))
        if self._thread.ident is None:
            self._thread.start()
        return outcome

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after its queued work. A second call waits like the first."""
        self._is_shut_down = True
        if cancel_futures:
            self._cancel_waiting()
        self._work.put(None)
        if wait and self._thread.ident is not None:
            self._thread.join()

    def _cancel_waiting(self) -> None:
        try:
            while (waiting := self._work.get_nowait()) is not None:
                waiting[0].cancel()
        except Empty:
            return

    def _run(self) -> None:
        while _do(self._work.get()):
            pass


def _do(task: tuple[Future[Any], Callable[[], Any]] | None) -> bool:
    """Do one task; return False at the end. A separate function, so that the waiting thread keeps no task alive."""
    if task is None:
        return False
    outcome, work = task
    if outcome.set_running_or_notify_cancel():
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the future raises it
            outcome.set_exception(error)
    return True
