"""The one thing that the broker reads in what consumers tell each other: which topics they subscribe to.

A subscription of the protocol type `consumer` begins with an int16 version and an array of topic names, in every
version (kafka-clients, `common/message/ConsumerProtocolSubscription.json`). All else is the assignors' own.
"""

import struct
from collections.abc import Iterable

READ_BYTES_MAX = 256 * 1024
"""Of a group's distinct subscriptions: some tens of milliseconds."""


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all subscriptions together; None if they cannot be read, or are too large to be read at once."""
    distinct = set(subscriptions)
    if sum(map(len, distinct)) > READ_BYTES_MAX:
        return None
    try:
        return frozenset(topic for each in distinct for topic in _topics(each))
    except (struct.error, ValueError):
        return None


def _topics(subscription: bytes) -> list[str]:
    _version, count = struct.unpack_from(">hi", subscription)
    position = 6
    topics = []
    for _ in range(count):
        (size_bytes,) = struct.unpack_from(">h", subscription, position)
        if size_bytes < 0:
            raise ValueError(f"byte {position}: a topic name of {size_bytes} bytes")
        (name,) = struct.unpack_from(f"{size_bytes}s", subscription, position + 2)
        topics.append(name.decode())
        position += 2 + size_bytes
    return topics
