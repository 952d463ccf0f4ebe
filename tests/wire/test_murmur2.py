"""Partition of a key in Java's client: the values of Kafka's own UtilsTest, and aiokafka's for others."""

import pytest

from onceflow.wire.murmur2 import murmur2, partition_for_key

JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), JAVA.items())
def test_hashes_as_java_does(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_sign_bit_is_cleared_before_modulo() -> None:
    assert partition_for_key(b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7


def test_every_length_of_tail_agrees_with_aiokafka() -> None:
    from aiokafka.partitioner import murmur2 as peer

    for length in range(33):
        key = bytes((37 * length + 201 * index) % 256 for index in range(length))
        assert murmur2(key) == peer(key) & 0xFFFFFFFF
