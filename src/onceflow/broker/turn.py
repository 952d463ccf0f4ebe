"""What the event loop has called still has to do before the loop goes on.

A record that arrives becomes visible, wakes who waits for it, and his answer goes out: each is put off until what came
together has been dealt with, but not to the loop's next turn, which would cost each of them two system calls' time.
"""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

PASSES_MAX = 3
"""What is put off meanwhile belongs to the next pass, after the last one to the loop's next turn: others come, too."""


class Turn:
    """Work put off to the end of a turn. All methods are the event loop's."""

    __slots__ = ("_is_end_sure", "_work")

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []
        self._is_end_sure = False

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
