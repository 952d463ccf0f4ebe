"""What happens to the logs by themselves: retention, compaction, and the removal of files that nobody needs any more.

One task on the loop looks at the clock four times a second and goes through the logs when their time has come. It
decides and changes the logs; whatever reads or writes files runs in the node's housekeeping thread, in slices between
which a new topic gets its turn there. Nothing here changes a segment that somebody may be reading: segments leave a
log's list or are replaced in it in one step, and their files stay for `file.delete.delay.ms`.

The order that keeps a crash from taking what it should not: a new log start is durable in
`log-start-offset-checkpoint` before anybody is told of it and before a file goes (the next start of the broker removes
what lies wholly below it); a compacted segment is in its place on the disk before the list has it
(`onceflow.log.swap`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from onceflow.broker.config import BrokerConfig
from onceflow.broker.group_commit import GroupCommit
from onceflow.broker.partitions import Partition, Partitions
from onceflow.errors import OnceflowError
from onceflow.log import compaction, retention, swap
from onceflow.log.clock import Clock
from onceflow.log.compaction import Compactable, Compaction, Dirt, Replacement
from onceflow.log.directory import DataDirectory
from onceflow.log.disk import Disk
from onceflow.log.errors import LogError
from onceflow.log.segment import Segment

logger = logging.getLogger(__name__)

TICK_S = 0.25
FIRST_CHECK_MS = 30_000
"""Kafka's initial delay: a broker that just started has other things to do."""
LOGS_PER_SLICE = 64
SLICE_S = 0.01
PAUSE_S = 0.005
"""Between two slices of a compaction, whose Python work shares one interpreter lock with the loop."""
PASSES_MAX = 1000
"""In one go; a log that is larger than its map needs several."""

Result = TypeVar("Result")
Decisions = Sequence[tuple[Partition, retention.Decision]]


class Housekeeping:
    """Looks after the logs of one node. All methods are the loop's."""

    def __init__(
        self,
        config: BrokerConfig,
        partitions: Partitions,
        directory: DataDirectory,
        *,
        disk: Disk,
        clock: Clock,
        group_commit: GroupCommit,
        thread: Executor,
    ) -> None:
        """Raises RetentionPolicyUnusable."""
        self._config = config
        self._policy = retention.load_policy(config.retention_policy)
        self._keys_max = max(1, config.cleaner_dedupe_bytes // compaction.BYTES_PER_KEY)
        self._partitions = partitions
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._group_commit = group_commit
        self._thread = thread
        self._task: asyncio.Task[None] | None = None
        self._next_retention = self._after(min(FIRST_CHECK_MS, config.retention_check_interval_ms))
        self._next_compaction = self._after(config.cleaner_interval_ms)
        self._leftovers: set[Partition] = set()
        """Logs whose start has passed a segment that is not synced yet."""
        self._retired: list[tuple[float, Sequence[Path]]] = []
        """(when, files): to be removed."""
        self._uncompactable: set[Partition] = set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="housekeeping")

    async def close(self) -> None:
        """Stop after the slice that is under way; what it began on the disk, the next start finishes."""
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
                logger.exception("housekeeping failed; it goes on in %s s", TICK_S)

    async def tick(self) -> None:
        """Do what the clock says is due."""
        now = self._clock.monotonic()
        if now >= self._next_retention:
            self._next_retention = self._after(self._config.retention_check_interval_ms)
            await self._retain()
        if self._config.cleaner_enabled and now >= self._next_compaction:
            self._next_compaction = self._after(self._config.cleaner_interval_ms)
            await self._compact()
        for partition in list(self._leftovers):
            self._leftovers.discard(partition)
            await self._leave_needless(partition)
        await self._remove_retired()

    def _after(self, duration_ms: int) -> float:
        return self._clock.monotonic() + duration_ms / 1000

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _is_served(self, partition: Partition) -> bool:
        """Whether it is still this one: a topic may be deleted, and made again, at any moment."""
        return self._partitions.get(partition.topic, partition.index) is partition

    # Retention and deleted records

    async def _retain(self) -> None:
        partitions = list(self._partitions)
        for begin in range(0, len(partitions), LOGS_PER_SLICE):
            some = partitions[begin : begin + LOGS_PER_SLICE]
            now_ms = self._clock.now_ms()
            decisions = await self._in_thread(lambda some=some, now_ms=now_ms: self._decide(some, now_ms))  # type: ignore[misc]
            await self._carry_out(decisions)

    def _decide(self, partitions: Sequence[Partition], now_ms: int) -> Decisions:
        return [(each, decision) for each in partitions if (decision := self._decide_one(each, now_ms)) is not None]

    def _decide_one(self, partition: Partition, now_ms: int) -> retention.Decision | None:
        try:
            return retention.decide(partition.log, self._policy, now_ms)
        except Exception:
            # The policy may be anybody's code; the other logs are looked at all the same.
            logger.exception("%s: the retention policy failed, nothing is deleted", partition)
            return None

    async def _carry_out(self, decisions: Decisions) -> None:
        changed = {each: decision.log_start_offset for each, decision in decisions if self._is_served(each)}
        await self._advance(changed)
        for partition, decision in decisions:
            if decision.needs_roll and decision.log_start_offset == partition.log.log_end_offset:
                self._roll(partition)
            await self._leave_needless(partition)

    async def _advance(self, log_starts: Mapping[Partition, int]) -> None:
        """Make new log starts durable, then let the logs begin there. Raises OSError."""
        later = {each: offset for each, offset in log_starts.items() if offset > each.log.log_start_offset}
        if not later:
            return
        await self._in_thread(lambda: self._write_log_starts(later))
        for partition, offset in later.items():
            partition.log.log_start_offset = max(offset, partition.log.log_start_offset)

    def _write_log_starts(self, log_starts: Mapping[Partition, int]) -> None:
        self._directory.log_start_offsets.advance(
            {
                (each.topic, each.index): offset
                for each, offset in log_starts.items()
                if self._disk.exists(each.log.directory)
            }
        )

    def _roll(self, partition: Partition) -> None:
        """All of the log is to go: the active segment too, which can only once it is sealed."""
        try:
            partition.log.roll()
        except LogError as error:
            logger.error("%s: its last segment stays: %s", partition, error)
        else:
            self._group_commit.flush(partition)

    async def _leave_needless(self, partition: Partition) -> None:
        """Let segments wholly below the log's start go, with their files."""
        if not self._is_served(partition):
            return
        log = partition.log
        gone = log.leave_needless()
        if log.segments.has_below(log.log_start_offset) and log.failure is None:
            self._leftovers.add(partition)
        if gone:
            logger.info("%s: %d segments below offset %d are deleted", partition, len(gone), log.log_start_offset)
            await self._retire(partition, gone)

    async def _retire(self, partition: Partition, segments: Sequence[Segment]) -> None:
        directory = partition.log.directory
        try:
            paths = await self._in_thread(lambda: swap.retire(self._disk, directory, segments))
        except OSError as error:
            logger.error("%s: files of deleted segments stay until the next start: %s", partition, error)
        else:
            self._remove_later(partition, paths)

    def _remove_later(self, partition: Partition, paths: Sequence[Path]) -> None:
        self._retired.append((self._after(partition.log.config.file_delete_delay_ms), paths))

    async def _remove_retired(self) -> None:
        now = self._clock.monotonic()
        due = [paths for when, paths in self._retired if when <= now]
        self._retired = [each for each in self._retired if each[0] > now]
        for paths in due:
            try:
                await self._in_thread(lambda paths=paths: swap.remove_retired(self._disk, paths))  # type: ignore[misc]
            except OSError as error:
                logger.error("%s and others stay until the next start: %s", paths[0], error)

    async def delete_records(self, log_starts: Mapping[Partition, int]) -> None:
        """Let logs begin at these offsets, at most their high watermarks; durable when it returns. Raises OSError."""
        await self._advance(log_starts)

    # Compaction

    async def _compact(self) -> None:
        """Compacts every log that is due, the dirtiest first."""
        self._uncompactable = {each for each in self._uncompactable if self._is_served(each)}
        for _ in range(PASSES_MAX):
            found = await self._dirtiest()
            if found is None:
                return
            await self._compact_one(*found)

    async def _dirtiest(self) -> tuple[Partition, Dirt] | None:
        candidates = [
            (partition, self._compactable(partition))
            for partition in self._partitions
            if partition.log.config.cleanup_compact and partition not in self._uncompactable
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
        offset_begin = self._directory.cleaner_offsets.get(partition.topic, partition.index)
        if not log.log_start_offset <= offset_begin <= segments_end:
            offset_begin = log.log_start_offset
        return Compactable(
            log.name, log.directory, log.config, segments, segments_end, offset_begin, log.last_stable_offset
        )

    async def _compact_one(self, partition: Partition, dirt: Dirt) -> None:
        log = partition.log
        indexes = [segment.transaction_index for segment in log.segments]
        now_ms, last_batches = self._clock.now_ms(), log.last_batches()
        try:
            aborted = await self._in_thread(lambda: [each for index in indexes for each in index.since(0)])
            compacting = Compaction(
                dirt,
                disk=self._disk,
                now_ms=now_ms,
                keys_max=self._keys_max,
                aborted=aborted,
                last_batches=last_batches,
            )
            if await self._run_slices(partition, compacting.run()):
                key = (partition.topic, partition.index)
                await self._in_thread(lambda: self._directory.cleaner_offsets.advance({key: compacting.offset_end}))
                logger.info("%s: compacted up to offset %d", partition, compacting.offset_end)
        except (OSError, OnceflowError) as error:
            await self._give_up(partition, error)

    async def _run_slices(self, partition: Partition, steps: Iterator[Replacement | None]) -> bool:
        """False where the topic was deleted meanwhile."""
        while True:
            is_over, replacement = await self._in_thread(lambda: _slice(steps))
            if not self._is_served(partition):
                return False
            if replacement is not None:
                partition.log.replace_segments(replacement.old, replacement.new)
                self._remove_later(partition, replacement.retired)
            if is_over:
                return True
            await asyncio.sleep(PAUSE_S)

    async def _give_up(self, partition: Partition, error: Exception) -> None:
        """Kafka's "uncleanable" partitions: the log serves on and only grows."""
        if not self._is_served(partition):
            return
        logger.error("%s is not compacted any more until the next start: %s", partition, error)
        self._uncompactable.add(partition)
        try:
            await self._in_thread(lambda: swap.remove_cleaned(self._disk, partition.log.directory))
        except OSError as unremoved:
            logger.error("%s: unfinished files stay until the next start: %s", partition, unremoved)


def _slice(steps: Iterator[Replacement | None]) -> tuple[bool, Replacement | None]:
    """Some steps of a compaction: (whether it is over, a replacement for the log)."""
    began = time.monotonic()
    for replacement in steps:
        if replacement is not None or time.monotonic() - began > SLICE_S:
            return False, replacement
        # Lets the loop have the interpreter now rather than after the switch interval.
        time.sleep(0)
    return True, None
