"""Threads for calls that block, with bounds on how many wait, how long one takes, and an end for callers that left."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

INTERRUPT_S = 0.05
Result = TypeVar("Result")


class Busy(OnceflowError):
    """More calls than may wait."""


class TimedOut(OnceflowError):
    """A call that took longer than it may."""


class Cancellation:
    """Whether a call is no longer awaited, and how to interrupt it."""

    def __init__(self) -> None:
        self._is_cancelled = threading.Event()
        self.interrupt: Callable[[], None] | None = None
        """Set by the call while it can be interrupted."""

    def __call__(self) -> bool:
        """Return whether the call is no longer awaited."""
        return self._is_cancelled.is_set()

    def cancel(self) -> None:
        """Interrupt the call."""
        self._is_cancelled.set()
        interrupt = self.interrupt
        if interrupt is not None:
            interrupt()


class Workers:
    """A few threads, and a bounded number of calls that wait for one. All methods belong to one event loop."""

    def __init__(self, name: str, *, threads: int, waiting_max: int, seconds_max: float) -> None:
        self._name = name
        self._threads = ThreadPoolExecutor(threads, name)
        self._calls_max = threads + waiting_max
        self._seconds_max = seconds_max
        self._running: set[Cancellation] = set()
        self.calls = 0
        """Calls that run or wait."""

    async def run(self, call: Callable[[Cancellation], Result]) -> Result:
        """Return what the call returns. Raises Busy, TimedOut, and what the call raises."""
        if self.calls >= self._calls_max:
            raise Busy(f"{self.calls} requests of the same kind are running or waiting: {Remedy.TRY_AGAIN}")
        cancellation = Cancellation()
        future = self._threads.submit(call, cancellation)
        self.calls += 1
        self._running.add(cancellation)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended, cancellation))
        try:
            async with asyncio.timeout(self._seconds_max):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise TimedOut(f"the request took longer than {self._seconds_max:.0f} s: {Remedy.ASK_LESS}") from None
        finally:
            if not future.done():
                _interrupt(future, cancellation, loop)

    def _ended(self, cancellation: Cancellation) -> None:
        self.calls -= 1
        self._running.discard(cancellation)

    def end(self) -> None:
        """Interrupt all calls."""
        for cancellation in self._running:
            cancellation.cancel()

    def shutdown(self) -> None:
        """Wait for the running calls, and refuse new ones; blocking."""
        self._threads.shutdown(cancel_futures=True)


def _interrupt(future: Future[Result], cancellation: Cancellation, loop: asyncio.AbstractEventLoop) -> None:
    """Interrupt a call until it ends: an interruption between two statements has no effect."""
    if not future.done():
        cancellation.cancel()
        loop.call_later(INTERRUPT_S, _interrupt, future, cancellation, loop)
