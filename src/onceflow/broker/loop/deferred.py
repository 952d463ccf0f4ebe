"""Calls deferred to the end of the event loop's turn, and large work spread over many turns.

An appended record becomes visible, wakes its waiters, and their responses are sent. Each of these steps is deferred
until all simultaneous events have been handled, but not to the loop's next turn, which would cost the time of two
system calls for each.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

PASSES_MAX = 3
"""Calls that are added meanwhile belong to the next pass; after the last pass, to the loop's next turn."""

LARGE_REQUEST_BYTES = 8 * 1024
"""Larger requests, except Produce, are large work."""
HANDLED_BYTES_PER_WORK = 16
"""Approximate bytes of a large request that a handler processes in a microsecond after they are decoded."""
HUGE_REQUEST_BYTES = 64 * 1024
"""Larger requests have a queue apart from the other large ones."""
LARGE_WORK_PER_TURN = 1000
"""Large work in one turn over all connections, in units of about a microsecond."""

_Queue = deque[tuple[Iterator[int], Callable[[], bool]]]


class DeferredCalls:
    """Calls deferred to the end of a turn, and large work spread over many. All methods run on the event loop."""

    __slots__ = ("_huge", "_is_end_sure", "_large", "_work")

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []
        self._is_end_sure = False
        self._large: _Queue = deque()
        self._huge: _Queue = deque()

    def begin_turn(self) -> None:
        """Start a turn; the caller calls `end_turn` at its end."""
        self._is_end_sure = True

    def add(self, work: Callable[[], None]) -> None:
        """Call `work` at the end of this turn, or in the next one if no `begin_turn` was called."""
        self._work.append(work)
        if not self._is_end_sure:
            self._end_later()

    def _end_later(self) -> None:
        self._is_end_sure = True
        asyncio.get_running_loop().call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Make the deferred calls. A failing callback is logged; the others still run."""
        for _ in range(PASSES_MAX):
            if not self._work:
                break
            due, self._work = self._work, []
            for work in due:
                try:
                    work()
                except Exception:
                    logger.exception("%s failed", work)
        self._is_end_sure = False
        if self._work:
            self._end_later()

    def add_large(self, work: Iterator[int], *, is_wanted: Callable[[], bool], size_bytes: int = 0) -> None:
        """Do `work`, which yields the cost of each step, in later turns of the loop, after earlier large work.

        A turn does a limited amount of it over all connections: small requests come in between. Work for a request of
        more than HUGE_REQUEST_BYTES gets half of that while there is other large work. The rest is dropped when it is
        no longer wanted.
        """
        if not self._large and not self._huge:
            asyncio.get_running_loop().call_soon(self._do_large)
        (self._huge if size_bytes > HUGE_REQUEST_BYTES else self._large).append((work, is_wanted))

    def _do_large(self) -> None:
        """Do one work of each queue at a time to its end, since unfinished work costs memory."""
        left = self._do_some(self._large, LARGE_WORK_PER_TURN, LARGE_WORK_PER_TURN // 2 if self._huge else 0)
        left = self._do_some(self._huge, left, 0)
        self._do_some(self._large, left, 0)
        if self._large or self._huge:
            asyncio.get_running_loop().call_soon(self._do_large)

    @staticmethod
    def _do_some(queue: "_Queue", left: int, left_min: int) -> int:
        """Work until `left_min` or less is left of the turn, and return what is left."""
        while queue and left > left_min:
            work, is_wanted = queue[0]
            try:
                units = next(work, None) if is_wanted() else None
            except Exception:
                logger.exception("%s failed", work)
                units = None
            if units is None:
                queue.popleft()
            else:
                left -= units
        return left
