"""A file of offsets by partition in the data directory, in Kafka's format (OffsetCheckpointFile).

    0                     version
    2                     number of lines that follow
    clicks 0 1200         topic, partition, offset
    clicks 1 0

`log-start-offset-checkpoint` has each log's start, which may be in the middle of a segment. It is durable before a
client learns the start and before a segment file is touched: a start below which reads were refused never decreases.
`cleaner-offset-checkpoint` has the end of each log's compacted part, `replication-offset-checkpoint` the high watermark
of each replica. A partition without a line has offset 0.
"""

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from onceflow.log.disk import Disk, read_file, replace_file
from onceflow.log.errors import DataDirectoryRefused
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition

LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"

_VERSION = "0"


class OffsetCheckpoint:
    """Offsets in one file. Reading does not access the disk; a change returns when it is durable. Any thread."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Load the file. Raises DataDirectoryRefused where it is damaged, OSError."""
        self._disk = disk
        self._path = path
        self._offsets = parse_offsets(path, read_file(disk, path)) if disk.exists(path) else {}
        self._is_stored = True
        """Whether the file has these offsets. After a failed write it may have those of that write."""
        self._lock = threading.Lock()

    def get(self, topic: str, partition: int) -> int:
        return self._offsets.get((topic, partition), 0)

    def advance(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set each offset to the larger of the old and the new one. Blocks; raises OSError and keeps the old ones."""
        with self._lock:
            later = {key: offset for key, offset in offsets.items() if offset > self._offsets.get(key, 0)}
            if later:
                self._write({**self._offsets, **later})

    def lower(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set each offset to the smaller of the old and the new one. Blocks; raises OSError and keeps the old ones."""
        with self._lock:
            earlier = {key: offset for key, offset in offsets.items() if offset < self._offsets.get(key, 0)}
            if earlier or not self._is_stored:
                self._write({**self._offsets, **earlier})

    def replace(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets, lower ones too. Blocks; raises OSError and keeps the old ones."""
        with self._lock:
            changed = {**self._offsets, **offsets}
            if changed != self._offsets or not self._is_stored:
                self._write(changed)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions before their directories, so that a later topic of that name starts at 0. Blocks; raises
        OSError."""
        with self._lock:
            known = self._offsets.keys() & set(partitions)
            if known or not self._is_stored:
                self._write({key: offset for key, offset in self._offsets.items() if key not in known})

    def _write(self, offsets: dict[TopicPartition, int]) -> None:
        lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
        self._is_stored = False
        replace_file(self._disk, self._path, "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode())
        self._offsets, self._is_stored = offsets, True


def parse_offsets(path: Path, content: bytes) -> dict[TopicPartition, int]:
    """Parse the content of a file of offsets. Raises DataDirectoryRefused where it is damaged."""
    try:
        version, count, *lines = content.decode().splitlines()
        offsets = {}
        for line in lines:
            topic, partition, offset = line.split()
            offsets[topic, int(partition)] = int(offset)
        if version != _VERSION or int(count) != len(lines):
            raise ValueError(f"version {version}, {len(lines)} lines instead of {count}")
    except ValueError as error:
        raise DataDirectoryRefused(
            f"{path} is damaged: {error}; it needs version {_VERSION}, a count and `TOPIC PARTITION OFFSET` lines; "
            f"{Remedy.RESTORE_OFFSETS}, or {Remedy.REMOVE_OFFSETS}"
        ) from error
    return offsets
