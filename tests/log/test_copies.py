"""Logs of followers: copies of the leader's batches, truncation, and what readers see."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.log import recovery, swap
from onceflow.log.epochs import EPOCHS_FILE
from onceflow.log.errors import CorruptBatch, OffsetOutOfRange, StorageFailed
from onceflow.log.partition import PartitionLog
from onceflow.testing import FaultyDisk, PowerCut
from onceflow.testing import disk as faulty_disk
from tests.log.compactions import compact, keyed
from tests.log.partition_logs import batch, open_log, records, sync, values

SEEDS = 40


def leader_log(directory: Path, seed: int, *, batches: int = 60, segment_bytes: int = 1500) -> PartitionLog:
    """Return the log of a leader: several segments, epochs, idempotent producers, transactions."""
    source = random.Random(seed)
    log = open_log(directory, is_replica=True, segment_bytes=segment_bytes, index_interval_bytes=200)
    log.begin_epoch(0)
    sequences = [0, 0, 0]
    epoch = 0
    for _ in range(batches):
        if source.random() < 0.1:
            epoch += source.randrange(1, 3)
            log.begin_epoch(epoch)
        number = source.randrange(4)
        if number < 3:
            sent = [bytes(source.randrange(60)) for _ in range(source.randrange(1, 4))]
            data = batch(*sent, producer_id=number, sequence=sequences[number])
            sequences[number] += len(sent)
            log.append(data)
        else:
            log.append_marker(source.randrange(3), 0, commit=source.random() < 0.5)
        if source.random() < 0.3:
            sync(log)
    sync(log)
    return log


def content(log: PartitionLog) -> bytes:
    return b"".join(segment.file.read(segment.size_bytes, 0) for segment in log.segments)


def boundaries(log: PartitionLog) -> list[int]:
    """Return the base offsets of all batches, and the log's end."""
    return [
        segment.header_at(position).base_offset
        for segment in log.segments
        for position, _, _ in segment.spans(0, segment.size_bytes)
    ] + [log.log_end_offset]


def truncate(log: PartitionLog, offset: int, *, starts_over: bool = False) -> None:
    truncation = log.begin_truncation(offset, starts_over=starts_over)
    if truncation is not None:
        log.end_truncation(truncation.run())


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_equal_byte_for_byte(scratch: Path, seed: int) -> None:
    leader = leader_log(scratch / "leader", seed)
    source = random.Random(seed)
    data = memoryview(content(leader))
    follower = open_log(scratch / "follower", is_replica=True, segment_bytes=900)
    position = 0
    while position < len(data):
        size_bytes = source.randrange(1, 4000)
        before = follower.segments.size_bytes
        follower.append_copy(data[position : position + size_bytes])
        position += follower.segments.size_bytes - before
        if source.random() < 0.3:
            sync(follower)
    sync(follower)
    assert content(follower) == data
    assert follower.epochs.entries() == leader.epochs.entries()
    assert sorted(follower.producers.states()) == sorted(leader.producers.states())
    everything = (0, leader.log_end_offset)
    assert follower.visible.aborted_transactions(*everything) == leader.visible.aborted_transactions(*everything)
    follower.close()
    reopened = open_log(scratch / "follower", is_replica=True, segment_bytes=900, clean=True)
    assert content(reopened) == data


def test_wrong_copies_are_refused(scratch: Path) -> None:
    data = bytearray(content(leader_log(scratch / "leader", 1, batches=3, segment_bytes=10**6)))
    follower = open_log(scratch / "follower", is_replica=True)
    follower.append_copy(memoryview(data))
    end = follower.log_end_offset
    with pytest.raises(OffsetOutOfRange):
        follower.append_copy(memoryview(data))
    data[-1] ^= 1
    other = open_log(scratch / "other", is_replica=True)
    with pytest.raises(CorruptBatch, match="CRC"):
        other.append_copy(memoryview(data))
    assert (follower.log_end_offset, other.log_end_offset) == (end, boundaries(other)[-1])
    assert other.log_end_offset < end, "the batches before the wrong one are kept"


def test_missing_offsets_survive_recovery(scratch: Path) -> None:
    """A compacted leader has gaps, which recovery takes for damage elsewhere."""
    disk = FaultyDisk(scratch)
    follower = open_log(scratch / "t-0", disk=disk, is_replica=True)
    for base_offset, value in ((0, b"a"), (7, b"b"), (9, b"c")):
        data = batch(value)
        data[:8] = base_offset.to_bytes(8)
        data[12:16] = (3).to_bytes(4)
        follower.append_copy(memoryview(data))
    sync(follower)
    assert follower.durability.stored_offset == 10
    disk.crash(1, drop_all=True)
    reopened = open_log(scratch / "t-0", disk=disk, is_replica=True)
    assert boundaries(reopened) == [0, 7, 9, 10]
    assert reopened.epochs.entries() == [(3, 0)]


def test_synced_records_wait_for_replicas(scratch: Path) -> None:
    log = open_log(scratch / "t-0", is_replica=True, segment_bytes=150)
    log.wait_for_replicas(0)
    log.begin_epoch(1)
    for value in (b"a", b"b", b"c"):
        log.append(batch(value, value))
    assert log.durability.stored_offset == 0
    sync(log)
    assert (log.durability.stored_offset, log.high_watermark, log.visible.read(0, 1000)) == (6, 0, None)
    log.advance_high_watermark(3)
    piece = log.visible.read(0, 1000)
    assert (log.high_watermark, piece is not None and piece.size_bytes) == (3, len(batch(b"a", b"a")))
    assert log.visible.read(2, 1000) is None, "half of a batch is below the high watermark"
    assert log.visible.search_max_timestamp()() == (1_700_000_000_001, 1)
    log.advance_high_watermark(2)
    assert log.high_watermark == 3, "nothing that was visible disappears"
    log.advance_high_watermark(99)
    assert values(log) == [b"a", b"a", b"b", b"b", b"c", b"c"]


@pytest.mark.parametrize("seed", range(3))
def test_truncated_log_is_its_prefix(scratch: Path, seed: int) -> None:
    """State of producers, transactions, indexes and epochs is that of a log that ends there."""
    leader = leader_log(scratch / "leader", seed, batches=25)
    data = memoryview(content(leader))
    for number, offset in enumerate(boundaries(leader)):
        log = open_log(scratch / f"log-{number}", is_replica=True, segment_bytes=1500, index_interval_bytes=200)
        log.append_copy(data)
        if number % 3:
            sync(log)
        truncate(log, offset)
        kept = content(log)
        prefix = open_log(scratch / f"prefix-{number}", is_replica=True, segment_bytes=1500, index_interval_bytes=200)
        prefix.append_copy(memoryview(kept))
        assert (log.log_end_offset, kept) == (offset, bytes(data[: len(kept)]))
        assert log.epochs.entries() == prefix.epochs.entries()
        assert sorted(log.producers.states()) == sorted(prefix.producers.states())
        log.append_copy(data[len(kept) :])
        sync(log)
        assert content(log) == data
        assert log.durability.stored_offset == leader.log_end_offset


def test_truncation_inside_a_batch(scratch: Path) -> None:
    log = open_log(scratch / "t-0", is_replica=True)
    log.begin_epoch(1)
    log.append(batch(b"a", b"b"))
    log.append(batch(b"c", b"d", b"e"))
    sync(log)
    log.wait_for_replicas(2)
    truncate(log, 4)
    assert (log.log_end_offset, log.high_watermark) == (2, 2)
    truncate(log, 2)
    log.begin_epoch(2)
    truncate(log, 2)
    assert log.epochs.entries() == [(1, 0)], "an epoch at the end has no batches"
    with pytest.raises(ValueError, match="before the log's start"):
        log.begin_truncation(-1)


def test_nothing_is_appended_during_truncation(scratch: Path) -> None:
    disk = FaultyDisk(scratch)
    log = open_log(scratch / "t-0", disk=disk, is_replica=True)
    log.append(batch(b"a"))
    sync(log)
    truncation = log.begin_truncation(0)
    assert truncation is not None
    with pytest.raises(StorageFailed, match="being truncated to 0"):
        log.append(batch(b"b"))
    disk.fail_next_directory_syncs(1)
    with pytest.raises(OSError) as raised:
        truncation.run()
    log.fail_truncation(raised.value)
    with pytest.raises(StorageFailed, match="no more writes"):
        log.append(batch(b"b"))


def log_with_new_gap(directory: Path, disk: FaultyDisk) -> PartitionLog:
    """Return a log whose second batch, at offset 5, is not synced yet."""
    log = open_log(directory, disk=disk, is_replica=True)
    log.append_copy(memoryview(batch(b"a")))
    sync(log)
    data = batch(b"b")
    data[:8] = (5).to_bytes(8)
    log.append_copy(memoryview(data))
    return log


def test_gaps_are_durable_after_failed_sync(scratch: Path) -> None:
    """Without the end of the gaps, recovery would take the copies behind one for damage."""
    disk = FaultyDisk(scratch)
    log = log_with_new_gap(scratch / "t-0", disk)
    disk.fail_next_directory_syncs(1)
    sync(log)
    assert log.durability.synced_offset == 1
    sync(log)
    assert log.durability.synced_offset == 6
    disk.crash(1, drop_all=True)
    reopened = open_log(scratch / "t-0", disk=disk, is_replica=True)
    assert [(record.offset, record.value) for record in records(reopened)] == [(0, b"a"), (5, b"b")]


@pytest.mark.parametrize("fail", [FaultyDisk.fail_next_directory_syncs, FaultyDisk.fail_next_syncs])
def test_close_refuses_a_postponed_round(scratch: Path, fail: Callable[[FaultyDisk], None]) -> None:
    """The records that it kept are not synced: a clean start would call them durable."""
    disk = FaultyDisk(scratch)
    log = log_with_new_gap(scratch / "t-0", disk)
    fail(disk)
    with pytest.raises(StorageFailed, match="could not be closed"):
        log.close()


def leave_compaction(log: PartitionLog, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a compaction fail when its new segment is valid, and before it has replaced the old ones."""

    def rename_and_fail(*arguments: Any) -> None:
        rename(*arguments)
        disk.fail_next_directory_syncs()

    rename = swap._rename_all
    with monkeypatch.context() as patched:
        patched.setattr(swap, "_rename_all", rename_and_fail)
        with pytest.raises(OSError):
            compact(log, disk=disk)
    swap.remove_cleaned(disk, log.directory)


def copy_of(value: str, *, offset: int, epoch: int) -> memoryview:
    """Return a leader's batch of one record."""
    data = keyed(("k", value))
    data[:8] = offset.to_bytes(8)
    data[12:16] = epoch.to_bytes(4)
    return memoryview(data)


def compacted_log(directory: Path, disk: FaultyDisk) -> PartitionLog:
    """Return a log of three segments with one key."""
    log = open_log(directory, disk=disk, is_replica=True, cleanup_compact=True)
    for offset in range(3):
        log.append_copy(copy_of("old", offset=offset, epoch=1))
        sync(log)
        log.roll()
        sync(log)
    return log


def test_starting_over_removes_a_failed_compaction(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start would finish it, and take what was copied since for damage."""
    disk = FaultyDisk(scratch)
    log = compacted_log(scratch / "t-0", disk)
    leave_compaction(log, disk, monkeypatch)
    truncate(log, 50, starts_over=True)
    log.append_copy(copy_of("copied", offset=50, epoch=2))
    sync(log)
    log.close()
    again = open_log(scratch / "t-0", disk=disk, is_replica=True, clean=True, cleanup_compact=True)
    assert boundaries(again) == [50, 51]


def test_starting_over_removes_deleted_segments(scratch: Path) -> None:
    """Retention has removed them from the log, and could not rename their files yet."""
    disk = FaultyDisk(scratch)
    log = compacted_log(scratch / "t-0", disk)
    log.segments.start_offset = 1
    deleted = log.drop_segments_below_start()
    disk.fail_next_directory_syncs()
    with pytest.raises(OSError):
        swap.retire(disk, log.directory, deleted)
    truncate(log, 50, starts_over=True)
    log.append_copy(copy_of("copied", offset=50, epoch=2))
    sync(log)
    disk.kill()
    again = open_log(scratch / "t-0", disk=disk, is_replica=True, log_start_offset=1)
    assert boundaries(again) == [50, 51]


def test_no_truncation_beside_a_failed_compaction(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start would finish it, and replace what was copied since by the records before."""
    disk = FaultyDisk(scratch)
    log = compacted_log(scratch / "t-0", disk)
    leave_compaction(log, disk, monkeypatch)
    with pytest.raises(OSError, match="the next start finishes it"):
        truncate(log, 1)
    again = open_log(scratch / "t-0", disk=disk, is_replica=True, cleanup_compact=True)
    truncate(again, 1)
    again.append_copy(copy_of("copied", offset=1, epoch=2))
    sync(again)
    again.close()
    reopened = open_log(scratch / "t-0", disk=disk, is_replica=True, clean=True, cleanup_compact=True)
    assert [record.value for record in records(reopened)][-1] == b"copied"


def test_log_starts_over(scratch: Path) -> None:
    log = leader_log(scratch / "t-0", 1)
    start = log.segments.active.base_offset
    truncate(log, start, starts_over=True)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (start, start, start)
    assert (len(log.producers), log.epochs.entries()) == (0, [])
    data = batch(b"a")
    data[:8] = start.to_bytes(8)
    data[12:16] = (3).to_bytes(4)
    log.append_copy(memoryview(data))
    sync(log)
    assert (log.directory / EPOCHS_FILE).read_text() == f"0\n1\n3 {start}\n"
    reopened = open_log(scratch / "t-0", is_replica=True, log_start_offset=start)
    assert (boundaries(reopened), content(reopened)) == ([start, start + 1], data)
    assert not reopened.producers.states(), "a snapshot of the removed batches would have some"


def cut_truncation(root: Path, seed: int) -> bool:
    """Cut the power during a truncation, recover, finish it, and let the log grow again. Return whether it was cut."""
    root.mkdir()
    source, disk = random.Random(seed), FaultyDisk(root)
    leader = leader_log(root / "leader", seed, batches=25)
    data, ends = memoryview(content(leader)), boundaries(leader)
    settings: dict[str, Any] = {"segment_bytes": source.choice((700, 1500)), "index_interval_bytes": 200}
    log = open_log(root / "t-0", disk=disk, is_replica=True, **settings)
    log.append_copy(data)
    if source.random() < 0.8:
        sync(log)
    offset = source.choice(ends)
    was_cut = False
    disk.cut_power_after(source.randrange(1, 25))
    try:
        truncate(log, offset)
        disk.cut_power_after(1 << 30)
    except PowerCut:
        was_cut = True
        disk.crash(source.randrange(1 << 30), drop_all=source.random() < 0.2)
        log = open_log(root / "t-0", disk=disk, is_replica=True, **settings)
        kept = content(log)
        assert kept == data[: len(kept)]
        truncate(log, offset)
    kept = content(log)
    assert log.log_end_offset <= offset
    assert kept == data[: len(kept)]
    # Other batches than before follow: no state of the removed ones may come back.
    log.begin_epoch(99)
    for _ in range(20):
        log.append(batch(bytes(source.randrange(90)), producer_id=7, sequence=_))
    sync(log)
    grown, states = content(log), sorted(log.producers.states())
    disk.crash(source.randrange(1 << 30))
    log = open_log(root / "t-0", disk=disk, is_replica=True, **settings)
    assert (content(log), sorted(log.producers.states())) == (grown, states)
    return was_cut


def test_power_cuts_during_truncation(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A batch's CRC does not cover its leader epoch: recovery cannot see a flipped bit there.
    monkeypatch.setattr(faulty_disk, "FLIPPED_SUFFIXES", ())
    cut = 0
    for seed in range(SEEDS):
        # Half of the runs recover from the newest snapshot, to test its promise.
        monkeypatch.setattr(recovery, "RECHECK_BYTES", 0 if seed % 2 else 1 << 26)
        try:
            cut += cut_truncation(scratch / str(seed), seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    assert cut > SEEDS / 3
