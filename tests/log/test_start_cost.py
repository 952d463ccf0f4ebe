"""Disk operations of a start per segment: as few as possible, since there may be thousands."""

import os
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from onceflow.log.disk import RealDisk, write_file
from tests.log.partition_logs import batch, open_log, sync, values


@pytest.mark.parametrize("clean", [True, False])
def test_start_reads_each_size_once(clean: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=100)
    for number in range(20):
        log.append(batch(b"%d" % number))
        sync(log)
    log.close()
    segments = sorted(log.segments.bases)
    asked: Counter[str] = Counter()
    stat = os.stat

    def counted(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        asked[Path(path).name] += 1
        return stat(path, *arguments, **named)

    monkeypatch.setattr(os, "stat", counted)
    again = open_log(tmp_path / "clicks-0", clean=clean, segment_bytes=100)
    monkeypatch.undo()
    assert values(again) == [b"%d" % number for number in range(20)]
    assert len(segments) == 20
    assert not [name for name in asked if name.endswith(".snapshot")]
    files = {f"{base:020d}{suffix}": 1 for base in segments[:-1] for suffix in (".log", ".index", ".timeindex")}
    assert {name: count for name, count in asked.items() if name in files} == files


def test_clean_start_opens_few_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most logs of a broker with ten thousand partitions have one segment with few records."""
    log = open_log(tmp_path / "clicks-0", topic_id=UUID(int=1))
    log.append(batch(b"one"))
    sync(log)
    log.close()
    stats, opens = Counter[str](), Counter[str]()
    stat, open_file, read_at = os.stat, os.open, os.pread
    reads: list[int] = []

    def counted_stat(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        stats[Path(path).name] += 1
        return stat(path, *arguments, **named)

    def counted_open(path: Any, *arguments: Any, **named: Any) -> int:
        opens[Path(path).name] += 1
        return open_file(path, *arguments, **named)

    def counted_read(descriptor: int, size_bytes: int, position: int) -> bytes:
        reads.append(size_bytes)
        return read_at(descriptor, size_bytes, position)

    monkeypatch.setattr(os, "stat", counted_stat)
    monkeypatch.setattr(os, "open", counted_open)
    monkeypatch.setattr(os, "pread", counted_read)
    again = open_log(tmp_path / "clicks-0", clean=True, topic_id=UUID(int=1))
    monkeypatch.undo()
    assert values(again) == [b"one"]
    base, end = f"{0:020d}", f"{1:020d}"
    assert stats == dict.fromkeys(["clicks-0", f"{base}.log", f"{base}.index", f"{base}.timeindex"], 1)
    read = ["leader-epoch-checkpoint", "partition.metadata", f"{base}.log", f"{base}.timeindex", f"{end}.snapshot"]
    assert opens == dict.fromkeys(read, 1)
    assert len(reads) == len(read)


@pytest.mark.parametrize("size_bytes", [10, 700_000])
def test_a_start_knows_the_first_timestamp(tmp_path: Path, size_bytes: int) -> None:
    """It is known even if only the segment's end is checked: `segment.ms` counts from it."""
    log = open_log(tmp_path / "clicks-0")
    for number in range(3):
        log.append(batch(bytes(size_bytes), timestamp_ms=1000 + number))
        sync(log)
    log.close()
    again = open_log(tmp_path / "clicks-0", clean=True)
    assert again.segments.active.first_timestamp_ms == 1000


def test_overwriting_a_file_does_not_truncate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncation frees blocks that the next write allocates again; a stop writes three files of each log."""
    cuts: list[int] = []
    truncate = os.ftruncate

    def counted(descriptor: int, size_bytes: int) -> None:
        cuts.append(size_bytes)
        truncate(descriptor, size_bytes)

    monkeypatch.setattr(os, "ftruncate", counted)
    path = tmp_path / "file"
    for data, count in ((b"", 0), (b"abc", 0), (b"xyz", 0), (b"d", 1), (b"", 2)):
        write_file(RealDisk(), path, data)
        assert (path.read_bytes(), len(cuts)) == (data, count)
