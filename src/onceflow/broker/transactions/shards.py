"""The transaction coordinators of one broker: one for each partition of `__transaction_state` that it leads.

Without a cluster there is one partition, and so one coordinator, which is loaded at start. In a cluster a coordinator
is created when the broker becomes the leader of a partition, replays the log in slices, and is dropped when another
broker becomes the leader (kafka.coordinator.transaction.TransactionCoordinator.onElection, onResignation). Meanwhile
requests get COORDINATOR_LOAD_IN_PROGRESS, afterwards NOT_COORDINATOR.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from onceflow.broker.storage.partitions import Partition
from onceflow.broker.topics.internal import partition_of
from onceflow.broker.transactions.coordinator import InitRequest, ProducerRequest
from onceflow.broker.transactions.participants import Respond, Syncs
from onceflow.broker.transactions.requests import InitResponse, Transactions
from onceflow.broker.transactions.transaction import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Event
from onceflow.wire import TopicPartition
from onceflow.wire.errors import ErrorCode
from onceflow.wire.markers import ProducerMarker

logger = logging.getLogger(__name__)


class TransactionShards:
    """Maps transactional ids to the coordinators of this broker (a `storage.partitions.Role`)."""

    def __init__(self, new_shard: Callable[[Partition], Transactions], partition_count: Callable[[], int]) -> None:
        """`partition_count`: the number of partitions of `__transaction_state`."""
        self.shards: dict[int, Transactions] = {}
        """Coordinators by partition."""
        self._new_shard = new_shard
        self._partition_count = partition_count

    def open(self, partition: Partition) -> None:
        """Create the coordinator of a partition, and load it at once."""
        shard = self.shards[partition.index] = self._new_shard(partition)
        shard.load_all()

    def begin(self, partition: Partition) -> None:
        """Create and load the coordinator of a partition that this broker leads now."""
        shard = self.shards[partition.index] = self._new_shard(partition)
        asyncio.get_running_loop().call_soon(self._load, shard, shard.load())

    def end(self, partition: Partition) -> None:
        """Drop the coordinator of a partition that another broker leads now."""
        shard = self.shards.pop(partition.index, None)
        if shard is not None:
            shard.close()

    def _load(self, shard: Transactions, slices: Iterator[None]) -> None:
        """Replay a slice of the log in each turn of the loop."""
        if shard.is_closed:
            return
        try:
            next(slices)
        except StopIteration:
            shard.resume_when_synced()
        except Exception:
            logger.exception("%s could not be replayed; its transactional ids have no coordinator", shard)
            shard.fail_loading()
        else:
            asyncio.get_running_loop().call_soon(self._load, shard, slices)

    # The coordinator of a transactional id

    def of(self, transactional_id: str) -> Transactions | None:
        """Return the coordinator of a transactional id, None if it is on another broker."""
        return self.shards.get(partition_of(transactional_id, self._partition_count()))

    def is_here(self, transactional_id: str) -> bool:
        """Return whether this broker coordinates a transactional id."""
        return self.of(transactional_id) is not None

    def error_code_of(self, transactional_id: str) -> ErrorCode:
        """Return the error for every request of a transactional id, or `none`."""
        shard = self.of(transactional_id)
        return ErrorCode.not_coordinator if shard is None else shard.error_code

    def _route(self, transactional_id: str, refuse: Respond) -> Transactions | None:
        """Return the coordinator, or refuse the request."""
        shard = self.of(transactional_id)
        refusal = ErrorCode.none if transactional_id else ErrorCode.invalid_request
        refusal = refusal or (ErrorCode.not_coordinator if shard is None else shard.error_code)
        if refusal:
            refuse(refusal)
            return None
        return shard

    def init(self, request: InitRequest, respond: InitResponse) -> None:
        """Handle InitProducerId."""

        def refuse(error_code: ErrorCode) -> None:
            respond(error_code, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

        shard = self._route(request.transactional_id, refuse)
        if shard is not None:
            shard.init(request, respond)

    def add(self, request: ProducerRequest, partitions: frozenset[TopicPartition], respond: Respond) -> None:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn: the partitions must exist."""
        shard = self._route(request.transactional_id, respond)
        if shard is not None:
            shard.add(request, partitions, respond)

    def end_transaction(self, request: ProducerRequest, event: Event, respond: Respond) -> None:
        """Handle EndTxn: `event` is COMMIT or ABORT."""
        shard = self._route(request.transactional_id, respond)
        if shard is not None:
            shard.end(request, event, respond)

    def check_produce(
        self, producer_id: int, producer_epoch: int, transactional_id: str, topic: str, partition: int
    ) -> ErrorCode:
        """Return the error for a transactional batch for this partition, or `none`. The hot path."""
        shard = self.of(transactional_id)
        if shard is None:
            return ErrorCode.not_enough_replicas
        return shard.check_produce(producer_id, producer_epoch, transactional_id, topic, partition)

    def when_synced(self, transactional_id: str, respond: Respond) -> None:
        """Respond once what this broker knows of a transactional id is durable, or with an error if it cannot be."""
        shard = self.of(transactional_id)
        if shard is None:
            respond(ErrorCode.none)
        else:
            shard.when_synced(respond)

    # All coordinators

    def when_all_synced(self, respond: Respond) -> None:
        """Respond once the current state of all transactional ids here is durable, or with an error."""
        syncs = Syncs(respond)
        for shard in list(self.shards.values()):
            shard.when_synced(syncs.expect(lambda _code: None))
        syncs.settle()

    @property
    def is_loading(self) -> bool:
        return any(shard.is_loading for shard in self.shards.values())

    @property
    def open_count(self) -> int:
        """Number of open transactions."""
        return sum(len(shard.coordinator.unfinished) for shard in self.shards.values())

    def take_marker(self, marker: ProducerMarker, place: TopicPartition, respond: Respond) -> bool:
        """Take an admin's marker for a transaction that is known here; return False if there is none."""
        return any(shard.take_marker(marker, place, respond) for shard in self.shards.values())

    def resume(self) -> None:
        """Complete the prepared transactions of the coordinators that were loaded at start."""
        for shard in self.shards.values():
            shard.resume()

    def tick(self) -> None:
        """Do the periodic work of each coordinator; called often."""
        for shard in list(self.shards.values()):
            shard.tick()
