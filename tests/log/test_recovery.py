"""Damage: recovery keeps the complete batches before it, and nothing after it reappears."""

import contextlib
import random
import shutil
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import pytest

from onceflow.log import recovery, swap
from onceflow.log.disk import RealDisk, RealFile
from onceflow.log.errors import EarlierBatchesAwaited, OutOfOrderSequence
from onceflow.log.partition import PartitionLog
from onceflow.log.segment import Segment
from onceflow.testing import FaultyDisk, PowerCut
from onceflow.wire.batch import batches, patch_offset, read_header
from tests.campaigns import RecordProperty
from tests.log.partition_logs import NOW_MS, batch, open_log, sync, values

BLOCK_BYTES = 4096


class Original:
    """A closed log of one-record batches in one or more segments, to be copied and damaged."""

    def __init__(self, directory: Path, count: int, segment_bytes: int, *, seed: int = 1) -> None:
        source = random.Random(seed)
        directory.parent.mkdir()
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.values = [b"%d:" % number + source.randbytes(source.randrange(120)) for number in range(count)]
        log = open_log(directory, segment_bytes=segment_bytes)
        for number, value in enumerate(self.values):
            log.append(batch(value, timestamp_ms=NOW_MS + number))
        log.close()
        sizes = [len(batch(value)) for value in self.values]
        self.ends = list(accumulate(sizes))
        self.names = sorted(path.name for path in directory.glob("*.log"))
        self.size_bytes = self.ends[-1]

    def copy(self, target: Path) -> Path:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.directory, target)
        return target

    def whole_before(self, position: int) -> int:
        """Return how many batches end at or before `position`, counted over all segments."""
        return sum(end <= position for end in self.ends)


def place(directory: Path, position: int) -> tuple[Path, int]:
    """Return the file and the position in it for a position in the whole log."""
    for path in sorted(directory.glob("*.log")):
        if position < path.stat().st_size:
            return path, position
        position -= path.stat().st_size
    raise AssertionError("behind the end")


def overwrite(directory: Path, position: int, data: bytes) -> None:
    path, at = place(directory, position)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def check(original: Original, directory: Path, count: int, *, clean: bool = False) -> PartitionLog:
    """Check that the log opens with exactly the first `count` records, keeps them, and accepts appends."""
    log = open_log(directory, clean=clean, segment_bytes=original.segment_bytes)
    assert values(log) == original.values[:count]
    assert log.segments.size_bytes == (original.ends[count - 1] if count else 0)
    assert sum(path.stat().st_size for path in directory.glob("*.log")) == log.segments.size_bytes
    log.append(batch(b"next"))
    sync(log)
    again = open_log(directory, segment_bytes=original.segment_bytes)
    assert values(again) == [*original.values[:count], b"next"]
    return again


@pytest.fixture(scope="module")
def one_segment(memory_directory: Path) -> Original:
    return Original(memory_directory / "one" / "clicks-0", 700, 1 << 30)


@pytest.fixture(scope="module")
def short(memory_directory: Path) -> Original:
    return Original(memory_directory / "short" / "clicks-0", 100, 1 << 30)


@pytest.fixture(scope="module")
def many_segments(memory_directory: Path) -> Original:
    return Original(memory_directory / "many" / "clicks-0", 700, 20_000)


def cut_at(original: Original, target: Path, position: int, *, clean: bool) -> None:
    """Cut the log's last file so that the whole log has `position` bytes."""
    last = original.copy(target) / original.names[-1]
    removed = original.size_bytes - position
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - removed)
    check(original, target, original.whole_before(position), clean=clean)


def test_cut_within_the_last_two_batches(short: Original, scratch: Path) -> None:
    for position in range(short.ends[-3], short.size_bytes):
        cut_at(short, scratch / "clicks-0", position, clean=position % 3 == 0)


def test_cut_within_the_last_16_kib(one_segment: Original, scratch: Path) -> None:
    for position in range(one_segment.size_bytes - 16 * 1024, one_segment.ends[-3], 211):
        cut_at(one_segment, scratch / "clicks-0", position, clean=position % 2 == 0)


@pytest.mark.campaign
def test_every_cut_within_the_last_16_kib(
    one_segment: Original, scratch: Path, record_property: RecordProperty
) -> None:
    """A log cut at any byte keeps exactly the complete batches before it."""
    positions = range(one_segment.size_bytes - 16 * 1024, one_segment.size_bytes + 1)
    for position in positions:
        cut_at(one_segment, scratch / "clicks-0", position, clean=position % 2 == 0)
    record_property("cuts, one at each byte", len(positions))


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("shape", ["one_segment", "many_segments"])
def test_zeroed_blocks_of_the_last_64_kib(
    shape: str, clean: bool, scratch: Path, request: pytest.FixtureRequest
) -> None:
    original = request.getfixturevalue(shape)
    for block in range(16):
        begin = original.size_bytes - (block + 1) * BLOCK_BYTES
        directory = original.copy(scratch / "clicks-0")
        path, at = place(directory, begin)
        overwrite(directory, begin, bytes(min(BLOCK_BYTES, path.stat().st_size - at)))
        check(original, directory, original.whole_before(begin), clean=clean)


@pytest.mark.parametrize("clean", [False, True])
def test_appended_zeros_and_random_bytes(one_segment: Original, clean: bool, scratch: Path) -> None:
    source = random.Random(3)
    for size_bytes in (1, 11, 12, 27, 60, 61, 62, 500, 4096, 100_000):
        for tail in (bytes(size_bytes), source.randbytes(size_bytes), b"\xff" * size_bytes):
            directory = one_segment.copy(scratch / "clicks-0")
            with (directory / one_segment.names[-1]).open("ab") as file:
                file.write(tail)
            check(one_segment, directory, len(one_segment.values), clean=clean)


@pytest.mark.parametrize("shape", ["one_segment", "many_segments"])
def test_rule_4_batches_after_damage_stay_removed(shape: str, scratch: Path, request: pytest.FixtureRequest) -> None:
    original = request.getfixturevalue(shape)
    source = random.Random(5)
    for _ in range(20):
        count = source.randrange(0, 699)
        directory = original.copy(scratch / "clicks-0")
        begin = original.ends[count - 1] if count else 0
        position = source.randrange(begin + 16, original.ends[count])
        path, at = place(directory, position)
        overwrite(directory, position, bytes([path.read_bytes()[at] ^ 0x10]))
        log = open_log(directory, segment_bytes=original.segment_bytes)
        assert values(log) == original.values[:count]
        assert log.recovery_removed_bytes == original.size_bytes - begin
        # A batch of the damaged one's size replaces it: what was after it would match again if it still existed.
        log.append(batch(bytes(len(original.values[count]))))
        sync(log)
        del log
        assert len(values(open_log(directory, segment_bytes=original.segment_bytes))) == count + 1


def test_offsets_must_follow_each_other(scratch: Path) -> None:
    log = open_log(scratch / "clicks-0")
    for value in (b"a", b"b"):
        log.append(batch(value))
    sync(log)
    path = scratch / "clicks-0" / f"{0:020d}.log"
    for wrong in (0, 1, 3):
        stale = batch(b"stale")
        patch_offset(stale, 0, wrong, 0)
        path.write_bytes(path.read_bytes() + stale)
        assert values(open_log(scratch / "clicks-0")) == [b"a", b"b"]


def test_a_missing_segment_ends_the_log(many_segments: Original, scratch: Path) -> None:
    directory = many_segments.copy(scratch / "clicks-0")
    (directory / many_segments.names[2]).unlink()
    check(many_segments, directory, int(many_segments.names[2].removesuffix(".log")))
    assert not {path.name for path in directory.glob("*.log")} & set(many_segments.names[3:])


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [False, True])
def test_rule_4_indexes_are_rebuilt(many_segments: Original, clean: bool, suffix: str, scratch: Path) -> None:
    directory = many_segments.copy(scratch / "clicks-0")
    before = {path.name: path.read_bytes() for path in directory.glob(f"*{suffix}")}
    assert sum(map(len, before.values())) > 100
    paths = sorted(directory.glob(f"*{suffix}"))
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    open_log(directory, clean=clean, segment_bytes=many_segments.segment_bytes).close()
    assert {path.name: path.read_bytes() for path in directory.glob(f"*{suffix}")} == before


def test_stray_files_are_removed(many_segments: Original, scratch: Path) -> None:
    directory = many_segments.copy(scratch / "clicks-0")
    for name in (f"{99_999:020d}.snapshot", f"{77_777:020d}.index", "leader-epoch-checkpoint.tmp"):
        (directory / name).write_bytes(b"")
    names = {path.name for path in many_segments.directory.iterdir()}
    open_log(directory, clean=True)
    assert {path.name for path in directory.iterdir()} == names


def test_rule_4_scan_starts_at_a_snapshot(
    many_segments: Original, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[int] = []
    real = recovery.good_batches

    def counting(segment: Segment, position: int, offset: int, compaction_end: int):  # type: ignore[no-untyped-def]
        scanned.append(segment.base_offset)
        yield from real(segment, position, offset, compaction_end)

    monkeypatch.setattr(recovery, "good_batches", counting)
    bases = [int(name.removesuffix(".log")) for name in many_segments.names]
    directory = many_segments.copy(scratch / "clicks-0")
    for recheck_bytes, begin in ((0, -1), (many_segments.segment_bytes, -2), (1 << 30, 0)):
        monkeypatch.setattr(recovery, "RECHECK_BYTES", recheck_bytes)
        scanned.clear()
        assert values(open_log(directory)) == many_segments.values
        assert scanned == bases[begin:]
    monkeypatch.setattr(recovery, "RECHECK_BYTES", 0)
    (directory / f"{bases[-1]:020d}.snapshot").write_bytes(b"torn")
    (directory / f"{bases[-3]:020d}.index").unlink()
    scanned.clear()
    assert values(open_log(directory)) == many_segments.values
    assert scanned == bases[-3:]


class LookingDisk(RealDisk):
    """A disk that counts accesses to single files."""

    def __init__(self) -> None:
        self.looks = 0

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        self.looks += 1
        return super().open(path, create=create)

    def exists(self, path: Path) -> bool:
        self.looks += 1
        return super().exists(path)

    def size_bytes(self, path: Path) -> int:
        self.looks += 1
        return super().size_bytes(path)


@pytest.mark.parametrize("clean", [False, True])
def test_start_cost_is_independent_of_size(clean: bool, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "RECHECK_BYTES", 0)
    monkeypatch.setattr(recovery, "CLEAN_CHECK_BYTES", 100)
    looks = []
    for segments in (5, 50):
        directory = scratch / f"clicks-{segments}"
        log = open_log(directory, segment_bytes=200)
        for number in range(segments):
            log.append(batch(b"x" * 100, timestamp_ms=NOW_MS + number % 4))
        log.close()
        disk = LookingDisk()
        again = open_log(directory, clean=clean, disk=disk)
        looks.append(disk.looks)
        assert len(again.segments.in_order) == segments
        assert again.visible.search_timestamp(NOW_MS + 2)() == (NOW_MS + 2, 2)
        assert again.visible.search_max_timestamp()() == (NOW_MS + 3, 3)
        assert disk.looks > looks[-1], "which looks at the time indexes only now"
    assert looks[0] == looks[1]


def test_clean_start_may_fall_back_to_scan(many_segments: Original, scratch: Path) -> None:
    directory = many_segments.copy(scratch / "clicks-0")
    bases = [int(name.removesuffix(".log")) for name in many_segments.names]
    (directory / f"{bases[3]:020d}.index").unlink()
    log = open_log(directory, clean=True, log_start_offset=bases[2], segment_bytes=many_segments.segment_bytes)
    assert [segment.base_offset for segment in log.segments] == bases[2:]


def send(log: PartitionLog, sequence: int) -> None:
    log.append(batch(b"%d" % sequence, producer_id=7, sequence=sequence))


def is_known(log: PartitionLog) -> bool:
    """Return whether the log knows that producer 7 sent sequence 0."""
    with pytest.raises((OutOfOrderSequence, EarlierBatchesAwaited)) as raised:
        send(log, 5)
    return raised.type is OutOfOrderSequence


def delete_finished(log: PartitionLog, disk: FaultyDisk) -> None:
    """Delete all finished segments as DeleteRecords does."""
    log.segments.start_offset = log.segments.active.base_offset
    swap.retire(disk, log.directory, log.drop_segments_below_start())


def test_producer_survives_deletion_and_power_cut(scratch: Path) -> None:
    """The snapshot after the segment must be durable before the segment's files lose their names."""
    was_cut, operation = True, 0
    while was_cut:
        for seed in range(20):
            root = scratch / f"{operation}-{seed}"
            root.mkdir()
            disk = FaultyDisk(root)
            log = open_log(root / "t-0", disk=disk)
            send(log, 0)
            log.roll()
            log.append(batch(b"other"))
            sync(log)
            disk.cut_power_after(operation)
            try:
                delete_finished(log, disk)
                was_cut = False
            except PowerCut:
                was_cut = True
            disk.crash(seed)
            assert is_known(open_log(root / "t-0", disk=disk, log_start_offset=1)), (operation, seed)
        operation += 1
    assert operation > 5


def test_segment_waits_for_the_next_snapshot(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_arguments: object) -> None:
        raise OSError(28, "no space left")

    disk = FaultyDisk(scratch)
    log = open_log(scratch / "t-0", disk=disk)
    send(log, 0)
    log.roll()
    log.append(batch(b"other"))
    with monkeypatch.context() as full:
        full.setattr("onceflow.log.sync.write_snapshot", no_room)
        sync(log)
        assert log.high_watermark == 2
        delete_finished(log, disk)
    sync(log)
    delete_finished(log, disk)
    assert len(log.segments.in_order) == 1
    disk.crash(0, drop_all=True)
    assert is_known(open_log(scratch / "t-0", disk=disk, log_start_offset=1))


def test_segment_with_only_producer_state_stays(scratch: Path) -> None:
    log = open_log(scratch / "t-0")
    send(log, 0)
    log.roll()
    log.append(batch(b"other"))
    log.close()
    (scratch / "t-0" / f"{1:020d}.snapshot").unlink()
    assert is_known(open_log(scratch / "t-0", log_start_offset=1))


def test_recovery_writes_snapshots_of_scanned_segments(scratch: Path) -> None:
    disk = FaultyDisk(scratch)
    log = open_log(scratch / "t-0", disk=disk)
    send(log, 0)
    log.roll()
    log.append(batch(b"other"))
    disk.kill()
    log = open_log(scratch / "t-0", disk=disk)
    delete_finished(log, disk)
    assert len(log.segments.in_order) == 1
    disk.crash(0, drop_all=True)
    assert is_known(open_log(scratch / "t-0", disk=disk, log_start_offset=1))


def test_batches_before_torn_write_are_durable(scratch: Path) -> None:
    """A kill may interrupt a write; the batches before it are in the page cache only."""
    disk = FaultyDisk(scratch)
    log = open_log(scratch / "t-0", disk=disk)
    for value in (b"a", b"b"):
        log.append(batch(value))
    log.segments.active.file.write(batch(b"torn")[:30], log.segments.size_bytes)
    disk.kill()
    assert values(open_log(scratch / "t-0", disk=disk)) == [b"a", b"b"]
    disk.crash(0, drop_all=True)
    assert values(open_log(scratch / "t-0", disk=disk)) == [b"a", b"b"]


def test_flipped_index_bit_hides_no_record(scratch: Path) -> None:
    """A start after a clean stop does not check each index: an entry is used only where the log confirms it."""
    settings: dict[str, Any] = {"segment_bytes": 1500, "index_interval_bytes": 150}
    log = open_log(scratch / "t-0", **settings)
    for number in range(30):
        log.append(batch(b"%d" % number + bytes(40), timestamp_ms=NOW_MS + number))
    log.close()
    for path in sorted((scratch / "t-0").glob("*.index"))[:3]:
        content = path.read_bytes()
        for position, bit in product(range(len(content)), (0, 3, 7)):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            shutil.copytree(scratch / "t-0", scratch / "copy-0", dirs_exist_ok=True)
            (scratch / "copy-0" / path.name).write_bytes(damaged)
            opened = open_log(scratch / "copy-0", clean=True, **settings)
            for offset in range(30):
                for size_bytes in (1, 300):
                    fetched = opened.visible.read(offset, size_bytes)
                    assert fetched is not None
                    data = fetched.read()
                    assert read_header(data).base_offset == offset
                    assert sum(header.size_bytes for _position, header in batches(data)) == len(data)


@pytest.mark.parametrize("seed", [7, 38])
def test_producers_survive_the_removal_of_segments(scratch: Path, seed: int) -> None:
    """A kill left the name of their snapshot in the page cache; the next start removes the segment before it."""
    for operations in range(1, 12):
        root = scratch / str(operations)
        root.mkdir()
        disk = FaultyDisk(root)
        log = open_log(root / "t-0", disk=disk)
        log.append(batch(b"a", producer_id=7, sequence=0))
        sync(log)
        log.roll()
        log.append(batch(b"x"))
        sync(log)
        disk.kill()
        del log
        disk.cut_power_after(operations)
        with contextlib.suppress(PowerCut):
            open_log(root / "t-0", disk=disk, log_start_offset=1)
        disk.crash(seed)
        log = open_log(root / "t-0", disk=disk, log_start_offset=1)
        assert values(log) == [b"x"]
        assert log.append(batch(b"a", producer_id=7, sequence=0)).duplicate, operations
