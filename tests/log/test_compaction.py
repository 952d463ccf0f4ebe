"""Compaction: which records and batches are kept, removed, and when (storage rule 10)."""

import struct
from pathlib import Path
from typing import Any

import pytest

from onceflow.log.compaction import measure
from onceflow.log.partition import PartitionLog
from onceflow.log.producers import LastBatch
from onceflow.wire.batch import HEADER_BYTES, Record, decode_batch, encode_batch, encode_retained, read_header
from onceflow.wire.codecs import Codec
from tests.log.compactions import compact, compactable, keyed, offsets, stored, table
from tests.log.partition_logs import NOW_MS, open_log, sync

DAY_MS = 24 * 3600 * 1000
HOUR_MS = 3600 * 1000


def opened(tmp_path: Path, **settings: Any) -> PartitionLog:
    return open_log(
        tmp_path / "table-0",
        cleanup_compact=True,
        cleanup_delete=False,
        **{"segment_bytes": 160, **settings},
    )


def fill(log: PartitionLog, *batches: bytearray) -> None:
    for sent in batches:
        log.append(sent)
    sync(log)


def seal(log: PartitionLog) -> int:
    """Start a new segment; return where the old ones end."""
    log.roll()
    sync(log)
    return log.log_end_offset


def test_of_each_key_the_last_record_stays(tmp_path: Path) -> None:
    log = opened(tmp_path)
    fill(log, *(keyed((f"k{n % 3}", f"v{n}")) for n in range(10)))
    end = seal(log)
    assert compact(log) == end == 10
    assert offsets(log) == [7, 8, 9]
    assert table(log) == {"k0": "v9", "k1": "v7", "k2": "v8"}
    assert [log.visible.read(offset, 1) is not None for offset in range(11)] == [True] * 10 + [False]


def test_waiting_reader_survives_a_compaction(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000)
    fill(log, *(keyed((f"k{n % 3}", f"v{n}")) for n in range(10)))
    assert log.visible.read(10, 1000) is None
    fill(log, *(keyed((f"k{n}", f"v{n}")) for n in range(10, 20)))
    end = seal(log)
    compact(log)
    fetched = log.visible.read(10, 1 << 20)
    assert end == 20
    assert fetched is not None
    assert read_header(fetched.read()).base_offset == 10


def test_retained_records_are_unchanged(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000)
    records = [Record(n, NOW_MS + n, b"k%d" % (n % 2), b"v%d" % n, (("h", b"x"),)) for n in range(4)]
    for codec in Codec:
        fill(log, encode_batch(records, codec=codec))
    log.append(keyed(("k0", "last")))
    end = seal(log)
    before = {record.offset: record for _header, batch_records in stored(log) for record in batch_records}
    headers = {header.base_offset: header for header, _found in stored(log)}
    compact(log)
    assert offsets(log) == [end - 2, end - 1]
    for header, batch_records in stored(log):
        old = headers[header.base_offset]
        assert all(record == before[record.offset] for record in batch_records)
        assert (header.last_offset, header.codec, header.base_sequence) == (
            old.last_offset,
            old.codec,
            old.base_sequence,
        )


def test_rule_10_active_segment_is_kept(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000)
    fill(log, *(keyed(("k", f"v{n}")) for n in range(5)))
    assert measure(compactable(log), NOW_MS).offset_end == 0
    seal(log)
    fill(log, keyed(("k", "newer")))
    compact(log)
    assert offsets(log) == [4, 5]


def test_rule_10_unstable_offsets_are_kept(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000)
    fill(log, keyed(("k", "a")), keyed(("k", "b")))
    seal(log)
    fill(log, keyed(("k", "open"), producer_id=7, transactional=True), keyed(("k", "c")))
    seal(log)
    assert log.visible.last_stable_offset == 2
    assert compact(log) == 2
    assert offsets(log) == [1, 2, 3]
    log.append_marker(7, 0, commit=False)
    sync(log)
    assert compact(log, clean_end=2) == 4
    assert offsets(log) == [3]


def test_rule_10_young_records_are_kept(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000, min_compaction_lag_ms=HOUR_MS)
    for n in range(3):
        fill(log, keyed(("k", f"v{n}"), timestamp_ms=NOW_MS + n * HOUR_MS // 2), keyed(("k", f"w{n}")))
        seal(log)
    assert measure(compactable(log), NOW_MS + HOUR_MS - 1).offset_end == 0
    assert measure(compactable(log), NOW_MS + HOUR_MS).offset_end == 2
    assert compact(log, now_ms=NOW_MS + HOUR_MS * 3 // 2) == 4
    assert offsets(log) == [3, 4, 5]


def test_log_is_due_by_ratio_or_age(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000, min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=HOUR_MS)
    fill(log, *(keyed((f"k{n}", "v")) for n in range(6)))
    seal(log)
    assert measure(compactable(log), NOW_MS).is_due
    clean_end = compact(log)
    fill(log, keyed(("k0", "w")))
    seal(log)
    dirt = measure(compactable(log, clean_end), NOW_MS)
    assert 0.1 < dirt.dirty_ratio < 0.2
    assert not dirt.is_due
    assert measure(compactable(log, clean_end), NOW_MS + HOUR_MS + 1).is_due
    clean_end = compact(log, clean_end=clean_end)
    assert not measure(compactable(log, clean_end), NOW_MS + DAY_MS).is_due, "nothing is dirty"


def test_rule_10_tombstone_stays_until_its_horizon(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000, delete_retention_ms=DAY_MS)
    fill(log, keyed(("k", "v")), keyed(("k", None), ("other", "x"), timestamp_ms=NOW_MS + 5))
    end = seal(log)
    compact(log)
    assert offsets(log) == [1, 2]
    ((header, records),) = stored(log)
    assert header.delete_horizon_ms == header.base_timestamp == NOW_MS + DAY_MS
    assert header.attributes & 0x40
    assert [record.timestamp_ms for record in records] == [NOW_MS + 5] * 2
    compact(log, clean_end=0, now_ms=NOW_MS + DAY_MS - 1)
    assert offsets(log) == [1, 2]
    assert next(stored(log))[0].delete_horizon_ms == NOW_MS + DAY_MS, "a later pass does not begin the waiting anew"
    compact(log, clean_end=0, now_ms=NOW_MS + DAY_MS)
    assert offsets(log) == [2]
    assert log.high_watermark == end == 3
    reopened = open_log(log.directory, segment_bytes=10_000, cleanup_compact=True)
    assert offsets(reopened) == [2]


def test_rule_10_empty_batch_keeps_last_sequence(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000)
    fill(log, keyed(("k", "a"), producer_id=7, sequence=0), keyed(("k", "b"), ("k", "c"), producer_id=7, sequence=1))
    fill(log, keyed(("k", "d")), keyed(("k", "e")))
    seal(log)
    compact(log)
    kept = [(header.base_offset, header.last_offset, header.record_count) for header, _records in stored(log)]
    assert kept == [(1, 2, 0), (4, 4, 1)]
    assert next(stored(log))[0].last_sequence == 2
    del log
    # The scan of an unclean start finds the sequence in the empty batch.
    for path in (tmp_path / "table-0").glob("*.snapshot"):
        path.unlink()
    reopened = open_log(tmp_path / "table-0", segment_bytes=10_000, cleanup_compact=True)
    assert reopened.producers.snapshot().last_batches() == {7: LastBatch(0, 2)}
    assert reopened.append(keyed(("k", "b"), ("k", "c"), producer_id=7, sequence=1)).duplicate
    assert reopened.append(keyed(("k", "f"), producer_id=7, sequence=3)).base_offset == 5


def test_rule_10_empty_batch_ends_cleaned_range(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000)
    fill(log, keyed(("k", None)))
    end = seal(log)
    compact(log)
    compact(log, now_ms=NOW_MS + 2 * DAY_MS)
    ((header, records),) = stored(log)
    assert (header.base_offset, header.last_offset, list(records)) == (0, 0, [])
    assert log.visible.read(end, 1000) is None
    assert open_log(log.directory, cleanup_compact=True).log_end_offset == end


def test_rule_10_aborted_transactions_are_removed(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000)
    fill(log, keyed(("k", "kept")), keyed(("k", "gone"), ("j", "gone"), producer_id=7, transactional=True))
    log.append_marker(7, 0, commit=False)
    fill(log, keyed(("z", "end")))
    seal(log)
    compact(log)
    assert table(log) == {"k": "kept", "z": "end"}
    assert offsets(log) == [0, 4]
    assert [header.base_offset for header, _records in stored(log) if header.is_control] == [3]
    # The first pass reads the aborted records; the second reads none and sets the marker's horizon; the third may
    # remove it. The empty batch of the producer's last sequence stays until a later one replaces it.
    fill(log, keyed(("y", "later"), producer_id=7, sequence=2))
    seal(log)
    for now_ms, markers in ((NOW_MS, [3]), (NOW_MS + DAY_MS - 1, [3]), (NOW_MS + 3 * DAY_MS, [])):
        compact(log, now_ms=now_ms)
        assert [header.base_offset for header, _records in stored(log) if header.is_control] == markers, now_ms
    assert table(log) == {"k": "kept", "z": "end", "y": "later"}


def test_rule_10_commit_marker_stays_with_data(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=10_000)
    fill(log, keyed(("k", "1"), producer_id=7, transactional=True))
    log.append_marker(7, 0, commit=True)
    fill(log, keyed(("z", "end")))
    seal(log)
    for n in range(4):
        compact(log, now_ms=NOW_MS + n * 2 * DAY_MS)
        assert [header.base_offset for header, _records in stored(log)] == [0, 1, 2]
    fill(log, keyed(("k", "2"), producer_id=7, sequence=1))
    seal(log)
    for n in range(4):
        compact(log, now_ms=NOW_MS + (10 + 2 * n) * DAY_MS)
    assert [header.base_offset for header, _records in stored(log)] == [2, 3]


def test_full_map_leads_to_several_passes(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=400)
    fill(log, *(keyed((f"k{n % 40:02}" + "x" * 20, f"v{n}")) for n in range(200)))
    end = seal(log)
    expected = table(log)
    clean_end, passes = 0, 0
    while clean_end < end:
        advanced = compact(log, clean_end=clean_end, keys_max=7)
        assert advanced > clean_end
        clean_end, passes = advanced, passes + 1
        assert table(log) == expected
    assert passes >= 200 // 7
    assert offsets(log) == list(range(160, 200))


def test_small_segments_are_merged(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=200)
    fill(log, *(keyed(("k", f"v{n}")) for n in range(40)))
    seal(log)
    count = len(log.segments.finished())
    assert count >= 10
    for _ in range(6):
        compact(log)
        assert all(segment.size_bytes <= 200 for segment in log.segments.finished())
    assert len(log.segments.finished()) <= 2
    assert offsets(log) == [39]


def test_readers_of_the_old_segments_go_on(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=2000, index_interval_bytes=100)
    fill(log, *(keyed((f"k{n % 3}", f"v{n:03}")) for n in range(60)))
    seal(log)
    held, old = log.visible.read(0, 10_000), log.segments.finished()
    assert held is not None
    before = held.read()
    positions = {offset: segment.find(offset, segment.size_bytes) for segment in old for offset in range(60)}
    compact(log)
    assert held.read() == before
    after = {offset: segment.find(offset, segment.size_bytes) for segment in old for offset in range(60)}
    assert after == positions, "a thread that took the old list searches the old indexes"
    assert offsets(log) == [57, 58, 59]


def test_the_time_index_of_what_stays(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=600, index_interval_bytes=100)
    fill(log, *(keyed((f"k{n % 5}", f"v{n}"), timestamp_ms=NOW_MS + n * 10) for n in range(50)))
    seal(log)
    compact(log)
    for n in range(50):
        record_time = log.visible.search_timestamp(NOW_MS + n * 10)()
        offset = max(n, 45)
        assert record_time == (NOW_MS + offset * 10, offset)
    assert log.visible.search_max_timestamp()() == (NOW_MS + 490, 49)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_bytes_of_what_is_retained(codec: Codec) -> None:
    records = [Record(n, NOW_MS + n, b"k", b"v%d" % n) for n in range(3)]
    batch = encode_batch(records, codec=codec, producer_id=9, producer_epoch=2, base_sequence=5)
    header = read_header(batch)
    some = encode_retained(header, records[1:2], delete_horizon_ms=NOW_MS + 99)
    assert decode_batch(some) == records[1:2]
    assert struct.unpack_from(">H", some, 21)[0] == codec | 0x40
    assert struct.unpack_from(">q", some, 27)[0] == NOW_MS + 99
    assert read_header(some).last_offset == 2
    assert read_header(some).last_sequence == 7
    assert decode_batch(encode_retained(read_header(some), records[1:2])) == records[1:2]
    none = encode_retained(header, [])
    assert len(none) == HEADER_BYTES
    assert decode_batch(none) == []
    assert read_header(none).max_timestamp == NOW_MS + 2
