"""Background work on the logs: retention, and the removal of unneeded files.

One task on the loop checks the clock four times a second and goes through the logs when they are due. It decides and
changes the logs; reading and writing of files runs in the node's housekeeping thread, in slices, so that a new topic
need not wait long there. Compaction, which may take hours, has its own task and thread
(`onceflow.broker.storage.log_cleaner`). No segment changes while it may be read: segments leave a log's list or are
replaced in it in one step, and their files stay for `file.delete.delay.ms`.

The order protects records from a crash: a new log start is durable in `log-start-offset-checkpoint` before a response
shows it and before a file is removed. The next start of the broker removes segments wholly below it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from onceflow.broker.config import BrokerConfig
from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.log_cleaner import LogCleaner
from onceflow.broker.storage.partitions import Partition, Partitions
from onceflow.log import retention, swap
from onceflow.log.clock import Clock
from onceflow.log.directory import DataDirectory
from onceflow.log.errors import LogError
from onceflow.log.reserve import ReservedDisk
from onceflow.log.segment import Segment
from onceflow.log.segments import Segments

logger = logging.getLogger(__name__)

TICK_S = 0.25
LOGS_PER_SLICE = 64
RETRY_MS = 5_000
"""Delay before another attempt to rename or remove a file."""

Result = TypeVar("Result")
Decisions = Sequence[tuple[Partition, retention.Decision]]


@dataclass(slots=True)
class HousekeepingTotals:
    """Totals since the start of the broker."""

    retention_checks: int = 0
    deleted_segments: int = 0
    failures: int = 0


class Housekeeping:
    """Retention and file removal for the logs of one node. All methods run on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        partitions: Partitions,
        directory: DataDirectory,
        *,
        disk: ReservedDisk,
        clock: Clock,
        group_commit: GroupCommit,
        thread: Executor,
    ) -> None:
        """Load the retention policy. Raises RetentionPolicyUnusable."""
        self.totals = HousekeepingTotals()
        self._config = config
        self._policy = retention.load_policy(config.retention_policy)
        self._partitions = partitions
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._group_commit = group_commit
        self._thread = thread
        self._task: asyncio.Task[None] | None = None
        self._next_retention = self._after(min(config.retention_check_first_ms, config.retention_check_interval_ms))
        self._next_high_watermarks = self._after(config.high_watermark_interval_ms)
        self._leftovers: set[Partition] = set()
        """Logs with an unsynced segment below their start."""
        self._unretired: list[tuple[float, Partition, Segments, Sequence[Segment]]] = []
        """(time, log, its segments, those that left them), to rename the files of the last."""
        self._retired: list[tuple[float, Sequence[Path]]] = []
        """(time, files) to remove."""
        self.cleaner = LogCleaner(
            config,
            partitions,
            directory,
            disk=disk,
            clock=clock,
            housekeeping_thread=thread,
            remove_later=self._remove_later,
        )

    def start(self) -> None:
        self._leftovers |= {partition for partition in self._partitions if partition.log.segments.has_below_start()}
        self._task = asyncio.get_running_loop().create_task(self._run(), name="housekeeping")
        if self._config.cleaner_enabled:
            self.cleaner.start()

    async def close(self) -> None:
        """Stop after the current disk operation."""
        await self.cleaner.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.tick()
            except Exception:
                self.totals.failures += 1
                logger.exception("housekeeping failed; retrying in %s s", TICK_S)

    async def tick(self) -> None:
        """Do the work that is due."""
        now = self._clock.monotonic()
        if now >= self._next_retention:
            self._next_retention = self._after(self._config.retention_check_interval_ms)
            await self._retain()
        for partition in list(self._leftovers):
            self._leftovers.discard(partition)
            await self._delete_segments_below_start(partition)
        await self._retire_due()
        await self._remove_retired()
        if self._config.zookeeper_connect is not None and now >= self._next_high_watermarks:
            self._next_high_watermarks = self._after(self._config.high_watermark_interval_ms)
            await self.store_high_watermarks()
        if self._disk.is_full:
            await self._in_thread(self._disk.refill)

    async def store_high_watermarks(self) -> None:
        """Write `replication-offset-checkpoint` (ReplicaManager.checkpointHighWatermarks)."""
        offsets = {
            (partition.topic, partition.index): partition.log.high_watermark
            for partition in self._partitions
            if partition.replica is not None and not partition.log.is_truncating
        }
        await self._in_thread(lambda: self._directory.high_watermarks.replace(offsets))

    def _after(self, duration_ms: int) -> float:
        return self._clock.monotonic() + duration_ms / 1000

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _is_served(self, partition: Partition) -> bool:
        """Return whether the partition is still open: its topic may be deleted, and recreated, at any moment."""
        return self._partitions.hosted(partition.topic, partition.index) is partition

    # Retention and deleted records

    async def _retain(self) -> None:
        partitions = list(self._partitions)
        for begin in range(0, len(partitions), LOGS_PER_SLICE):
            some = partitions[begin : begin + LOGS_PER_SLICE]
            now_ms = self._clock.now_ms()
            decisions = await self._in_thread(lambda some=some, now_ms=now_ms: self._decide(some, now_ms))  # type: ignore[misc]
            await self._carry_out(decisions)
        self.totals.retention_checks += 1

    def _decide(self, partitions: Sequence[Partition], now_ms: int) -> Decisions:
        decisions = ((partition, self._decide_one(partition, now_ms)) for partition in partitions)
        return [(partition, decision) for partition, decision in decisions if decision is not None]

    def _decide_one(self, partition: Partition, now_ms: int) -> retention.Decision | None:
        try:
            return retention.decide(partition.log, self._policy, now_ms)
        except Exception:
            # The policy may be a plugin's code; the other logs are checked all the same.
            logger.exception("%s: the retention policy failed, nothing is deleted", partition)
            return None

    async def _carry_out(self, decisions: Decisions) -> None:
        changed = {
            partition: decision.log_start_offset for partition, decision in decisions if self._is_served(partition)
        }
        try:
            await self._advance(changed)
        except OSError as error:
            self.totals.failures += 1
            logger.error("retention of %d logs failed: %s; retrying at the next check", len(changed), error)
            return
        for partition, decision in decisions:
            if not self._is_served(partition):
                continue
            if decision.needs_roll and decision.log_start_offset == partition.log.log_end_offset:
                self._roll(partition)
                # A roll creates files on the loop: clients have their turn between two of them.
                await asyncio.sleep(0)
            await self._delete_segments_below_start(partition)

    async def _advance(self, log_starts: Mapping[Partition, int]) -> None:
        """Make new log starts durable, then move the logs to them. Raises OSError.

        One that is being truncated keeps its start: it may end before the new one.
        """
        later = {
            partition: offset
            for partition, offset in log_starts.items()
            if offset > partition.log.log_start_offset and not partition.log.is_truncating
        }
        if not later:
            return
        await self._in_thread(lambda: self._write_log_starts(later))
        for partition, offset in later.items():
            log = partition.log
            log.segments.start_offset = max(min(offset, log.log_end_offset), log.log_start_offset)

    def _write_log_starts(self, log_starts: Mapping[Partition, int]) -> None:
        self._directory.log_start_offsets.advance(
            {
                (partition.topic, partition.index): offset
                for partition, offset in log_starts.items()
                if self._disk.exists(partition.log.directory)
            }
        )

    def _roll(self, partition: Partition) -> None:
        """Seal the active segment, so that it can be deleted with all others of the log."""
        try:
            partition.log.roll()
        except LogError as error:
            logger.error("%s: the last segment cannot be deleted: %s", partition, error)
        else:
            self._group_commit.flush(partition, self)

    async def _delete_segments_below_start(self, partition: Partition) -> None:
        """Delete segments wholly below the log's start, with their files."""
        if not self._is_served(partition):
            return
        log = partition.log
        if partition is self.cleaner.compacting or log.is_truncating:
            # A truncation that starts the log over creates files with the names of those to retire.
            self._leftovers.add(partition)
            return
        deleted = log.drop_segments_below_start()
        if log.segments.has_below_start() and log.durability.failure is None:
            self._leftovers.add(partition)
        if deleted:
            self.totals.deleted_segments += len(deleted)
            logger.info("%s: deleted %d segments below offset %d", partition, len(deleted), log.log_start_offset)
            await self._retire(partition, deleted)

    async def _retire(self, partition: Partition, segments: Sequence[Segment]) -> None:
        directory = partition.log.directory
        try:
            paths = await self._in_thread(lambda: swap.retire(self._disk, directory, segments))
        except OSError as error:
            logger.error(
                "%s: cannot rename files of deleted segments: %s; retrying in %s ms", partition, error, RETRY_MS
            )
            self._unretired.append((self._after(RETRY_MS), partition, partition.log.segments, segments))
        else:
            self._remove_later(partition, paths)

    async def _retire_due(self) -> None:
        now = self._clock.monotonic()
        due = [entry for entry in self._unretired if entry[0] <= now]
        self._unretired = [entry for entry in self._unretired if entry[0] > now]
        for when, partition, owner, segments in due:
            if not self._is_served(partition) or partition.log.segments is not owner:
                # A truncation has removed them or taken them back, and the names may be those of new files.
                continue
            if partition.log.is_truncating:
                self._unretired.append((when, partition, owner, segments))
            else:
                await self._retire(partition, segments)

    def _remove_later(self, partition: Partition, paths: Sequence[Path]) -> None:
        self._retired.append((self._after(partition.log.config.file_delete_delay_ms), paths))

    async def _remove_retired(self) -> None:
        now = self._clock.monotonic()
        due = [paths for when, paths in self._retired if when <= now]
        self._retired = [entry for entry in self._retired if entry[0] > now]
        for paths in due:
            try:
                await self._in_thread(lambda paths=paths: swap.remove_retired(self._disk, paths))  # type: ignore[misc]
            except OSError as error:
                logger.error("cannot remove %s and others: %s; retrying in %s ms", paths[0], error, RETRY_MS)
                self._retired.append((self._after(RETRY_MS), paths))

    async def delete_records(self, log_starts: Mapping[Partition, int]) -> None:
        """Move log starts to these offsets, at most high watermarks; durable when it returns. Raises OSError."""
        await self._advance(log_starts)
