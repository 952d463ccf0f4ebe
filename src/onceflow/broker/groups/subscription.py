"""The one thing that the broker reads in what consumers tell each other: which topics they subscribe to.

A subscription of the protocol type `consumer` begins with an int16 version and an array of topic names, in every
version (kafka-clients, `common/message/ConsumerProtocolSubscription.json`). All else is the assignors' own.
"""

import struct
from collections.abc import Iterable


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all subscriptions together; None if one of them is no subscription."""
    try:
        return frozenset(topic for each in subscriptions for topic in _topics(each))
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
