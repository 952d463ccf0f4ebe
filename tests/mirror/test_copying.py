"""Copies of fetched batches, without a broker."""

import pytest
from typing_extensions import Buffer

from onceflow.client.cluster import Fetched
from onceflow.client.records import next_offset
from onceflow.mirror.copying import SMALL_BATCH_BYTES, Copy, SourceRange, copies
from onceflow.wire.batch import (
    Record,
    decode_batch,
    encode_batch,
    encode_retained,
    read_header,
    stamp_append_time,
)
from onceflow.wire.codecs import Codec
from onceflow.wire.markers import Marker, encode_marker

LARGE = b"x" * SMALL_BATCH_BYTES


def batch(first: int, *values: bytes, codec: Codec = Codec.NONE, producer_id: int = -1) -> bytearray:
    """Return a batch at an offset, of a transaction if it has a producer."""
    records = [Record(first + index, 1_000 + index, b"k", value) for index, value in enumerate(values)]
    return encode_batch(records, codec=codec, producer_id=producer_id, transactional=producer_id >= 0)


def fetched(*parts: Buffer, aborted: tuple[tuple[int, int], ...] = ()) -> Fetched:
    return Fetched(memoryview(b"".join(parts)), 1_000, 1_000, 0, aborted)


def decoded(copy: Copy) -> list[Record]:
    return decode_batch(copy.batch)


def values_of(copied: list[Copy]) -> list[bytes | None]:
    return [record.value for copy in copied for record in decoded(copy)]


def test_a_large_batch_is_copied_unchanged() -> None:
    original = batch(7, LARGE, b"b", codec=Codec.ZSTD)
    original = batch(
        7, *[bytes([index % 251, index % 241, index // 251]) * 9 for index in range(5_000)], codec=Codec.LZ4
    )
    assert len(original) > SMALL_BATCH_BYTES
    (copy,) = copies(fetched(bytes(original)), 7, None)
    assert copy == Copy(original, (SourceRange(7, 5_000),))


def test_small_batches_are_joined() -> None:
    source = fetched(
        batch(3, b"a", codec=Codec.LZ4), batch(4, b"b", b"c", codec=Codec.LZ4), batch(9, b"d", codec=Codec.LZ4)
    )
    (copy,) = copies(source, 0, None)
    assert copy.ranges == (SourceRange(3, 3), SourceRange(9, 1))
    assert [(record.offset, record.value) for record in decoded(copy)] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert read_header(copy.batch).codec is Codec.LZ4


def test_another_codec_begins_another_batch() -> None:
    copied = list(
        copies(fetched(batch(0, b"a"), batch(1, b"b", codec=Codec.GZIP), batch(2, LARGE), batch(3, b"c")), 0, None)
    )
    assert [read_header(copy.batch).codec for copy in copied] == [Codec.NONE, Codec.GZIP, Codec.NONE, Codec.NONE]
    assert values_of(copied) == [b"a", b"b", LARGE, b"c"]


def test_a_chosen_codec_is_for_all() -> None:
    copied = list(copies(fetched(batch(0, LARGE), batch(1, b"b", codec=Codec.GZIP)), 0, Codec.ZSTD))
    assert {read_header(copy.batch).codec for copy in copied} == {Codec.ZSTD}
    assert values_of(copied) == [LARGE, b"b"]


def test_records_before_the_position_are_skipped() -> None:
    (copy,) = copies(fetched(batch(0, b"before"), batch(1, LARGE, b"b", LARGE)), 2, None)
    assert copy.ranges == (SourceRange(2, 2),)
    assert values_of([copy]) == [b"b", LARGE]


@pytest.mark.parametrize("delete_horizon_ms", [None, 5])
def test_compacted_batches_are_numbered_again(delete_horizon_ms: int | None) -> None:
    original = batch(0, *[LARGE] * 4)
    kept = [record for record in decode_batch(original) if record.offset in (1, 3)]
    compacted = encode_retained(read_header(original), kept, delete_horizon_ms=delete_horizon_ms)
    (copy,) = copies(fetched(bytes(compacted)), 0, None)
    assert copy.ranges == (SourceRange(1, 1), SourceRange(3, 1))
    assert [(record.offset, record.timestamp_ms) for record in decoded(copy)] == [(0, 1_001), (1, 1_003)]
    assert read_header(copy.batch).delete_horizon_ms is None


def test_log_append_times_become_the_records_own() -> None:
    original = batch(0, LARGE, LARGE)
    stamp_append_time(original, 0, 77)
    (copy,) = copies(fetched(bytes(original)), 0, None)
    assert not read_header(copy.batch).is_log_append_time
    assert [record.timestamp_ms for record in decoded(copy)] == [77, 77]


@pytest.mark.parametrize("is_aborted", [False, True])
def test_aborted_transactions_are_left_out(is_aborted: bool) -> None:
    marker = encode_marker(5, 0, Marker(not is_aborted, 0), offset=2, timestamp_ms=0, leader_epoch=0)
    source = fetched(
        batch(0, b"a", producer_id=5),
        batch(1, b"b"),
        marker,
        batch(3, LARGE, producer_id=5),
        aborted=((5, 0),) if is_aborted else (),
    )
    copied = list(copies(source, 0, None))
    assert values_of(copied) == ([b"b", LARGE] if is_aborted else [b"a", b"b", LARGE])
    assert next_offset(source, 0) == 4


def test_an_emptied_marker_is_skipped() -> None:
    """Compaction can leave the header of a control batch alone."""
    marker = encode_marker(5, 0, Marker(False, 0), offset=1, timestamp_ms=0, leader_epoch=0)
    empty = encode_retained(read_header(marker), [])
    assert values_of(list(copies(fetched(batch(0, b"a"), empty, batch(2, b"b")), 0, None))) == [b"a", b"b"]


def test_joined_batches_stay_below_a_size() -> None:
    parts = [batch(index, b"y" * 15_000) for index in range(40)]
    copied = list(copies(fetched(*parts), 0, None))
    assert len(copied) == 3
    assert [part for copy in copied for part in copy.ranges] == [
        SourceRange(0, 17),
        SourceRange(17, 17),
        SourceRange(34, 6),
    ]
