"""The memory of all connections' receive buffers together: `queued.max.request.bytes`."""

import asyncio
from collections.abc import Callable


class RequestMemory:
    """Counts what is reserved beyond each connection's first buffer. All methods are the event loop's."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._waiting: list[Callable[[], None]] = []

    def exchange(self, given_bytes: int, taken_bytes: int) -> bool:
        """Reserve another number of bytes than before; False if that is too much. Less can always be had."""
        growth_bytes = taken_bytes - given_bytes
        if growth_bytes > 0 and self.used_bytes + growth_bytes > self.bytes_max:
            return False
        self.used_bytes += growth_bytes
        if growth_bytes < 0 and self._waiting:
            # All of them, in their order: one alone might have been closed, and would wake nobody after it.
            waiting, self._waiting = self._waiting, []
            for fed in waiting:
                asyncio.get_running_loop().call_soon(fed)
        return True

    def wait(self, fed: Callable[[], None]) -> None:
        """Call `fed` when some memory was given back."""
        self._waiting.append(fed)
