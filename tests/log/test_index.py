"""The index files' bytes, and where a lookup starts."""

from pathlib import Path

import pytest

from onceflow.log.disk import RealDisk
from onceflow.log.index import OffsetIndex, TimeIndex
from tests.log.partition_logs import NOW_MS, batch, open_log, sync


def test_rule_1_the_bytes_of_both_indexes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", index_interval_bytes=150, segment_bytes=1000)
    size_bytes = len(batch(b"x" * 31))
    assert size_bytes == 102
    for timestamp_ms in (10, 50, 40, 30, 60, 60, 70, 80, 90, 100, 20):
        log.append(batch(b"x" * 31, timestamp_ms=timestamp_ms))
    sync(log)
    # More than 150 bytes are between two entries: batches 2, 4, 6, 8 start at 204, 408, 612, 816 of the first segment.
    sealed = tmp_path / "clicks-0" / f"{0:020d}.index"
    assert sealed.read_bytes().hex(" ", 4) == (
        "00000002 000000cc 00000004 00000198 00000006 00000264 00000008 00000330"
    )
    assert sealed.with_suffix(".timeindex").read_bytes().hex(" ", 4) == (
        "00000000 00000032 00000001 00000000 0000003c 00000004 00000000 00000046 00000006 00000000 0000005a 00000008"
    )
    assert not (tmp_path / "clicks-0" / f"{9:020d}.index").exists(), "the active segment's are in memory"
    log.close()
    active = tmp_path / "clicks-0" / f"{9:020d}.timeindex"
    assert active.read_bytes().hex(" ", 4) == "00000000 00000064 00000000"
    assert active.with_suffix(".index").read_bytes() == b""


def test_rule_1_memory_and_file_agree(tmp_path: Path) -> None:
    offsets = OffsetIndex(RealDisk(), tmp_path, 1000, is_new=True)
    times = TimeIndex(RealDisk(), tmp_path, 1000, is_new=True)
    for number in range(1, 10):
        offsets.append(1000 + 10 * number, 5000 * number)
        times.append_if_later(NOW_MS + 100 * number, 1000 + 10 * number)
        times.append_if_later(NOW_MS + 100 * number, 1000 + 10 * number + 1)
    for sealed in (False, True):
        if sealed:
            for index in (offsets, times):
                index.write()
                index.seal()
        assert (len(offsets), len(times)) == (9, 9)
        assert [offsets.position_for_offset(1000 + offset) for offset in (0, 9, 10, 19, 20, 90, 10**6)] == (
            [0, 0, 5000, 5000, 10000, 45000, 45000]
        )
        assert [offsets.position_at_most(position) for position in (0, 4999, 5000, 44999, 10**9)] == (
            [0, 0, 5000, 40000, 45000]
        )
        assert [times.offset_before(NOW_MS + delta) for delta in (0, 100, 101, 200, 201, 10**6)] == (
            [1000, 1000, 1010, 1010, 1020, 1090]
        )
        assert times.last() == (NOW_MS + 900, 1090)


def test_sealed_index_is_mapped_once(tmp_path: Path) -> None:
    index = OffsetIndex(RealDisk(), tmp_path, 0, is_new=True)
    for number in range(1, 1000):
        index.append(number, 5000 * number)
    index.write()
    index.seal()
    assert index.position_for_offset(500) == 2_500_000
    index.path.unlink()
    assert [index.position_for_offset(number) for number in range(1000)] == [5000 * number for number in range(1000)]
    assert not index.release_if_idle(), "it was searched"
    assert index.release_if_idle()
    with pytest.raises(FileNotFoundError):
        index.position_for_offset(500)


def test_last_entry_is_read_without_mapping(tmp_path: Path) -> None:
    """A start reads it of every segment."""
    index = OffsetIndex(RealDisk(), tmp_path, 1000, is_new=True)
    index.append(1010, 5000)
    index.write()
    index.seal()
    assert (len(index), index.size_bytes(), index.last_entry()) == (1, 8, (10, 5000))
    assert index.release_if_idle()


def test_an_empty_index(tmp_path: Path) -> None:
    index = OffsetIndex(RealDisk(), tmp_path, 5, is_new=True)
    times = TimeIndex(RealDisk(), tmp_path, 5, is_new=True)
    assert (index.position_for_offset(9), index.position_at_most(9)) == (0, 0)
    assert (times.offset_before(9), times.last()) == (5, (-1, 5))


def test_sanity(tmp_path: Path) -> None:
    assert not OffsetIndex(RealDisk(), tmp_path, 5).load(RealDisk().sizes(tmp_path))
    for content, sane in ((b"", True), (bytes(8), True), (bytes(7), False), (b"\xff" + bytes(7), False)):
        (tmp_path / f"{5:020d}.index").write_bytes(content)
        assert OffsetIndex(RealDisk(), tmp_path, 5).load(RealDisk().sizes(tmp_path)) is sane
