"""Record batches as messages of formats 0 and 1, compared with the bytes that Apache Kafka wrote."""

import struct

import pytest

from onceflow.wire.batch import (
    Record,
    encode_batch,
    encode_retained,
    read_header,
    stamp_append_time,
    unsealed_batch,
    write_crc,
)
from onceflow.wire.codecs import Codec, compress
from onceflow.wire.down_conversion import InconvertibleCodec, down_convert
from onceflow.wire.errors import CorruptBatch, DecompressionTooLarge
from onceflow.wire.message_sets import decode, entries
from tests.wire.golden_message_sets import KAFKA
from tests.wire.test_message_sets import APPENDED_MS, RECORDS, dated

UNPACKED_BYTES_MAX = 10_000


def converted(batch: bytes | bytearray, magic: int, offset_begin: int = 0) -> bytes:
    return b"".join(down_convert(batch, magic, offset_begin, size_bytes_max=UNPACKED_BYTES_MAX))


@pytest.mark.parametrize("case", KAFKA, ids=str)
def test_messages_are_those_of_kafka(case: tuple[int, str, str]) -> None:
    magic, name, time_type = case
    batch = encode_batch(RECORDS, codec=Codec[name.upper()])
    if time_type == "append":
        stamp_append_time(batch, 0, APPENDED_MS)
    messages = converted(batch, magic)
    assert decode(messages) == dated(RECORDS, magic, APPENDED_MS if time_type == "append" else None)
    if name in ("none", "lz4"):
        assert messages == KAFKA[case]


@pytest.mark.parametrize("magic", [0, 1])
def test_append_time_is_absent_in_format_0(magic: int) -> None:
    batch = encode_batch(RECORDS)
    stamp_append_time(batch, 0, APPENDED_MS)
    headers = [header for _position, header in entries(converted(batch, magic))]
    assert [header.is_log_append_time for header in headers] == [bool(magic)] * 3
    assert [header.attributes for header in headers] == [8 * magic] * 3


@pytest.mark.parametrize(("codec", "offsets"), [(Codec.NONE, [42, 43]), (Codec.GZIP, [41, 42, 43])])
def test_single_messages_begin_at_the_offset(codec: Codec, offsets: list[int]) -> None:
    messages = converted(encode_batch(RECORDS, codec=codec), 1, 42)
    assert [record.offset for record in decode(messages)] == offsets


def test_headers_are_dropped() -> None:
    batch = encode_batch([RECORDS[0]._replace(headers=(("trace", b"1"),))])
    assert decode(converted(batch, 1)) == [RECORDS[0]]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_times_before_1970_are_none(codec: Codec) -> None:
    early = [Record(number, timestamp_ms, None, b"v") for number, timestamp_ms in enumerate((-5, -1, 0))]
    assert [record.timestamp_ms for record in decode(converted(encode_batch(early, codec=codec), 1))] == [-1, -1, 0]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_gaps_of_compaction_stay(codec: Codec) -> None:
    whole = encode_batch([Record(offset, 5, b"k", b"v") for offset in range(10)], codec=codec)
    retained = encode_retained(read_header(whole), [Record(offset, 5, b"k", b"v") for offset in (3, 7)])
    assert [record.offset for record in decode(converted(retained, 1))] == [3, 7]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_batch_without_records_has_no_messages(codec: Codec) -> None:
    whole = encode_batch(RECORDS, codec=codec)
    assert converted(encode_retained(read_header(whole), []), 1) == b""
    packed = compress(codec, b"")
    empty = unsealed_batch(packed, codec=codec, record_count=0, base_timestamp_ms=5, max_timestamp_ms=5)
    write_crc(empty, 0)
    assert converted(empty, 1) == b""


def test_control_batches_are_left_out() -> None:
    assert converted(encode_batch(RECORDS, control=True, transactional=True, producer_id=1), 1) == b""


def test_zstd_is_refused() -> None:
    with pytest.raises(InconvertibleCodec, match="offset 41: zstd"):
        converted(encode_batch(RECORDS, codec=Codec.ZSTD), 1)


@pytest.mark.parametrize("control", [False, True])
def test_damage_gets_no_new_checksum(control: bool) -> None:
    batch = encode_batch(RECORDS, control=control)
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        converted(batch, 1)


def test_size_of_messages_is_limited() -> None:
    """A record of 7 bytes becomes a message of 34."""
    small = [Record(offset, 5, None, None) for offset in range(1000)]
    batch = encode_batch(small, codec=Codec.GZIP)
    with pytest.raises(DecompressionTooLarge, match=r"up to offset 294 take more than 10000 bytes"):
        converted(batch, 1)


def test_each_record_is_a_step() -> None:
    steps = list(down_convert(encode_batch(RECORDS, codec=Codec.GZIP), 1, 0, size_bytes_max=UNPACKED_BYTES_MAX))
    assert steps[:3] == [b""] * 3
    assert len(decode(steps[3])) == 3


def test_records_beyond_the_count_are_refused() -> None:
    batch = encode_batch(RECORDS)
    struct.pack_into(">i", batch, 57, 2)
    write_crc(batch, 0)
    with pytest.raises(Exception, match="2 records take"):
        converted(batch, 1)
