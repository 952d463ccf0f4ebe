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
preallocated file and trims it then). A sealed index is searched in its file, 18 small reads for a full segment, and
closed again, so that old segments cost neither memory nor descriptors.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceflow.log.disk import Disk, File, read_file, write_file
from onceflow.log.open_files import OPEN_FILES


def file_name(offset: int, suffix: str) -> str:
    """Kafka's name for the file of a segment: the offset in 20 digits."""
    return f"{offset:020d}{suffix}"


class Index:
    """Entries of one struct, in memory while `entries` is one, in the file afterwards."""

    __slots__ = ("_count", "_directory", "_disk", "_file", "_pinned", "_suffix", "base_offset", "entries")

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
        self._file: File | None = None
        self._pinned: File | None = None
        self._count = 0

    @property
    def path(self) -> Path:
        return self._directory / (file_name(self.base_offset, self.suffix) + self._suffix)

    def __len__(self) -> int:
        entries = self.entries
        if entries is not None:
            return len(entries) // self.entry.size
        self._opened()
        return self._count

    def size_bytes(self) -> int:
        return len(self) * self.entry.size

    def write(self) -> None:
        """Writes the entries, which must not grow meanwhile, and makes them durable."""
        assert self.entries is not None, f"{self.path} is sealed"
        write_file(self._disk, self.path, self.entries)

    def seal(self) -> None:
        """Forgets the entries in memory: from now on the file is searched."""
        self.entries = None
        self._file = None

    def load(self) -> bool:
        """Takes the file's entries into memory, to append to them; False if the file is missing or not sane."""
        if not self._disk.exists(self.path):
            return False
        self.entries = bytearray(read_file(self._disk, self.path))
        self._file = None
        return self._is_sane(len(self.entries))

    def release(self) -> None:
        """Closes the file until the next search: a log of many segments must not hold three files of each."""
        self._file = None

    def pin(self) -> None:
        """Before the file's name goes to another index: who still searches this one, in any thread, goes on in it."""
        with OPEN_FILES.opening:
            if self.entries is None and self._disk.exists(self.path):
                self._pinned = self._opened()

    def is_sane(self) -> bool:
        """What can be told without the log: whole entries, none below the base offset (Kafka's sanityCheck)."""
        if not self._disk.exists(self.path):
            return False
        try:
            return self._is_sane(self._opened().size_bytes())
        finally:
            self.release()

    def _is_sane(self, size_bytes: int) -> bool:
        return size_bytes % self.entry.size == 0 and (not size_bytes or min(self._at(len(self) - 1)) >= 0)

    def _opened(self) -> File:
        # Look-ups by time search in a thread: `release` and `seal` may come at any moment, hence the local names.
        return self._pinned or self._file or self._opened_by_name()

    def _opened_by_name(self) -> File:
        with OPEN_FILES.opening:
            if self._pinned is not None:
                return self._pinned
            file = self._disk.open(self.path)
            self._count = file.size_bytes() // self.entry.size
            self._file = file
        return file

    def _at(self, number: int) -> tuple[Any, ...]:
        entries, size_bytes = self.entries, self.entry.size
        if entries is not None:
            return self.entry.unpack_from(entries, number * size_bytes)
        return self.entry.unpack(self._opened().read(size_bytes, number * size_bytes))

    def _bytes_at(self, position: int, size_bytes: int) -> bytes | bytearray:
        entries = self.entries
        if entries is not None:
            return entries[position : position + size_bytes]
        return self._opened().read(size_bytes, position)

    def _last_up_to(self, value: int, column: Callable[[tuple[Any, ...]], int]) -> tuple[Any, ...] | None:
        """The last entry whose `column` is ≤ `value`."""
        try:
            found = bisect_right(range(len(self)), value, key=lambda number: column(self._at(number)))
            return self._at(found - 1) if found else None
        finally:
            self.release()


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
        found = self._last_up_to(offset - self.base_offset, lambda entry: int(entry[0]))
        return int(found[1]) if found else 0

    def position_at_most(self, position: int) -> int:
        """The largest indexed beginning of a batch that is ≤ `position`."""
        found = self._last_up_to(position, lambda entry: int(entry[1]))
        return int(found[1]) if found else 0

    def offset_for_position(self, position: int) -> int | None:
        """The last offset of the first indexed batch that begins at `position` or later, if there is one."""
        try:
            count = len(self)
            found = bisect_left(range(count), position, key=lambda number: int(self._at(number)[1]))
            return int(self._at(found)[0]) + self.base_offset if found < count else None
        finally:
            self.release()


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
        try:
            if not len(self):
                return -1, self.base_offset
            timestamp_ms, offset = self._at(len(self) - 1)
            return timestamp_ms, offset + self.base_offset
        finally:
            self.release()

    def offset_before(self, timestamp_ms: int) -> int:
        """An offset up to which every timestamp is ≤ `timestamp_ms`: where to begin a scan for it."""
        found = self._last_up_to(timestamp_ms - 1, lambda entry: int(entry[0]))
        return int(found[1]) + self.base_offset if found else self.base_offset
