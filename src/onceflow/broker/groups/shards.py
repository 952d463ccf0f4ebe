"""The coordinators of a broker: one for each partition of `__consumer_offsets` that it leads.

Without a cluster there is one, from start to stop. In a cluster a coordinator begins when this broker becomes the
leader of its partition: it replays the log, a slice in each turn of the loop, one log after another. It ends when
another broker becomes the leader, or the partition is deleted (Kafka's GroupCoordinator.onElection and onResignation).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Set

from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups.coordinator import DUE_AT_ONCE, GroupCoordinator, SharedLimits
from onceflow.broker.groups.group import Group
from onceflow.broker.groups.requests import GroupRequests, Settled
from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.partitions import Partition
from onceflow.broker.storage.state_log import StateLog, StateLogElsewhere
from onceflow.broker.topics.internal import partition_of
from onceflow.log.clock import Clock
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


class GroupShards:
    """The coordinators by the index of their partition (`storage.partitions.Role`)."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, group_commit: GroupCommit, partition_count: Callable[[], int]
    ) -> None:
        """`partition_count` returns the number of partitions of `__consumer_offsets`."""
        self._config = config
        self._clock = clock
        self._group_commit = group_commit
        self._partition_count = partition_count
        self._limits = SharedLimits(config)
        self._by_index: dict[int, GroupRequests] = {}
        self._loading: deque[tuple[Partition, GroupRequests]] = deque()
        self._elsewhere = GroupRequests(self._new_coordinator(), StateLogElsewhere())

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self._clock, self._config, limits=self._limits)

    def partition_of(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that has the group."""
        return partition_of(group_id, self._partition_count())

    def of(self, group_id: str) -> GroupRequests:
        """Return the coordinator of a group; one that refuses everything if another broker has it."""
        return self.at(self.partition_of(group_id))

    def at(self, index: int) -> GroupRequests:
        """Return the coordinator of a partition, as `of` does."""
        return self._by_index.get(index, self._elsewhere)

    def here(self) -> list[GroupRequests]:
        """Return all coordinators of this broker."""
        return list(self._by_index.values())

    def groups(self) -> Iterator[Group]:
        """Yield all groups of this broker; none may come or go meanwhile."""
        for shard in self._by_index.values():
            yield from shard.groups.groups.values()

    def count(self) -> int:
        """Return the number of groups of this broker."""
        return sum(len(shard.groups.groups) for shard in self._by_index.values())

    # Begin and end

    def open(self, partition: Partition) -> GroupRequests:
        """Coordinate the groups of a partition; a short log is replayed at once, a longer one by `load`."""
        shard = GroupRequests(self._new_coordinator(), self._log_of(partition))
        self._add(partition, shard)
        return shard

    def _log_of(self, partition: Partition) -> StateLog:
        return StateLog(partition, self._clock, self._group_commit)

    def _add(self, partition: Partition, shard: GroupRequests) -> None:
        self._by_index[partition.index] = shard
        if shard.is_loading:
            self._loading.append((partition, shard))

    def begin(self, partition: Partition) -> None:
        """Coordinate the groups of a partition that this broker leads from now on."""
        logger.info("%s: its groups are coordinated here, from epoch %d on", partition, partition.leader_epoch)
        is_idle = not self._loading
        shard = GroupRequests(self._new_coordinator(), self._log_of(partition), loaded_at_once_bytes=0)
        self._add(partition, shard)
        if is_idle:
            self.load()

    def end(self, partition: Partition) -> None:
        """Forget the groups of a partition that another broker leads."""
        shard = self._by_index.pop(partition.index, None)
        if shard is not None:
            logger.info("%s: its groups are coordinated by another broker", partition)
            shard.close()

    def load(self) -> None:
        """Replay the logs, a slice in each turn of the loop, while the broker serves other requests."""
        if self._loading:
            asyncio.get_running_loop().call_soon(self._load_slice)

    def _load_slice(self) -> None:
        partition, shard = self._loading[0]
        try:
            has_more = shard.load_slice()
        except Exception:
            logger.exception("%s could not be replayed; requests for its groups are refused", partition)
            shard.fail_loading()
            has_more = False
        if not has_more:
            self._loading.popleft()
        self.load()

    # All coordinators

    def settle_in_time(self, shards: Collection[GroupRequests], settled: Settled) -> None:
        """Call `settled` once the state of all these coordinators is durable, or with an error."""
        left = len(shards) + 1
        failure = ErrorCode.none

        def end(error_code: ErrorCode) -> None:
            nonlocal left, failure
            left -= 1
            failure = failure or error_code
            if not left:
                settled(failure)

        for shard in shards:
            shard.settle_in_time(end)
        end(ErrorCode.none)

    def expire(self) -> None:
        """Act on expired timeouts of all groups; the rest of many is due in the next call."""
        left = DUE_AT_ONCE
        for index, shard in list(self._by_index.items()):
            taken = shard.expire(left)
            left -= taken
            if taken and self._by_index.get(index) is shard:
                # The other ones come first in the next call.
                self._by_index[index] = self._by_index.pop(index)

    def delete_offsets_of_topics(self, names: Set[str]) -> None:
        """Delete the offsets of topics that the controller of the cluster deletes; a failure is logged.

        The deletion does not wait for it (GroupCoordinator.handleDeletedPartitions).
        """

        def deleted(error_code: ErrorCode) -> None:
            if error_code not in (ErrorCode.none, ErrorCode.not_coordinator):
                logger.error("the groups' offsets of deleted topics %s could not be deleted", ", ".join(names))

        for shard in self.here():
            shard.delete_offsets_of_topics(names, deleted)
