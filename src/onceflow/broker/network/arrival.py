"""Pace at which the bytes of a request arrive that is not whole yet."""

WINDOW_SECONDS = 30.0
"""Time over which `request.min.bytes.per.second` is an average."""
LOOK_SECONDS = 0.5
"""Looks in shorter succession count as one."""


class Arrival:
    """One request on its way in, looked at about once a second, and more often while memory is short.

    `position` is the place of its first byte among all bytes that its connection has received, which identifies it.
    """

    __slots__ = ("_looked_at", "_looked_bytes", "_window_at", "_window_bytes", "bytes_per_second", "position")

    def __init__(self, position: int, now: float, received_bytes: int) -> None:
        self.position = position
        self.bytes_per_second: float | None = None
        """From the last look but one to the last."""
        self._looked_at = self._window_at = now
        self._looked_bytes = self._window_bytes = received_bytes

    def look(self, now: float, received_bytes: int) -> float | None:
        """Return the average of a window that ends now, in bytes per second; None while it has not ended."""
        if now - self._looked_at >= LOOK_SECONDS:
            self.bytes_per_second = (received_bytes - self._looked_bytes) / (now - self._looked_at)
            self._looked_at, self._looked_bytes = now, received_bytes
        window_seconds = now - self._window_at
        if window_seconds < WINDOW_SECONDS:
            return None
        average = (received_bytes - self._window_bytes) / window_seconds
        self._window_at, self._window_bytes = now, received_bytes
        return average
