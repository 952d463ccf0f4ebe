"""The faulty disk loses unsynced data, keeps synced data, and leaves only states that a power cut could."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.log.disk import RealDisk, read_file, replace_file, write_file
from onceflow.testing import FaultyDisk, ManualClock, PowerCut
from onceflow.testing.disk import FAULTS, FLIPPED_BITS, KILLS


@pytest.fixture
def root(scratch: Path) -> Path:
    (scratch / "old").write_bytes(b"old content")
    return scratch


def outcomes(root: Path, change: Callable[[FaultyDisk], None], seen: Callable[[], object]) -> set[object]:
    """Return what a program may observe after `change` and a power cut."""
    contents = set()
    for seed in range(300):
        for path in root.iterdir():
            path.unlink()
        (root / "old").write_bytes(b"old content")
        disk = FaultyDisk(root)
        change(disk)
        disk.crash(seed)
        contents.add(seen())
    return contents


def test_unsynced_writes_survive_in_part(root: Path) -> None:
    def change(disk: FaultyDisk) -> None:
        file = disk.open(root / "old")
        file.write(b"12", 11)
        file.write(b"34", 13)

    contents = outcomes(root, change, lambda: (root / "old").read_bytes())
    assert {b"old content", b"old content12", b"old content1234", b"old content\0\x0034", b"old content1"} <= contents


def test_synced_writes_survive(root: Path) -> None:
    def change(disk: FaultyDisk) -> None:
        file = disk.open(root / "old")
        file.write(b"12", 11)
        file.truncate(12)
        file.sync_data()

    assert outcomes(root, change, lambda: (root / "old").read_bytes()) == {b"old content1"}


def test_file_sync_does_not_keep_its_name(root: Path) -> None:
    def change(disk: FaultyDisk) -> None:
        write_file(disk, root / "new", b"new content")
        disk.remove(root / "old")

    def names() -> object:
        return tuple(sorted(path.name for path in root.iterdir()))

    assert outcomes(root, change, names) == {(), ("new",), ("old",), ("new", "old")}

    def synced(disk: FaultyDisk) -> None:
        change(disk)
        disk.sync_directory(root)

    assert outcomes(root, synced, names) == {("new",)}


def test_replacing_leaves_the_old_or_the_new(root: Path) -> None:
    for operations in range(8):

        def change(disk: FaultyDisk, operations: int = operations) -> None:
            disk.cut_power_after(operations)
            try:
                replace_file(disk, root / "old", b"new")
            except PowerCut:
                return

        contents = outcomes(root, change, lambda: (root / "old").read_bytes())
        assert contents <= {b"old content", b"new"}
        if operations == 7:
            assert contents == {b"new"}


def test_the_power_stays_off(root: Path) -> None:
    disk = FaultyDisk(root)
    file = disk.open(root / "old")
    disk.cut_power_after(1)
    file.write(b"x", 0)
    for _ in range(2):
        with pytest.raises(PowerCut):
            file.write(b"y", 0)
        with pytest.raises(PowerCut):
            disk.remove(root / "old")
    disk.crash(0, drop_all=True)
    with pytest.raises(PowerCut):
        file.read(1, 0)
    assert read_file(disk, root / "old") == b"old content"


def test_kill_keeps_unsynced_data(root: Path) -> None:
    disk = FaultyDisk(root)
    disk.open(root / "old").write(b"NEW", 0)
    disk.kill()
    assert read_file(disk, root / "old") == b"NEW content"
    disk.crash(0, drop_all=True)
    assert read_file(disk, root / "old") == b"old content"


def test_without_power_nothing_changes_until_the_crash(root: Path) -> None:
    disk = FaultyDisk(root)
    file = disk.open(root / "old")
    file.write(b"NEW", 0)
    disk.cut_power()
    assert disk.is_off
    for change in (file.sync_data, lambda: file.truncate(0), lambda: disk.sync_directory(root)):
        with pytest.raises(PowerCut):
            change()
    disk.crash(0, drop_all=True)
    assert not disk.is_off
    assert read_file(disk, root / "old") == b"old content"


def test_a_failed_sync_forgets(root: Path) -> None:
    disk = FaultyDisk(root)
    file = disk.open(root / "old")
    file.write(b"NEW", 0)
    disk.fail_next_syncs()
    with pytest.raises(OSError, match="could not sync"):
        file.sync_data()
    file.sync_data()
    disk.crash(0)
    assert read_file(disk, root / "old") == b"old content"


def test_a_flipped_bit_is_on_the_disk(root: Path) -> None:
    disk = FaultyDisk(root)
    disk.flip_bit(root / "old", 0, bit=5)
    assert read_file(disk, root / "old") == b"Old content"
    disk.crash(0)
    assert (root / "old").read_bytes() == b"Old content"


def test_a_real_files_last_holder_closes_it(scratch: Path) -> None:
    disk = RealDisk()
    write_file(disk, scratch / "a", b"abc")
    file = disk.open(scratch / "a")
    disk.remove(scratch / "a")
    assert file.read(10, 1) == b"bc"
    file.close()
    file.close()


def test_the_manual_clock_stands_still() -> None:
    clock = ManualClock(5)
    clock.advance_ms(1500)
    assert (clock.now_ms(), clock.monotonic()) == (1505, 1.5)


def test_unsynced_write_may_survive_damaged(root: Path) -> None:
    def change(name: str) -> set[object]:
        contents = set()
        for seed in range(300):
            (root / name).unlink(missing_ok=True)
            disk = FaultyDisk(root)
            write_file(disk, root / name, b"old")
            disk.sync_directory(root)
            disk.open(root / name).write(b"NEW", 0)
            disk.crash(seed)
            contents.add((root / name).read_bytes())
        return contents  # type: ignore[return-value]

    assert {b"old", b"NEW", b"OEW"} <= change("0.log")
    assert b"OEW" not in change("meta.properties")


def test_a_full_disk_creates_nothing(root: Path) -> None:
    disk = FaultyDisk(root)
    disk.space_bytes = 0
    with pytest.raises(OSError, match="no space left"):
        disk.open(root / "new", create=True)
    with pytest.raises(OSError, match="no space left"):
        disk.make_directory(root / "directory")
    assert disk.names(root) == ["old"]
    disk.space_bytes = 1
    disk.open(root / "new", create=True)


def test_removal_frees_space_on_full_disk(root: Path) -> None:
    disk = FaultyDisk(root)
    disk.capacity_bytes = 20
    disk.allocate(root / "kept", 9)
    assert disk.free_bytes(root) == 0
    with pytest.raises(OSError, match="no space left"):
        disk.allocate(root / "more", 1)
    old = disk.open(root / "old")
    assert old.write(b"OLD and more", 0) == 11, "overwriting needs no room"
    with pytest.raises(OSError, match="no space left"):
        old.write(b"!", 11)
    disk.remove(root / "kept")
    assert old.write(b"! and more of it", 11) == 9
    assert disk.names(root) == ["old"]


def test_failed_directory_sync_keeps_nothing(root: Path) -> None:
    disk = FaultyDisk(root)
    disk.fail_next_directory_syncs()
    write_file(disk, root / "new", b"content")
    with pytest.raises(OSError, match="could not sync a directory"):
        disk.sync_directory(root)
    disk.crash(0, drop_all=True)
    assert disk.names(root) == ["old"]


def test_each_fault_that_happens_is_counted(root: Path) -> None:
    faults: Counter[str] = Counter()
    for seed in range(100):
        (root / "log.log").write_bytes(b"old")
        disk = FaultyDisk(root)
        assert not disk.faults
        log = disk.open(root / "log.log")
        disk.fail_next_syncs()
        disk.fail_next_directory_syncs()
        for failing in (log.sync_data, lambda disk=disk: disk.sync_directory(root)):
            with pytest.raises(OSError, match="could not sync"):
                failing()
        disk.space_bytes = 4
        assert log.write(b"12345", 3) == 4
        with pytest.raises(OSError, match="no space left"):
            log.write(b"5", 7)
        with pytest.raises(OSError, match="no space left"):
            disk.open(root / "none", create=True)
        disk.space_bytes = None
        disk.open(root / "new", create=True).close()
        assert disk.faults == {"EIO of a file's sync": 1, "EIO of a directory's sync": 1, "ENOSPC": 2}
        disk.crash(seed)
        disk.kill()
        disk.flip_bit(root / "log.log", 0)
        assert (disk.faults[KILLS], disk.faults[FLIPPED_BITS]) == (1, 1)
        faults += disk.faults
    assert faults.keys() == set(FAULTS)
