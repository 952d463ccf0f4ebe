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
LARGE_WORK_PER_TURN = 1000
"""Large work in one turn, in units of about a microsecond, whichever connections it is for."""


class Turn:
    """Work put off to the end of a turn, and large work spread over many. All methods are the event loop's."""

    __slots__ = ("_is_end_sure", "_large", "_work")

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []
        self._is_end_sure = False
        self._large: deque[tuple[Iterator[int], Callable[[], bool]]] = deque()

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

    def large(self, work: Iterator[int], *, is_wanted: Callable[[], bool]) -> None:
        """Do `work`, which yields what each step cost, in later turns of the loop; large works are done in order.

        A turn does only so much of it, whichever connections it is for: small requests come in between. The rest is
        dropped when it is no longer wanted.
        """
        self._large.append((work, is_wanted))
        if len(self._large) == 1:
            asyncio.get_running_loop().call_soon(self._do_large)

    def _do_large(self) -> None:
        """One at a time to its end: what is half done costs memory."""
        work_left = LARGE_WORK_PER_TURN
        while self._large and work_left > 0:
            work, is_wanted = self._large[0]
            try:
                units = next(work, None) if is_wanted() else None
            except Exception:
                logger.exception("%s failed", work)
                units = None
            if units is None:
                self._large.popleft()
            else:
                work_left -= units
        if self._large:
            asyncio.get_running_loop().call_soon(self._do_large)
