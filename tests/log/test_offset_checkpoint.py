"""Files of offsets: what is lowered, what is not written again, and what a failed write may have left."""

from pathlib import Path

import pytest

from onceflow.log.disk import RealDisk
from onceflow.log.offset_checkpoint import HIGH_WATERMARK_FILE, LOG_START_FILE, OffsetCheckpoint
from onceflow.testing.disk import FaultyDisk


def test_replaced_offsets_may_be_lower(tmp_path: Path) -> None:
    path = tmp_path / HIGH_WATERMARK_FILE
    offsets = OffsetCheckpoint(RealDisk(), path)
    offsets.replace({("clicks", 0): 5, ("visits", 1): 7})
    offsets.replace({("clicks", 0): 3})
    assert path.read_text() == "0\n2\nclicks 0 3\nvisits 1 7\n"
    assert OffsetCheckpoint(RealDisk(), path).get("clicks", 0) == 3
    written = path.stat().st_ino
    offsets.replace({("clicks", 0): 3})
    assert path.stat().st_ino == written


def test_offsets_of_a_failed_write_are_forgotten(tmp_path: Path) -> None:
    """The directory's sync failed after the new file was in place; a later topic of that name starts at 0."""
    disk, path = FaultyDisk(tmp_path), tmp_path / LOG_START_FILE
    offsets = OffsetCheckpoint(disk, path)
    disk.fail_next_directory_syncs(1)
    with pytest.raises(OSError, match="could not sync a directory"):
        offsets.advance({("clicks", 0): 21})
    assert (offsets.get("clicks", 0), OffsetCheckpoint(disk, path).get("clicks", 0)) == (0, 21)
    offsets.forget([("clicks", 0)])
    disk.crash(1)
    assert OffsetCheckpoint(disk, path).get("clicks", 0) == 0


def test_offsets_of_a_failed_write_are_replaced(tmp_path: Path) -> None:
    disk, path = FaultyDisk(tmp_path), tmp_path / HIGH_WATERMARK_FILE
    offsets = OffsetCheckpoint(disk, path)
    offsets.replace({("clicks", 0): 5})
    disk.fail_next_directory_syncs(1)
    with pytest.raises(OSError, match="could not sync a directory"):
        offsets.replace({("clicks", 0): 9})
    offsets.replace({("clicks", 0): 5})
    disk.crash(1)
    assert OffsetCheckpoint(disk, path).get("clicks", 0) == 5
