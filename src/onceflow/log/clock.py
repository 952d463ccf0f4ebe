"""The time, passed in so that a test can move it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: the wall's time for what is stored, a monotonic one for measuring durations."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as record timestamps count them."""
        ...

    def monotonic(self) -> float:
        """Seconds since an unnamed moment; never goes back."""
        ...


class SystemClock:
    """This machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
