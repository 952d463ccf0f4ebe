"""Joins the small pieces of answers that are about to be sent, so that they go out in one call."""

from collections import deque
from collections.abc import Callable

from onceflow.broker.network.reply import SendingSlice

SLICE_BYTES_SMALL = 32 * 1024
JOINED_BYTES_MAX = 64 * 1024


def take_small(
    unsent: deque[bytes | memoryview | SendingSlice], read: Callable[[SendingSlice], bytes | memoryview]
) -> bytes:
    """Take the small pieces at the front of `unsent` and return them as one; slices of files are read."""
    joined = bytearray()
    while unsent and len(joined) < JOINED_BYTES_MAX:
        piece = unsent[0]
        if isinstance(piece, SendingSlice):
            if piece.size_bytes > SLICE_BYTES_SMALL:
                break
            piece = read(piece)
        elif len(piece) > JOINED_BYTES_MAX:
            break
        joined += piece
        unsent.popleft()
    return bytes(joined)
