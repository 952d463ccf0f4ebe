"""What the kernel knows of a client's socket that is not being read."""

import fcntl
import select
import sys
import termios

LEFT_EVENTS = getattr(select, "POLLRDHUP", 0) | select.POLLHUP
"""Of poll(2): the client has closed its side. macOS tells of a reset only."""


def has_left(descriptor: int) -> bool:
    """Whether the client has closed its side."""
    poll = select.poll()
    poll.register(descriptor, LEFT_EVENTS)
    return any(events & LEFT_EVENTS for _descriptor, events in poll.poll(0))


def unread_bytes(descriptor: int) -> int:
    """Return how many bytes have arrived and were not read."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
