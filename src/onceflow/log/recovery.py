"""Loader of a partition's log: fast after a clean shutdown, by a checked scan otherwise.

The scan starts at a snapshot (everything below it was durable when it was written), but at least `RECHECK_BYTES` before
the end, so that it finds damage near the end even in durable data. It checks every batch: length, CRC-32C, and that its
base offset is the next one. At the first failure **the later segments are removed, newest first, and their removal is
made durable before the damaged file is truncated**. A crash in between makes the next scan stop at the same batch, and
no batch after a bad one can reappear. The same pass builds indexes and producer state, open transactions, the index of
aborted ones, and the leader epochs of a replica. What is kept is synced before it is visible, because after a mere kill
it may be in the page cache only.

After a clean shutdown the last `CLEAN_CHECK_BYTES` and the active segment's indexes are checked, and the snapshot at
the log's end is loaded. If one of them does not match, the shutdown was not clean, and the scan follows. A sealed
segment only needs its index files: the cost of a start that opened each would grow with the log.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from onceflow.log import swap
from onceflow.log.clock import Clock
from onceflow.log.config import LogConfig
from onceflow.log.disk import Disk, read_file, remove_if_there
from onceflow.log.epochs import LeaderEpochs, write_epochs
from onceflow.log.index import OffsetIndex, TimeIndex, file_name
from onceflow.log.producers import Producers, Snapshot
from onceflow.log.segment import LOG_SUFFIX, NO_TIMESTAMP, SNAPSHOT_SUFFIX, Segment, offsets_of
from onceflow.log.sync import write_snapshot
from onceflow.log.transactions import TransactionIndex
from onceflow.wire.batch import HEADER_BYTES, BatchHeader, check_batch, read_header
from onceflow.wire.errors import CorruptBatch

RECHECK_BYTES = 64 * 1024**2
CLEAN_CHECK_BYTES = 1024**2

_BLOCK_BYTES = 8 * 1024**2
_LENGTH_OVERHEAD_BYTES = 12
_SUFFIXES = (LOG_SUFFIX, OffsetIndex.suffix, TimeIndex.suffix, TransactionIndex.suffix, SNAPSHOT_SUFFIX)


@dataclass(slots=True)
class Loaded:
    """A loaded log; everything in it is durable."""

    segments: list[Segment]
    log_end_offset: int
    producers: Producers
    log_start_offset: int
    epochs: LeaderEpochs
    removed_bytes: int = 0
    """Bytes that recovery truncated: a torn tail, or damage and everything after it."""
    is_new: bool = False
    """Whether none of its names may be durable: it was created now, or closed before the first write."""
    is_closed: bool = False
    """Whether the disk has everything that closing the log would write."""


def new_log(directory: Path, config: LogConfig, disk: Disk, log_start_offset: int, epochs: LeaderEpochs) -> Loaded:
    """Create the first segment of a log; its name becomes durable with the first record."""
    segment = Segment(disk, directory, log_start_offset, create=True)
    producers = Producers(directory.name, config)
    is_closed = not log_start_offset
    return Loaded([segment], log_start_offset, producers, log_start_offset, epochs, is_new=True, is_closed=is_closed)


class Loader:
    """Loader of the log in one existing directory."""

    def __init__(
        self,
        directory: Path,
        sizes: Mapping[str, int],
        config: LogConfig,
        disk: Disk,
        clock: Clock,
        log_start_offset: int,
        epochs: LeaderEpochs | None,
        *,
        is_replica: bool = False,
    ) -> None:
        """Prepare loading. `sizes`: those of the directory's files, after `swap.finish`.

        `epochs`: those of the directory's file, None if it has none; a replica's are read from its batches then.
        """
        self._directory = directory
        self._config = config
        self._disk = disk
        self._now_ms = clock.now_ms()
        self._producers = Producers(directory.name, config)
        self._log_start_offset = log_start_offset
        self._sizes = sizes
        self._has_epochs = epochs is not None
        self._epochs = epochs if epochs is not None else LeaderEpochs()
        self._is_replica = is_replica
        self._snapshots: dict[int, Snapshot] = {}
        """State of the producers at the start of each scanned segment."""
        self._compaction_end = swap.read_compaction_end(disk, directory) if swap.COMPACTION_END_FILE in sizes else 0

    def load(self, *, clean: bool) -> Loaded:
        before = self._epochs.entries() if self._has_epochs else None
        loaded = self._load_clean() if clean else None
        if loaded is None:
            loaded = self._recover()
            self._sizes = self._disk.sizes(self._directory)
        elif before is None:
            self._read_epochs(loaded.segments)
        if self._is_replica:
            self._epochs.truncate_from_end(loaded.log_end_offset)
        self._remove_strays(loaded)
        has_other_epochs = self._epochs.entries() != before
        if has_other_epochs:
            write_epochs(self._disk, self._directory, self._epochs.encode(loaded.log_start_offset))
        self._epochs.is_changed = False
        if has_other_epochs or not loaded.is_closed:
            self._disk.sync_directory(self._directory)
        return loaded

    def _read_epochs(self, segments: Iterable[Segment]) -> None:
        """Read the epochs of segments that are not scanned, because the file was lost."""
        for segment in segments:
            for position, _size_bytes, _last_offset in segment.spans(0, segment.size_bytes):
                self._add_epoch(segment.header_at(position))

    def _add_epoch(self, header: BatchHeader) -> None:
        if header.partition_leader_epoch > self._epochs.latest:
            self._epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _open_segments(self) -> list[Segment]:
        """Open the segments that contain the log's start or are after it; remove earlier ones left by a crash.

        Earlier ones are kept where only they contain the producers' state, because no snapshot follows them.
        """
        bases = offsets_of(self._sizes, LOG_SUFFIX)
        segments = [
            Segment(self._disk, self._directory, base, size_bytes=self._sizes[file_name(base, LOG_SUFFIX)])
            for base in bases
        ]
        ends = bases[1:]
        below = sum(end <= self._log_start_offset for end in ends)
        while below and not self._load_snapshot(bases[below]):
            below -= 1
        if below:
            # After a mere kill the snapshot's name may not be durable yet.
            self._disk.sync_directory(self._directory)
        for segment in segments[:below]:
            segment.remove()
        return segments[below:]

    def _fresh_log(self) -> Loaded:
        """Start a new log after damage removed the log's start; no old offset is reused (as in Kafka's LogLoader)."""
        segment = Segment(self._disk, self._directory, self._log_start_offset, create=True)
        producers = Producers(self._directory.name, self._config)
        return Loaded([segment], self._log_start_offset, producers, self._log_start_offset, self._epochs)

    def _start_of(self, segments: list[Segment]) -> int:
        return max(self._log_start_offset, segments[0].base_offset)

    def _load_clean(self) -> Loaded | None:
        segments = self._open_segments()
        if not segments:
            return None
        active = segments[-1]
        if not active.size_bytes and not active.base_offset and not self._log_start_offset:
            # A segment that was never written to has no indexes and no producers.
            active.forget_indexes()
            return Loaded(segments, 0, self._producers, 0, self._epochs, is_new=True, is_closed=True)
        if not all(segment.has_indexes(self._sizes) for segment in segments[:-1]):
            return None
        if not active.load_active(self._sizes):
            return None
        self._load_sealed(segments[:-1])
        end = self._checked_end(segments)
        if end is None or end < self._log_start_offset or active.is_indexed_beyond(end) or not self._load_snapshot(end):
            return None
        if active.size_bytes and active.first_timestamp_ms == NO_TIMESTAMP:
            active.first_timestamp_ms = active.header_at(0).max_timestamp
        return Loaded(segments, end, self._producers, self._start_of(segments), self._epochs, is_closed=True)

    def _load_sealed(self, segments: list[Segment]) -> None:
        for segment in segments:
            segment.load_sealed(self._sizes.get(segment.transaction_index.name, 0))

    def _checked_end(self, segments: list[Segment]) -> int | None:
        """Check the log's last megabyte; return the log's end, None if it is damaged."""
        rest_bytes = CLEAN_CHECK_BYTES
        number = len(segments)
        while number and rest_bytes > 0:
            number -= 1
            rest_bytes -= segments[number].size_bytes
        first = segments[number]
        indexed = first.offset_index.position_at_most(max(0, -rest_bytes))
        position = first.verified_position(indexed, first.size_bytes)
        offset = first.header_at(position).base_offset if position else first.base_offset
        for segment in segments[number:]:
            for begin, header in good_batches(segment, position, offset, self._compaction_end):
                position, offset = begin + header.size_bytes, header.last_offset + 1
                if not begin:
                    segment.first_timestamp_ms = header.max_timestamp
            if position != segment.size_bytes:
                return None
            position = 0
        return offset

    def _load_snapshot(self, offset: int) -> bool:
        name = file_name(offset, SNAPSHOT_SUFFIX)
        return name in self._sizes and self._producers.load(read_file(self._disk, self._directory / name))

    def _recover(self) -> Loaded:
        segments = self._open_segments()
        if not segments:
            return self._fresh_log()
        first = self._first_to_scan(segments)
        self._load_sealed(segments[:first])
        if self._is_replica:
            self._read_epochs(() if self._has_epochs else segments[:first])
            self._epochs.truncate_from_end(segments[first].base_offset)
        size_bytes = sum(segment.size_bytes for segment in segments)
        end = self._scan(segments, first)
        if end < self._log_start_offset:
            self._remove_segments(segments, 0)
            return self._fresh_log()
        self._seal(segments[first:])
        removed_bytes = size_bytes - sum(segment.size_bytes for segment in segments)
        return Loaded(segments, end, self._producers, self._start_of(segments), self._epochs, removed_bytes)

    def _seal(self, scanned: list[Segment]) -> None:
        """Write indexes, names and the snapshot at the next segment's start, like a group commit after a roll."""
        for segment in scanned[:-1]:
            segment.index_max_timestamp()
            segment.write_indexes()
            segment.seal()
        if len(scanned) > 1:
            self._disk.sync_directory(self._directory)
        for segment in scanned[1:]:
            write_snapshot(self._disk, self._directory, segment.base_offset, self._snapshots[segment.base_offset])

    def _first_to_scan(self, segments: list[Segment]) -> int:
        """Return the number of the segment where the scan starts; load its snapshot if it has one."""
        sane = next((n for n, segment in enumerate(segments) if not segment.has_indexes(self._sizes)), len(segments))
        rest_bytes = 0
        for number in range(len(segments) - 1, -1, -1):
            rest_bytes += segments[number].size_bytes
            enough = rest_bytes >= RECHECK_BYTES and number <= sane
            if (enough or not number) and self._load_snapshot(segments[number].base_offset):
                return number
        return 0

    def _scan(self, segments: list[Segment], first: int) -> int:
        """Check `segments` from number `first`, make good ones durable, and cut the list at the first bad batch.

        Returns the log's end.
        """
        offset = segments[first].base_offset
        for number in range(first, len(segments)):
            segment = segments[number]
            if segment.base_offset != offset:
                self._remove_segments(segments, number)
                break
            self._snapshots[offset] = self._producers.snapshot()
            size_bytes, offset = self._rebuild(segment)
            if size_bytes < segment.size_bytes:
                self._remove_segments(segments, number + 1)
                segment.file.truncate(size_bytes)
                segment.size_bytes = size_bytes
                segment.file.sync_data()
                break
            segment.file.sync_data()
        return offset

    def _rebuild(self, segment: Segment) -> tuple[int, int]:
        """Rebuild indexes and producer state from the batches; return (bytes of good batches, offset after them)."""
        segment.forget_indexes()
        size_bytes, offset = 0, segment.base_offset
        for position, header in good_batches(segment, 0, offset, self._compaction_end):
            batch_bytes, offset = header.size_bytes, header.last_offset + 1
            # No record of a batch that compaction emptied has the timestamp.
            max_timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
            segment.index_batch(position, batch_bytes, offset - 1, max_timestamp, self._config.index_interval_bytes)
            if self._is_replica:
                self._add_epoch(header)
            if header.producer_id >= 0:
                replay_producer(self._producers, segment, position, header, self._now_ms)
            size_bytes = position + batch_bytes
        return size_bytes, offset

    def _remove_segments(self, segments: list[Segment], number: int) -> None:
        """Remove the segments from `number` on, newest first, durably."""
        while len(segments) > number:
            segments.pop().remove()
        self._disk.sync_directory(self._directory)

    def _remove_strays(self, loaded: Loaded) -> None:
        """Remove files without a segment: snapshots of a truncated end, indexes without a log, unfinished writes."""
        known = {file_name(segment.base_offset, "") for segment in loaded.segments}
        last_snapshot = file_name(loaded.log_end_offset, SNAPSHOT_SUFFIX)
        for name in self._sizes:
            base, _, _ = name.partition(".")
            is_stray = name.endswith(_SUFFIXES) and base not in known and name != last_snapshot
            if is_stray or name.endswith(".tmp"):
                remove_if_there(self._disk, self._directory / name)


def replay_producer(producers: Producers, segment: Segment, position: int, header: BatchHeader, now_ms: int) -> None:
    """Update producer state, open transactions and the index of aborted ones by a batch that the leader, or this
    broker before a crash, had accepted."""
    if not header.is_control:
        producers.add(header, header.last_sequence, header.base_offset, now_ms)
        producers.forget_beyond_limit()
        return
    marker = segment.marker_at(position, header.size_bytes)
    if marker is None:
        return
    aborted = producers.add_marker(header, marker, header.base_offset, now_ms)
    if aborted is not None:
        segment.transaction_index.append(aborted)


def good_batches(
    segment: Segment, position: int, offset: int, compaction_end: int = 0
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch from `position`, up to the first that is cut, corrupt or not at `offset`.

    Below offset `compaction_end` batches may be missing.
    """
    file, end = segment.file, segment.size_bytes
    block, block_begin = memoryview(b""), position
    while end - position >= HEADER_BYTES:
        if block_begin + len(block) - position < HEADER_BYTES:
            block, block_begin = memoryview(file.read(min(_BLOCK_BYTES, end - position), position)), position
        header = read_header(block, position - block_begin)
        is_next = header.base_offset == offset or offset < header.base_offset < compaction_end
        if not is_next or header.size_bytes > end - position:
            return
        if header.size_bytes > block_begin + len(block) - position:
            size_bytes = min(max(_BLOCK_BYTES, header.size_bytes), end - position)
            block, block_begin = memoryview(file.read(size_bytes, position)), position
        try:
            check_batch(block, position - block_begin, header)
        except CorruptBatch:
            return
        yield position, header
        position += header.size_bytes
        offset = header.last_offset + 1
