"""Power cuts during a compaction, a deletion and their recovery: the log is the old one or the new, never a mix.

A log of several groups of segments is compacted on a disk that loses power at every operation in turn. Afterwards the
records of each group are all old or all new, the table of keys is unchanged, and appends continue at the same offset. A
second cut may interrupt the recovery. A failure prints the operation and the seed.
"""

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from onceflow.log import swap
from onceflow.log.partition import PartitionLog
from onceflow.log.swap import retire
from onceflow.testing import FaultyDisk, PowerCut
from tests.campaigns import RecordProperty, tell
from tests.log.compactions import compact, keyed, offsets, stored, table
from tests.log.partition_logs import NOW_MS, open_log, sync

DAY_MS = 24 * 3600 * 1000
SEGMENT_BYTES = 300
SEEDS_CAMPAIGN = 30


def opened(directory: Path, disk: FaultyDisk, **settings: Any) -> PartitionLog:
    return open_log(
        directory, disk=disk, cleanup_compact=True, segment_bytes=SEGMENT_BYTES, index_interval_bytes=100, **settings
    )


def fill(log: PartitionLog, seed: int, count: int = 14) -> None:
    """Append puts, tombstones, and transactions with either end."""
    source = random.Random(seed)
    sequence = 0
    for number in range(count):
        pairs = [
            (f"k{source.randrange(5)}", None if source.random() < 0.2 else f"v{number}.{n}")
            for n in range(source.randrange(1, 3))
        ]
        if source.random() < 0.3:
            log.append(keyed(*pairs, producer_id=seed, sequence=sequence, transactional=True))
            log.append_marker(seed, 0, commit=source.random() < 0.5)
            sequence += len(pairs)
        else:
            log.append(keyed(*pairs))
        if number % 5 == 4:
            sync(log)
    log.roll()
    sync(log)


def recover(directory: Path, disk: FaultyDisk, source: random.Random, **settings: Any) -> PartitionLog:
    """Open the log, with further power cuts in some runs."""
    for _ in range(20):
        if source.random() < 0.5:
            disk.cut_power_after(source.randrange(25))
        try:
            log = opened(directory, disk, **settings)
            disk.cut_power_after(1 << 30)
            return log
        except PowerCut:
            disk.crash(source.randrange(1 << 30))
    raise AssertionError("the log was never opened")


def check_cut(root: Path, operation: int, seed: int) -> bool:
    """Compact until the power is cut at `operation`; return False if there are not that many."""
    root.mkdir()
    disk = FaultyDisk(root)
    directory = root / "table-0"
    source = random.Random(operation * 1000 + seed)
    log = opened(directory, disk)
    fill(log, seed)
    clean_end = compact(log, disk=disk) if seed % 2 else 0
    fill(log, seed + 1, count=5)
    old, known, end = offsets(log), table(log), log.high_watermark
    disk.cut_power_after(operation)
    was_cut = False
    try:
        compact(log, disk=disk, clean_end=clean_end, now_ms=NOW_MS + 2 * DAY_MS)
    except PowerCut:
        was_cut = True
    new = offsets(log)
    del log
    disk.crash(source.randrange(1 << 30), drop_all=source.random() < 0.2)
    log = recover(directory, disk, source)
    assert log.high_watermark == end
    assert table(log) == known, "no key changes or comes back"
    remaining = offsets(log)
    assert set(new) >= set(remaining) or not was_cut or set(remaining) <= set(old)
    check_groups(directory, disk, log, remaining, old)
    log.append(keyed(("k0", "next")))
    sync(log)
    assert offsets(log)[-1] == end
    assert not [name for name in disk.names(directory) if name.endswith((".swap", ".cleaned", ".deleted"))]
    return was_cut


def check_groups(directory: Path, disk: FaultyDisk, log: PartitionLog, remaining: list[int], old: list[int]) -> None:
    """Check that each segment has the old records of its offsets, or those that a complete compaction leaves."""
    compact(log, disk=disk, now_ms=NOW_MS + 2 * DAY_MS)
    finished = set(offsets(log))
    log = opened(directory, disk)
    assert set(offsets(log)) == finished
    assert finished <= set(remaining) <= set(old)


def test_rule_10_power_cut_during_a_compaction(scratch: Path) -> None:
    operation = 0
    while check(scratch, operation, seed=3 + operation % 4):
        operation += 1
    assert operation > 50


EITHER = ([0, 1, 2, 3, 4, 5, 6], [1, 3, 4, 5, 6])
"""Offsets of `log_with_one_merge` before its compaction, or after it."""


def log_with_one_merge(directory: Path, disk: FaultyDisk) -> PartitionLog:
    """Return a log whose three sealed segments become one."""
    log = open_log(directory, disk=disk, cleanup_compact=True)
    for number in range(3):
        log.append(keyed(("k", f"v{number}"), (f"only{number}", "v")))
        log.roll()
        sync(log)
    log.append(keyed(("after", "v")))
    sync(log)
    return log


def test_rule_10_merge_replaces_all_or_none(scratch: Path) -> None:
    """Repeat the last operations of a replacement: a power cut keeps any subset of unsynced renames."""
    for seed in range(100):
        root = scratch / str(seed)
        root.mkdir()
        disk = FaultyDisk(root)
        log = log_with_one_merge(root / "table-0", disk)
        disk.cut_power_after(29 + seed % 10)
        try:
            compact(log, disk=disk)
        except PowerCut:
            del log
        disk.crash(seed)
        log = recover(root / "table-0", disk, random.Random(seed))
        assert offsets(log) in EITHER, f"seed {seed}"


@pytest.mark.campaign
def test_many_power_cuts_of_compactions(scratch: Path, record_property: RecordProperty) -> None:
    """The power is cut at each operation of compactions: the log is the old one or the new, never a mix."""
    counts: Counter[str] = Counter()
    cuts = [True]
    while any(cuts):
        cuts = [check(scratch, counts["operations"], seed) for seed in range(SEEDS_CAMPAIGN)]
        counts["power cuts in a compaction"] += sum(cuts)
        counts["operations"] += 1
    tell(record_property, range(SEEDS_CAMPAIGN), counts)


def check(scratch: Path, operation: int, seed: int) -> bool:
    try:
        return check_cut(scratch / f"{operation}-{seed}", operation, seed)
    except Exception as error:
        raise AssertionError(f"operation {operation}, seed {seed}: {error!r}") from error


def test_rule_11_power_cut_during_a_deletion(scratch: Path) -> None:
    was_cut, operation = True, 0
    while was_cut:
        was_cut = cut_deletion(scratch / str(operation), operation)
        operation += 1
    assert operation > 10


def cut_deletion(root: Path, operation: int) -> bool:
    root.mkdir()
    disk = FaultyDisk(root)
    directory = root / "clicks-0"
    source = random.Random(operation)
    log = opened(directory, disk)
    fill(log, operation)
    end, kept = log.high_watermark, log.segments.finished()[-1].base_offset
    before = [header for header, _records in stored(log) if header.base_offset >= kept]
    log.segments.start_offset = kept
    disk.cut_power_after(operation)
    was_cut = False
    try:
        retire(disk, directory, log.drop_segments_below_start())
    except PowerCut:
        was_cut = True
    disk.crash(source.randrange(1 << 30))
    log = recover(directory, disk, source, log_start_offset=kept)
    assert (log.log_start_offset, log.high_watermark) == (kept, end)
    assert [header for header, _records in stored(log)] == before
    assert not [name for name in disk.names(directory) if name.endswith(".deleted")]
    return was_cut


def test_start_beyond_the_end_creates_new_log(scratch: Path) -> None:
    disk = FaultyDisk(scratch)
    log = opened(scratch / "clicks-0", disk)
    fill(log, 1, count=5)
    end = log.high_watermark
    log = opened(scratch / "clicks-0", disk, log_start_offset=end + 10)
    assert (log.log_start_offset, log.log_end_offset) == (end + 10, end + 10)
    assert log.append(keyed(("k", "v"))).base_offset == end + 10


@pytest.mark.parametrize("seed", [7, 31])
def test_power_cut_after_kill_and_restart(scratch: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The kill left names that are not durable; old files may be removed only once they are."""

    def rename_and_die(*arguments: Any) -> None:
        rename(*arguments)
        disk.cut_power_after(0)

    rename = swap._rename_all
    for operations in range(1, 12):
        root = scratch / str(operations)
        root.mkdir()
        disk = FaultyDisk(root)
        log = log_with_one_merge(root / "t-0", disk)
        with monkeypatch.context() as patched:
            patched.setattr(swap, "_rename_all", rename_and_die)
            with pytest.raises(PowerCut):
                compact(log, disk=disk)
        disk.kill()
        del log
        disk.cut_power_after(operations)
        with contextlib.suppress(PowerCut):
            open_log(root / "t-0", disk=disk, cleanup_compact=True)
        disk.crash(seed)
        log = open_log(root / "t-0", disk=disk, cleanup_compact=True)
        assert offsets(log) in EITHER, operations
