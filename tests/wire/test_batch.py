"""Record batches: foreign bytes, round trips, every damaged byte, every cut."""

import random
import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as some

from onceflow.wire.batch import (
    HEADER_BYTES,
    Record,
    batches,
    check_batch,
    decode_batch,
    encode_batch,
    patch_offset,
    read_header,
)
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import CorruptBatch, MalformedBatch, WireError
from tests.wire import golden

CODECS = {"none": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}

records_strategy = some.lists(
    some.tuples(
        some.integers(1, 2**31 // 20),
        some.integers(-(2**40), 2**42),
        some.none() | some.binary(max_size=300),
        some.none() | some.binary(max_size=300),
        some.lists(some.tuples(some.text(max_size=9), some.none() | some.binary(max_size=9)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


def numbered(drawn: list[tuple[Any, ...]]) -> list[Record]:
    """Return records with ascending offsets, with gaps like those of compaction."""
    offset = 0
    records = []
    for step, *rest in drawn:
        offset += step
        records.append(Record(offset, *rest))
    return records


@pytest.mark.parametrize("name", CODECS)
def test_librdkafkas_batches_are_read(name: str) -> None:
    ((position, header),) = batches(golden.LIBRDKAFKA[name])
    check_batch(golden.LIBRDKAFKA[name], position, header)
    assert header.codec is CODECS[name]
    assert decode_batch(golden.LIBRDKAFKA[name]) == [
        Record(
            number,
            1700000000000 + 11 * number,
            None if number == 2 else b"key-%d" % (number % 3),
            None if number == 4 else b"clicks clicks clicks %d" % number,
            (("h", b"1"), ("n", None)) if number == 3 else (),
        )
        for number in range(6)
    ]


@pytest.mark.parametrize("name", CODECS)
def test_javas_batches_are_read(name: str) -> None:
    ((position, header),) = batches(golden.JAVA[name])
    check_batch(golden.JAVA[name], position, header)
    assert header.codec is CODECS[name]
    records = decode_batch(golden.JAVA[name])
    assert [(record.key, record.value) for record in records] == [
        (b"key-%d" % (number % 3), b"clicks clicks clicks %d" % number) for number in range(6)
    ]
    assert records[-1].timestamp_ms <= header.max_timestamp


def test_log_append_time_is_the_batchs_own() -> None:
    header = read_header(golden.APPEND_TIME)
    assert header.is_log_append_time
    assert {record.timestamp_ms for record in decode_batch(golden.APPEND_TIME)} == {header.max_timestamp}


def test_transactional_and_control_batches_are_distinguished() -> None:
    headers = [header for _, header in batches(golden.TRANSACTIONS)]
    assert all(header.is_transactional for header in headers)
    assert [header.last_offset for header in headers if not header.is_control] == [2, 6, 10, 14]
    assert [header.last_offset for header in headers if header.is_control] == [3, 7, 11, 15]
    keys = [
        decode_batch(golden.TRANSACTIONS, position)[0].key
        for position, header in batches(golden.TRANSACTIONS)
        if header.is_control
    ]
    assert keys == [b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"] * 2


def test_encoded_batch_equals_librdkafkas() -> None:
    header = read_header(golden.LIBRDKAFKA["none"])
    written = encode_batch(decode_batch(golden.LIBRDKAFKA["none"]), leader_epoch=0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert bytes(written) == golden.LIBRDKAFKA["none"]


@settings(max_examples=60, deadline=None)
@given(records_strategy, some.sampled_from(Codec))
def test_there_and_back(drawn, codec: Codec) -> None:  # type: ignore[no-untyped-def]
    records = numbered(drawn)
    batch = b"before" + encode_batch(
        records, codec=codec, producer_id=2**40, producer_epoch=7, base_sequence=2**31 - 1, transactional=True
    )
    header = read_header(batch, 6)
    check_batch(batch, 6, header)
    assert decode_batch(batch, 6) == records
    assert header.last_offset == records[-1].offset
    assert header.last_sequence == (2**31 - 1 + header.last_offset_delta) % 2**31
    assert header.max_timestamp == max(record.timestamp_ms for record in records)
    assert (header.codec, header.is_transactional, header.is_control) == (codec, True, False)


def test_aiokafka_reads_what_is_written() -> None:
    from aiokafka.record.default_records import DefaultRecordBatch

    records = [Record(9 + number, 1700000000000 - number, b"k", b"v" * number, (("h", b"x"),)) for number in range(200)]
    for codec in Codec:
        peer = DefaultRecordBatch(bytes(encode_batch(records, codec=codec)))
        assert peer.validate_crc()
        read = [(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in peer]
        assert read == [tuple(record) for record in records]


def test_crc_excludes_offset_and_epoch() -> None:
    batch = encode_batch([Record(0, 1, b"k", b"v"), Record(1, 2, None, b"w")])
    patch_offset(memoryview(batch), 0, 2**40, 5)
    header = read_header(batch)
    check_batch(batch, 0, header)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (2**40, 2**40 + 1, 5)


@pytest.mark.parametrize("position", range(8, HEADER_BYTES + 8))
def test_flipped_bit_is_detected(position: int) -> None:
    batch = encode_batch([Record(0, 1, b"k", b"v")])
    batch[position] ^= 0x04
    header = read_header(batch)
    if 12 <= position < 16:
        check_batch(batch, 0, header)  # the broker sets the leader epoch
    else:
        with pytest.raises(CorruptBatch):
            check_batch(batch, 0, header)


def test_count_beyond_last_offset_is_corrupt() -> None:
    batch = encode_batch([Record(0, 1, b"k", b"v")])
    for count in (2, -1):
        struct.pack_into(">i", batch, 57, count)
        struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
        with pytest.raises(CorruptBatch, match="records, last offset delta 0"):
            check_batch(batch, 0, read_header(batch))


def test_cut_last_batch_is_ignored() -> None:
    whole = encode_batch([Record(0, 1, b"k", b"v")])
    for end in range(len(whole)):
        assert [position for position, _ in batches(whole + whole[:end])] == [0]
    for end in range(HEADER_BYTES):
        with pytest.raises(MalformedBatch, match="a batch header has 61"):
            read_header(whole[:end])
    with pytest.raises(CorruptBatch):
        check_batch(whole[:-1], 0, read_header(whole))
    with pytest.raises(MalformedBatch):
        decode_batch(whole[:-1])


@pytest.mark.parametrize("spoilt", [bytes(200), b"\xff" * 200])
def test_invalid_batch_raises_an_error(spoilt: bytes) -> None:
    with pytest.raises(MalformedBatch):
        list(batches(spoilt))


@pytest.mark.parametrize("codec", Codec)
def test_damaged_records_are_malformed_or_different(codec: Codec) -> None:
    seeded = random.Random(11)
    batch = encode_batch([Record(n, n, b"k", b"v" * n, (("h", b"x"),)) for n in range(9)], codec=codec)
    for _ in range(800):
        spoilt = bytearray(batch)
        spoilt[seeded.randrange(HEADER_BYTES - 4, len(spoilt))] = seeded.randrange(256)
        try:
            decode_batch(spoilt, size_bytes_max=2**20)
        except WireError:
            continue


@pytest.mark.parametrize("count", [b"\x01", b"\x02", b"\x80\x01"], ids=["-1", "1", "64"])
def test_wrong_number_of_headers_is_malformed(count: bytes) -> None:
    batch = encode_batch([Record(0, 1, None, b"v")])
    batch[-1:] = count
    batch[HEADER_BYTES] += 2 * (len(count) - 1)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(MalformedBatch, match="headers where 0 bytes are left"):
        decode_batch(batch)


def test_unknown_codec_is_malformed() -> None:
    batch = encode_batch([Record(0, 1, b"k", b"v")])
    batch[22] |= 0x05
    with pytest.raises(MalformedBatch, match="codec 5 does not exist"):
        decode_batch(batch)
