"""One segment of a partition's log: the .log file and its indexes.

`00000000000000000042.log` contains record batches (`onceflow.wire.batch`) end to end, exactly as clients sent them
except for the base offset and the leader epoch, which the broker sets. The number in the name is the base offset, the
offset of the first record; the segment ends at the next one's base offset. A segment is active (the last one, which
grows) or sealed (it never changes again).
"""

import logging
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from onceflow.log.disk import Disk, File, remove_if_there, write_whole
from onceflow.log.errors import CorruptBatch
from onceflow.log.index import OffsetIndex, TimeIndex, file_name
from onceflow.log.open_files import OPEN_FILES
from onceflow.log.transactions import TransactionIndex
from onceflow.wire.batch import HEADER_BYTES, MAGIC, BatchHeader, read_header, record_times
from onceflow.wire.errors import WireError
from onceflow.wire.markers import Marker, decode_marker

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
SNAPSHOT_SUFFIX = ".snapshot"
NO_TIMESTAMP = -1

_OFFSET_MAX = 2**63 - 1
_SCAN_BYTES = 16 * 1024
_SPAN = struct.Struct(">qi11xi")
_LENGTH_OVERHEAD_BYTES = 12


def offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    """Return the offsets of all names with this suffix, ascending; other names are ignored."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal())


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive complete batches in one file. The file stays open while the slice is referenced."""

    file: File
    position: int
    size_bytes: int
    is_cut: bool = False
    """Whether more batches were visible after it when it was created: a limit or the segment's end cut it short."""

    def read(self) -> bytes:
        return self.file.read(self.size_bytes, self.position)


class WriteNotUndone(OSError):
    """Part of a batch may be at the end of the file; data written after it could be read as the rest."""


class Segment:
    """A .log file with its indexes; positions are bytes in the file, offsets are the partition's."""

    __slots__ = (
        "__weakref__",
        "_directory",
        "_disk",
        "_file",
        "_has_max_timestamp",
        "_is_damage_logged",
        "_is_pinned",
        "_max_timestamp_ms",
        "_max_timestamp_offset",
        "_suffix",
        "_unindexed_bytes",
        "_was_used",
        "base_offset",
        "first_timestamp_ms",
        "index_bytes",
        "is_unsynced",
        "offset_index",
        "size_bytes",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        base_offset: int,
        *,
        create: bool = False,
        suffix: str = "",
        size_bytes: int | None = None,
    ) -> None:
        """Open or create a segment. `suffix` is appended to the names of all its files (`onceflow.log.swap`);
        `size_bytes` is the file's size if known."""
        self._disk = disk
        self._directory = directory
        self._suffix = suffix
        self.base_offset = base_offset
        self.is_unsynced = False
        """Whether the file may have bytes that are not durable; it stays open until they are."""
        self._file: File | None = None
        self._was_used = False
        self._is_pinned = False
        self._is_damage_logged = False
        self.size_bytes = 0
        self.offset_index = OffsetIndex(disk, directory, base_offset, suffix=suffix, is_new=create)
        self.time_index = TimeIndex(disk, directory, base_offset, suffix=suffix, is_new=create)
        self.transaction_index = TransactionIndex(disk, directory, base_offset, suffix=suffix, is_new=create)
        if create:
            self._create()
        else:
            self.size_bytes = disk.size_bytes(self.path) if size_bytes is None else size_bytes
        self.first_timestamp_ms = NO_TIMESTAMP
        self._set_max_timestamp(NO_TIMESTAMP, base_offset)
        self._unindexed_bytes = 0
        self.index_bytes = 0
        """Size of the larger index."""

    def _create(self) -> None:
        with OPEN_FILES.opening:
            file = self._file = self._disk.open(self.path, create=True)
            OPEN_FILES.opened(self)
        if file.size_bytes():
            file.truncate(0)

    @property
    def path(self) -> Path:
        return self._directory / (file_name(self.base_offset, LOG_SUFFIX) + self._suffix)

    @property
    def max_timestamp_ms(self) -> int:
        """Largest timestamp, -1 if there is none. Any thread. Raises OSError.

        A sealed segment's is read when it is first used; otherwise a start would read a file of each segment.
        """
        if not self._has_max_timestamp:
            self._set_max_timestamp(*self.time_index.last())
        return self._max_timestamp_ms

    @property
    def max_timestamp_offset(self) -> int:
        """Last offset of the batch with the largest timestamp. Any thread. Raises OSError."""
        if not self._has_max_timestamp:
            self._set_max_timestamp(*self.time_index.last())
        return self._max_timestamp_offset

    def _set_max_timestamp(self, max_timestamp_ms: int, offset: int) -> None:
        self._max_timestamp_ms, self._max_timestamp_offset = max_timestamp_ms, offset
        self._has_max_timestamp = True

    @property
    def file(self) -> File:
        """The .log file, opened if necessary. Raises OSError."""
        self._was_used = True
        return self._file or self._opened()

    def _opened(self) -> File:
        with OPEN_FILES.opening:
            file = self._file
            if file is None:
                file = self._file = self._disk.open(self.path)
                OPEN_FILES.opened(self)
            return file

    def write(self, batch: bytearray | memoryview, size_bytes: int) -> None:
        """Write a batch at the end. Raises OSError, after which the file has nothing of it, or WriteNotUndone."""
        file, position = self._file or self._opened(), self.size_bytes
        self._was_used = self.is_unsynced = True
        try:
            written_bytes = file.write(batch, position)
            if written_bytes < size_bytes:
                write_whole(file, memoryview(batch)[written_bytes:], position + written_bytes)
        except OSError:
            try:
                file.truncate(position)
            except OSError as error:
                raise WriteNotUndone(error.errno, error.strerror, str(self.path)) from error
            raise
        self.size_bytes = position + size_bytes

    def release_if_idle(self) -> bool:
        """Release the file, unless it was used since the last call, has unsynced bytes or is pinned. Return whether
        none is held."""
        if self._was_used or self.is_unsynced or self._is_pinned:
            self._was_used = False
        else:
            self._file = None
        return self._file is None

    def close(self) -> None:
        """Close the file even if it is still referenced."""
        if self._file is not None:
            self._file.close()

    def has_indexes(self, sizes: Mapping[str, int]) -> bool:
        """Return whether its index files are among these files of its directory, with complete entries.

        Their content was durable when a snapshot at their end, or a clean end, was written. A missing file of aborted
        transactions means that there are none.
        """
        return (
            sizes.get(self.offset_index.name, -1) % self.offset_index.entry.size == 0
            and sizes.get(self.time_index.name, -1) % self.time_index.entry.size == 0
            and sizes.get(self.transaction_index.name, 0) % self.transaction_index.entry.size == 0
        )

    def is_indexed_beyond(self, offset_end: int) -> bool:
        """Return whether the indexes refer to batches that the log does not have."""
        indexed = self.offset_index.last_position()
        return (
            indexed > max(0, self.size_bytes - HEADER_BYTES)
            or self.time_index.last()[1] > max(self.base_offset, offset_end - 1)
            or self.transaction_index.last_offset() >= offset_end
        )

    def load_sealed(self, transaction_index_bytes: int) -> None:
        """Leave the indexes in their files; `transaction_index_bytes` is 0 where that one is missing."""
        self._has_max_timestamp = False
        self.transaction_index.load_sealed(transaction_index_bytes)

    def load_active(self, sizes: Mapping[str, int]) -> bool:
        """Load the indexes into memory, to append to them; return False if one is missing or not sane.

        `sizes` are those of the directory's files.
        """
        if not all(index.load(sizes) for index in (self.offset_index, self.time_index, self.transaction_index)):
            return False
        self._set_max_timestamp(*self.time_index.last())
        self._measure_indexes()
        return True

    def forget_indexes(self) -> None:
        """Empty the indexes before they are rebuilt from position 0 by `index_batch`."""
        self.offset_index.entries = bytearray()
        self.time_index.entries = bytearray()
        self.transaction_index.forget()
        self.index_bytes = 0
        self._unindexed_bytes = 0
        self.first_timestamp_ms = NO_TIMESTAMP
        self._set_max_timestamp(NO_TIMESTAMP, self.base_offset)

    @property
    def is_sealed(self) -> bool:
        """Whether it never changes again, and all of it is durable."""
        return self.offset_index.entries is None

    def pin(self) -> None:
        """Keep the files open for readers before they lose their names. Raises OSError."""
        with OPEN_FILES.opening:
            self._opened()
            self._is_pinned = True
        for index in (self.offset_index, self.time_index, self.transaction_index):
            index.pin()

    def seal(self) -> None:
        """Drop the indexes in memory after they were written to disk."""
        self.offset_index.seal()
        self.time_index.seal()
        self.transaction_index.seal()

    def write_indexes(self) -> None:
        self.offset_index.write()
        self.time_index.write()
        self.transaction_index.write()

    def index_batch(
        self, position: int, size_bytes: int, last_offset: int, max_timestamp: int, interval_bytes: int
    ) -> None:
        """Record a batch in the file at `position`: its timestamps, and an index entry if one is due."""
        if max_timestamp > self._max_timestamp_ms:
            self._max_timestamp_ms = max_timestamp
            self._max_timestamp_offset = last_offset
        if not position:
            self.first_timestamp_ms = max_timestamp
        if self._unindexed_bytes > interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append_if_later(self._max_timestamp_ms, self._max_timestamp_offset)
            self._unindexed_bytes = 0
            self._measure_indexes()
        self._unindexed_bytes += size_bytes

    def _measure_indexes(self) -> None:
        offsets, times = self.offset_index.entries, self.time_index.entries
        assert offsets is not None
        assert times is not None
        self.index_bytes = max(len(offsets), len(times))

    def index_max_timestamp(self) -> None:
        """Write the segment's largest timestamp to the time index, when it is sealed or closed."""
        self.time_index.append_if_later(self.max_timestamp_ms, self.max_timestamp_offset)

    def header_at(self, position: int) -> BatchHeader:
        return read_header(self.file.read(HEADER_BYTES, position))

    def times_at(self, position: int, size_bytes: int, unpacked_bytes_max: int) -> Iterator[tuple[int, int]]:
        """Yield (timestamp, offset) of each record of a batch whose uncompressed size is within the limit.

        Raises CorruptBatch for records that cannot be read; they were not checked when they arrived.
        """
        try:
            yield from record_times(self.file.read(size_bytes, position), size_bytes_max=unpacked_bytes_max)
        except WireError as error:
            raise CorruptBatch(f"{self.path}, position {position}: {error}") from error

    def marker_at(self, position: int, size_bytes: int) -> Marker | None:
        """Return the marker in the control batch there, None if it is not a transaction's. Raises CorruptBatch."""
        try:
            return decode_marker(self.file.read(size_bytes, position))
        except WireError as error:
            raise CorruptBatch(f"{self.path}, position {position}: {error}") from error

    def spans(self, position: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (position, size in bytes, last offset) of each batch from `position`, a batch's start, up to `end`."""
        block = b""
        block_begin = position
        while position < end:
            if position + _SPAN.size > block_begin + len(block):
                block, block_begin = self.file.read(min(_SCAN_BYTES, end - position), position), position
            if position + _SPAN.size > block_begin + len(block):
                raise CorruptBatch(f"{self.path}: the file ends at {block_begin + len(block)}, not at {end}")
            base_offset, length, last_offset_delta = _SPAN.unpack_from(block, position - block_begin)
            if length < HEADER_BYTES - _LENGTH_OVERHEAD_BYTES:
                raise CorruptBatch(f"{self.path}, position {position}: batch length {length}; the file is damaged")
            yield position, length + _LENGTH_OVERHEAD_BYTES, base_offset + last_offset_delta
            position += length + _LENGTH_OVERHEAD_BYTES

    def verified_position(self, position: int, end: int, offset_max: int = _OFFSET_MAX) -> int:
        """Return `position` if a batch starts there, before `end`, with a first offset of at most `offset_max`; else 0.

        A scan from 0 misses nothing: an index has no checksum and is used only where the log confirms it.
        """
        if not position:
            return 0
        if 0 < position <= end - HEADER_BYTES:
            header = self.header_at(position)
            is_batch = header.magic == MAGIC and HEADER_BYTES <= header.size_bytes <= end - position
            if is_batch and self.base_offset <= header.base_offset <= offset_max:
                return position
        if not self._is_damage_logged:
            self._is_damage_logged = True
            logger.warning(
                "%s is damaged: no batch of offset %d is at %d", self.offset_index.path, offset_max, position
            )
        return 0

    def find(self, offset: int, end: int, *, begin: int | None = None) -> tuple[int, int] | None:
        """Return (position, size in bytes) of the first batch before position `end` that reaches `offset`.

        `begin` is the start of a batch not after it; by default the index provides it.
        """
        if begin is None:
            begin = self.verified_position(self.offset_index.position_for_offset(offset), end, offset)
        for position, size_bytes, last_offset in self.spans(begin, end):
            if last_offset >= offset:
                return position, size_bytes
        return None

    def last_boundary(self, begin: int, position: int, end: int) -> int:
        """Return the largest start of a batch that is ≤ `position`; `begin` is a known start."""
        boundary = max(begin, self.verified_position(self.offset_index.position_at_most(position), end))
        for batch, size_bytes, _ in self.spans(boundary, end):
            if batch + size_bytes > position:
                break
            boundary = batch + size_bytes
        return boundary

    def offset_beyond(self, position: int) -> int | None:
        """Return an offset at or after the end of the batches before `position`, as near as the index allows; None:
        unknown."""
        indexed = self.verified_position(self.offset_index.position_from(position), self.size_bytes)
        return self.header_at(indexed).last_offset if indexed >= position else None

    def find_timestamp(
        self, timestamp_ms: int, offset: int, end: int, unpacked_bytes_max: int
    ) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the first record at or after `offset` with a timestamp ≥ `timestamp_ms`.

        Batches before position `end` are searched; records are read only of those that reach the timestamp
        (FileRecords.searchForTimestamp).
        """
        not_before = max(offset, self.time_index.offset_before(timestamp_ms))
        indexed = self.offset_index.position_for_offset(not_before)
        if end <= indexed < self.size_bytes and self.verified_position(indexed, self.size_bytes, not_before):
            # The indexes include what is not visible yet: everything before it has an earlier timestamp.
            return None
        begin = self.verified_position(indexed, end, not_before)
        for position, size_bytes, last_offset in self.spans(begin, end):
            if last_offset < offset or self.header_at(position).max_timestamp < timestamp_ms:
                continue
            for record_time in self.times_at(position, size_bytes, unpacked_bytes_max):
                if record_time[0] >= timestamp_ms and record_time[1] >= offset:
                    return record_time
        return None

    def remove(self) -> None:
        """Remove the files; durable after the directory's sync."""
        for path in (self.offset_index.path, self.time_index.path, self.transaction_index.path, self.path):
            remove_if_there(self._disk, path)
