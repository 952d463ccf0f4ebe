"""Files of offsets: what is lowered, and what is not written again."""

from pathlib import Path

from onceflow.log.disk import RealDisk
from onceflow.log.offset_checkpoint import HIGH_WATERMARK_FILE, OffsetCheckpoint


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
