"""Compaction of every log that is due, one after the other (Kafka's LogCleaner, with one thread).

Reading a log and copying what stays of it may take hours, so that a thread of its own does it, in slices: its Python
work shares one interpreter lock with the loop. All that it writes are files that end in `.cleaned`. What follows, a few
renames, comes in turn with the making and deleting of topics in the housekeeping thread: between two of these a
partition's directory cannot become another topic's. A compacted segment is in its place on the disk before the log has
it (`onceflow.log.swap`).
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
"""Between two slices."""
PASSES_MAX = 1000
"""In one go; a log that is larger than its map needs several."""

Result = TypeVar("Result")


class LogCleaner:
    """Compacts the logs of one node. All methods are the loop's."""

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
        """Whose segments must stay where they are until its compaction has replaced them."""
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
        """Logs whose compaction found no room, for instance: they are tried again the next time."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="log-cleaner")

    async def close(self) -> None:
        """Stop after the slice that is under way; what it began on the disk, the next start forgets or finishes."""
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
                logger.exception("compaction failed; it goes on in %s ms", self._config.cleaner_interval_ms)
            next_time = self._clock.monotonic()

    def _is_served(self, partition: Partition) -> bool:
        """Whether it is still this one: a topic may be deleted, and made again, at any moment."""
        return self._partitions.get(partition.topic, partition.index) is partition

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _in_turn(self, work: Callable[[], Result]) -> Result:
        """Between the making and the deleting of topics."""
        return await asyncio.get_running_loop().run_in_executor(self._housekeeping_thread, work)

    async def _compact(self) -> None:
        """Compacts every log that is due, the dirtiest first."""
        self._uncompactable = {each for each in self._uncompactable if self._is_served(each)}
        self._put_off.clear()
        for _ in range(PASSES_MAX):
            found = await self._dirtiest()
            if found is None:
                return
            await self._compact_one(*found)

    async def _dirtiest(self) -> tuple[Partition, Dirt] | None:
        candidates = [
            (partition, self._compactable(partition))
            for partition in self._partitions
            if partition.log.config.cleanup_compact and partition not in self._uncompactable | self._put_off
        ]
        now_ms = self._clock.now_ms()

        def measure_all() -> list[tuple[Partition, Dirt]]:
            return [(partition, compaction.measure(log, now_ms)) for partition, log in candidates]

        due = [found for found in await self._in_thread(measure_all) if found[1].is_due]
        return max(due, key=lambda found: found[1].dirty_ratio, default=None)

    def _compactable(self, partition: Partition) -> Compactable:
        log = partition.log
        segments = log.segments.finished()
        segments_end = log.segments.end_of(len(segments) - 1, log.log_end_offset)
        offset_begin = self._clean_end(partition)
        if not log.log_start_offset <= offset_begin <= segments_end:
            offset_begin = log.log_start_offset
        return Compactable(
            log.name, log.directory, log.config, segments, segments_end, offset_begin, log.last_stable_offset
        )

    async def _compact_one(self, partition: Partition, dirt: Dirt) -> None:
        self.compacting = partition
        try:
            if await self._pass(partition, dirt):
                logger.info("%s: compacted up to offset %d", partition, self._clean_end(partition))
        except (OSError, OnceflowError) as error:
            await self._give_up(partition, error)
        finally:
            self.compacting = None

    async def _pass(self, partition: Partition, dirt: Dirt) -> bool:
        """False where the topic was deleted meanwhile."""
        indexes = [segment.transaction_index for segment in partition.log.segments]
        now_ms, snapshot = self._clock.now_ms(), partition.log.producer_snapshot()
        aborted, last_batches = await self._in_thread(
            lambda: ([each for index in indexes for each in index.since(0)], snapshot.last_batches())
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
        """False where the topic was deleted meanwhile."""
        if not self._is_served(partition):
            return False
        log = partition.log
        # Where it fails in the middle, the next start finishes it.
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
        """The log serves on and only grows, where it is damaged until the next start (Kafka's "uncleanable")."""
        if not self._is_served(partition):
            return
        if isinstance(error, OSError) and partition not in self._uncompactable:
            logger.error("%s is compacted later: %s", partition, error)
            self._put_off.add(partition)
        else:
            logger.error("%s is not compacted any more until the next start: %s", partition, error)
            self._uncompactable.add(partition)
        try:
            await self._in_turn(lambda: swap.remove_cleaned(self._disk, partition.log.directory))
        except OSError as unremoved:
            logger.error("%s: unfinished files stay until the next start: %s", partition, unremoved)


def _slice(steps: Iterator[Cleaned | None]) -> tuple[bool, Cleaned | None]:
    """Some steps of a compaction: (whether it is over, what it has finished)."""
    began = time.monotonic()
    for cleaned in steps:
        if cleaned is not None or time.monotonic() - began > SLICE_S:
            return False, cleaned
        # Lets the loop have the interpreter now rather than after the switch interval.
        time.sleep(0)
    return True, None
