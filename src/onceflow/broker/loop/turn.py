"""What the event loop has called still has to do before the loop goes on.

A record that arrives becomes visible, wakes who waits for it, and his answer goes out: each is put off until what came
together has been dealt with, but not to the loop's next turn, which would cost each of them two system calls' time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

PASSES_MAX = 3
"""What is put off meanwhile belongs to the next pass, after the last one to the loop's next turn: others come, too."""

LARGE_REQUEST_BYTES = 8 * 1024
"""Larger requests, Produce excepted, are large work."""
HANDLED_BYTES_PER_WORK = 16
"""Bytes of a large request that a handler deals with in a microsecond, about, after they are decoded."""
HUGE_REQUEST_BYTES = 64 * 1024
"""Larger requests wait for their turn apart from the other large ones."""
LARGE_WORK_PER_TURN = 1000
"""Large work in one turn, in units of about a microsecond, whichever connections it is for."""

_Queue = deque[tuple[Iterator[int], Callable[[], bool]]]


class Turn:
    """Work put off to the end of a turn, and large work spread over many. All methods are the event loop's."""

    __slots__ = ("_huge", "_is_end_sure", "_large", "_work")

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []
        self._is_end_sure = False
        self._large: _Queue = deque()
        self._huge: _Queue = deque()

    def begin(self) -> None:
        """First in what the loop calls, if `end` is the last."""
        self._is_end_sure = True

    def soon(self, work: Callable[[], None]) -> None:
        """Call `work` at the end of this turn, or in the next one where nobody has called `begin`."""
        self._work.append(work)
        if not self._is_end_sure:
            self._end_later()

    def _end_later(self) -> None:
        self._is_end_sure = True
        asyncio.get_running_loop().call_soon(self.end)

    def end(self) -> None:
        """Do what was put off. What fails is told in the log and keeps nobody else from his answer."""
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

    def large(self, work: Iterator[int], *, is_wanted: Callable[[], bool], size_bytes: int = 0) -> None:
        """Do `work`, which yields what each step cost, in later turns of the loop; large works are done in order.

        A turn does only so much of it, whichever connections it is for: small requests come in between. Work for a
        request of more than HUGE_REQUEST_BYTES gets half of that while there is other large work. The rest is dropped
        when it is no longer wanted.
        """
        if not self._large and not self._huge:
            asyncio.get_running_loop().call_soon(self._do_large)
        (self._huge if size_bytes > HUGE_REQUEST_BYTES else self._large).append((work, is_wanted))

    def _do_large(self) -> None:
        """One work of each queue at a time to its end: what is half done costs memory."""
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
