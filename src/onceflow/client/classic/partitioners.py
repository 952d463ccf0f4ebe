"""Choice of a message's partition: `partitioner.class`."""

import random
from typing import Protocol

from onceflow.client.classic.encoders import DefaultEncoder, EncodingFailed, StringEncoder
from onceflow.wire.murmur2 import partition_for_key


class Partitioner(Protocol):
    """`kafka.producer.Partitioner`: one method, called only for messages with a key."""

    def partition(self, key: object, num_partitions: int) -> int:
        """Return an index into the topic's sorted list of partitions, from 0 to `num_partitions` - 1."""
        ...


class DefaultPartitioner:
    """Hash of the key modulo the number of partitions; the hash is Java's murmur2 over the key's bytes.

    So a key stays on its partition whatever client produces it (Kafka's BuiltInPartitioner). Text is encoded as UTF-8
    and an int as its decimal text, as StringEncoder sends them; a key of any other type raises EncodingFailed.
    """

    def partition(self, key: object, num_partitions: int) -> int:
        return partition_for_key(_bytes_of(key), num_partitions)


def _bytes_of(key: object) -> bytes:
    for encoder in (DefaultEncoder(), StringEncoder()):
        try:
            return encoder.to_message(key)
        except EncodingFailed:
            continue
    raise EncodingFailed(
        f"DefaultPartitioner requires a key of bytes, str or int, not {type(key).__name__}; set partitioner.class to "
        "a partitioner of your own"
    )


def any_partition(num_partitions: int) -> int:
    """Return a random index for a message without a key."""
    return random.randrange(num_partitions)
