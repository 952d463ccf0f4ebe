"""The group coordinators of a broker: one for each partition of `__consumer_offsets` that it leads."""

import logging
from collections.abc import Callable, Collection, Iterator, Set

from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups.coordinator import DUE_AT_ONCE, GroupCoordinator, SharedLimits
from onceflow.broker.groups.group import Group
from onceflow.broker.groups.requests import GroupRequests, Settled
from onceflow.broker.storage.partitions import Partition
from onceflow.broker.storage.state_log import StateLog
from onceflow.broker.topics.shards import SLICE_BYTES, Shards
from onceflow.log.clock import Clock
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


class GroupShards(Shards[GroupRequests]):
    """The coordinators of groups, which share the limits of the broker."""

    loaded_at_once_bytes = 4 * SLICE_BYTES

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        new_log: Callable[[Partition], StateLog],
        partition_count: Callable[[], int],
    ) -> None:
        limits = SharedLimits(config)

        def new_shard(state_log: StateLog) -> GroupRequests:
            return GroupRequests(GroupCoordinator(clock, config, limits=limits), state_log)

        super().__init__(new_shard, new_log, partition_count)

    def groups(self) -> Iterator[Group]:
        """Yield all groups of this broker; none may come or go meanwhile."""
        for shard in self._by_index.values():
            yield from shard.groups.groups.values()

    def count(self) -> int:
        """Return the number of groups of this broker."""
        return sum(len(shard.groups.groups) for shard in self._by_index.values())

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
