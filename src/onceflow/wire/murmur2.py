"""Hash by which Kafka's Java client places a key in a partition (org.apache.kafka.common.utils.Utils.murmur2)."""

import struct

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the hash of `key`, unsigned 32 bits: Java's signed result `& 0xffffffff`."""
    length = len(key)
    whole = length & ~3
    state = (_SEED ^ length) & _MASK
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    if length > whole:
        state ^= int.from_bytes(key[whole:], "little")
        state = state * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition, from 0 to `partition_count` - 1, where Java's default partitioner puts `key`.

    Kafka's BuiltInPartitioner.partitionForKey; an empty key is a key. ZeroDivisionError without partitions.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
