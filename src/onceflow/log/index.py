"""Sparse offset and time index of a segment, in the formats of Kafka's OffsetIndex and TimeIndex.

The index of aborted transactions is in `onceflow.log.transactions`.

`NNN.index`, 8 bytes an entry, big-endian, ascending in both columns:

    int32  last offset of a batch - base offset of the segment
    int32  position in the .log file where that batch starts

`NNN.timeindex`, 12 bytes an entry, ascending in both columns:

    int64  largest timestamp of the segment up to here, ms
    int32  last offset of the batch with that timestamp - base offset of the segment; later timestamps come after it

A batch gets an entry if more than `index.interval.bytes` were appended before it since the last entry
(`LogSegment.append`). The time index gets one only if the largest timestamp grew; when the segment is sealed or closed,
its largest timestamp is written too.

Neither file has a checksum, and neither needs one: recovery rebuilds both from the log. The indexes of the active
segment are in memory and written when the segment is sealed or the log is closed (Kafka maps a preallocated file and
trims it then). A sealed index is mapped when it is first searched, so the cost of a search does not depend on the log's
size. The mapping is released like a segment's file (`onceflow.log.open_files`).
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceflow.log.disk import Disk, read_file, write_file
from onceflow.log.open_files import OPEN_FILES

OFFSET_DIGITS = 20


def file_name(offset: int, suffix: str) -> str:
    """Return Kafka's name for a segment's file: the offset in 20 digits."""
    return f"{offset:0{OFFSET_DIGITS}d}{suffix}"


class Index:
    """Entries of one struct, in memory while `entries` is not None, in the file afterwards."""

    __slots__ = (
        "__weakref__",
        "_directory",
        "_disk",
        "_is_pinned",
        "_mapped",
        "_suffix",
        "_was_used",
        "base_offset",
        "entries",
    )

    entry = struct.Struct("")
    suffix = ""

    def __init__(
        self, disk: Disk, directory: Path, base_offset: int, *, suffix: str = "", is_new: bool = False
    ) -> None:
        """Open or create an index. `suffix` is appended to the file's name; entries of a new index are in memory."""
        self.base_offset = base_offset
        self.entries = bytearray() if is_new else None
        self._disk = disk
        self._directory = directory
        self._suffix = suffix
        self._mapped: memoryview | None = None
        self._was_used = False
        self._is_pinned = False

    @property
    def name(self) -> str:
        """Name of the file."""
        return file_name(self.base_offset, self.suffix) + self._suffix

    @property
    def path(self) -> Path:
        return self._directory / self.name

    def __len__(self) -> int:
        return self.size_bytes() // self.entry.size

    def size_bytes(self) -> int:
        held = self._held()
        return self._disk.size_bytes(self.path) if held is None else len(held)

    def write(self) -> None:
        """Write the entries and make them durable. They must not grow meanwhile."""
        assert self.entries is not None, f"{self.path} is sealed"
        write_file(self._disk, self.path, self.entries)

    def seal(self) -> None:
        """Drop the entries in memory; searches read the file from now on."""
        self.entries = None

    def load(self, sizes: Mapping[str, int]) -> bool:
        """Load the file's entries into memory, to append to them. `sizes` are those of the directory's files.

        Return False if the file is missing or not sane: entries that are cut, or below the base offset (Kafka's
        sanityCheck). An empty file is not opened: with many partitions most are empty.
        """
        size_bytes = sizes.get(self.name)
        if size_bytes is None:
            return False
        self.entries = bytearray(read_file(self._disk, self.path)) if size_bytes else bytearray()
        if len(self.entries) % self.entry.size:
            return False
        last = self.last_entry()
        return last is None or min(last) >= 0

    def release_if_idle(self) -> bool:
        """Unmap the file, unless it was searched since the last call or is pinned. Return whether none is mapped."""
        if self._was_used or self._is_pinned:
            self._was_used = False
        else:
            self._mapped = None
        return self._mapped is None

    def pin(self) -> None:
        """Keep the mapping for searches in other threads, before another index takes over the file's name."""
        with OPEN_FILES.opening:
            if self.entries is None and self._disk.exists(self.path):
                self._map()
                self._is_pinned = True

    def last_entry(self) -> tuple[Any, ...] | None:
        """Return the last entry, None without one. An unmapped file is not mapped for it: a start reads that of each
        segment."""
        held, size_bytes = self._held(), self.entry.size
        if held is not None:
            return self.entry.unpack_from(held, len(held) - size_bytes) if held else None
        file = self._disk.open(self.path)
        end = file.size_bytes()
        return self.entry.unpack(file.read(size_bytes, end - size_bytes)) if end else None

    # Searches by time run in a thread: `seal` and `release_if_idle` may be called at any moment, hence the locals
    # below.

    def _held(self) -> bytearray | memoryview | None:
        entries = self.entries
        return self._mapped if entries is None else entries

    def _content(self) -> bytearray | memoryview:
        entries = self.entries
        if entries is not None:
            return entries
        self._was_used = True
        mapped = self._mapped
        return self._map() if mapped is None else mapped

    def _map(self) -> memoryview:
        with OPEN_FILES.opening:
            mapped = self._mapped
            if mapped is None:
                mapped = self._mapped = self._disk.open(self.path).mapped()
                OPEN_FILES.opened(self)
            return mapped

    def _last_up_to(self, value: int, column: struct.Struct) -> tuple[Any, ...] | None:
        """Return the last entry whose `column` is ≤ `value`."""
        content, size_bytes, column_at = self._content(), self.entry.size, column.unpack_from
        count = len(content) // size_bytes
        end = bisect_right(range(count), value, key=lambda number: column_at(content, number * size_bytes)[0])
        return self.entry.unpack_from(content, (end - 1) * size_bytes) if end else None


class OffsetIndex(Index):
    """Index of (relative last offset, position), one entry every few thousand bytes."""

    __slots__ = ()

    entry = struct.Struct(">ii")
    suffix = ".index"

    def append(self, offset: int, position: int) -> None:
        assert self.entries is not None
        self.entries += self.entry.pack(offset - self.base_offset, position)

    def position_for_offset(self, offset: int) -> int:
        """Return where to start a scan for the batch that contains `offset`; never after that batch."""
        entry = self._last_up_to(offset - self.base_offset, _OFFSET)
        return int(entry[1]) if entry else 0

    def position_at_most(self, position: int) -> int:
        """Return the largest indexed start of a batch that is ≤ `position`."""
        entry = self._last_up_to(position, _POSITION)
        return int(entry[1]) if entry else 0

    def last_position(self) -> int:
        """Return the last indexed start of a batch; 0 without entries."""
        last = self.last_entry()
        return int(last[1]) if last else 0

    def position_from(self, position: int) -> int:
        """Return the first indexed start of a batch at `position` or later; 0 if there is none."""
        content, size_bytes = self._content(), self.entry.size
        count = len(content) // size_bytes
        number = bisect_left(
            range(count), position, key=lambda number: int(_POSITION.unpack_from(content, number * size_bytes)[0])
        )
        return int(_POSITION.unpack_from(content, number * size_bytes)[0]) if number < count else 0


class TimeIndex(Index):
    """Index of (largest timestamp so far, relative offset), one entry every few thousand bytes."""

    __slots__ = ()

    entry = struct.Struct(">qi")
    suffix = ".timeindex"

    def append_if_later(self, timestamp_ms: int, offset: int) -> None:
        """Append an entry only if the largest timestamp grew."""
        entries = self.entries
        assert entries is not None
        latest_ms = _TIMESTAMP.unpack_from(entries, len(entries) - self.entry.size)[0] if entries else -1
        if timestamp_ms > latest_ms:
            entries += self.entry.pack(timestamp_ms, offset - self.base_offset)

    def last(self) -> tuple[int, int]:
        """Return (largest timestamp, offset); (-1, base offset) without entries."""
        last = self.last_entry()
        return (-1, self.base_offset) if last is None else (int(last[0]), int(last[1]) + self.base_offset)

    def offset_before(self, timestamp_ms: int) -> int:
        """Return where to start a scan for a timestamp: an offset up to which every timestamp is smaller."""
        entry = self._last_up_to(timestamp_ms - 1, _TIMESTAMP)
        return int(entry[1]) + self.base_offset if entry else self.base_offset


_OFFSET = struct.Struct(">i")
_POSITION = struct.Struct(">4xi")
_TIMESTAMP = struct.Struct(">q")
"""One column of an entry, read at the entry's start."""
