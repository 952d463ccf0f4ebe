"""Group commit: one round of syncs for the responses that wait, the next round as soon as there is more to sync.

A round takes partitions with at most `ROUND_FILES_MAX` files to sync, one of each requester in turn: a request to
thousands of partitions takes many rounds, and a new client's partition is in the next one. Appends of one turn of the
event loop are synced in one round within that bound. The file syncs run in a helper thread, so that a slow disk stalls
only the responses that wait for it; everything else stays on the loop. A failed sync is final for its partition, since
the kernel may have dropped the pages (`Durability.fail_sync`).
"""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.loop.round_thread import RoundThread
from onceflow.broker.storage.partitions import Partition
from onceflow.log.config import INT64_MAX
from onceflow.log.sync import SyncPoint, run_round
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

RETRY_S = 0.2
RETRY_ROUNDS_MAX = 50
"""A sync that could not begin (no free descriptor for the directory) is retried for about ten seconds."""
ROUND_FILES_MAX = 8
"""Bounds a round to about ten milliseconds of syncs on an SSD. The last partition taken may exceed it.

Longer rounds sync no more: each file has its own sync in them too.
"""
FILES_PER_SEAL = 6
"""A sealed segment's own file, two or three indexes, the producers' snapshot, and the directory."""
SOON_S = 0.01
"""Delay of a sync that no response waits for."""
DIRECTORY_CHECK_S = 0.05
"""Minimum interval between checks of the data directory's path; one costs a tenth of a single record's sync."""
TIMER_MAX_S = 86_400.0
"""Limit of `flush.ms`, a day, since timers of the loop have one."""

Round = Sequence[tuple[Partition, SyncPoint]]


class FairQueue:
    """Partitions that wait for a sync, one of each requester in turn, oldest first.

    A partition is queued once, however many requesters wait for it: the first one whose turn it is takes it. Those of
    the round under way follow all that came meanwhile, so that a new one waits for that round only.
    """

    __slots__ = ("_partitions", "_queues", "_served")

    def __init__(self) -> None:
        self._partitions: set[Partition] = set()
        self._queues: OrderedDict[Hashable, OrderedDict[Partition, None]] = OrderedDict()
        self._served: OrderedDict[Hashable, OrderedDict[Partition, None]] = OrderedDict()
        """Requesters of the latest round that wait for more."""

    def add(self, partition: Partition, requester: Hashable) -> None:
        self._partitions.add(partition)
        queue = self._served.get(requester) or self._queues.get(requester)
        if queue is None:
            queue = self._queues[requester] = OrderedDict()
        queue[partition] = None

    def add_first(self, partition: Partition) -> None:
        """Queue a partition before all others."""
        self._partitions.add(partition)
        self._queues[partition] = OrderedDict(((partition, None),))
        self._queues.move_to_end(partition, last=False)

    def discard(self, partition: Partition) -> None:
        self._partitions.discard(partition)

    def take(self, files_max: int, files_of: Callable[[Partition], int]) -> list[Partition]:
        """Remove and return partitions until they have `files_max` files to sync; the served requesters move to the
        end."""
        taken: list[Partition] = []
        if len(self._partitions) <= 1:
            # The usual round: no requester waits for another.
            taken.extend(self._partitions)
            self._partitions.clear()
            self._queues.clear()
            self._served.clear()
            return taken
        self._queues.update(self._served)
        self._served.clear()
        served: OrderedDict[Hashable, None] = OrderedDict()
        files = 0
        while self._queues and files < files_max:
            requester, queue = self._queues.popitem(last=False)
            partition = self._next_of(queue)
            if queue:
                self._queues[requester] = queue
            if partition is not None:
                served[requester] = None
                served.move_to_end(requester)
                taken.append(partition)
                files += files_of(partition)
        for requester in served:
            if requester in self._queues:
                self._served[requester] = self._queues.pop(requester)
        return taken

    def _next_of(self, queue: OrderedDict[Partition, None]) -> Partition | None:
        while queue:
            partition, _ = queue.popitem(last=False)
            if partition in self._partitions:
                self._partitions.remove(partition)
                return partition
        return None


class FinishedRound(NamedTuple):
    """Result of a round."""

    points: Round
    errors: Sequence[OSError | None]
    """The error of each sync that failed."""
    seconds: float = 0.0
    is_in_place: bool = True
    """Whether the data directory was at its path after the syncs, if this round checked it."""


class SyncTotals:
    """Totals since the start of the broker."""

    __slots__ = ("failures", "partitions", "rounds", "seconds")

    def __init__(self) -> None:
        self.rounds = 0
        self.partitions = 0
        self.failures = 0
        self.seconds = 0.0
        """Time of the rounds in the thread."""

    def add(self, finished: FinishedRound) -> None:
        """Add a round."""
        self.rounds += 1
        self.partitions += len(finished.points)
        self.seconds += finished.seconds


class GroupCommit:
    """Syncs what was appended. All methods run on the event loop."""

    def __init__(self, deferred: DeferredCalls, is_in_place: Callable[[], bool], on_lost: Callable[[], None]) -> None:
        """Take `is_in_place`, whether synced data can be found again; if not, `on_lost` fails every partition."""
        self.totals = SyncTotals()
        self._deferred = deferred
        self._is_in_place = is_in_place
        self._on_lost = on_lost
        self._dirty = FairQueue()
        self._forgotten: set[Partition] = set()
        """Partitions that were deleted during the current round."""
        self._retried_rounds: dict[Partition, int] = {}
        self._timers: dict[Partition, asyncio.TimerHandle] = {}
        """Timers for unsynced data that may wait: of `flush.ms`, or of `request_soon`."""
        self._next_directory_check = -math.inf
        self._thread: RoundThread[FinishedRound] = RoundThread("group-commit", self._end_round)
        self._is_running = False
        self._idle = asyncio.Event()
        self._idle.set()

    def request(self, partition: Partition, requester: Hashable | None = None) -> None:
        """Sync the partition in one of the next rounds, or when its flush policy requires it.

        Rounds take the requesters in turn; without one, the partition counts as its own requester.
        """
        if partition.replica is not None:
            partition.replica.on_appended()
        log = partition.log
        if log.durability.stored_offset < log.segments.end_offset:
            self.flush(partition, requester)
            return
        # The flush policy requires no sync yet, and the records are visible already: wake their waiters.
        if log.config.flush_ms != INT64_MAX:
            self._flush_later(partition, min(log.config.flush_ms / 1000, TIMER_MAX_S))
        if partition.has_waiters:
            self._deferred.add(partition.settle)

    def request_soon(self, partition: Partition) -> None:
        """Sync the partition with what is requested next, or after SOON_S: no response waits for it."""
        if partition.log.durability.has_flush_policy:
            self.request(partition)
            return
        if partition.replica is not None:
            partition.replica.on_appended()
        self._flush_later(partition, SOON_S)

    def flush_put_off(self) -> None:
        """Sync in the next rounds what `request_soon` put off: a record written next must not be durable before."""
        for partition in [dirty for dirty in self._timers if not dirty.log.durability.has_flush_policy]:
            self._timers.pop(partition).cancel()
            self._dirty.add_first(partition)
            self._begin_soon()

    def _flush_later(self, partition: Partition, delay_s: float) -> None:
        """Sync the partition after this time at the latest; `flush.ms` may have been longer before."""
        loop, timer = asyncio.get_running_loop(), self._timers.get(partition)
        if timer is None or timer.when() > loop.time() + delay_s:
            if timer is not None:
                timer.cancel()
            self._timers[partition] = loop.call_later(delay_s, self._flush_timed, partition)

    def _flush_timed(self, partition: Partition) -> None:
        """Sync the partition; those with a flush policy are one requester, since many timers may end at once."""
        self._timers.pop(partition, None)
        self.flush(partition, self if partition.log.durability.has_flush_policy else partition)

    def flush(self, partition: Partition, requester: Hashable | None = None) -> None:
        """Sync the partition in one of the next rounds, regardless of its flush policy."""
        self._dirty.add(partition, partition if requester is None else requester)
        self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._idle.clear()
            asyncio.get_running_loop().call_soon(self._begin_round)

    def forget(self, partition: Partition) -> None:
        """Cancel the syncs of a deleted partition, and ignore the result of a running one."""
        self._dirty.discard(partition)
        if self._is_running:
            self._forgotten.add(partition)
        self._retried_rounds.pop(partition, None)
        timer = self._timers.pop(partition, None)
        if timer is not None:
            timer.cancel()

    def _begin_round(self) -> None:
        points: Round = []
        while not points:
            dirty = self._dirty.take(ROUND_FILES_MAX, _files_to_sync)
            if not dirty:
                self._is_running = False
                self._idle.set()
                return
            points = [(partition, point) for partition in dirty if (point := self._begin_one(partition)) is not None]
        self._forgotten.clear()
        try:
            self._thread.begin(partial(_run, points, self._is_in_place if self._is_directory_check_due() else None))
        except OSError as error:
            # No descriptor is free for its pipe: retried, like a directory that cannot be opened for its sync.
            for _partition, point in points:
                point.postpone(error)
            asyncio.get_running_loop().call_soon(self._end_round, FinishedRound(points, [None] * len(points)))

    def _is_directory_check_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_directory_check:
            return False
        self._next_directory_check = now + DIRECTORY_CHECK_S
        return True

    def _begin_one(self, partition: Partition) -> SyncPoint | None:
        try:
            point = partition.log.durability.begin_sync()
        except Exception as error:
            logger.exception("failed to begin the sync of %s", partition)
            self._fail(partition, OSError(str(error)))
            return None
        if partition.log.durability.failure is not None:
            # A failed write that could not be undone finished the partition after others had been appended.
            partition.fail(ErrorCode.kafka_storage_error)
        return point

    def _end_round(self, finished: FinishedRound) -> None:
        self._deferred.begin_turn()
        self.totals.add(finished)
        try:
            if not finished.is_in_place:
                self._on_lost()
                return
            for (partition, point), error in zip(finished.points, finished.errors, strict=True):
                if partition not in self._forgotten:
                    self._end_one(partition, point, error)
        finally:
            # Appends that came during the round have been waiting: continue in this turn.
            self._begin_round()
            self._deferred.end_turn()

    def _end_one(self, partition: Partition, point: SyncPoint, error: OSError | None) -> None:
        if error is None:
            try:
                partition.log.durability.end_sync(point)
            except Exception as unexpected:
                logger.exception("failed to end the sync of %s", partition)
                error = OSError(str(unexpected))
        if error is not None:
            self._fail(partition, error)
        elif partition.log.durability.synced_offset < point.offset_end:
            self._retry_later(partition)
        else:
            self._retried_rounds.pop(partition, None)
            partition.settle()

    def _retry_later(self, partition: Partition) -> None:
        """Retry after a round that did not make the partition's batches durable, but did not fail for good."""
        rounds = self._retried_rounds[partition] = self._retried_rounds.get(partition, 0) + 1
        if rounds > RETRY_ROUNDS_MAX:
            self._fail(partition, OSError(f"a sync could not begin in {rounds} rounds"))
        else:
            asyncio.get_running_loop().call_later(RETRY_S, self._retry, partition)

    def _retry(self, partition: Partition) -> None:
        if partition in self._retried_rounds:
            self.flush(partition)

    def _fail(self, partition: Partition, error: OSError) -> None:
        self.totals.failures += 1
        logger.error("sync of %s failed, it accepts no more writes: %s", partition, error)
        partition.log.durability.fail_sync(error)
        partition.fail(ErrorCode.kafka_storage_error)

    async def close(self) -> None:
        """Wait for the last round; data held back by a flush policy is synced when the logs are closed."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await self._idle.wait()
        self._thread.close()


def _files_to_sync(partition: Partition) -> int:
    return 1 + FILES_PER_SEAL * partition.log.durability.unfinished_seals


def _run(points: Round, is_in_place: Callable[[], bool] | None) -> FinishedRound:
    """Run a round in the thread."""
    began = time.perf_counter()
    errors = run_round([point for _partition, point in points])
    seconds = time.perf_counter() - began
    return FinishedRound(points, errors, seconds, is_in_place is None or is_in_place())
