"""The two sparse indexes of a segment, in the formats of Kafka's OffsetIndex and TimeIndex (for the index of aborted
transactions see `onceflow.log.transactions`).

`NNN.index`, 8 bytes an entry, big-endian, ascending in both columns:

    int32  last offset of a batch - base offset of the segment
    int32  position in the .log file where that batch begins

`NNN.timeindex`, 12 bytes an entry, ascending in both columns:

    int64  largest timestamp of the segment up to here, ms
    int32  last offset of the batch that carried it - base offset of the segment; any later timestamp comes after it

An entry is written for a batch before which more than `index.interval.bytes` were appended since the last entry
(`LogSegment.append`), to the time index only if the largest timestamp grew; when the segment is sealed or closed, its
largest timestamp is written too.

Neither file has a checksum, and neither is needed: both are rebuilt from the log by recovery. The indexes of the
active segment live in memory and are written when the segment is sealed or the log is closed (Kafka maps a
preallocated file and trims it then). A sealed index is mapped when it is first searched, so that a search costs the
same however large the log is; the mapping is let go like a segment's file (`onceflow.log.open_files`).
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceflow.log.disk import Disk, read_file, write_file
from onceflow.log.open_files import OPEN_FILES


def file_name(offset: int, suffix: str) -> str:
    """Kafka's name for the file of a segment: the offset in 20 digits."""
    return f"{offset:020d}{suffix}"


class Index:
    """Entries of one struct, in memory while `entries` is one, in the file afterwards."""

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
        """`suffix` is appended to the file's name; a new one's entries are in memory."""
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
        """Of the file."""
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
        """Writes the entries, which must not grow meanwhile, and makes them durable."""
        assert self.entries is not None, f"{self.path} is sealed"
        write_file(self._disk, self.path, self.entries)

    def seal(self) -> None:
        """Forgets the entries in memory: from now on the file is searched."""
        self.entries = None

    def load(self, sizes: Mapping[str, int]) -> bool:
        """Takes the file's entries into memory, to append to them; False if the file is missing or not sane: entries
        that are cut, or below the base offset (Kafka's sanityCheck).

        `sizes` are of its directory's files: an empty one, as most are where partitions are many, is not opened.
        """
        size_bytes = sizes.get(self.name)
        if size_bytes is None:
            return False
        self.entries = bytearray(read_file(self._disk, self.path)) if size_bytes else bytearray()
        if len(self.entries) % self.entry.size:
            return False
        last = self.last_entry()
        return last is None or min(last) >= 0

    def let_go(self) -> bool:
        """Unmaps the file, unless it was searched since it was last asked or has lost its name."""
        if self._was_used or self._is_pinned:
            self._was_used = False
        else:
            self._mapped = None
        return self._mapped is None

    def pin(self) -> None:
        """Before the file's name goes to another index: who still searches this one, in any thread, goes on in it."""
        with OPEN_FILES.opening:
            if self.entries is None and self._disk.exists(self.path):
                self._map()
                self._is_pinned = True

    def last_entry(self) -> tuple[Any, ...] | None:
        """None while there is none. A file that is not mapped is not mapped for it: a start asks each segment's."""
        held, size_bytes = self._held(), self.entry.size
        if held is not None:
            return self.entry.unpack_from(held, len(held) - size_bytes) if held else None
        file = self._disk.open(self.path)
        end = file.size_bytes()
        return self.entry.unpack(file.read(size_bytes, end - size_bytes)) if end else None

    # Look-ups by time search in a thread: `seal` and `let_go` may come at any moment, hence the local names below.

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
        """The last entry whose `column` is ≤ `value`."""
        content, size_bytes, column_at = self._content(), self.entry.size, column.unpack_from
        count = len(content) // size_bytes
        found = bisect_right(range(count), value, key=lambda number: column_at(content, number * size_bytes)[0])
        return self.entry.unpack_from(content, (found - 1) * size_bytes) if found else None


class OffsetIndex(Index):
    """(relative last offset, position) of every few thousand bytes."""

    __slots__ = ()

    entry = struct.Struct(">ii")
    suffix = ".index"

    def append(self, offset: int, position: int) -> None:
        assert self.entries is not None
        self.entries += self.entry.pack(offset - self.base_offset, position)

    def position_for_offset(self, offset: int) -> int:
        """Where to begin a scan for the batch that holds `offset`: never behind that batch."""
        found = self._last_up_to(offset - self.base_offset, _OFFSET)
        return int(found[1]) if found else 0

    def position_at_most(self, position: int) -> int:
        """The largest indexed beginning of a batch that is ≤ `position`."""
        found = self._last_up_to(position, _POSITION)
        return int(found[1]) if found else 0

    def last_position(self) -> int:
        """The last indexed beginning of a batch; 0 where there is none."""
        last = self.last_entry()
        return int(last[1]) if last else 0

    def position_from(self, position: int) -> int:
        """The first indexed beginning of a batch that is at `position` or later; 0 where there is none."""
        content, size_bytes = self._content(), self.entry.size
        count = len(content) // size_bytes
        found = bisect_left(
            range(count), position, key=lambda number: int(_POSITION.unpack_from(content, number * size_bytes)[0])
        )
        return int(_POSITION.unpack_from(content, found * size_bytes)[0]) if found < count else 0


class TimeIndex(Index):
    """(largest timestamp so far, relative offset) of every few thousand bytes."""

    __slots__ = ()

    entry = struct.Struct(">qi")
    suffix = ".timeindex"

    def append_if_later(self, timestamp_ms: int, offset: int) -> None:
        """Appends only where the largest timestamp grew."""
        assert self.entries is not None
        if timestamp_ms > self.last()[0]:
            self.entries += self.entry.pack(timestamp_ms, offset - self.base_offset)

    def last(self) -> tuple[int, int]:
        """(largest timestamp, offset); (-1, base offset) while there is none."""
        last = self.last_entry()
        return (-1, self.base_offset) if last is None else (int(last[0]), int(last[1]) + self.base_offset)

    def offset_before(self, timestamp_ms: int) -> int:
        """An offset up to which every timestamp is ≤ `timestamp_ms`: where to begin a scan for it."""
        found = self._last_up_to(timestamp_ms - 1, _TIMESTAMP)
        return int(found[1]) + self.base_offset if found else self.base_offset


_OFFSET = struct.Struct(">i")
_POSITION = struct.Struct(">4xi")
_TIMESTAMP = struct.Struct(">q")
"""One column of an entry, read at the entry's beginning."""
