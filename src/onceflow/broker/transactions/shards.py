"""The transaction coordinators of a broker: one for each partition of `__transaction_state` that it leads."""

import math

from onceflow.broker.storage.partitions import Partition
from onceflow.broker.topics.shards import Shards
from onceflow.broker.transactions.coordinator import InitRequest, ProducerRequest
from onceflow.broker.transactions.participants import Respond, Syncs
from onceflow.broker.transactions.requests import InitResponse, Transactions
from onceflow.broker.transactions.transaction import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Event
from onceflow.wire import TopicPartition
from onceflow.wire.errors import ErrorCode
from onceflow.wire.markers import ProducerMarker


class TransactionShards(Shards[Transactions]):
    """The coordinators of transactional ids."""

    loaded_at_once_bytes = math.inf

    def begin(self, partition: Partition) -> None:
        """Coordinate the ids of a partition, and complete the prepared transactions once its log is loaded."""
        super().begin(partition)
        shard = self.at(partition.index)
        shard.when_loaded(shard.resume_when_synced)

    # The coordinator of a transactional id

    def _route(self, transactional_id: str, refuse: Respond) -> Transactions | None:
        """Return the coordinator, or refuse the request."""
        shard = self.of(transactional_id)
        refusal = shard.error_code if transactional_id else ErrorCode.invalid_request
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

    # All coordinators

    def when_all_synced(self, respond: Respond) -> None:
        """Respond once the current state of all transactional ids here is durable, or with an error."""
        syncs = Syncs(respond)
        for shard in self.here():
            shard.when_synced(syncs.expect(lambda _code: None))
        syncs.settle()

    @property
    def is_loading(self) -> bool:
        return any(shard.is_loading for shard in self.here())

    @property
    def open_count(self) -> int:
        """Number of open transactions."""
        return sum(len(shard.coordinator.unfinished) for shard in self.here())

    def take_marker(self, marker: ProducerMarker, place: TopicPartition, respond: Respond) -> bool:
        """Take an admin's marker for a transaction that is known here; return False if there is none."""
        return any(shard.take_marker(marker, place, respond) for shard in self.here())

    def resume(self) -> None:
        """Complete the prepared transactions of the coordinators that were loaded at start."""
        for shard in self.here():
            shard.resume()

    def tick(self) -> None:
        """Do the periodic work of each coordinator; called often."""
        for shard in self.here():
            shard.tick()
