"""One poller for all open pages; it runs only while a page is open.

Redis and the broker are each polled once a second in their own thread, so that a hanging broker does not delay the
counts. The live counts are read by threads of their own, which run for a while after the last page or request. A page
waits for a version newer than its own; a slow page skips versions instead of queueing them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from onceflow.clicks.live import NOT_LIVE, Live, UserView
from onceflow.clicks.results import Snapshot
from onceflow.dashboard.board import Board, Document
from onceflow.dashboard.sources import Addresses, CountsSource, LogSource
from onceflow.errors import OnceflowError

POLL_S = 1.0
LIVE_S = 0.25
"""Minimum time between two events of a page with live counts."""
LINGER_S = 30.0
"""Time for which live counts are read after the last page or request, so that the next one finds them."""
START_S = 2.0
"""Maximum wait of a response for the first live counts without progress."""
ALIVE_S = 5.0
"""Maximum time between two events of a page, which then gets a keep-alive."""
PAGES_MAX = 200

Result = TypeVar("Result")


class Feed:
    """Poller of both sources for all listeners. All methods belong to one event loop."""

    def __init__(self, addresses: Addresses, *, poll_s: float = POLL_S, alive_s: float = ALIVE_S) -> None:
        self._board = Board(addresses)
        self._counts = CountsSource(addresses)
        self._log = LogSource(addresses)
        self._poll_s = poll_s
        self._alive_s = alive_s
        # One thread per source keeps its calls in order; a third one reads single users.
        self._threads = {name: ThreadPoolExecutor(1, name) for name in ("counts", "log", "live", "user")}
        self._live: Live | None = None
        self._live_end: asyncio.TimerHandle | None = None
        self._pollers: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._version = 0
        self._shown: Document = {}
        self._closed = False
        self._when_ended: list[Callable[[], None]] = []
        self.addresses = addresses
        self.listeners = 0

    @property
    def polling(self) -> bool:
        """Whether Redis and the broker are being polled."""
        return bool(self._pollers)

    @property
    def full(self) -> bool:
        """Whether the maximum number of pages is open."""
        return self.listeners >= PAGES_MAX

    @property
    def counts(self) -> Snapshot | None:
        """The last counts that Redis returned."""
        return self._board.counts

    @property
    def shown(self) -> Snapshot | None:
        """The live numbers, or else the last counts."""
        live = None if self._live is None else self._live.view().snapshot
        return live or self._board.counts

    # For the pages

    async def listen(self) -> AsyncGenerator[Document | None, None]:
        """Yield a document at once and after each change; None after `alive_s` without a change.

        It ends when the feed is closed, and raises the failure of a poller. Close it (`contextlib.aclosing`) to stop.
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
        """Return the current document as soon as both sources have responded, or after `alive_s`."""
        async with contextlib.aclosing(self.listen()) as documents:
            async for document in documents:
                if document is None or _both_known(document):
                    break
        await self._started_live()
        return self._document()

    async def clicks_of(self, uid: str) -> UserView:
        """Return one user's clicks."""
        live = await self._started_live()
        return await self._in_thread("user", self._counts.clicks_of, uid, live)

    def when_ended(self, call: Callable[[], None]) -> None:
        """Call this, too, when the feed ends, which is before the server waits for open requests."""
        self._when_ended.append(call)

    def end(self) -> None:
        """Stop all listeners and the pollers for good."""
        self._closed = True
        for call in self._when_ended:
            call()
        self._stop()
        self._wake()

    async def close(self) -> None:
        """Stop everything, wait for running calls, and close the connections."""
        self.end()
        await asyncio.to_thread(self._end_live)
        for threads in self._threads.values():
            await asyncio.to_thread(threads.shutdown)
        self._counts.close()
        self._log.close()

    # The live counts

    def _use_live(self) -> Live | None:
        """Return the live counts, started if necessary; they end `LINGER_S` after their last use."""
        if self._closed:
            return None
        if self._live is None:
            self._live = self._counts.new_live()
            self._live.start()
        if self._live_end is not None:
            self._live_end.cancel()
        self._live_end = asyncio.get_running_loop().call_later(LINGER_S, self._live_unused)
        return self._live

    async def _started_live(self) -> Live | None:
        live = self._use_live()
        if live is not None and live.is_starting:
            await self._in_thread("user", live.wait_until_live, START_S)
        return live

    def _live_unused(self) -> None:
        if self._pollers:
            self._use_live()
        else:
            self._threads["live"].submit(self._end_live)

    def _end_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.close()

    # The poller

    def _start(self) -> None:
        if self._pollers or self._closed:
            return
        self._board.reset_health()
        self._version = 0
        self._use_live()
        self._pollers = [asyncio.create_task(self._poll(ask)) for ask in (self._ask_counts, self._ask_log)]
        self._pollers.append(asyncio.create_task(self._poll_live()))
        for poller in self._pollers:
            # A poller that failed must not leave its listeners waiting.
            poller.add_done_callback(lambda _: self._wake())

    def _stop(self) -> None:
        for poller in self._pollers:
            poller.cancel()
        if self._pollers and not self._closed:
            # The broker may close an idle connection and would then appear to be down.
            self._threads["log"].submit(self._log.close)
        self._pollers = []

    async def _poll(self, ask: Callable[[], Awaitable[None]]) -> None:
        while True:
            started = time.monotonic()
            await ask()
            self._publish()
            await asyncio.sleep(max(0.0, started + self._poll_s - time.monotonic()))

    async def _poll_live(self) -> None:
        seen = 0
        while True:
            live = self._use_live()
            if live is not None:
                seen = await self._in_thread("live", live.wait, seen, self._poll_s)
            self._publish()
            await asyncio.sleep(LIVE_S)

    async def _ask_counts(self) -> None:
        try:
            counts = await self._in_thread("counts", self._counts.read)
        except OnceflowError as error:
            self._board.redis.failed(error, _now_ms())
        else:
            self._board.set_counts(counts, _now_ms())

    async def _ask_log(self) -> None:
        while self._board.redis.state == "unknown":
            # The backlog starts at the counted offsets, which Redis has.
            await self._news.wait()
        marker = self._board.counts.marker if self._board.counts else None
        try:
            backlog = await self._in_thread("log", self._log.read, marker, _now_ms())
        except OnceflowError as error:
            self._board.broker_failed(error, _now_ms())
        else:
            self._board.set_backlog(backlog, _now_ms())

    async def _in_thread(self, name: str, call: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads[name], call, *arguments)

    # Versions

    def _document(self) -> Document:
        return self._board.document(_now_ms(), NOT_LIVE if self._live is None else self._live.view())

    def _publish(self) -> None:
        """Publish a new version if anything except the time changed."""
        shown = _timeless(self._document())
        if self._version == 0 or shown != self._shown:
            self._shown = shown
            self._version += 1
            self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _newer_than(self, seen: int) -> bool:
        """Wait for a version after `seen`; return False after `alive_s` without one. Raises the failure of a poller."""
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
    lag, now = document["lag"], document["now"]
    # The age of live counts is shown in seconds.
    as_of_s = now["as_of_ms"] and now["as_of_ms"] // 1_000
    lag = lag and {**lag, "seconds": None}
    return {**document, "taken_ms": None, "lag": lag, "now": {**now, "as_of_ms": as_of_s}}


def _both_known(document: Document) -> bool:
    return all(health["state"] != "unknown" for health in document["services"].values())


def _now_ms() -> int:
    return int(time.time() * 1_000)
