"""Checks on a request that is still arriving: its size, its pace, and whether its client is still connected."""

import fcntl
import select
import sys
import termios

from onceflow.broker.config import BrokerConfig
from onceflow.wire import apis

FRAME_BYTES_MIN = 8
LOGIN_BYTES_MIN = 2
"""SASL tokens without a header are shorter than requests."""

_GROUP_REQUESTS = frozenset((apis.JOIN_GROUP, apis.SYNC_GROUP, apis.OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT))

WINDOW_SECONDS = 30.0
"""Time over which `request.min.bytes.per.second` is an average."""
MEASURE_SECONDS_MIN = 0.5
"""Measurements in shorter succession count as one."""

DISCONNECT_EVENTS = getattr(select, "POLLRDHUP", 0) | select.POLLHUP
"""Events of poll(2) after the client has closed its side. macOS reports a reset only."""


def frame_size_error(config: BrokerConfig, frame: memoryview, size_bytes: int) -> str | None:
    """Return why the frame that starts with these bytes may not have this size; None if it may."""
    api_key = int.from_bytes(frame[:2], "big") if len(frame) >= 2 else apis.PRODUCE
    if api_key == apis.PRODUCE:
        what, largest = "a Produce request", config.produce_request_bytes_max
    elif api_key in _GROUP_REQUESTS:
        what, largest = "a consumer group request", config.group_request_bytes_max
    elif api_key in apis.INTER_BROKER_APIS and config.zookeeper_connect is not None:
        what, largest = "a request between brokers", config.produce_request_bytes_max
    else:
        what, largest = "a request of this kind", config.other_request_bytes_max
    if FRAME_BYTES_MIN <= size_bytes <= largest:
        return None
    return f"a frame of {size_bytes} bytes; {what} has {FRAME_BYTES_MIN} to {largest} bytes"


def plain_bytes_max(config: BrokerConfig) -> int:
    """Return the size up to which a frame of any API is accepted."""
    return min(config.produce_request_bytes_max, config.group_request_bytes_max, config.other_request_bytes_max)


def largest_frame_bytes(config: BrokerConfig) -> int:
    """Return the size of the largest request, with its own four bytes of size."""
    return 4 + max(config.produce_request_bytes_max, config.group_request_bytes_max, config.other_request_bytes_max)


def login_size_error(config: BrokerConfig, size_bytes: int) -> str | None:
    """Return why a client that is not authenticated may not send a frame of this size; None if it may."""
    if LOGIN_BYTES_MIN <= size_bytes <= config.login_bytes_max:
        return None
    largest = config.login_bytes_max
    return f"a frame of {size_bytes} bytes; before authentication it has {LOGIN_BYTES_MIN} to {largest} bytes"


class Arrival:
    """Pace of one incoming request, measured about once a second, and more often while memory is short.

    `position` identifies the request: the position of its first byte among all bytes that its connection has received.
    """

    __slots__ = ("_measured_at", "_measured_bytes", "_window_at", "_window_bytes", "bytes_per_second", "position")

    def __init__(self, position: int, now: float, received_bytes: int) -> None:
        self.position = position
        self.bytes_per_second: float | None = None
        """Pace between the last two measurements."""
        self._measured_at = self._window_at = now
        self._measured_bytes = self._window_bytes = received_bytes

    def measure(self, now: float, received_bytes: int) -> float | None:
        """Return the average of a window that ends now, in bytes per second; None while it has not ended."""
        if now - self._measured_at >= MEASURE_SECONDS_MIN:
            self.bytes_per_second = (received_bytes - self._measured_bytes) / (now - self._measured_at)
            self._measured_at, self._measured_bytes = now, received_bytes
        window_seconds = now - self._window_at
        if window_seconds < WINDOW_SECONDS:
            return None
        average = (received_bytes - self._window_bytes) / window_seconds
        self._window_at, self._window_bytes = now, received_bytes
        return average


def has_disconnected(descriptor: int) -> bool:
    """Return whether the client has closed its side of the socket."""
    poll = select.poll()
    poll.register(descriptor, DISCONNECT_EVENTS)
    return any(events & DISCONNECT_EVENTS for _descriptor, events in poll.poll(0))


def unread_bytes(descriptor: int) -> int:
    """Return how many bytes have arrived at the socket and are unread."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def is_over(duration_seconds: float, limit_ms: int) -> bool:
    """Return whether a duration exceeds a limit, which is none if negative."""
    return 0 <= limit_ms < duration_seconds * 1000
