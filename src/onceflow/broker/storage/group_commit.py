"""Group commit: one round of syncs for the responses that wait, the next round as soon as there is more to sync.

A round takes at most `ROUND_PARTITIONS_MAX` partitions, in turns over those who asked for them: one request to
thousands of partitions takes many rounds, and another client's partition is in the next one. Appends of one turn of the
event loop go into one round within that bound. The round's file syncs run in a helper thread, so a slow
disk stalls nobody who does not wait for it; everything else stays on the loop. A failed sync is final for its
partition, since the kernel may have dropped the pages (`PartitionLog.fail_sync`).
"""

import asyncio
import logging
import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

from onceflow.broker.loop.round_thread import RoundThread
from onceflow.broker.loop.turn import Turn
from onceflow.broker.storage.fair_queue import FairQueue
from onceflow.broker.storage.partitions import Partition
from onceflow.log.config import INT64_MAX
from onceflow.log.sync import SyncPoint, run_round
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

PUT_OFF_S = 0.2
PUT_OFF_ROUNDS_MAX = 50
"""A sync that could not begin (no free descriptor for the directory) is tried again for about ten seconds."""
ROUND_PARTITIONS_MAX = 32
"""Bound of a round's length: some tens of milliseconds of syncs on an SSD."""
LOOK_S = 0.05
"""Rounds look at the data directory's path so often at most: a look costs a tenth of a single record's sync."""
TIMER_MAX_S = 86_400.0
"""A `flush.ms` beyond this is a day: timers of the loop have a limit."""

Round = Sequence[tuple[Partition, SyncPoint]]


class Ended(NamedTuple):
    """A round after its syncs."""

    points: Round
    errors: Sequence[OSError | None]
    """The error of each sync that failed."""
    is_in_place: bool = True
    """Whether the data directory was at its path after the syncs, if this round looked."""


class GroupCommit:
    """Syncs what was appended. All methods are the event loop's."""

    def __init__(self, turn: Turn, is_in_place: Callable[[], bool], on_lost: Callable[[], None]) -> None:
        """`is_in_place`: whether what was synced can be found again; if not, `on_lost` fails every partition."""
        self._turn = turn
        self._is_in_place = is_in_place
        self._on_lost = on_lost
        self._dirty = FairQueue()
        self._forgotten: set[Partition] = set()
        """Partitions that were deleted during the round that is under way."""
        self._put_off: dict[Partition, int] = {}
        self._timers: dict[Partition, asyncio.TimerHandle] = {}
        """Of partitions with `flush.ms`: when what is unsynced now gets synced."""
        self._look_at = -math.inf
        self._thread: RoundThread[Ended] = RoundThread("group-commit", self._end_round)
        self._is_running = False
        self._idle = asyncio.Event()
        self._idle.set()

    def request(self, partition: Partition, requester: Hashable | None = None) -> None:
        """Sync the partition in one of the next rounds, or when its flush policy says so.

        Rounds take turns over the requesters; without one the partition waits for itself alone.
        """
        if partition.log.has_flush_policy and not self._is_flush_due(partition):
            # What was appended is visible already: wake who waits for it.
            if partition.is_awaited:
                self._turn.soon(partition.settle)
        else:
            self.flush(partition, requester)

    def _is_flush_due(self, partition: Partition) -> bool:
        log = partition.log
        if log.is_flush_due():
            return True
        if log.config.flush_ms != INT64_MAX and partition not in self._timers:
            delay_s = min(log.config.flush_ms / 1000, TIMER_MAX_S)
            self._timers[partition] = asyncio.get_running_loop().call_later(delay_s, self._flush_timed, partition)
        return False

    def _flush_timed(self, partition: Partition) -> None:
        self._timers.pop(partition, None)
        self.flush(partition)

    def flush(self, partition: Partition, requester: Hashable | None = None) -> None:
        """Sync the partition in one of the next rounds, whatever its flush policy says."""
        self._dirty.add(partition, partition if requester is None else requester)
        if not self._is_running:
            self._is_running = True
            self._idle.clear()
            asyncio.get_running_loop().call_soon(self._begin_round)

    def forget(self, partition: Partition) -> None:
        """Sync a deleted partition no more, and drop what becomes of a sync under way: nobody waits for it."""
        self._dirty.discard(partition)
        if self._is_running:
            self._forgotten.add(partition)
        self._put_off.pop(partition, None)
        timer = self._timers.pop(partition, None)
        if timer is not None:
            timer.cancel()

    def _begin_round(self) -> None:
        points: Round = []
        while not points:
            dirty = self._dirty.take(ROUND_PARTITIONS_MAX)
            if not dirty:
                self._is_running = False
                self._idle.set()
                return
            points = [(partition, point) for partition in dirty if (point := self._begin_one(partition)) is not None]
        self._forgotten.clear()
        try:
            self._thread.begin(partial(_run, points, self._is_in_place if self._is_look_due() else None))
        except OSError as error:
            # No descriptor is free for its pipe: tried again, like a directory that cannot be opened for its sync.
            for _partition, point in points:
                point.postpone(error)
            asyncio.get_running_loop().call_soon(self._end_round, Ended(points, [None] * len(points)))

    def _is_look_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        return True

    def _begin_one(self, partition: Partition) -> SyncPoint | None:
        try:
            point = partition.log.begin_sync()
        except Exception as error:
            logger.exception("sync of %s could not begin", partition)
            self._fail(partition, OSError(str(error)))
            return None
        if partition.log.failure is not None:
            # A failed write that could not be undone ended the partition after others had been appended.
            partition.fail(ErrorCode.kafka_storage_error)
        return point

    def _end_round(self, ended: Ended) -> None:
        self._turn.begin()
        try:
            if not ended.is_in_place:
                self._on_lost()
                return
            for (partition, point), error in zip(ended.points, ended.errors, strict=True):
                if partition not in self._forgotten:
                    self._end_one(partition, point, error)
        finally:
            # Appends that came during the round have been waiting: go on in this turn.
            self._begin_round()
            self._turn.end()

    def _end_one(self, partition: Partition, point: SyncPoint, error: OSError | None) -> None:
        if error is None:
            try:
                partition.log.end_sync(point)
            except Exception as unexpected:
                logger.exception("sync of %s could not be ended", partition)
                error = OSError(str(unexpected))
        if error is not None:
            self._fail(partition, error)
        elif partition.log.synced_offset < point.offset_end:
            self._try_later(partition)
        else:
            self._put_off.pop(partition, None)
            partition.settle()

    def _try_later(self, partition: Partition) -> None:
        """The round could not make its batches durable, and none of it failed for good."""
        rounds = self._put_off[partition] = self._put_off.get(partition, 0) + 1
        if rounds > PUT_OFF_ROUNDS_MAX:
            self._fail(partition, OSError(f"a sync could not begin in {rounds} rounds"))
        else:
            asyncio.get_running_loop().call_later(PUT_OFF_S, self._try_again, partition)

    def _try_again(self, partition: Partition) -> None:
        if partition in self._put_off:
            self.flush(partition)

    @staticmethod
    def _fail(partition: Partition, error: OSError) -> None:
        logger.error("sync of %s failed, it takes no more writes: %s", partition, error)
        partition.log.fail_sync(error)
        partition.fail(ErrorCode.kafka_storage_error)

    async def close(self) -> None:
        """Wait for the last round; what a flush policy still holds back is synced when the logs are closed."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await self._idle.wait()
        self._thread.close()


def _run(points: Round, is_in_place: Callable[[], bool] | None) -> Ended:
    """In the thread."""
    errors = run_round([point for _partition, point in points])
    return Ended(points, errors, is_in_place is None or is_in_place())
