"""Partitions that wait for a sync, taken in turns: one of each requester, that which it asked for first."""

from collections import OrderedDict
from collections.abc import Hashable

from onceflow.broker.storage.partitions import Partition


class FairQueue:
    """Each partition once, however many requesters wait for it: the first whose turn it is takes it."""

    __slots__ = ("_partitions", "_queues")

    def __init__(self) -> None:
        self._partitions: set[Partition] = set()
        self._queues: OrderedDict[Hashable, OrderedDict[Partition, None]] = OrderedDict()

    def add(self, partition: Partition, requester: Hashable) -> None:
        self._partitions.add(partition)
        queue = self._queues.get(requester)
        if queue is None:
            queue = self._queues[requester] = OrderedDict()
        queue[partition] = None

    def discard(self, partition: Partition) -> None:
        self._partitions.discard(partition)

    def take(self, count_max: int) -> list[Partition]:
        """Remove and return at most `count_max` partitions; the requesters that were served go to the end."""
        taken: list[Partition] = []
        while self._queues and len(taken) < count_max:
            requester, queue = self._queues.popitem(last=False)
            partition = self._next_of(queue)
            if partition is not None:
                taken.append(partition)
            if queue:
                self._queues[requester] = queue
        return taken

    def _next_of(self, queue: OrderedDict[Partition, None]) -> Partition | None:
        while queue:
            partition, _ = queue.popitem(last=False)
            if partition in self._partitions:
                self._partitions.remove(partition)
                return partition
        return None
