"""The memory of all connections' unsent answers together: `unsent.max.bytes`."""

import asyncio
from collections.abc import Callable

KEPT_PART = 3 / 4
"""What relief leaves of the limit, so that it does not come again with the next answer."""


class ResponseBudget:
    """Counts what is held. All methods are the event loop's."""

    def __init__(self, bytes_max: int, relieve: Callable[[], None]) -> None:
        """`relieve` is called one turn after the limit was passed, when who reads has had its answers."""
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._relieve = relieve
        self._is_scheduled = False

    @property
    def is_too_full(self) -> bool:
        """Whether relief has more to do."""
        return self.used_bytes > self.bytes_max * KEPT_PART

    def add(self, size_bytes: int) -> None:
        """So many bytes more, or less if negative."""
        self.used_bytes += size_bytes
        if self.used_bytes > self.bytes_max and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._relieve_if_needed)

    def _relieve_if_needed(self) -> None:
        self._is_scheduled = False
        if self.used_bytes > self.bytes_max:
            self._relieve()
