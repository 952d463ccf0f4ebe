"""The clock, passed in so that a test can control it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for durations."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, as in record timestamps."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; the value never decreases."""
        ...


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
