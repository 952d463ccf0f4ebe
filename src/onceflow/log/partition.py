"""The log of one partition: append, sync, read, look up by time.

A directory `TOPIC-N` holds, in Kafka's names and formats:

    00000000000000000042.log        a segment: batches from offset 42          (onceflow.log.segment)
    00000000000000000042.index      offset → position, sparse                  (onceflow.log.index)
    00000000000000000042.timeindex  timestamp → offset, sparse                 (onceflow.log.index)
    00000000000000000042.txnindex   aborted transactions, if any               (onceflow.log.transactions)
    00000000000000000042.snapshot   producer state below offset 42             (onceflow.log.producers)
    leader-epoch-checkpoint, partition.metadata                                (onceflow.log.checkpoint)

One thread owns a log; only `SyncPoint.run`, `Slice.read` and a `TimeSearch` may run in others. Appended batches are in
the page cache and not visible yet: the high watermark, below which readers see them, is the end of the log at the last
completed sync. An acks=all request gets its response when `high_watermark > appended.last_offset`. That holds for a
duplicate too, since its first copy may be waiting for the same sync.
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from onceflow.log import swap
from onceflow.log.checkpoint import LEADER_EPOCH, check_checkpoints, new_checkpoints
from onceflow.log.clock import Clock
from onceflow.log.config import INT64_MAX, LogConfig
from onceflow.log.disk import Disk, SyncNotBegun
from onceflow.log.errors import NoSpaceForNewLog, OffsetOutOfRange, StorageFailed
from onceflow.log.producers import ProducerState, Snapshot
from onceflow.log.recovery import Loaded, Loader, new_log
from onceflow.log.segment import NO_TIMESTAMP, Segment, Slice, WriteNotUndone
from onceflow.log.segments import Segments
from onceflow.log.sync import Seal, SyncPoint, write_snapshot
from onceflow.log.time_search import TimeSearch, first_at_or_after, latest
from onceflow.log.transactions import aborted_between
from onceflow.log.validation import check_records, needs_record_check, validated_header
from onceflow.remedies import Remedy
from onceflow.wire.batch import BatchHeader, patch_offset, read_header, stamp_append_time
from onceflow.wire.markers import Marker, encode_marker

logger = logging.getLogger(__name__)

_RELATIVE_OFFSET_MAX = 2**31 - 1
_NO_WAITING_READER = (-1, -1, 0)


class Appended(NamedTuple):
    """Position of a batch; that of the first copy for a duplicate."""

    base_offset: int
    last_offset: int
    duplicate: bool = False
    timestamp_ms: int = NO_TIMESTAMP
    """The broker's timestamp under log-append time; -1: the producer's timestamps are kept."""


class PartitionLog:
    """Log of one partition, open for appending at its end."""

    def __init__(self, directory: Path, config: LogConfig, disk: Disk, clock: Clock, loaded: Loaded) -> None:
        self.directory = directory
        self.name = directory.name
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = self.high_watermark = self.synced_offset = loaded.log_end_offset
        self.recovery_removed_bytes = loaded.removed_bytes
        self.failure: StorageFailed | None = None
        self._disk = disk
        self._clock = clock
        self._producers = loaded.producers
        self._producers.transactions.forget_ended(loaded.log_end_offset)
        self.segments = Segments(loaded.segments)
        self._active_since_ms = clock.now_ms()
        self._visible_active = self.segments.active
        self._visible_bytes_of_active = self._visible_active.size_bytes
        self._seals: list[Seal] = []
        self._visible_max_timestamp = self._max_timestamp_of_active()
        self._waited_at = _NO_WAITING_READER
        """(offset, base offset of its segment, position) where a reader last reached the end: its next read starts
        there."""
        self._syncing: SyncPoint | None = None
        self._unsynced_since_ms: int | None = None
        self._is_warned = False
        self._is_refusing = False
        self._is_new = loaded.is_new
        self._closed = self._position() if loaded.is_closed else None
        """End of the log when the disk had everything that a clean start needs."""
        self.reconfigure(config)

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
        log_start_offset: int = 0,
    ) -> "PartitionLog":
        """Create the log, or load it: by a scan unless `clean`.

        Loading blocks for syncs, and everything that it returns is durable. The names of a new log become durable with
        its first record, so that thousands can be created in a moment; one that a power cut removed was empty and is
        created again.

        `log_start_offset` is the last durable one; segments wholly below it are removed. Raises DataDirectoryRefused
        where the directory belongs to a topic with another id, NoSpaceForNewLog, OSError.
        """
        if not disk.exists(directory):
            if disk.is_full:
                raise NoSpaceForNewLog(directory)
            disk.make_directory(directory)
            new_checkpoints(disk, directory, topic_id)
            return cls(directory, config, disk, clock, new_log(directory, config, disk, log_start_offset))
        sizes = swap.finish(disk, directory)
        check_checkpoints(disk, directory, sizes, topic_id)
        loaded = Loader(directory, sizes, config, disk, clock, log_start_offset).load(clean=clean)
        if not clean:
            # After a kill its name may be in the page cache only.
            disk.sync_directory(directory.parent)
        return cls(directory, config, disk, clock, loaded)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply other settings to the next appends."""
        self.config = config
        self.has_flush_policy = config.has_flush_policy
        self.needs_record_check = needs_record_check(config)
        self._producers.config = config
        self._segment_ms = config.segment_ms
        if config.cleanup_compact:
            self._segment_ms = min(config.segment_ms, max(config.max_compaction_lag_ms, 1))

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction has durably ended; readers of committed data stop here (Kafka's
        UnifiedLog)."""
        unstable = self._producers.transactions.first_unstable_offset
        if unstable < 0:
            return self.high_watermark
        return min(max(unstable, self.log_start_offset), self.high_watermark)

    def append(
        self,
        buffer: bytearray | memoryview,
        *,
        position: int = 0,
        by_coordinator: bool = False,
        is_checked: bool = False,
        from_reserve: bool = False,
    ) -> Appended:
        """Append the one batch that `buffer` contains from `position`; offset and leader epoch are set in place.

        A transactional batch begins or continues its producer's transaction: the caller has asked the transaction's
        coordinator for permission. `by_coordinator`: the batch is a coordinator's own, whose sequences are not checked.
        `is_checked`: its records were checked (`onceflow.log.validation.check_records`) if necessary. `from_reserve`:
        it may use the space reserved for a full disk (`onceflow.log.reserve`).

        Appends nothing and raises LogError: CorruptBatch, InvalidRecord, InvalidTimestamp, InvalidTransactionState,
        MessageTooLarge, RecordListTooLarge, OutOfOrderSequence, InvalidProducerEpoch, TooManyProducers, StorageFailed.
        """
        if self.failure is not None:
            raise StorageFailed(str(self.failure))
        now_ms = self._clock.now_ms()
        header = validated_header(self.name, buffer, position, self.config, now_ms, by_coordinator=by_coordinator)
        if self.needs_record_check and not (by_coordinator or is_checked):
            check_records(self.name, buffer, position, self.config, now_ms)
        last_sequence = -1
        if header.producer_id >= 0 and header.base_sequence < 0:
            self._producers.check_coordinator_batch(header)
        elif header.producer_id >= 0:
            last_sequence = header.last_sequence
            first_time = self._producers.duplicate_of(header, last_sequence, now_ms)
            if first_time is not None:
                return self._first_appended(*first_time)
        timestamp_ms = NO_TIMESTAMP
        if self.config.log_append_time:
            stamp_append_time(buffer, position, now_ms)
            timestamp_ms = now_ms
            header = header._replace(max_timestamp=now_ms)
        base_offset = self.log_end_offset
        self._append(header, memoryview(buffer)[position:] if position else buffer, now_ms, from_reserve=from_reserve)
        if header.producer_id >= 0:
            self._producers.add(header, last_sequence, base_offset, now_ms)
        return Appended(base_offset, self.log_end_offset - 1, timestamp_ms=timestamp_ms)

    def _first_appended(self, base_offset: int, last_offset: int) -> Appended:
        """Return the result of a duplicate's first append, with the broker's timestamp if the batch still exists."""
        timestamp_ms = NO_TIMESTAMP
        if self.config.log_append_time and base_offset >= self.log_start_offset:
            segment = self.segments.at(base_offset)
            span = segment.find(base_offset, segment.size_bytes)
            if span is not None:
                timestamp_ms = segment.header_at(span[0]).max_timestamp
        return Appended(base_offset, last_offset, duplicate=True, timestamp_ms=timestamp_ms)

    def append_marker(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int | None = None
    ) -> Appended:
        """End the producer's open transaction with a control batch. A newer epoch fences the producer.

        The marker is written even without an open transaction, so that the call can be repeated. Without
        `coordinator_epoch` the caller is this broker's own coordinator, which nothing can replace: the marker gets the
        epoch of the producer's last one, regardless of who wrote that.

        Appends nothing and raises LogError: InvalidProducerEpoch, TooManyProducers, TransactionCoordinatorFenced,
        StorageFailed.
        """
        if self.failure is not None:
            raise StorageFailed(str(self.failure))
        now_ms = self._clock.now_ms()
        if coordinator_epoch is None:
            coordinator_epoch = self._producers.coordinator_epoch(producer_id)
        else:
            self._producers.require_capacity(producer_id, now_ms)
        marker = Marker(commit, coordinator_epoch)
        self._producers.check_marker(producer_id, producer_epoch, marker)
        offset = self.log_end_offset
        batch = encode_marker(
            producer_id, producer_epoch, marker, offset=offset, timestamp_ms=now_ms, leader_epoch=LEADER_EPOCH
        )
        header = read_header(batch)
        self._append(header, batch, now_ms, from_reserve=True)
        aborted = self._producers.add_marker(header, marker, offset, now_ms)
        if aborted is not None:
            self.segments.active.transaction_index.append(aborted)
        # With a flush policy the marker is already below the high watermark.
        self._producers.transactions.forget_ended(self.high_watermark)
        return Appended(offset, offset)

    def _append(self, header: BatchHeader, buffer: bytearray | memoryview, now_ms: int, *, from_reserve: bool) -> None:
        """Write a batch at the log's end, in a new segment if necessary, and index it."""
        self._require_space(from_reserve=from_reserve)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        size_bytes = header.batch_length + 12
        segment = self.segments.active
        if self._must_roll(segment, header, size_bytes, last_offset, now_ms):
            segment = self._roll(now_ms)
            self._require_space(from_reserve=from_reserve)
        patch_offset(buffer, 0, base_offset, LEADER_EPOCH)
        begin = segment.size_bytes
        self._write(segment, buffer, size_bytes, from_reserve=from_reserve)
        if not from_reserve:
            self._is_refusing = False
        segment.index_batch(begin, size_bytes, last_offset, header.max_timestamp, self.config.index_interval_bytes)
        self.log_end_offset = last_offset + 1
        if self.has_flush_policy:
            self._advance_without_sync(now_ms)

    def _require_space(self, *, from_reserve: bool) -> None:
        if self._disk.is_full and not from_reserve:
            raise self._refused("the disk is full")

    def _write(self, segment: Segment, batch: bytearray | memoryview, size_bytes: int, *, from_reserve: bool) -> None:
        try:
            segment.write(batch, size_bytes)
        except OSError as error:
            if isinstance(error, WriteNotUndone):
                # A sync round may be running: it ends by itself, and what it covers is durable then.
                self.fail(error)
            elif from_reserve and self._disk.release_reserve(error):
                self._write(segment, batch, size_bytes, from_reserve=False)
                return
            raise self._refused(f"{segment.path} could not be written: {error}") from error

    def _refused(self, problem: str) -> StorageFailed:
        """Return the error; log it once until a write succeeds, because clients retry refused requests."""
        refusal = StorageFailed(f"{self.name}: {problem}; {Remedy.FREE_DISK}")
        if not self._is_refusing:
            logger.error("records are refused until a write succeeds: %s", refusal)
        self._is_refusing = True
        return refusal

    def _must_roll(self, segment: Segment, header: BatchHeader, size_bytes: int, last_offset: int, now_ms: int) -> bool:
        """Return whether to roll, like Kafka's LogSegment.shouldRoll: size, age by batch timestamps, full index, int32
        offsets."""
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
            age_ms > self._segment_ms
            or last_offset - segment.base_offset > _RELATIVE_OFFSET_MAX
            or segment.index_bytes > config.segment_index_bytes
        )

    def _roll(self, now_ms: int) -> Segment:
        if self._is_new and not self._seals:
            self._sync_first_name()
        try:
            segment = Segment(self._disk, self.directory, self.log_end_offset, create=True)
        except OSError as error:
            raise self._refused(f"no new segment at {self.log_end_offset}: {error}") from error
        sealed = self.segments.active
        sealed.index_max_timestamp()
        self._seals.append(Seal(sealed, self.log_end_offset, self._producers.snapshot()))
        self.segments.add(segment)
        self._active_since_ms = now_ms
        return segment

    def _sync_first_name(self) -> None:
        """Sync the first segment's name at a roll before the first round.

        Otherwise a power cut could keep the second segment's name and lose the first's, and the log would start with
        records that followed lost ones.
        """
        try:
            self._disk.sync_directory(self.directory)
        except SyncNotBegun as error:
            raise StorageFailed(f"{self.name}: no new segment at {self.log_end_offset}: {error}") from error
        except OSError as error:
            self.fail(error)
            raise StorageFailed(str(self.failure)) from error

    def begin_sync(self) -> SyncPoint | None:
        """Return what has to be made durable, None if there is nothing. Only one round may run at a time."""
        if self._syncing is not None:
            raise RuntimeError(f"{self.name}: a sync up to {self._syncing.offset_end} is already running")
        if self.failure is not None or (self.log_end_offset == self.synced_offset and not self._seals):
            return None
        self._unsynced_since_ms = None
        active = self.segments.active
        self._syncing = SyncPoint(
            disk=self._disk,
            directory=self.directory,
            offset_end=self.log_end_offset,
            active=active,
            size_bytes=active.size_bytes,
            seals=tuple(self._seals),
            max_timestamp=self._max_timestamp(),
            is_first=self._is_new,
        )
        return self._syncing

    def end_sync(self, point: SyncPoint) -> None:
        """Make visible what `point.run` covered; called after it returned.

        If the directory could not be opened for its sync, the high watermark waits for the next round.
        """
        self._syncing = None
        self._warn(point)
        if not point.is_durable:
            return
        self._is_new = False
        if point.active.size_bytes == point.size_bytes:
            point.active.is_unsynced = False
        finished = len(point.seals) - point.kept_seals
        for seal in point.seals[:finished]:
            seal.segment.seal()
            seal.segment.is_unsynced = False
        del self._seals[:finished]
        self.synced_offset = point.offset_end
        if point.offset_end > self.high_watermark:
            self._advance_high_watermark(point.active, point.size_bytes, point.max_timestamp, point.offset_end)
        if self.has_flush_policy:
            self._advance_without_sync(self._clock.now_ms())

    def _advance_high_watermark(
        self, active: Segment, size_bytes: int, max_timestamp: tuple[int, int], offset_end: int
    ) -> None:
        """Move the high watermark to `offset_end`, which is at `size_bytes` of segment `active`."""
        self._visible_active = active
        self._visible_bytes_of_active = size_bytes
        self._visible_max_timestamp = max_timestamp
        self.high_watermark = offset_end
        self._producers.transactions.forget_ended(offset_end)

    def _advance_without_sync(self, now_ms: int) -> None:
        """Show readers the page cache, as Kafka does under a flush policy.

        A power cut may lose at most `flush.messages` records and none older than `flush.ms`: what exceeds that waits
        for its sync.
        """
        if self.log_end_offset > self.synced_offset and self._unsynced_since_ms is None:
            self._unsynced_since_ms = now_ms
        if not self.is_flush_due() and self.log_end_offset > self.high_watermark:
            active = self.segments.active
            self._advance_high_watermark(active, active.size_bytes, self._max_timestamp(), self.log_end_offset)

    def is_flush_due(self) -> bool:
        """Return whether the flush policy requires a sync now."""
        if self.log_end_offset - self.synced_offset >= self.config.flush_messages:
            return True
        if self._unsynced_since_ms is None or self.config.flush_ms == INT64_MAX:
            return False
        return self._clock.now_ms() - self._unsynced_since_ms >= self.config.flush_ms

    def _warn(self, point: SyncPoint) -> None:
        """Log a problem once until a round succeeds: there are many rounds while a disk is full."""
        if point.problem is not None and not self._is_warned:
            logger.warning("%s: writing a file beside the log is postponed: %s", self.name, point.problem)
        self._is_warned = point.problem is not None

    def fail_sync(self, error: OSError) -> None:
        """Stop writing after `point.run` raised; reads up to the high watermark continue.

        The kernel may have dropped the pages, so a second sync would prove nothing.
        """
        self._syncing = None
        self.fail(error)

    def fail(self, error: OSError) -> None:
        """Refuse further writes until the log is reopened."""
        self.failure = StorageFailed(
            f"{self.name}: {self.directory} could not be synced: {error}; no more writes are accepted;"
            f" {Remedy.LOOK_AT_DISK}, then {Remedy.RESTART_BROKER}"
        )

    def read(
        self, offset: int, size_bytes_max: int, *, offset_end: int | None = None, at_least_one_batch: bool = True
    ) -> Slice | None:
        """Return whole batches of one segment, from the one that contains `offset`, ending at or before `offset_end`.

        `offset_end` is the high watermark by default, and never more. The first batch is returned even if it is larger
        than `size_bytes_max`, unless `at_least_one_batch` is false. None: there is nothing to read. Raises
        OffsetOutOfRange, CorruptBatch where the file was damaged while it was open.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(self.name, offset, self.log_start_offset, self.log_end_offset)
        visible = self.high_watermark if offset_end is None else min(offset_end, self.high_watermark)
        if offset >= visible:
            if offset == self.high_watermark:
                self._waited_at = (offset, self._visible_active.base_offset, self._visible_bytes_of_active)
            return None
        number = self.segments.number_at(offset)
        segment = self.segments.in_order[number]
        end = self._visible_bytes(segment)
        if visible < self.high_watermark:
            beyond = segment.find(visible, end)
            end = beyond[0] if beyond is not None else end
        waited_offset, waited_base, position = self._waited_at
        is_known = offset == waited_offset and segment.base_offset == waited_base
        if is_known and position < end <= position + size_bytes_max:
            return Slice(segment.file, position, end - position, self._has_visible_after(number, visible))
        span = segment.find(offset, end, begin=position if is_known else None)
        if span is None:
            return None
        begin, first_bytes = span
        if end - begin > size_bytes_max:
            if first_bytes > size_bytes_max:
                if not at_least_one_batch:
                    return None
                is_cut = begin + first_bytes < end or self._has_visible_after(number, visible)
                return Slice(segment.file, begin, first_bytes, is_cut)
            end = segment.last_boundary(begin + first_bytes, begin + size_bytes_max, end)
            return Slice(segment.file, begin, end - begin, is_cut=True)
        return Slice(segment.file, begin, end - begin, self._has_visible_after(number, visible))

    def _has_visible_after(self, number: int, visible: int) -> bool:
        """Return whether the segment after that one has batches below offset `visible`."""
        bases = self.segments.bases
        return number + 1 < len(bases) and bases[number + 1] < visible

    def _visible_bytes(self, segment: Segment) -> int:
        """Return the bytes of a segment below the high watermark."""
        if segment is self._visible_active:
            return self._visible_bytes_of_active
        return segment.size_bytes if segment.base_offset < self.high_watermark else 0

    def producer_states(self) -> list[ProducerState]:
        """Return the state of each producer (DescribeProducers)."""
        return self._producers.states()

    def aborted_transactions(self, offset_begin: int, offset_end: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions that may have records in a range, by marker.

        The range is from `offset_begin` up to, not including, `offset_end`.
        """
        number = max(self.segments.number_at(offset_begin), 0)
        indexes = [segment.transaction_index for segment in self.segments.in_order[number:]]
        return aborted_between(indexes, offset_begin, offset_end)

    def aborted_in(self, offset: int, data: Slice | None) -> list[tuple[int, int]]:
        """Return `aborted_transactions` for the result of `read(offset, …)`."""
        if data is None:
            return []
        number = self.segments.number_at(offset)
        if not any(segment.transaction_index.count for segment in self.segments.in_order[number:]):
            return []
        offset_end = self.segments.in_order[number].offset_beyond(data.position + data.size_bytes)
        if offset_end is None:
            offset_end = self.segments.end_of(number, self.log_end_offset)
        return self.aborted_transactions(offset, offset_end)

    def segment_starts(self) -> list[tuple[int, int]]:
        """Return (first offset, latest timestamp or -1) of each segment that starts below the high watermark, in
        order."""
        visible = [segment for segment in self.segments if segment.base_offset <= self.high_watermark]
        return [(max(segment.base_offset, self.log_start_offset), segment.max_timestamp_ms) for segment in visible]

    def search_timestamp(self, timestamp_ms: int) -> TimeSearch:
        """Search the (timestamp, offset) of the first visible record with a timestamp ≥ `timestamp_ms`."""
        segments = [(segment, self._visible_bytes(segment)) for segment in self.segments]
        unpacked_bytes_max = self.config.batch_unpacked_bytes_max
        return partial(first_at_or_after, timestamp_ms, self.log_start_offset, segments, unpacked_bytes_max)

    def search_max_timestamp(self) -> TimeSearch:
        """Search the visible record with the latest timestamp (ListOffsets -3), the first of equals."""
        segments = [(segment, self._visible_bytes(segment)) for segment in self.segments]
        unpacked_bytes_max = self.config.batch_unpacked_bytes_max
        return partial(latest, self._visible_max_timestamp, self.high_watermark, segments, unpacked_bytes_max)

    def _max_timestamp(self) -> tuple[int, int]:
        """Return the latest timestamp among records visible since the start and unsynced ones, the first of equals."""
        latest = self._visible_max_timestamp
        unsynced = [self.segments.active]
        if self._seals:
            unsynced = [*(seal.segment for seal in self._seals), *unsynced]
        for segment in unsynced:
            if segment.max_timestamp_ms > latest[0]:
                latest = segment.max_timestamp_ms, segment.max_timestamp_offset
        return latest

    def roll(self) -> None:
        """Start a new segment unless the active one is empty; the old one can be deleted once it is synced. Raises
        StorageFailed."""
        if self.failure is not None:
            raise StorageFailed(str(self.failure))
        if self.segments.active.size_bytes:
            self._roll(self._clock.now_ms())

    def drop_segments_below_start(self) -> list[Segment]:
        """Remove the segments wholly below the log's start from the log, except unsynced ones; return
        them. Their files can be retired (`onceflow.log.swap`)."""
        removed = self.segments.remove_below(self.log_start_offset)
        if removed:
            self._visible_max_timestamp = self._max_timestamp_of_active()
        return removed

    def producer_snapshot(self) -> Snapshot:
        """Return the state of the producers; compaction keeps each one's last batch."""
        return self._producers.snapshot()

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the neighbours `old` by a compacted segment. Raises ValueError if they have left the log."""
        self.segments.replace(old, new)
        self._waited_at = _NO_WAITING_READER
        self._visible_max_timestamp = self._max_timestamp_of_active()

    def _max_timestamp_of_active(self) -> tuple[int, int]:
        """Return the active segment's latest timestamp if it is visible; other segments' timestamps are read when
        needed."""
        active = self.segments.active
        is_visible = active.max_timestamp_offset < self.high_watermark
        return (active.max_timestamp_ms, active.max_timestamp_offset) if is_visible else (NO_TIMESTAMP, 0)

    def close(self) -> None:
        """Sync everything, write indexes and the producer snapshot; nothing can be appended afterwards.

        Raises StorageFailed if that fails; the next opening then scans. A log that had failed before is left unchanged.
        The files are closed when the last reference to this log and its slices is dropped.
        """
        if self.failure is not None:
            return
        try:
            if self._closed != self._position():
                self._sync_all()
        except OSError as error:
            self.fail_sync(error)
            raise StorageFailed(
                f"{self.name}: {self.directory} could not be closed: {error}; the next start checks it"
            ) from error
        self.failure = StorageFailed(f"{self.name}: the log is closed; {Remedy.START_BROKER_AGAIN}")

    def _position(self) -> tuple[Segment, int]:
        return self.segments.active, self.log_end_offset

    def close_files(self) -> None:
        """Close the files after `close`, when no reader is left: a process may outlive its broker and must not wait for
        GC."""
        for segment in self.segments:
            segment.close()

    def _sync_all(self) -> None:
        point = self.begin_sync()
        if point is not None:
            point.run()
            self.end_sync(point)
            if point.problem is not None and self._seals:
                raise point.problem
        self.segments.active.index_max_timestamp()
        self.segments.active.write_indexes()
        write_snapshot(self._disk, self.directory, self.log_end_offset, self._producers.snapshot())
        self._disk.sync_directory(self.directory)
