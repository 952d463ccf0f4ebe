"""Compaction of every log that is due, one after the other (Kafka's LogCleaner, with one thread).

Reading a log and copying its live records may take hours, so a separate thread does it, in slices: its Python work
shares one interpreter lock with the loop. It writes only files that end in `.cleaned`. The renames that follow run in
the housekeeping thread, where topics are created and deleted: meanwhile a partition's directory cannot become another
topic's. A compacted segment is in its place on the disk before the log has it (`onceflow.log.swap`).
"""

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from onceflow.broker.config import BrokerConfig
from onceflow.broker.loop.work_thread import WorkThread
from onceflow.broker.storage.partitions import Partition, Partitions
from onceflow.errors import OnceflowError
from onceflow.log import compaction, swap
from onceflow.log.clock import Clock
from onceflow.log.compaction import Cleaned, Compactable, Compaction, Dirt
from onceflow.log.directory import DataDirectory
from onceflow.log.reserve import ReservedDisk

logger = logging.getLogger(__name__)

TICK_S = 0.25
SLICE_S = 0.01
PAUSE_S = 0.005
"""Pause between two slices."""
PASSES_MAX = 1000
"""Maximum number of passes in one run; a log that is larger than its map needs several."""

Result = TypeVar("Result")


class LogCleaner:
    """Compacts the logs of one node. All methods run on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        partitions: Partitions,
        directory: DataDirectory,
        *,
        disk: ReservedDisk,
        clock: Clock,
        housekeeping_thread: Executor,
        remove_later: Callable[[Partition, Sequence[Path]], None],
    ) -> None:
        self.compacting: Partition | None = None
        """Partition in compaction; no other part of the broker may remove its segments."""
        self.compactions = 0
        """Number of finished passes."""
        self.failures = 0
        self._config = config
        self._keys_max = max(1, config.cleaner_dedupe_bytes // compaction.BYTES_PER_KEY)
        self._partitions = partitions
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._housekeeping_thread = housekeeping_thread
        self._thread = WorkThread("log-cleaner")
        self._remove_later = remove_later
        self._uncompactable: set[Partition] = set()
        self._put_off: set[Partition] = set()
        """Logs to compact in the next run, for instance after a full disk."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="log-cleaner")

    async def close(self) -> None:
        """Stop after the current slice; the next start discards or finishes its files."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown()

    async def _run(self) -> None:
        next_time = self._clock.monotonic()
        while True:
            next_time += self._config.cleaner_interval_ms / 1000
            while self._clock.monotonic() < next_time:
                await asyncio.sleep(TICK_S)
            try:
                await self._compact()
            except Exception:
                logger.exception("compaction failed; retrying in %s ms", self._config.cleaner_interval_ms)
            next_time = self._clock.monotonic()

    def _is_served(self, partition: Partition) -> bool:
        """Return whether the partition is still open: its topic may be deleted, and recreated, at any moment."""
        return self._partitions.hosted(partition.topic, partition.index) is partition

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _in_turn(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the housekeeping thread, between creations and deletions of topics."""
        return await asyncio.get_running_loop().run_in_executor(self._housekeeping_thread, work)

    async def _compact(self) -> None:
        """Compact every log that is due, the dirtiest first."""
        self._uncompactable = {partition for partition in self._uncompactable if self._is_served(partition)}
        self._put_off.clear()
        for _ in range(PASSES_MAX):
            dirtiest = await self._dirtiest()
            if dirtiest is None:
                return
            await self._compact_one(*dirtiest)

    async def _dirtiest(self) -> tuple[Partition, Dirt] | None:
        candidates = [
            (partition, self._compactable(partition))
            for partition in self._partitions
            if partition.log.config.cleanup_compact and partition not in self._uncompactable | self._put_off
        ]
        now_ms = self._clock.now_ms()

        def measure_all() -> list[tuple[Partition, Dirt]]:
            return [(partition, compaction.measure(log, now_ms)) for partition, log in candidates]

        due = [measured for measured in await self._in_thread(measure_all) if measured[1].is_due]
        return max(due, key=lambda measured: measured[1].dirty_ratio, default=None)

    def _compactable(self, partition: Partition) -> Compactable:
        log = partition.log
        segments = log.segments.finished()
        segments_end = log.segments.end_of(len(segments) - 1)
        offset_begin = self._clean_end(partition)
        if not log.log_start_offset <= offset_begin <= segments_end:
            offset_begin = log.log_start_offset
        return Compactable(
            log.name, log.directory, log.config, segments, segments_end, offset_begin, log.visible.last_stable_offset
        )

    async def _compact_one(self, partition: Partition, dirt: Dirt) -> None:
        log = partition.log
        if log.is_truncating or dirt.log.segments[-1] not in log.segments.in_order:
            # A follower removes, or has removed, what was measured; `compacting` keeps it from doing so from now on.
            self._put_off.add(partition)
            return
        self.compacting = partition
        try:
            if await self._pass(partition, dirt):
                self.compactions += 1
                logger.info("%s: compacted up to offset %d", partition, self._clean_end(partition))
        except (OSError, OnceflowError) as error:
            self.failures += 1
            await self._give_up(partition, error)
        finally:
            self.compacting = None

    async def _pass(self, partition: Partition, dirt: Dirt) -> bool:
        """Compact once; return False if the topic was deleted meanwhile."""
        indexes = [segment.transaction_index for segment in partition.log.segments]
        now_ms, snapshot = self._clock.now_ms(), partition.log.producers.snapshot()
        aborted, last_batches = await self._in_thread(
            lambda: ([entry for index in indexes for entry in index.since(0)], snapshot.last_batches())
        )
        compacting = Compaction(
            dirt,
            disk=self._disk.unreserved,
            now_ms=now_ms,
            keys_max=self._keys_max,
            aborted=aborted,
            last_batches=last_batches,
        )
        steps, is_over = compacting.run(), False
        while not is_over:
            if not self._is_served(partition):
                return False
            if self._disk.is_full:
                raise OSError(errno.ENOSPC, "the disk is full")
            is_over, cleaned = await self._in_thread(lambda: _slice(steps))
            if cleaned is not None and not await self._replace(partition, cleaned):
                return False
            await asyncio.sleep(PAUSE_S)
        if not self._is_served(partition):
            return False
        key = (partition.topic, partition.index)
        await self._in_turn(lambda: self._directory.cleaner_offsets.advance({key: compacting.offset_end}))
        return True

    async def _replace(self, partition: Partition, cleaned: Cleaned) -> bool:
        """Replace segments by compacted ones; return False if the topic was deleted meanwhile."""
        if not self._is_served(partition):
            return False
        log = partition.log
        # After a failure in the middle the next start finishes it.
        self._uncompactable.add(partition)
        new, retired = await self._in_turn(
            lambda: swap.replace(self._disk, log.directory, cleaned.old, cleaned.offset_end)
        )
        self._uncompactable.discard(partition)
        if not self._is_served(partition):
            return False
        log.replace_segments(cleaned.old, new)
        self._remove_later(partition, retired)
        return True

    def _clean_end(self, partition: Partition) -> int:
        return self._directory.cleaner_offsets.get(partition.topic, partition.index)

    async def _give_up(self, partition: Partition, error: Exception) -> None:
        """Stop compacting a log that failed: a damaged one until the next start (Kafka's "uncleanable").

        The log stays in service and only grows.
        """
        if not self._is_served(partition):
            return
        if isinstance(error, OSError) and partition not in self._uncompactable:
            logger.error("%s could not be compacted: %s; retrying in the next run", partition, error)
            self._put_off.add(partition)
        else:
            logger.error("%s could not be compacted: %s; not retried before the next start", partition, error)
            self._uncompactable.add(partition)
        try:
            await self._in_turn(lambda: swap.remove_cleaned(self._disk, partition.log.directory))
        except OSError as unremoved:
            logger.error("%s: unfinished files remain until the next start: %s", partition, unremoved)


def _slice(steps: Iterator[Cleaned | None]) -> tuple[bool, Cleaned | None]:
    """Run some steps of a compaction; return whether it is over, and what it has finished."""
    began = time.monotonic()
    for cleaned in steps:
        if cleaned is not None or time.monotonic() - began > SLICE_S:
            return False, cleaned
        # Releases the interpreter to the loop now rather than after the switch interval.
        time.sleep(0)
    return True, None
