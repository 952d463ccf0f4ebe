"""Group commit: one round of syncs for all answers that wait, the next round as soon as there is more to sync.

Appends of one turn of the event loop go into one round. The round's file syncs run in a helper thread, so a slow
disk stalls nobody who does not wait for it; everything else stays on the loop. A failed sync is final for its
partition, since the kernel may have dropped the pages (`PartitionLog.fail_sync`).
"""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from onceflow.broker.partitions import Partition
from onceflow.log.sync import SyncPoint
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

Round = Sequence[tuple[Partition, SyncPoint]]
Results = Sequence[OSError | None]


class GroupCommit:
    """Syncs what was appended. All methods are the event loop's."""

    def __init__(self) -> None:
        self._dirty: dict[Partition, None] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="group-commit")
        self._is_running = False
        self._idle = asyncio.Event()
        self._idle.set()

    def request(self, partition: Partition) -> None:
        """Sync the partition in the next round."""
        self._dirty[partition] = None
        if not self._is_running:
            self._is_running = True
            self._idle.clear()
            asyncio.get_running_loop().call_soon(self._begin_round)

    def forget(self, partition: Partition) -> None:
        """Sync a deleted partition no more."""
        self._dirty.pop(partition, None)

    def _begin_round(self) -> None:
        dirty, self._dirty = self._dirty, {}
        points = [(partition, point) for partition in dirty if (point := partition.log.begin_sync()) is not None]
        if not points:
            self._is_running = False
            self._idle.set()
            return
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, _run, [point for _partition, point in points])
        future.add_done_callback(lambda done: self._end_round(points, done.result()))

    def _end_round(self, points: Round, results: Results) -> None:
        for (partition, point), error in zip(points, results, strict=True):
            if error is None:
                partition.log.end_sync(point)
                partition.settle()
            else:
                logger.error("sync of %s failed, it takes no more writes: %s", partition, error)
                partition.log.fail_sync(error)
                partition.fail(ErrorCode.kafka_storage_error)
        # Appends that came during the round have been waiting: go on in this turn.
        self._begin_round()

    async def close(self) -> None:
        """Wait for the last round."""
        await self._idle.wait()
        self._thread.shutdown()


def _run(points: Sequence[SyncPoint]) -> Results:
    return [_run_one(point) for point in points]


def _run_one(point: SyncPoint) -> OSError | None:
    try:
        point.run()
    except OSError as error:
        return error
    except Exception as error:
        # Whatever it was, nothing is known to be durable: to go on as if it were would be a lie to producers.
        logger.exception("sync of %s failed in an unexpected way", point.directory)
        return OSError(str(error))
    return None
