"""Memory limit of the unsent responses of all connections: `unsent.max.bytes`."""

import asyncio
from collections.abc import Callable

KEPT_FRACTION = 3 / 4
"""Fraction of the limit that stays in use after memory is reclaimed, so that the next response does not exceed it."""


class ResponseBudget:
    """Bytes of unsent responses. All methods run on the event loop."""

    def __init__(self, bytes_max: int, reclaim: Callable[[], None]) -> None:
        """Call `reclaim` one turn after the limit was exceeded, when clients that read have got their responses."""
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._reclaim = reclaim
        self._is_scheduled = False

    @property
    def is_too_full(self) -> bool:
        """Whether more memory must be reclaimed."""
        return self.used_bytes > self.bytes_max * KEPT_FRACTION

    def add(self, size_bytes: int) -> None:
        """Count more bytes, or fewer if negative."""
        self.used_bytes += size_bytes
        if self.used_bytes > self.bytes_max and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._reclaim_if_needed)

    def _reclaim_if_needed(self) -> None:
        self._is_scheduled = False
        if self.used_bytes > self.bytes_max:
            self._reclaim()
