"""Limits of the HTTP endpoint: events per second of a key or an address, and memory of all requests together."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

BURST_SECONDS = 10
NAMES_MAX = 100_000


class RateLimit:
    """Events per second for each name, on average; a burst may have those of ten seconds. 0 sets no limit.

    A request is counted after it was read. It may exceed what is left, and the next ones wait longer then. At most
    100,000 names are kept, those that were used last.
    """

    def __init__(self, per_second: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock_s = clock_s
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def wait_s(self, name: Hashable) -> float:
        """Return the seconds until this name may send again; 0 if it may now."""
        return max(0.0, -self._left_of(name) / self._per_second) if self._per_second else 0.0

    def count(self, name: Hashable, events: int) -> None:
        """Count events of this name."""
        if not self._per_second:
            return
        self._left[name] = (self._left_of(name) - events, self._clock_s())
        self._left.move_to_end(name)
        if len(self._left) > NAMES_MAX:
            self._left.popitem(last=False)

    def _left_of(self, name: Hashable) -> float:
        burst = self._per_second * BURST_SECONDS
        left, at_s = self._left.get(name, (burst, 0.0))
        return min(burst, left + (self._clock_s() - at_s) * self._per_second)


class Memory:
    """Bytes that requests may hold at a time, all together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0

    def take(self, count: int) -> bool:
        """Take bytes if they are left; return whether they were."""
        if self.used + count > self.bytes_max:
            return False
        self.used += count
        return True

    def give_back(self, count: int) -> None:
        """Return bytes that were taken."""
        self.used -= count
