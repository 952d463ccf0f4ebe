"""What the event loop has called still has to do before the loop goes on.

A record that arrives becomes visible, wakes who waits for it, and his answer goes out: each is put off until what came
together has been dealt with, but not to the loop's next turn, which would cost each of them two system calls' time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from onceflow.wire import apis

logger = logging.getLogger(__name__)

PASSES_MAX = 3
"""What is put off meanwhile belongs to the next pass, after the last one to the loop's next turn: others come, too."""

LARGE_BYTES = 16 * 1024
DECODED_WEIGHT = 8
"""A byte of a large request that is decoded whole takes the time of so many bytes of a Produce request."""


def weight(request: memoryview, size_bytes: int) -> int:
    """Return what a large request counts against the bytes that a connection may have handled in a turn."""
    is_produce = int.from_bytes(request[:2], "big") == apis.PRODUCE
    return size_bytes if is_produce else DECODED_WEIGHT * size_bytes


LARGE_BYTES_PER_TURN = 64 * 1024
"""Large work is measured by the bytes of the request that asks for it; a larger piece is done by itself."""


class Turn:
    """Work put off to the end of a turn, and large work spread over many. All methods are the event loop's."""

    __slots__ = ("_is_end_sure", "_is_large_scheduled", "_large", "_large_bytes_left", "_work")

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []
        self._is_end_sure = False
        self._large: deque[tuple[int, Callable[[], None]]] = deque()
        self._large_bytes_left = LARGE_BYTES_PER_TURN
        self._is_large_scheduled = False

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

    def admits(self, size_bytes: int, work: Callable[[], None]) -> bool:
        """Whether large work may be done now; if not, `work` is called when it may, in the order asked.

        A turn of the loop does only so much of it, whichever connections it is for: small requests come in between.
        """
        is_admitted = self._large_bytes_left > 0
        if is_admitted:
            self._large_bytes_left -= size_bytes
        else:
            self._large.append((size_bytes, work))
        self._schedule_large()
        return is_admitted

    def _schedule_large(self) -> None:
        if not self._is_large_scheduled:
            self._is_large_scheduled = True
            asyncio.get_running_loop().call_soon(self._do_large)

    def _do_large(self) -> None:
        """In each turn of the loop that follows large work, until one has none."""
        self._is_large_scheduled = False
        self._large_bytes_left = LARGE_BYTES_PER_TURN
        while self._large and self._large_bytes_left > 0:
            size_bytes, work = self._large.popleft()
            self._large_bytes_left -= size_bytes
            self._schedule_large()
            try:
                work()
            except Exception:
                logger.exception("%s failed", work)
