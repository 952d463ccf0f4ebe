"""The coordinators of a broker: one for each partition of an internal topic that it leads.

Without a cluster there is one, from start to stop. In a cluster a coordinator begins when this broker becomes the
leader of its partition: it replays the log, a slice in each turn of the loop, one log after another. It ends when
another broker becomes the leader, or the partition is deleted (onElection and onResignation of Kafka's
GroupCoordinator and TransactionCoordinator, whose logs are loaded by one thread each).
"""

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from onceflow.broker.storage.partitions import Partition
from onceflow.broker.storage.state_log import StateBatch, StateLog, StateLogElsewhere
from onceflow.broker.topics.internal import partition_of
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

SLICE_BYTES = 64 * 1024
"""Bytes of the log replayed in one turn of the event loop: some milliseconds."""


class Shard(ABC):
    """The coordinator of one partition: its log is replayed before requests are served."""

    def __init__(self, state_log: StateLog) -> None:
        self._state_log = state_log
        self._is_broken = False
        self._is_closed = False
        self._on_loaded: list[Callable[[], None]] | None = []
        self._slices = self._replay_in_slices()

    def __str__(self) -> str:
        return str(self._state_log.partition)

    @abstractmethod
    def _replay(self, batch: StateBatch) -> None:
        """Apply a batch of the log to the state. Raises UnknownRecord, LogError, WireError."""

    @abstractmethod
    def _resign(self) -> None:
        """End what waits in memory: another broker leads the log."""

    @property
    def is_loading(self) -> bool:
        return self._on_loaded is not None

    @property
    def is_elsewhere(self) -> bool:
        """Whether another broker is the coordinator."""
        return self._is_closed or self._state_log.is_elsewhere

    @property
    def error_code(self) -> ErrorCode:
        """The error for every request: `none` while the log is led here, loaded and writable."""
        # Asked several times for each request: no other property is called.
        if self._is_closed or self._state_log.is_elsewhere:
            return ErrorCode.not_coordinator
        if self._is_broken or self._state_log.partition.log.durability.failure is not None:
            return ErrorCode.coordinator_not_available
        return ErrorCode.coordinator_load_in_progress if self._on_loaded is not None else ErrorCode.none

    def load(self, size_bytes_max: float = math.inf) -> None:
        """Replay a log of at most `size_bytes_max` at once; a longer one needs calls of `load_slice`."""
        if self._state_log.size_bytes <= size_bytes_max:
            while self.load_slice():
                pass

    def load_slice(self) -> bool:
        """Replay the next slice; return whether there may be more. Raises UnknownRecord, LogError, WireError."""
        if self._on_loaded is None:
            return False
        if next(self._slices, None) is not None:
            return True
        self._end_loading()
        return False

    def _replay_in_slices(self) -> Iterator[int]:
        """Yield the number of bytes of each slice."""
        size_bytes = 0
        for batch in self._state_log.batches(SLICE_BYTES):
            self._replay(batch)
            size_bytes += batch.header.size_bytes
            if size_bytes >= SLICE_BYTES:
                yield size_bytes
                size_bytes = 0

    def _end_loading(self) -> None:
        callbacks, self._on_loaded = self._on_loaded or (), None
        for callback in callbacks:
            callback()

    def when_loaded(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the whole log has been replayed, or the coordinator has ended: now or later."""
        if self._on_loaded is None:
            callback()
        else:
            self._on_loaded.append(callback)

    def fail_loading(self) -> None:
        """Respond to all requests with an error until a restart, since the log cannot be replayed."""
        self._is_broken = True

    def close(self) -> None:
        """Coordinate no longer, since another broker leads the log; requests get NOT_COORDINATOR."""
        self._is_closed = True
        self._state_log.close()
        self._resign()
        self._end_loading()


S = TypeVar("S", bound=Shard)


class Shards(Generic[S]):
    """The coordinators by the index of their partition (`storage.partitions.Role`)."""

    loaded_at_once_bytes: float
    """A log of at most this size is replayed before the broker listens, if there is no cluster."""

    def __init__(
        self,
        new_shard: Callable[[StateLog], S],
        new_log: Callable[[Partition], StateLog],
        partition_count: Callable[[], int],
    ) -> None:
        """`partition_count` returns the number of partitions of the internal topic."""
        self._new_shard = new_shard
        self._new_log = new_log
        self._partition_count = partition_count
        self._by_index: dict[int, S] = {}
        self._loading: deque[S] = deque()
        self._is_next_due = False
        self._elsewhere = new_shard(StateLogElsewhere())
        self._elsewhere.load()

    def partition_of(self, key: str) -> int:
        """Return the partition that has a key: a group id or a transactional id."""
        return partition_of(key, self._partition_count())

    def of(self, key: str) -> S:
        """Return the coordinator of a key; one that refuses everything if another broker has it."""
        return self.at(self.partition_of(key))

    def at(self, index: int) -> S:
        """Return the coordinator of a partition, as `of` does."""
        return self._by_index.get(index, self._elsewhere)

    def here(self) -> list[S]:
        """Return all coordinators of this broker."""
        return list(self._by_index.values())

    # Begin and end

    def open(self, partition: Partition) -> S:
        """Coordinate the keys of the one partition; a log longer than `loaded_at_once_bytes` is replayed by `load`."""
        return self._add(partition, self.loaded_at_once_bytes)

    def begin(self, partition: Partition) -> None:
        """Coordinate the keys of a partition that this broker leads from now on."""
        logger.info("%s: its keys are coordinated here, from epoch %d on", partition, partition.leader_epoch)
        self._add(partition, 0)
        self.load()

    def _add(self, partition: Partition, loaded_at_once_bytes: float) -> S:
        shard = self._by_index[partition.index] = self._new_shard(self._new_log(partition))
        shard.load(loaded_at_once_bytes)
        if shard.is_loading:
            self._loading.append(shard)
        return shard

    def end(self, partition: Partition) -> None:
        """Forget the keys of a partition that another broker leads."""
        shard = self._by_index.pop(partition.index, None)
        if shard is not None:
            logger.info("%s: its keys are coordinated by another broker", partition)
            shard.close()

    def load(self) -> None:
        """Replay the logs, a slice in each turn of the loop, while the broker serves other requests."""
        if self._loading and not self._is_next_due:
            self._is_next_due = True
            asyncio.get_running_loop().call_soon(self._load_slice)

    def _load_slice(self) -> None:
        self._is_next_due = False
        shard = self._loading[0]
        try:
            has_more = shard.load_slice()
        except Exception:
            logger.exception("%s could not be replayed; requests to its coordinator are refused", shard)
            shard.fail_loading()
            has_more = False
        if not has_more:
            self._loading.popleft()
        self.load()
