"""Clock that a test moves by hand."""


class ManualClock:
    """A clock that a test moves, for a broker: `Broker(clock=ManualClock())`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        """Return the time of day in ms since 1970, UTC."""
        return self._now_ms

    def monotonic(self) -> float:
        """Return seconds since the clock was created."""
        return self._monotonic

    def advance_ms(self, duration_ms: int) -> None:
        """Advance both readings by this many ms."""
        self._now_ms += duration_ms
        self._monotonic += duration_ms / 1000
