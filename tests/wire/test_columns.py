"""Columns compared with the row decoder: the same records for every codec, transaction and cut."""

import random
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as some

from onceflow.wire.batch import HEADER_BYTES, Record, batches, decode_batch, encode_batch, read_header
from onceflow.wire.codecs import Codec
from onceflow.wire.columns import SCHEMA, SCHEMA_WITH_HEADERS, decode_columns
from onceflow.wire.errors import CorruptBatch, DecompressionTooLarge, MalformedBatch, WireError
from tests.wire import golden

EVERYTHING: dict[str, Any] = {"offset_begin": 0, "offset_end": 2**62}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ABORT = Record(0, 1, b"\x00\x00\x00\x00", bytes(6))
COMMIT = Record(0, 1, b"\x00\x00\x00\x01", bytes(6))


def rows(columns: Any) -> list[Record]:
    """Return the columns as records, after Arrow's validation."""
    columns.validate(full=True)
    assert columns.schema == SCHEMA_WITH_HEADERS
    return [
        Record(
            row["offset"],
            (row["timestamp"] - EPOCH) // timedelta(milliseconds=1),
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in columns.to_pylist()
    ]


def by_rows(buffer: bytes | bytearray) -> list[Record]:
    return [
        record
        for position, header in batches(buffer)
        if not header.is_control
        for record in decode_batch(buffer, position)
    ]


def sealed(batch: bytearray) -> bytearray:
    """Return `batch` with the right CRC."""
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def random_records(seeded: random.Random, offset: int, count: int, *, headers: bool) -> list[Record]:
    records = []
    for _ in range(count):
        offset += seeded.choice((1, 1, 1, 200, 20_000))
        sizes = (0, 1, 63, 64, 127, 128, 9000)
        records.append(
            Record(
                offset,
                1_700_000_000_000 + seeded.randrange(-(2**33), 2**33),
                seeded.choice((None, seeded.randbytes(seeded.choice(sizes)))),
                seeded.choice((None, seeded.randbytes(seeded.choice(sizes)))),
                tuple(
                    (seeded.choice(("", "h", "größe")), seeded.choice((None, b"", b"x" * 200)))
                    for _ in range(seeded.choice((0, 0, 1, 4)) if headers else 0)
                ),
            )
        )
    return records


def random_log(seeded: random.Random, codecs: list[Codec], *, headers: bool) -> bytearray:
    buffer = bytearray()
    offset = seeded.randrange(1000)
    for _ in range(seeded.randrange(1, 8)):
        records = random_records(seeded, offset, seeded.choice((1, 2, 50)), headers=headers)
        control = seeded.random() < 0.1
        batch = encode_batch(records, codec=seeded.choice(codecs), control=control, transactional=control)
        if seeded.random() < 0.2:
            struct.pack_into(">h", batch, 21, read_header(batch).attributes | 0x08)
            sealed(batch)
        buffer += batch
        offset = records[-1].offset
    return buffer


@pytest.mark.parametrize("seed", range(30))
def test_columns_hold_what_rows_hold(seed: int) -> None:
    seeded = random.Random(seed)
    codecs = [Codec.NONE] if seed % 3 == 0 else list(Codec)
    buffer = random_log(seeded, codecs, headers=seed % 2 == 0)
    expected = by_rows(buffer)
    decoded = decode_columns(memoryview(buffer), **EVERYTHING, include_headers=True)
    assert rows(decoded.columns) == expected
    assert decoded.next_offset == [header for _, header in batches(buffer)][-1].last_offset + 1
    begin, end = sorted(seeded.choices(range(expected[-1].offset + 3), k=2)) if expected else (0, 0)
    part = decode_columns(buffer, offset_begin=begin, offset_end=end, include_headers=True)
    assert rows(part.columns) == [record for record in expected if begin <= record.offset < end]
    without = decode_columns(buffer, **EVERYTHING).columns
    assert without.schema == SCHEMA
    assert without.equals(decoded.columns.select(SCHEMA.names))


@pytest.mark.parametrize("begin", range(4))
def test_range_may_start_at_any_record(begin: int) -> None:
    buffer = encode_batch([Record(offset, 0, None, b"%d" % offset) for offset in range(3)])
    decoded = decode_columns(buffer, offset_begin=begin, offset_end=3)
    assert decoded.columns["offset"].to_pylist() == list(range(begin, 3))


@settings(max_examples=60, deadline=None)
@given(some.data())
def test_single_record_batches_match_rows(data: some.DataObject) -> None:
    sized = some.none() | some.binary(max_size=200)
    headers = some.lists(some.tuples(some.text(max_size=70), sized), max_size=3).map(tuple)
    timestamp = some.integers(-62_135_596_800_000, 253_402_300_799_999)
    drawn = data.draw(some.lists(some.tuples(timestamp, sized, sized, headers), min_size=1, max_size=5))
    records = [Record(offset, *fields) for offset, fields in enumerate(drawn)]
    buffer = encode_batch(records, codec=data.draw(some.sampled_from(Codec)))
    assert rows(decode_columns(buffer, **EVERYTHING, include_headers=True).columns) == records


@pytest.mark.parametrize("batch", [*golden.LIBRDKAFKA.values(), *golden.JAVA.values(), golden.APPEND_TIME])
def test_strangers_batches_hold_what_rows_hold(batch: bytes) -> None:
    columns = decode_columns(batch, **EVERYTHING, include_headers=True).columns
    assert rows(columns) == decode_batch(batch)
    assert set(columns["timestampType"].to_pylist()) == {int(batch is golden.APPEND_TIME)}


def test_only_committed_transactions_are_read() -> None:
    decoded = decode_columns(golden.TRANSACTIONS, **EVERYTHING, aborted=golden.ABORTED)
    assert decoded.columns["value"].to_pylist() == [b"t%d-%d" % (n, i) for n in (0, 2) for i in range(3)]
    assert decoded.columns["offset"].to_pylist() == [0, 1, 2, 8, 9, 10]
    assert decoded.next_offset == 16
    uncommitted = decode_columns(golden.TRANSACTIONS, **EVERYTHING)
    assert uncommitted.columns.num_rows == 12


def transactional(offset: int, producer_id: int, record: Record | None = None) -> bytearray:
    kept = record or Record(offset, 1, None, b"%d at %d" % (producer_id, offset))
    return encode_batch(
        [kept._replace(offset=offset)], producer_id=producer_id, transactional=True, control=record is not None
    )


def test_transaction_ends_at_own_abort_marker() -> None:
    """Producers 1 and 2 interleave; 1 aborts from offset 1 on, then commits; a plain batch of 1 is never hidden."""
    buffer = b"".join(
        [
            transactional(0, 1),
            transactional(1, 1, COMMIT),
            transactional(2, 1),
            transactional(3, 2),
            encode_batch([Record(4, 1, None, b"plain")], producer_id=1),
            transactional(5, 2, COMMIT),
            transactional(6, 1),
            transactional(7, 1, ABORT),
            transactional(8, 1),
            transactional(9, 2),
            transactional(10, 1, COMMIT),
            transactional(11, 2, ABORT),
        ]
    )
    decoded = decode_columns(buffer, **EVERYTHING, aborted=[(2, 9), (1, 2)])
    assert decoded.columns["offset"].to_pylist() == [0, 3, 4, 8]
    assert decoded.next_offset == 12
    # Kafka also lists a transaction whose first offset is before the fetch; its marker need not be in it.
    later = decode_columns(buffer, offset_begin=6, offset_end=8, aborted=[(1, 2)])
    assert (later.columns.num_rows, later.next_offset) == (0, 8)


def test_a_commit_marker_ends_no_aborted_transaction() -> None:
    buffer = transactional(0, 1) + transactional(1, 1, COMMIT) + transactional(2, 1) + transactional(3, 1, ABORT)
    assert decode_columns(buffer, **EVERYTHING, aborted=[(1, 0)]).columns.num_rows == 0


def test_marker_of_other_producer_has_no_effect() -> None:
    buffer = transactional(0, 1) + transactional(1, 2, ABORT) + transactional(2, 1)
    assert decode_columns(buffer, **EVERYTHING, aborted=[(1, 0)]).columns.num_rows == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_cut_batch_is_left_for_next_fetch(codec: Codec) -> None:
    first = encode_batch([Record(5, 1, b"k", b"v"), Record(6, 1, b"k", b"w")], codec=codec)
    second = encode_batch([Record(7, 1, b"k", b"x" * 50)], codec=codec)
    for end in range(len(second)):
        decoded = decode_columns(first + second[:end], offset_begin=6, offset_end=100)
        assert (decoded.columns["value"].to_pylist(), decoded.next_offset) == ([b"w"], 7)
        nothing = decode_columns(second[:end], offset_begin=7, offset_end=100)
        assert (nothing.columns.num_rows, nothing.next_offset) == (0, 7)
        assert nothing.columns.schema == SCHEMA


@pytest.mark.parametrize("codec", Codec)
def test_decompression_limit_continues_at_next_offset(codec: Codec) -> None:
    logs = [encode_batch([Record(number, 1, None, bytes(40_000))], codec=codec) for number in range(10)]
    buffer = b"".join(logs)
    offset, steps = 0, 0
    while offset < 10:
        decoded = decode_columns(buffer, offset_begin=offset, offset_end=10, size_bytes_max=60_000)
        assert decoded.columns["offset"].to_pylist() == list(range(offset, decoded.next_offset))
        offset, steps = decoded.next_offset, steps + 1
    assert steps == 5
    if codec is not Codec.NONE:
        with pytest.raises(DecompressionTooLarge):
            decode_columns(buffer, **EVERYTHING, size_bytes_max=30_000)


def test_wrong_crc_of_requested_batch_is_corrupt() -> None:
    spoilt = encode_batch([Record(0, 1, None, b"v")])
    spoilt[-1] ^= 1
    buffer = spoilt + encode_batch([Record(1, 1, None, b"w")])
    with pytest.raises(CorruptBatch):
        decode_columns(buffer, **EVERYTHING)
    assert decode_columns(buffer, offset_begin=1, offset_end=2).columns.num_rows == 1


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_damaged_records_never_break_columns(codec: Codec) -> None:
    """Records that the row decoder refuses are refused; the CRC is corrected, so that it does not reveal the damage."""
    seeded = random.Random(3)
    records = random_records(seeded, 0, 12, headers=True)
    plain = encode_batch(records)
    for _ in range(300):
        body = bytearray(plain[HEADER_BYTES:])
        for _ in range(seeded.choice((1, 1, 3))):
            body[seeded.randrange(len(body))] = seeded.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        batch = bytearray(plain[:HEADER_BYTES]) + body
        try:
            expected: list[Record] | None = decode_batch(batch)
        except MalformedBatch:
            expected = None
        if codec is Codec.LZ4:
            batch = repacked(batch)
        outcome = rows_or_none(sealed(batch))
        assert outcome == expected


def repacked(batch: bytearray) -> bytearray:
    from onceflow.wire.codecs import compress

    packed = batch[:HEADER_BYTES] + compress(Codec.LZ4, batch[HEADER_BYTES:])
    packed[22] |= Codec.LZ4
    struct.pack_into(">i", packed, 8, len(packed) - 12)
    return packed


def rows_or_none(batch: bytearray) -> list[Record] | None:
    try:
        columns = decode_columns(batch, offset_begin=-(2**62), offset_end=2**62, include_headers=True).columns
    except WireError:
        return None
    columns.validate(full=True)
    return rows(columns)


def test_a_header_without_a_key_is_malformed() -> None:
    batch = encode_batch([Record(0, 1, None, None, (("k", None),))])
    assert batch[-3:] == b"\x02k\x01"
    batch[-3:] = b"\x01\x02v"
    with pytest.raises(MalformedBatch, match="a header without a key"):
        decode_batch(batch)
    with pytest.raises(MalformedBatch, match="a record header has no key"):
        decode_columns(sealed(batch), **EVERYTHING, include_headers=True)


@pytest.mark.parametrize(
    ("end", "replaced"),
    [
        (-2, b"\x03"),  # the length of the header's value: -2
        (-2, b"\x00"),  # 0, where one byte follows
        (-2, b"\x04"),  # 2, where one byte follows
        (-6, b"\x03"),  # the length of the record's value: -2
    ],
)
def test_inconsistent_lengths_are_malformed(end: int, replaced: bytes) -> None:
    batch = encode_batch([Record(0, 1, None, b"", (("k", b"v"),))])
    assert batch[-6:] == b"\x00\x02\x02k\x02v"
    position = len(batch) + end
    batch[position : position + 1] = replaced
    with pytest.raises(MalformedBatch):
        decode_batch(batch)
    with pytest.raises(MalformedBatch, match="do not add up"):
        decode_columns(sealed(batch), **EVERYTHING, include_headers=True)


def test_bytes_after_record_without_headers() -> None:
    batch = encode_batch([Record(0, 1, None, b"value")])
    assert batch[-7:] == b"\x0avalue\x00"
    batch[-7] = 4 * 2
    batch[-2] = 0
    with pytest.raises(MalformedBatch, match="do not add up"):
        decode_columns(sealed(batch), **EVERYTHING)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_record_reaching_into_next_batch(codec: Codec) -> None:
    """Its lengths fit into the following bytes, but those belong to another batch."""
    batch = encode_batch([Record(0, 1, None, b"v" * 20)])
    batch[HEADER_BYTES] += 2 * 10
    batch[-22] += 2 * 10
    spoilt = sealed(repacked(batch) if codec is Codec.LZ4 else batch)
    following = encode_batch([Record(1, 1, None, bytes(200))], codec=codec)
    with pytest.raises(MalformedBatch, match="not the 1 announced"):
        decode_columns(spoilt + following, **EVERYTHING)


@pytest.mark.parametrize(("count", "delta"), [(2, 1), (0, 0)])
def test_wrong_record_count_is_malformed(count: int, delta: int) -> None:
    batch = encode_batch([Record(0, 1, None, b"v")])
    struct.pack_into(">i", batch, 23, delta)
    struct.pack_into(">i", batch, 57, count)
    with pytest.raises(MalformedBatch, match=f"not the {count} announced"):
        decode_columns(sealed(batch), **EVERYTHING)


def test_emptied_batch_advances_the_offset() -> None:
    batch = encode_batch([Record(0, 1, None, b"v"), Record(4, 1, None, b"v")])[:HEADER_BYTES]
    struct.pack_into(">i", batch, 8, HEADER_BYTES - 12)
    struct.pack_into(">i", batch, 57, 0)
    decoded = decode_columns(sealed(batch), **EVERYTHING)
    assert (decoded.columns.num_rows, decoded.next_offset) == (0, 5)


@pytest.mark.parametrize("timestamp_ms", [2**62, -(2**62)])
def test_timestamp_beyond_microseconds_is_clamped(timestamp_ms: int) -> None:
    buffer = encode_batch([Record(0, timestamp_ms, None, b"v")])
    held = decode_columns(buffer, **EVERYTHING).columns["timestamp"].cast("int64")[0].as_py()
    assert held == (1 if timestamp_ms > 0 else -1) * (2**63 // 1000 * 1000)


def test_nothing_gives_no_rows() -> None:
    decoded = decode_columns(b"", offset_begin=3, offset_end=9, include_headers=True)
    assert (rows(decoded.columns), decoded.next_offset) == ([], 3)
