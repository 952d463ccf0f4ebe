"""The log of one partition: append, sync, read, look up by time.

A directory `TOPIC-N` holds, in Kafka's names and formats:

    00000000000000000042.log        a segment: batches from offset 42          (onceflow.log.segment)
    00000000000000000042.index      offset → position, sparse                  (onceflow.log.index)
    00000000000000000042.timeindex  timestamp → offset, sparse                 (onceflow.log.index)
    00000000000000000042.txnindex   aborted transactions, if any               (onceflow.log.transactions)
    00000000000000000042.snapshot   producer state below offset 42             (onceflow.log.producers)
    leader-epoch-checkpoint         epochs of the leaders that appended        (onceflow.log.epochs)
    partition.metadata              id of the topic                            (onceflow.log.checkpoint)

One thread owns a log; only `SyncPoint.run`, `Slice.read` and a `TimeSearch` may run in others. Appended batches are in
the page cache and not visible yet: the high watermark, below which readers see them, is the end of the log at the last
completed sync. An acks=all request gets its response when `high_watermark > appended.last_offset`. That holds for a
duplicate too, since its first copy may be waiting for the same sync.

    PartitionLog    appends, and starts new segments
    .segments       the segments, and where the log starts and ends     (onceflow.log.segments)
    .durability     what waits for a sync; rounds of syncs              (onceflow.log.sync)
    .visible        what readers see                                    (onceflow.log.visible)
    .producers      sequences and transactions of the producers         (onceflow.log.producers)
    .epochs         offsets where the epochs of leaders start           (onceflow.log.epochs)
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from onceflow.log import swap
from onceflow.log.checkpoint import LEADER_EPOCH, check_checkpoints, new_checkpoints
from onceflow.log.clock import Clock
from onceflow.log.config import LogConfig
from onceflow.log.disk import Disk
from onceflow.log.epochs import UNKNOWN_END, EpochEnd
from onceflow.log.errors import CorruptBatch, NoSpaceForNewLog, OffsetOutOfRange, StorageFailed
from onceflow.log.recovery import Loaded, Loader, new_log, replay_producer
from onceflow.log.segment import NO_TIMESTAMP, Segment, WriteNotUndone
from onceflow.log.segments import Segments
from onceflow.log.sync import Durability
from onceflow.log.truncation import Truncation
from onceflow.log.validation import check_records, needs_record_check, validated_header
from onceflow.log.visible import VisibleLog
from onceflow.remedies import Remedy
from onceflow.wire.batch import BatchHeader, batches, check_batch, patch_offset, read_header, stamp_append_time
from onceflow.wire.errors import WireError
from onceflow.wire.markers import Marker, encode_marker

logger = logging.getLogger(__name__)

_RELATIVE_OFFSET_MAX = 2**31 - 1
_FULL = "the disk is full"


class Appended(NamedTuple):
    """Position of a batch; that of the first copy for a duplicate."""

    base_offset: int
    last_offset: int
    duplicate: bool = False
    timestamp_ms: int = NO_TIMESTAMP
    """The broker's timestamp under log-append time; -1: the producer's timestamps are kept."""


class PartitionLog:
    """Log of one partition, open for appending at its end."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        disk: Disk,
        clock: Clock,
        loaded: Loaded,
        *,
        is_replica: bool = False,
    ) -> None:
        self.directory = directory
        self.name = directory.name
        self.is_replica = is_replica
        """Whether other brokers may have copies of the log."""
        self.leader_epoch = LEADER_EPOCH
        """Epoch of the batches that `append` appends."""
        self._disk = disk
        self._clock = clock
        self._is_refusing = False
        self.is_truncating = False
        """Whether a truncation has begun that has not ended: its files are not what this log knows."""
        self._adopt(config, loaded)

    def _adopt(self, config: LogConfig, loaded: Loaded) -> None:
        self.recovery_removed_bytes = loaded.removed_bytes
        self.producers = loaded.producers
        self.epochs = loaded.epochs
        self.segments = Segments(loaded.segments, loaded.log_start_offset, loaded.log_end_offset)
        self.visible = VisibleLog(self.name, config, self.segments, self.producers.transactions)
        self.durability = Durability(
            self.directory,
            config,
            self._disk,
            self._clock,
            self.segments,
            self.visible,
            self.epochs,
            is_new=loaded.is_new,
        )
        self._active_since_ms = self._clock.now_ms()
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
        is_replica: bool = False,
    ) -> "PartitionLog":
        """Create the log, or load it: by a scan unless `clean`.

        Loading blocks for syncs, and everything that it returns is durable. The names of a new log become durable with
        its first record, so that thousands can be created in a moment; one that a power cut removed was empty and is
        created again.

        `log_start_offset` is the last durable one; segments wholly below it are removed. The leader epochs of a replica
        are its own, all other logs are in epoch 0. Raises OtherTopicThere where the directory belongs to a topic with
        another id, DataDirectoryRefused where it is damaged, NoSpaceForNewLog, OSError.
        """
        if not disk.exists(directory):
            if disk.is_full:
                raise NoSpaceForNewLog(directory)
            disk.make_directory(directory)
            epochs = new_checkpoints(disk, directory, topic_id, is_replica=is_replica)
            loaded = new_log(directory, config, disk, log_start_offset, epochs)
            return cls(directory, config, disk, clock, loaded, is_replica=is_replica)
        sizes = swap.finish(disk, directory)
        kept = check_checkpoints(disk, directory, sizes, topic_id, is_replica=is_replica)
        loader = Loader(directory, sizes, config, disk, clock, log_start_offset, kept, is_replica=is_replica)
        loaded = loader.load(clean=clean)
        if not clean:
            # After a kill its name may be in the page cache only.
            disk.sync_directory(directory.parent)
        return cls(directory, config, disk, clock, loaded, is_replica=is_replica)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply other settings to the next appends."""
        self.config = self.producers.config = self.visible.config = config
        self.durability.reconfigure(config)
        self.needs_record_check = needs_record_check(config)
        self._segment_ms = config.segment_ms
        if config.cleanup_compact:
            self._segment_ms = min(config.segment_ms, max(config.max_compaction_lag_ms, 1))

    @property
    def log_start_offset(self) -> int:
        return self.segments.start_offset

    @property
    def log_end_offset(self) -> int:
        return self.segments.end_offset

    @property
    def high_watermark(self) -> int:
        return self.visible.high_watermark

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Return the largest epoch up to `epoch` with the offset where it ends in this log (KIP-101)."""
        return self.epochs.end_of(epoch, self.segments.start_offset, self.segments.end_offset)

    def divergence(self, offset: int, epoch: int) -> EpochEnd | None:
        """Return where a copy of this log parts from it; None if it has the copy's last record.

        `epoch` is that of the copy's last record, which is before `offset`. Raises OffsetOutOfRange, also for an
        unknown epoch (Kafka's Partition.readRecords).
        """
        end = self.end_of_epoch(epoch)
        if end == UNKNOWN_END or offset < self.segments.start_offset:
            raise OffsetOutOfRange(self.name, offset, self.segments.start_offset, self.segments.end_offset)
        return end if end.epoch < epoch or end.end_offset < offset else None

    def begin_epoch(self, epoch: int) -> None:
        """Lead the log of a replica in this epoch, which is later than those of the log: batches carry it from now
        on."""
        self.epochs.assign(epoch, self.segments.end_offset)
        self.leader_epoch = epoch

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
        MessageTooLarge, RecordListTooLarge, OutOfOrderSequence, EarlierBatchesAwaited, InvalidProducerEpoch,
        TooManyProducers, StorageFailed.
        """
        if self.durability.failure is not None:
            raise StorageFailed(str(self.durability.failure))
        now_ms = self._clock.now_ms()
        header = validated_header(self.name, buffer, position, self.config, now_ms, by_coordinator=by_coordinator)
        if self.needs_record_check and not (by_coordinator or is_checked):
            check_records(self.name, buffer, position, self.config, now_ms)
        last_sequence = -1
        if header.producer_id >= 0 and header.base_sequence < 0:
            self.producers.check_coordinator_batch(header)
        elif header.producer_id >= 0:
            last_sequence = header.last_sequence
            first_time = self.producers.duplicate_of(header, last_sequence, now_ms)
            if first_time is not None:
                return self._first_appended(*first_time)
        timestamp_ms = NO_TIMESTAMP
        if self.config.log_append_time:
            stamp_append_time(buffer, position, now_ms)
            timestamp_ms = now_ms
            header = header._replace(max_timestamp=now_ms)
        base_offset = self.segments.end_offset
        batch = memoryview(buffer)[position:] if position else buffer
        last_offset = self._append(header, batch, now_ms, from_reserve=from_reserve)
        if header.producer_id >= 0:
            self.producers.add(header, last_sequence, base_offset, now_ms)
        return Appended(base_offset, last_offset, timestamp_ms=timestamp_ms)

    def _first_appended(self, base_offset: int, last_offset: int) -> Appended:
        """Return the result of a duplicate's first append, with the broker's timestamp if the batch still exists."""
        timestamp_ms = NO_TIMESTAMP
        if self.config.log_append_time and base_offset >= self.segments.start_offset:
            segment = self.segments.at(base_offset)
            span = segment.find(base_offset, segment.size_bytes)
            if span is not None:
                timestamp_ms = segment.header_at(span[0]).max_timestamp
        return Appended(base_offset, last_offset, duplicate=True, timestamp_ms=timestamp_ms)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int | None = None,
        by_client: bool = False,
    ) -> Appended:
        """End the producer's open transaction with a control batch. A newer epoch fences the producer.

        The marker is written even without an open transaction, so that the call can be repeated. Without
        `coordinator_epoch` the caller is this broker's own coordinator, which nothing can replace: the marker gets the
        epoch of the producer's last one, regardless of who wrote that. `by_client`: the producer may be invented, and
        is refused if no more can be known.

        Appends nothing and raises LogError: InvalidProducerEpoch, TooManyProducers, TransactionCoordinatorFenced,
        StorageFailed.
        """
        self.durability.require_writable()
        now_ms = self._clock.now_ms()
        if coordinator_epoch is None:
            coordinator_epoch = self.producers.coordinator_epoch(producer_id)
        if by_client:
            self.producers.require_capacity(producer_id, now_ms)
        marker = Marker(commit, coordinator_epoch)
        self.producers.check_marker(producer_id, producer_epoch, marker)
        offset = self.segments.end_offset
        batch = encode_marker(
            producer_id, producer_epoch, marker, offset=offset, timestamp_ms=now_ms, leader_epoch=self.leader_epoch
        )
        header = read_header(batch)
        self._append(header, batch, now_ms, from_reserve=True)
        aborted = self.producers.add_marker(header, marker, offset, now_ms)
        if aborted is not None:
            self.segments.active.transaction_index.append(aborted)
        # With a flush policy the marker is already below the high watermark.
        self.producers.transactions.forget_ended(self.visible.high_watermark)
        return Appended(offset, offset)

    def append_copy(self, data: memoryview) -> None:
        """Append whole batches of the partition's leader with their bytes, offsets and leader epochs; a last one that
        is cut is ignored (Kafka's UnifiedLog.appendAsFollower).

        Offsets may be missing, since the leader compacts its log. Appends the batches before a wrong one, and raises
        LogError: CorruptBatch, OffsetOutOfRange where a batch is not after the log's end, StorageFailed.
        """
        self.durability.require_writable()
        now_ms = self._clock.now_ms()
        try:
            for position, header in batches(data):
                check_batch(data, position, header)
                self._append_one_copy(header, data[position : position + header.size_bytes], now_ms)
        except WireError as error:
            raise CorruptBatch(
                f"{self.name}: {error}; the bytes changed on their way or on the leader's disk"
            ) from error

    def _append_one_copy(self, header: BatchHeader, batch: memoryview, now_ms: int) -> None:
        segments = self.segments
        if header.base_offset < segments.end_offset:
            raise OffsetOutOfRange(self.name, header.base_offset, segments.start_offset, segments.end_offset)
        if header.base_offset > segments.end_offset:
            self.durability.gaps_end = header.last_offset + 1
        if header.partition_leader_epoch != self.epochs.latest:
            self.epochs.assign(header.partition_leader_epoch, header.base_offset)
        self._append(header, batch, now_ms, from_reserve=False, is_copy=True)
        if header.producer_id >= 0:
            active = segments.active
            replay_producer(self.producers, active, active.size_bytes - header.size_bytes, header, now_ms)

    def wait_for_replicas(self, high_watermark: int) -> None:
        """Let the high watermark be `high_watermark` and advance by `advance_high_watermark` only, not by syncs."""
        segments = self.segments
        self.durability.waits_for_replicas = True
        self.visible.advance_to(max(segments.start_offset, min(high_watermark, segments.end_offset)))

    def advance_high_watermark(self, offset: int) -> None:
        """Show readers of a replica everything below `offset`, or below the log's end if that is earlier; nothing that
        they saw disappears."""
        offset = min(offset, self.segments.end_offset)
        if offset > self.visible.high_watermark:
            self.visible.advance_to(offset)

    def begin_truncation(self, offset: int, *, starts_over: bool = False) -> Truncation | None:
        """Return what removes everything from `offset` on; None if nothing is there. Nothing is appended meanwhile.

        `starts_over`: nothing is kept, and the log starts at `offset`. No round of syncs may be running. Raises
        StorageFailed; ValueError for an offset before the log's start.
        """
        self.durability.require_writable()
        if self.durability.is_syncing:
            raise RuntimeError(f"{self.name}: a sync is running")
        segments = self.segments
        if not starts_over and offset < segments.start_offset:
            raise ValueError(f"{self.name}: offset {offset} is before the log's start {segments.start_offset}")
        if not starts_over and offset >= segments.end_offset:
            self.epochs.truncate_from_end(offset)
            return None
        self.durability.failure = StorageFailed(f"{self.name}: the log is being truncated to {offset}")
        self.is_truncating = True
        return Truncation(
            self._disk,
            self.directory,
            self.config,
            self._clock,
            segments.in_order,
            segments.start_offset,
            offset,
            starts_over,
        )

    def end_truncation(self, loaded: Loaded) -> None:
        """Continue with what is left after `Truncation.run`."""
        self.is_truncating = False
        high_watermark, waits_for_replicas = self.visible.high_watermark, self.durability.waits_for_replicas
        start_offset = self.segments.start_offset
        self._adopt(self.config, loaded)
        if self.segments.start_offset < start_offset <= self.segments.end_offset:
            # It advanced during the truncation.
            self.segments.start_offset = start_offset
        if waits_for_replicas:
            self.wait_for_replicas(high_watermark)

    def fail_truncation(self, error: OSError) -> None:
        """Refuse writes after `Truncation.run` raised."""
        self.durability.fail(error)

    def _append(
        self,
        header: BatchHeader,
        buffer: bytearray | memoryview,
        now_ms: int,
        *,
        from_reserve: bool,
        is_copy: bool = False,
    ) -> int:
        """Write a batch at the log's end, in a new segment if necessary, and index it; return its last offset.

        A copy has its offset and leader epoch already.
        """
        if self._disk.is_full and not from_reserve:
            raise self._refused(_FULL)
        base_offset = header.base_offset if is_copy else self.segments.end_offset
        last_offset = base_offset + header.last_offset_delta
        size_bytes = header.batch_length + 12
        segment = self.segments.active
        if self._must_roll(segment, header, size_bytes, last_offset, now_ms):
            segment = self._roll(now_ms)
            if self._disk.is_full and not from_reserve:
                raise self._refused(_FULL)
        if not is_copy:
            patch_offset(buffer, 0, base_offset, self.leader_epoch)
        begin = segment.size_bytes
        self._write(segment, buffer, size_bytes, from_reserve=from_reserve)
        if not from_reserve:
            self._is_refusing = False
        segment.index_batch(begin, size_bytes, last_offset, header.max_timestamp, self.config.index_interval_bytes)
        self.segments.end_offset = last_offset + 1
        if self.durability.has_flush_policy:
            self.durability.advance_without_sync(now_ms)
        return last_offset

    def _write(self, segment: Segment, batch: bytearray | memoryview, size_bytes: int, *, from_reserve: bool) -> None:
        try:
            segment.write(batch, size_bytes)
        except OSError as error:
            if isinstance(error, WriteNotUndone):
                # A sync round may be running: it ends by itself, and what it covers is durable then.
                self.durability.fail(error)
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
        self.durability.prepare_roll()
        offset = self.segments.end_offset
        try:
            segment = Segment(self._disk, self.directory, offset, create=True)
        except OSError as error:
            raise self._refused(f"no new segment at {offset}: {error}") from error
        sealed = self.segments.active
        sealed.index_max_timestamp()
        self.durability.add_seal(sealed, self.producers.snapshot())
        self.segments.add(segment)
        self._active_since_ms = now_ms
        return segment

    def roll(self) -> None:
        """Start a new segment unless the active one is empty; the old one can be deleted once it is synced. Raises
        StorageFailed."""
        self.durability.require_writable()
        if self.segments.active.size_bytes:
            self._roll(self._clock.now_ms())

    def drop_segments_below_start(self) -> list[Segment]:
        """Remove the segments wholly below the log's start from the log, except unsynced ones; return
        them. Their files can be retired (`onceflow.log.swap`)."""
        removed = self.segments.remove_below_start()
        if removed:
            self.visible.follow_segments()
        return removed

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the neighbours `old` by a compacted segment. Raises ValueError if they have left the log."""
        self.segments.replace(old, new)
        self.visible.follow_segments()

    def close(self) -> None:
        """Sync everything, write indexes and the producer snapshot; nothing can be appended afterwards.

        Raises StorageFailed if that fails; the next opening then scans. A log that had failed before is left unchanged.
        The files are closed when the last reference to this log and its slices is dropped.
        """
        if self.durability.failure is not None:
            return
        try:
            if self._closed != self._position():
                self.durability.sync_all(self.producers.snapshot())
        except OSError as error:
            self.durability.fail_sync(error)
            raise StorageFailed(
                f"{self.name}: {self.directory} could not be closed: {error}; the next start checks it"
            ) from error
        self.durability.failure = StorageFailed(f"{self.name}: the log is closed; {Remedy.START_BROKER_AGAIN}")

    def _position(self) -> tuple[Segment, int]:
        return self.segments.active, self.segments.end_offset

    def close_files(self) -> None:
        """Close the files after `close`, when no reader is left: a process may outlive its broker and must not wait for
        GC."""
        for segment in self.segments:
            segment.close()
