"""Group commit: one round makes everything durable that was appended before it started.

The owner of the log (one thread) calls `Durability.begin_sync`, hands the point to any thread that may block, and calls
`end_sync` or `fail_sync` when `SyncPoint.run` has returned or raised. Appends continue meanwhile and belong to the next
round.

A round that covers the first batches of a leader epoch writes `leader-epoch-checkpoint` first (`onceflow.log.epochs`);
its name becomes durable in step 3. After a roll a round has to sync more than the active file:

1. the sealed segments' files, oldest first, and the active one: each may contain an acknowledged batch;
2. the index files of the sealed segments, which are written now;
3. the directory: otherwise a power cut removes the new files' names, and the acknowledged batches with them. A log's
   first round also syncs the data directory, once per round (creating a log syncs nothing);
4. the snapshots of the sealed segments, written last. A complete snapshot guarantees that everything below its offset
   is durable, names included, and recovery may start there. Its own name waits for the next roll's round; if it is
   lost, recovery starts earlier. Before earlier files are removed, it is made durable (`onceflow.log.swap`).

A file that was deleted under the broker counts as one that cannot be synced.

A failed sync of 1 or 3 is final. Files that can be rebuilt are not: if an index or a snapshot cannot be written (a full
disk, no free descriptor), its seal and the later ones are kept for the next round. A directory that could not be opened
for its sync, or epochs that could not be written, keep the whole round.
"""

import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onceflow.log.clock import Clock
from onceflow.log.config import INT64_MAX, LogConfig
from onceflow.log.disk import Disk, SyncNotBegun, write_file
from onceflow.log.epochs import LeaderEpochs, write_epochs
from onceflow.log.errors import StorageFailed
from onceflow.log.index import file_name
from onceflow.log.producers import Snapshot
from onceflow.log.segment import SNAPSHOT_SUFFIX, Segment
from onceflow.log.segments import Segments
from onceflow.log.swap import write_compaction_end
from onceflow.log.visible import VisibleLog
from onceflow.remedies import Remedy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seal:
    """A sealed segment whose indexes are still in memory, and the producer state at its end."""

    segment: Segment
    offset_end: int
    snapshot: Snapshot


@dataclass(slots=True)
class SyncPoint:
    """State of the log when the round started: what `run` makes durable and what becomes visible afterwards."""

    disk: Disk
    directory: Path
    offset_end: int
    active: Segment
    size_bytes: int
    seals: tuple[Seal, ...]
    max_timestamp: tuple[int, int]
    """(timestamp, last offset of its batch) of the batch with the latest timestamp below `offset_end`."""
    is_first: bool = False
    """Whether the log is new: neither its files' names nor its own may be durable yet."""
    epochs: bytes | None = None
    """New content of the file of leader epochs."""
    gaps_end: int = 0
    """End of the offsets that may be missing in batches copied from a compacted log; 0: there are no new ones."""
    kept_seals: int = 0
    """Number of the last seals that `run` left to the next round."""
    is_durable: bool = True
    """Whether the new files' names are durable too, after `run`; otherwise nothing more becomes visible."""
    problem: OSError | None = None
    """Reason why `run` postponed something."""

    def run(self) -> None:
        """Sync everything. Blocks; any thread. Raises OSError, after which it is unknown what is durable."""
        self.run_below()
        if self.is_first and self.is_durable:
            try:
                self.disk.sync_directory(self.directory.parent)
            except SyncNotBegun as error:
                self.postpone(error)

    def run_below(self) -> None:
        """Sync everything but the name of a new log's directory. Raises OSError."""
        try:
            if self.epochs is not None:
                write_epochs(self.disk, self.directory, self.epochs)
            if self.gaps_end:
                write_compaction_end(self.disk, self.directory, self.gaps_end)
        except OSError as error:
            self.postpone(error)
            return
        for seal in self.seals:
            _sync_file(seal.segment)
        _sync_file(self.active)
        if not self.seals and not self.is_first and self.epochs is None:
            return
        written = self._write_indexes()
        try:
            self.disk.sync_directory(self.directory)
        except SyncNotBegun as error:
            self.postpone(error)
            return
        self.kept_seals = len(self.seals) - self._write_snapshots(written)

    def postpone(self, problem: OSError) -> None:
        """Leave everything to the next round; nothing has failed permanently."""
        self.problem, self.is_durable, self.kept_seals = problem, False, len(self.seals)

    def _write_indexes(self) -> int:
        """Write the seals' indexes in order; return how many. A snapshot promises every index below its offset."""
        for number, seal in enumerate(self.seals):
            try:
                seal.segment.write_indexes()
            except OSError as error:
                self.problem = error
                return number
        return len(self.seals)

    def _write_snapshots(self, count: int) -> int:
        """Write the snapshots of the first `count` seals; return how many. A segment cannot be removed before its
        snapshot."""
        for number, seal in enumerate(self.seals[:count]):
            try:
                write_snapshot(self.disk, self.directory, seal.offset_end, seal.snapshot)
            except OSError as error:
                self.problem = error
                return number
        return count


def run_round(points: Sequence[SyncPoint]) -> list[OSError | None]:
    """Run all points, with one sync of the directory that new logs share. Return each point's error. Any thread."""
    if len(points) == 1:
        return [_error_of(points[0].run, points[0].directory)]
    errors = [_error_of(point.run_below, point.directory) for point in points]
    by_parent: dict[Path, list[int]] = {}
    for number, point in enumerate(points):
        if point.is_first and point.is_durable and errors[number] is None:
            by_parent.setdefault(point.directory.parent, []).append(number)
    for parent, numbers in by_parent.items():
        error = _error_of(partial(points[numbers[0]].disk.sync_directory, parent), parent)
        for number in numbers:
            if isinstance(error, SyncNotBegun):
                points[number].postpone(error)
            else:
                errors[number] = error
    return errors


def _error_of(sync: Callable[[], None], directory: Path) -> OSError | None:
    try:
        sync()
    except OSError as error:
        return error
    except Exception as error:
        # Whatever the error, it is unknown what is durable.
        logger.exception("sync of %s failed unexpectedly", directory)
        return OSError(str(error))
    return None


class Durability:
    """Hand-over of appended batches to syncs: what waits for one, the running round, and the failure that ends all."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        disk: Disk,
        clock: Clock,
        segments: Segments,
        visible: VisibleLog,
        epochs: LeaderEpochs,
        *,
        is_new: bool,
    ) -> None:
        self.synced_offset = segments.end_offset
        self.stored_offset = segments.end_offset
        """End of what this broker acknowledges: what is synced, or what a flush policy acknowledges earlier. It is the
        high watermark, unless that waits for other replicas."""
        self.gaps_end = 0
        """`gaps_end` of the next `SyncPoint`."""
        self.failure: StorageFailed | None = None
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._segments = segments
        self._visible = visible
        self._epochs = epochs
        self._seals: list[Seal] = []
        self._syncing: SyncPoint | None = None
        self._unsynced_since_ms: int | None = None
        self._is_warned = False
        self._is_new = is_new
        self.waits_for_replicas = False
        """Whether the high watermark is set by `PartitionLog.advance_high_watermark`, not by syncs."""
        self.reconfigure(config)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply another flush policy."""
        self.config = config
        self.has_flush_policy = config.has_flush_policy

    def begin_sync(self) -> SyncPoint | None:
        """Return what has to be made durable, None if there is nothing. Only one round may run at a time."""
        if self._syncing is not None:
            raise RuntimeError(f"{self._directory.name}: a sync up to {self._syncing.offset_end} is already running")
        offset_end = self._segments.end_offset
        is_synced = offset_end == self.synced_offset and not self._seals and not self._epochs.is_changed
        if self.failure is not None or is_synced:
            return None
        self._unsynced_since_ms = None
        active = self._segments.active
        self._syncing = SyncPoint(
            disk=self._disk,
            directory=self._directory,
            offset_end=offset_end,
            active=active,
            size_bytes=active.size_bytes,
            seals=tuple(self._seals),
            max_timestamp=self._max_timestamp(),
            is_first=self._is_new,
            epochs=self._changed_epochs() if self._epochs.is_changed else None,
            gaps_end=self.gaps_end,
        )
        self.gaps_end = 0
        return self._syncing

    def _changed_epochs(self) -> bytes:
        """Return the content of the file of leader epochs, which the round writes."""
        self._epochs.is_changed = False
        return self._epochs.encode(self._segments.start_offset)

    def end_sync(self, point: SyncPoint) -> None:
        """Make visible what `point.run` covered; called after it returned.

        If the directory could not be opened for its sync, the high watermark waits for the next round.
        """
        self._syncing = None
        self._warn(point)
        if not point.is_durable:
            self._epochs.is_changed = self._epochs.is_changed or point.epochs is not None
            self.gaps_end = max(self.gaps_end, point.gaps_end)
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
        if point.offset_end > self.stored_offset:
            self._advance(point.active, point.size_bytes, point.max_timestamp, point.offset_end)
        if self.has_flush_policy:
            self.advance_without_sync(self._clock.now_ms())

    def fail_sync(self, error: OSError) -> None:
        """Stop writing after `point.run` raised; reads up to the high watermark continue.

        The kernel may have dropped the pages, so a second sync would prove nothing.
        """
        self._syncing = None
        self.fail(error)

    def fail(self, error: OSError) -> None:
        """Refuse further writes until the log is reopened."""
        self.failure = StorageFailed(
            f"{self._directory.name}: {self._directory} could not be synced: {error}; no more writes are accepted;"
            f" {Remedy.LOOK_AT_DISK}, then {Remedy.RESTART_BROKER}"
        )

    @property
    def unfinished_seals(self) -> int:
        """Number of sealed segments that the next round has to finish."""
        return len(self._seals)

    @property
    def is_syncing(self) -> bool:
        """Whether a round is running."""
        return self._syncing is not None

    def require_writable(self) -> None:
        """Raise StorageFailed after a failure."""
        if self.failure is not None:
            raise StorageFailed(str(self.failure))

    def prepare_roll(self) -> None:
        """Sync the first segment's name at a roll before the first round. Raises StorageFailed.

        Otherwise a power cut could keep the second segment's name and lose the first's, and the log would start with
        records that followed lost ones.
        """
        if not self._is_new or self._seals:
            return
        try:
            self._disk.sync_directory(self._directory)
        except SyncNotBegun as error:
            raise StorageFailed(
                f"{self._directory.name}: no new segment at {self._segments.end_offset}: {error}"
            ) from error
        except OSError as error:
            self.fail(error)
            raise StorageFailed(str(self.failure)) from error

    def add_seal(self, segment: Segment, snapshot: Snapshot) -> None:
        """Let the next rounds finish a segment that ends the log so far."""
        self._seals.append(Seal(segment, self._segments.end_offset, snapshot))

    def advance_without_sync(self, now_ms: int) -> None:
        """Show readers the page cache, as Kafka does under a flush policy.

        A power cut may lose at most `flush.messages` records and none older than `flush.ms`: what exceeds that waits
        for its sync.
        """
        offset_end = self._segments.end_offset
        if self._unsynced_since_ms is None and offset_end > self.synced_offset:
            self._unsynced_since_ms = now_ms
        if offset_end > self.stored_offset and not self.is_flush_due():
            active = self._segments.active
            self._advance(active, active.size_bytes, self._max_timestamp(), offset_end)

    def _advance(self, active: Segment, size_bytes: int, max_timestamp: tuple[int, int], offset_end: int) -> None:
        self.stored_offset = offset_end
        if not self.waits_for_replicas:
            self._visible.advance(active, size_bytes, max_timestamp, offset_end)

    def is_flush_due(self) -> bool:
        """Return whether the flush policy requires a sync now."""
        if self._segments.end_offset - self.synced_offset >= self.config.flush_messages:
            return True
        if self._unsynced_since_ms is None or self.config.flush_ms == INT64_MAX:
            return False
        return self._clock.now_ms() - self._unsynced_since_ms >= self.config.flush_ms

    def sync_all(self, snapshot: Snapshot) -> None:
        """Sync everything, and write the indexes and the producers' snapshot. Raises OSError."""
        point = self.begin_sync()
        if point is not None:
            point.run()
            self.end_sync(point)
            if point.problem is not None and (self._seals or not point.is_durable):
                raise point.problem
        active = self._segments.active
        active.index_max_timestamp()
        active.write_indexes()
        write_snapshot(self._disk, self._directory, self._segments.end_offset, snapshot)
        self._disk.sync_directory(self._directory)

    def _max_timestamp(self) -> tuple[int, int]:
        """Return the latest timestamp among records visible since the start and unsynced ones, the first of equals."""
        latest = self._visible.max_timestamp
        unsynced = [self._segments.active]
        if self._seals:
            unsynced = [*(seal.segment for seal in self._seals), *unsynced]
        for segment in unsynced:
            if segment.max_timestamp_ms > latest[0]:
                latest = segment.max_timestamp_ms, segment.max_timestamp_offset
        return latest

    def _warn(self, point: SyncPoint) -> None:
        """Log a problem once until a round succeeds: there are many rounds while a disk is full."""
        if point.problem is not None and not self._is_warned:
            logger.warning("%s: writing a file beside the log is postponed: %s", self._directory.name, point.problem)
        self._is_warned = point.problem is not None


def _sync_file(segment: Segment) -> None:
    file = segment.file
    file.sync_data()
    if file.is_removed():
        raise FileNotFoundError(errno.ENOENT, "deleted while the broker ran", str(segment.path))


def write_snapshot(disk: Disk, directory: Path, offset_end: int, snapshot: Snapshot) -> None:
    """Write a snapshot. Blocks; its name is durable after `sync_directory`."""
    write_file(disk, directory / file_name(offset_end, SNAPSHOT_SUFFIX), snapshot.encode())
