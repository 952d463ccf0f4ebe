"""The log of one partition: append, sync, read, look up by time.

A directory `TOPIC-N` holds, in Kafka's names and formats:

    00000000000000000042.log        a segment: batches from offset 42 on       (onceflow.log.segment)
    00000000000000000042.index      offset → position, sparse                  (onceflow.log.index)
    00000000000000000042.timeindex  timestamp → offset, sparse                 (onceflow.log.index)
    00000000000000000042.snapshot   producer state below offset 42             (onceflow.log.producers)
    leader-epoch-checkpoint, partition.metadata                                (onceflow.log.checkpoint)

One thread owns a log; only `SyncPoint.run` and `Slice.read` may run in others. Appended batches are in the page
cache and belong to nobody yet: the high watermark, below which readers see them, is the end of the log at the last
completed sync. An acks=all request is answered when `high_watermark > appended.last_offset`, a duplicate's too, for
its first copy may be waiting for the same sync.
"""

import logging
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from onceflow.log.checkpoint import LEADER_EPOCH, write_checkpoints
from onceflow.log.clock import Clock
from onceflow.log.config import LogConfig
from onceflow.log.disk import Disk, write_whole
from onceflow.log.errors import OffsetOutOfRange, StorageFailed
from onceflow.log.recovery import Loaded, Loader
from onceflow.log.segment import NO_TIMESTAMP, Segment, Slice
from onceflow.log.sync import Seal, SyncPoint, write_snapshot
from onceflow.log.validation import validated_header
from onceflow.wire.batch import BatchHeader, patch_offset

logger = logging.getLogger(__name__)

_RELATIVE_OFFSET_MAX = 2**31 - 1


class Appended(NamedTuple):
    """Where a batch is; for a duplicate, where it has been since the first time."""

    base_offset: int
    last_offset: int
    duplicate: bool = False
    timestamp_ms: int = NO_TIMESTAMP
    """The broker's timestamp under log-append time; -1: the producer's timestamps stand."""


class PartitionLog:
    """One partition's log, open for appending at its end."""

    def __init__(self, directory: Path, config: LogConfig, disk: Disk, clock: Clock, loaded: Loaded) -> None:
        self.directory = directory
        self.name = directory.name
        self.config = config
        self.log_end_offset = self.high_watermark = loaded.log_end_offset
        self.recovery_removed_bytes = loaded.removed_bytes
        self.failure: StorageFailed | None = None
        self._disk = disk
        self._clock = clock
        self._producers = loaded.producers
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._active = loaded.segments[-1]
        self._active_since_ms = clock.now_ms()
        self._synced_active = self._active
        self._synced_bytes = self._active.size_bytes
        self._synced_max_timestamp = self._max_timestamp()
        self._seals: list[Seal] = []
        self._syncing: SyncPoint | None = None
        self._is_warned = False

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        disk: Disk,
        clock: Clock,
        clean: bool,
        topic_id: UUID | None = None,
    ) -> "PartitionLog":
        """Creates the log, or loads it: by a scan unless `clean`. Blocks for syncs; what it returns is durable.

        Raises DataDirectoryRefused where the directory is of a topic with another id, OSError.
        """
        if not disk.exists(directory):
            disk.make_directory(directory)
        # Synced even where it existed: a crash may have come between the two calls.
        disk.sync_directory(directory.parent)
        write_checkpoints(disk, directory, topic_id)
        return cls(directory, config, disk, clock, Loader(directory, config, disk, clock).load(clean=clean))

    @property
    def log_start_offset(self) -> int:
        return self._bases[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    def append(self, buffer: bytearray | memoryview, *, position: int = 0) -> Appended:
        """Appends the one batch that `buffer` holds from `position` on; offset and leader epoch are stamped in place.

        Raises LogError: CorruptBatch, InvalidRecord, InvalidTimestamp, InvalidTransactionState, MessageTooLarge,
        RecordListTooLarge, OutOfOrderSequence, InvalidProducerEpoch, StorageFailed. Nothing is appended then.
        """
        if self.failure is not None:
            raise StorageFailed(str(self.failure))
        now_ms = self._clock.now_ms()
        header = validated_header(self.name, buffer, position, self.config, now_ms)
        last_sequence = -1
        if header.producer_id >= 0:
            last_sequence = header.last_sequence
            first_time = self._producers.duplicate_of(header, last_sequence)
            if first_time is not None:
                return Appended(*first_time, duplicate=True)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        size_bytes = header.batch_length + 12
        segment = self._active
        if self._must_roll(segment, header, size_bytes, last_offset, now_ms):
            segment = self._roll(now_ms)
        patch_offset(buffer, position, base_offset, LEADER_EPOCH)
        begin = segment.size_bytes
        self._write(segment, memoryview(buffer)[position:] if position else buffer, size_bytes)
        segment.note(begin, size_bytes, last_offset, header.max_timestamp, self.config.index_interval_bytes)
        if last_sequence >= 0:
            self._producers.add(header, last_sequence, base_offset, now_ms)
        self.log_end_offset = last_offset + 1
        return Appended(base_offset, last_offset)

    def _write(self, segment: Segment, batch: bytearray | memoryview, size_bytes: int) -> None:
        position = segment.size_bytes
        try:
            taken = segment.file.write(batch, position)
            if taken < size_bytes:
                write_whole(segment.file, memoryview(batch)[taken:], position + taken)
        except OSError as error:
            self._undo_write(segment)
            raise StorageFailed(f"{self.name}: {segment.path} could not be written: {error}; free the disk") from error
        segment.size_bytes = position + size_bytes

    def _undo_write(self, segment: Segment) -> None:
        """Half a batch must not stay: what follows it later might be read as the rest."""
        try:
            segment.file.truncate(segment.size_bytes)
        except OSError as error:
            self.fail_sync(error)

    def _must_roll(self, segment: Segment, header: BatchHeader, size_bytes: int, last_offset: int, now_ms: int) -> bool:
        """Kafka's LogSegment.shouldRoll: size, age by the batches' own timestamps, index full, offsets out of int32."""
        config = self.config
        if not segment.size_bytes:
            return False
        if segment.size_bytes + size_bytes > config.segment_bytes:
            return True
        if segment.first_timestamp_ms >= 0:
            age_ms = header.max_timestamp - segment.first_timestamp_ms
        else:
            age_ms = now_ms - self._active_since_ms
        return (
            age_ms > config.segment_ms
            or last_offset - segment.base_offset > _RELATIVE_OFFSET_MAX
            or segment.index_bytes > config.segment_index_bytes
        )

    def _roll(self, now_ms: int) -> Segment:
        try:
            fresh = Segment(self._disk, self.directory, self.log_end_offset, create=True)
        except OSError as error:
            raise StorageFailed(f"{self.name}: no new segment at {self.log_end_offset}: {error}") from error
        sealed = self._active
        sealed.note_max_timestamp()
        self._seals.append(Seal(sealed, self.log_end_offset, self._producers.encode()))
        self._segments.append(fresh)
        self._bases.append(fresh.base_offset)
        self._active = fresh
        self._active_since_ms = now_ms
        return fresh

    def begin_sync(self) -> SyncPoint | None:
        """What has to be made durable, or None if there is nothing; one round at a time."""
        if self._syncing is not None:
            raise RuntimeError(f"{self.name}: a sync is under way up to {self._syncing.offset_end}")
        if self.failure is not None or (self.log_end_offset == self.high_watermark and not self._seals):
            return None
        self._syncing = SyncPoint(
            disk=self._disk,
            directory=self.directory,
            offset_end=self.log_end_offset,
            active=self._active,
            size_bytes=self._active.size_bytes,
            seals=tuple(self._seals),
            max_timestamp=self._max_timestamp(),
        )
        return self._syncing

    def end_sync(self, point: SyncPoint) -> None:
        """After `point.run` returned: what it covered becomes visible.

        Not if the directory could not be opened for its sync: then the high watermark waits for the next round.
        """
        self._syncing = None
        self._warn(point)
        if not point.is_durable:
            return
        finished = len(point.seals) - point.kept_seals
        for seal in point.seals[:finished]:
            seal.segment.seal()
        del self._seals[:finished]
        self._synced_active = point.active
        self._synced_bytes = point.size_bytes
        self._synced_max_timestamp = point.max_timestamp
        self.high_watermark = point.offset_end

    def _warn(self, point: SyncPoint) -> None:
        """Once until a round goes well again: rounds are many while a disk is full."""
        if point.problem is not None and not self._is_warned:
            logger.warning("%s: a file beside the log is put off: %s", self.name, point.problem)
        self._is_warned = point.problem is not None

    def fail_sync(self, error: OSError) -> None:
        """After `point.run` raised. The kernel may have dropped the pages, so a second sync would prove nothing:
        the partition takes no more writes until it is opened anew. Reads go on up to the high watermark."""
        self.failure = StorageFailed(
            f"{self.name}: {self.directory} could not be synced: {error}; nothing more is written to it, check the"
            " disk and restart the broker"
        )
        self._syncing = None

    def read(
        self, offset: int, size_bytes_max: int, *, offset_end: int | None = None, at_least_one_batch: bool = True
    ) -> Slice | None:
        """Whole batches of one segment, from the one that contains `offset`, ending at or before `offset_end`.

        `offset_end` is the high watermark where it is not given, and never more. The first batch is returned even if
        it is larger than `size_bytes_max`, unless `at_least_one_batch` is false. None: there is nothing to read.
        Raises OffsetOutOfRange, CorruptBatch where the file was damaged while it was open.
        """
        if not self._bases[0] <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(self.name, offset, self._bases[0], self.log_end_offset)
        visible = self.high_watermark if offset_end is None else min(offset_end, self.high_watermark)
        if offset >= visible:
            return None
        number = bisect_right(self._bases, offset) - 1
        segment = self._segments[number]
        end = self._visible_bytes(segment)
        if visible < self.high_watermark:
            beyond = segment.find(visible, end)
            end = beyond[0] if beyond is not None else end
        found = segment.find(offset, end)
        if found is None:
            return None
        begin, first_bytes = found
        if end - begin > size_bytes_max:
            if first_bytes > size_bytes_max:
                if not at_least_one_batch:
                    return None
                is_cut = begin + first_bytes < end or self._goes_on_after(number, visible)
                return Slice(segment.file, begin, first_bytes, is_cut)
            end = segment.last_boundary(begin + first_bytes, begin + size_bytes_max, end)
            return Slice(segment.file, begin, end - begin, is_cut=True)
        return Slice(segment.file, begin, end - begin, self._goes_on_after(number, visible))

    def _goes_on_after(self, number: int, visible: int) -> bool:
        """Whether the segment after that one has batches below offset `visible`."""
        return number + 1 < len(self._bases) and self._bases[number + 1] < visible

    def _visible_bytes(self, segment: Segment) -> int:
        """Bytes of a segment below the high watermark."""
        if segment is self._synced_active:
            return self._synced_bytes
        return segment.size_bytes if segment.base_offset < self.high_watermark else 0

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first visible record dated `timestamp_ms` or later."""
        for segment in self._segments:
            if segment.max_timestamp_ms >= timestamp_ms:
                found = segment.find_timestamp(timestamp_ms, self.log_start_offset, self._visible_bytes(segment))
                if found is not None:
                    return found
        return None

    def max_timestamp(self) -> tuple[int, int] | None:
        """(timestamp, offset) of the visible record with the latest timestamp (ListOffsets -3), the first of equals."""
        timestamp_ms, last_offset = self._synced_max_timestamp
        if timestamp_ms < 0:
            return None
        segment = self._segments[bisect_right(self._bases, last_offset) - 1]
        found = segment.find(last_offset, self._visible_bytes(segment))
        records = segment.records_at(*found) if found is not None else []
        return max(((record.timestamp_ms, record.offset) for record in records), key=lambda item: item[0], default=None)

    def _max_timestamp(self) -> tuple[int, int]:
        return max(
            ((segment.max_timestamp_ms, segment.max_timestamp_offset) for segment in self._segments),
            key=lambda item: item[0],
        )

    def close(self) -> None:
        """Syncs everything, writes indexes and the producer snapshot; nothing can be appended afterwards.

        Raises StorageFailed if that cannot be done; the next opening then scans. A log that had failed before is
        left as it is. The files are closed when the last holder of this log and of its slices lets go.
        """
        if self.failure is not None:
            return
        try:
            self._sync_all()
        except OSError as error:
            self.fail_sync(error)
            raise StorageFailed(
                f"{self.name}: {self.directory} could not be closed: {error}; it is checked at the next start"
            ) from error
        self.failure = StorageFailed(f"{self.name}: the log is closed; start the broker again")

    def _sync_all(self) -> None:
        point = self.begin_sync()
        if point is not None:
            point.run()
            self.end_sync(point)
            if point.problem is not None and self._seals:
                raise point.problem
        self._active.note_max_timestamp()
        self._active.write_indexes()
        write_snapshot(self._disk, self.directory, self.log_end_offset, self._producers.encode())
        self._disk.sync_directory(self.directory)
