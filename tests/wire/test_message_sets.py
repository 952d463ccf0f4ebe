"""Formats 0 and 1: Kafka's own bytes, a second library, random sets, and damage at every byte."""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.wire import message_sets
from onceflow.wire.batch import Record
from onceflow.wire.codecs import Codec, compress
from onceflow.wire.errors import CorruptBatch, DecompressionTooLarge, MalformedBatch, WireError
from onceflow.wire.message_sets import decode, decode_entry, encode, entries
from tests.wire.golden_message_sets import KAFKA

APPENDED_MS = 1_700_000_009_999
RECORDS = [
    Record(41, 1_700_000_000_000, b"key-0", b"clicks clicks clicks 0"),
    Record(42, 1_700_000_000_033, None, b"clicks clicks clicks 1"),
    Record(43, 1_700_000_000_011, b"key-2", None),
]
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def dated(records: Sequence[Record], magic: int, appended_ms: int | None) -> list[Record]:
    """Return the records as they are decoded: format 0 has no timestamps, log-append time has one."""
    return [record._replace(timestamp_ms=(appended_ms or record.timestamp_ms) if magic else -1) for record in records]


@pytest.mark.parametrize("case", KAFKA, ids=str)
def test_kafkas_bytes_are_read_and_written(case: tuple[int, str, str]) -> None:
    golden = KAFKA[case]
    magic, name, time_type = case
    appended_ms = APPENDED_MS if time_type == "append" else None
    assert decode(golden) == dated(RECORDS, magic, appended_ms)
    written = encode(RECORDS, magic=magic, codec=Codec[name.upper()], log_append_time_ms=appended_ms)
    assert decode(written) == dated(RECORDS, magic, appended_ms)
    if name in ("none", "lz4"):
        # zlib's deflate and snappy's matcher differ from Java's, lz4 does not: its header, too, is equal.
        assert written == golden


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_round_trip_with_kafka_python(magic: int, codec: Codec) -> None:
    legacy: Any = pytest.importorskip("kafka.record.legacy_records")
    begin = RECORDS[0].offset
    builder = legacy.LegacyRecordBatchBuilder(magic, int(codec), 1 << 20)
    for record in RECORDS:
        offset = record.offset if codec is Codec.NONE else record.offset - begin
        builder.append(offset, record.timestamp_ms, record.key, record.value)
    theirs = bytearray(builder.build())
    if codec is not Codec.NONE:
        # The producer leaves the offsets to the broker, which writes the last one into the wrapper.
        theirs[:8] = struct.pack(">q", RECORDS[-1].offset if magic else RECORDS[-1].offset - begin)
    shift = 0 if magic or codec is Codec.NONE else -begin
    assert decode(theirs) == [record._replace(offset=record.offset + shift) for record in dated(RECORDS, magic, None)]
    ours = encode(RECORDS, magic=magic, codec=codec)
    read = [
        (record.offset, record.key, record.value)
        for position, header in entries(ours)
        for record in legacy.LegacyRecordBatch(ours[position : position + header.size_bytes], magic)
    ]
    assert read == [(record.offset, record.key, record.value) for record in RECORDS]


optional_bytes = st.none() | st.binary(max_size=60)
record_sets = st.builds(
    lambda begin, rows: [Record(begin + n, *row) for n, row in enumerate(rows)],
    st.integers(0, 2**40),
    st.lists(st.tuples(st.integers(0, 2**41), optional_bytes, optional_bytes), min_size=1, max_size=8),
)


@given(record_sets, st.integers(0, 1), st.sampled_from(CODECS))
@settings(max_examples=150, deadline=None)
def test_any_set_comes_back(records: list[Record], magic: int, codec: Codec) -> None:
    assert decode(encode(records, magic=magic, codec=codec)) == dated(records, magic, None)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_refused_or_nothing(junk: bytes) -> None:
    for magic in (b"", struct.pack(">qiIbb", 0, len(junk) + 6, 0, 1, 1)):
        try:
            assert decode(magic + junk) is not None
        except WireError:
            continue


@pytest.mark.parametrize("case", [(0, "none", "create"), (1, "none", "append"), (1, "gzip", "create")], ids=str)
def test_one_wrong_bit_anywhere_is_seen(case: tuple[int, str, str]) -> None:
    golden = KAFKA[case]
    first_size = next(entries(golden))[1].size_bytes
    for position in range(8, first_size):
        damaged = bytearray(golden)
        damaged[position] ^= 0x10
        with pytest.raises(WireError):
            decode_entry(damaged, 0)


def test_cut_last_entry_is_ignored() -> None:
    whole = encode(RECORDS, magic=1)
    last = [position for position, _header in entries(whole)][-1]
    for end in range(last, len(whole)):
        assert len(decode(whole[:end])) == 2


def wrapper(inner: bytes, magic: int = 1, codec: Codec = Codec.GZIP, offset: int = 0) -> bytes:
    body = struct.pack(">bb", magic, codec) + (struct.pack(">q", 0) if magic else b"") + struct.pack(">i", -1)
    packed = compress(codec, inner)
    body += struct.pack(">i", len(packed)) + packed
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def test_a_wrapper_in_a_wrapper_is_refused() -> None:
    inner = encode(RECORDS, magic=1, codec=Codec.GZIP)
    with pytest.raises(MalformedBatch, match="a set inside is plain"):
        decode(wrapper(inner))


def test_inner_set_of_other_format_is_refused() -> None:
    with pytest.raises(MalformedBatch, match="of the same format"):
        decode(wrapper(encode(RECORDS, magic=0)))


@pytest.mark.parametrize("inner", [b"", b"\x00" * 5, encode(RECORDS, magic=1)[:-1]], ids=["none", "junk", "cut"])
def test_wrapper_around_cut_set_is_refused(inner: bytes) -> None:
    with pytest.raises(MalformedBatch, match="its messages take"):
        decode(wrapper(inner))


def test_a_bomb_is_refused() -> None:
    with pytest.raises(DecompressionTooLarge):
        decode(wrapper(bytes(1 << 20)), size_bytes_max=1000)


def test_damaged_inner_message_is_detected() -> None:
    inner = bytearray(encode(RECORDS, magic=1))
    inner[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        decode(wrapper(bytes(inner)))


@pytest.mark.parametrize("attributes", [4, 5, 7])
def test_codecs_that_came_later_are_refused(attributes: int) -> None:
    body = struct.pack(">bbqii", 1, attributes, 0, -1, -1)
    entry = struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
    with pytest.raises(MalformedBatch, match=f"no codec {attributes}"):
        decode(entry)


def test_what_the_formats_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="no record headers"):
        encode([Record(0, 0, None, None, (("a", b"b"),))], magic=1)
    with pytest.raises(ValueError, match="no timestamps"):
        encode(RECORDS, magic=0, log_append_time_ms=5)
    for codec, magic in ((Codec.ZSTD, 1), (Codec.NONE, 2)):
        with pytest.raises(ValueError, match="not a valid message set"):
            encode(RECORDS, magic=magic, codec=codec)


def test_layout_matches_the_page() -> None:
    """Mission C5: offset 8, size 4, crc 4, magic 1, attributes 1, timestamp 8, key length 4, key, value length 4."""
    body = bytes.fromhex("01 00 0000018bcfe56800 00000001 6b 00000002 7631")
    expected = bytes.fromhex("0000000000000007 00000019") + struct.pack(">I", zlib.crc32(body)) + body
    assert encode([Record(7, 1_700_000_000_000, b"k", b"v1")], magic=1) == expected
    assert message_sets.read_header(expected).size_bytes == len(expected)
