"""One poller for all open pages: it runs while somebody looks and rests when nobody does.

Redis and the broker are each asked once a second in a thread of their own, so that a broker that hangs does not hold
up the counts. A page waits for a version newer than the one it has; it can fall behind, but never makes a queue.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from onceflow.dashboard.board import Board, Document
from onceflow.dashboard.sources import Addresses, CountsSource, LogSource
from onceflow.errors import OnceflowError

POLL_S = 1.0
ALIVE_S = 5.0
"""A page hears at least this often that its server lives."""
PAGES_MAX = 200

Answer = TypeVar("Answer")


class Feed:
    """Polls both sources for whoever listens. All methods belong to one event loop."""

    def __init__(self, addresses: Addresses, *, poll_s: float = POLL_S, alive_s: float = ALIVE_S) -> None:
        self._board = Board(addresses)
        self._counts = CountsSource(addresses)
        self._log = LogSource(addresses)
        self._poll_s = poll_s
        self._alive_s = alive_s
        # One thread per source keeps its calls in order, and a third looks up single users.
        self._threads = {name: ThreadPoolExecutor(1, name) for name in ("counts", "log", "user")}
        self._pollers: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._version = 0
        self._shown: Document = {}
        self._closed = False
        self.listeners = 0

    @property
    def polling(self) -> bool:
        """Whether Redis and the broker are being asked."""
        return bool(self._pollers)

    @property
    def full(self) -> bool:
        """Whether as many pages are open as one server serves."""
        return self.listeners >= PAGES_MAX

    # For the pages

    async def listen(self) -> AsyncGenerator[Document | None, None]:
        """Yield a document at once and then each time it changed; None when nothing did for a while.

        Ends when the feed is closed; raises what ended a poller. Close it (`contextlib.aclosing`) to stop listening.
        """
        self._start()
        self.listeners += 1
        try:
            seen = 0
            while not self._closed:
                fresh = await self._newer_than(seen)
                seen = self._version if fresh else seen
                yield self._document() if fresh else None
        finally:
            self.listeners -= 1
            if self.listeners == 0:
                self._stop()

    async def document(self) -> Document:
        """Return the state of this moment, as soon as both sources answered or were given the time to."""
        async with contextlib.aclosing(self.listen()) as documents:
            async for document in documents:
                if document is None or _both_known(document):
                    break
        return self._document()

    async def clicks_of(self, uid: str) -> int | None:
        """Return one user's clicks."""
        return await self._in_thread("user", self._counts.clicks_of, uid)

    def end(self) -> None:
        """End all listeners and the pollers; nobody can listen any more."""
        self._closed = True
        self._stop()
        self._wake()

    async def close(self) -> None:
        """End everything, wait for the calls that are under way, close the connections."""
        self.end()
        for threads in self._threads.values():
            await asyncio.to_thread(threads.shutdown)
        self._counts.close()
        self._log.close()

    # The poller

    def _start(self) -> None:
        if self._pollers or self._closed:
            return
        self._board.forget_health()
        self._version = 0
        self._pollers = [asyncio.create_task(self._poll(ask)) for ask in (self._ask_counts, self._ask_log)]
        for poller in self._pollers:
            # A poller that ended by a fault of ours must not leave its listeners waiting.
            poller.add_done_callback(lambda _: self._wake())

    def _stop(self) -> None:
        for poller in self._pollers:
            poller.cancel()
        if self._pollers and not self._closed:
            # A connection that rests may be closed by the broker, which would then look as if it were down.
            self._threads["log"].submit(self._log.close)
        self._pollers = []

    async def _poll(self, ask: Callable[[], Awaitable[None]]) -> None:
        while True:
            begin = time.monotonic()
            await ask()
            self._tell()
            await asyncio.sleep(max(0.0, begin + self._poll_s - time.monotonic()))

    async def _ask_counts(self) -> None:
        try:
            counts = await self._in_thread("counts", self._counts.read)
        except OnceflowError as error:
            self._board.redis.failed(error, _now_ms())
        else:
            self._board.counts_arrived(counts, _now_ms())

    async def _ask_log(self) -> None:
        while self._board.redis.state == "unknown":
            # What waits is what lies beyond the counted offsets: Redis comes first.
            await self._news.wait()
        marker = self._board.counts.marker if self._board.counts else None
        try:
            waiting = await self._in_thread("log", self._log.read, marker, _now_ms())
        except OnceflowError as error:
            self._board.broker_failed(error, _now_ms())
        else:
            self._board.waiting_arrived(waiting, _now_ms())

    async def _in_thread(self, name: str, call: Callable[..., Answer], *arguments: object) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._threads[name], call, *arguments)

    # Versions

    def _document(self) -> Document:
        return self._board.document(_now_ms())

    def _tell(self) -> None:
        """Count a new version if anything but the passing of time changed."""
        shown = _timeless(self._document())
        if self._version == 0 or shown != self._shown:
            self._shown = shown
            self._version += 1
            self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _newer_than(self, seen: int) -> bool:
        """Wait for a version after `seen`; False after `alive_s` without one. Raises what ended a poller."""
        deadline = asyncio.get_running_loop().time() + self._alive_s
        while self._version <= seen and not self._closed:
            for poller in self._pollers:
                if poller.done():
                    poller.result()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                return False
        return not self._closed


def _timeless(document: Document) -> Document:
    lag = document["lag"]
    return {**document, "taken_ms": None, "lag": lag and {**lag, "seconds": None}}


def _both_known(document: Document) -> bool:
    return all(health["state"] != "unknown" for health in document["services"].values())


def _now_ms() -> int:
    return int(time.time() * 1_000)
