"""The partitions of transactions: synced before a commit, marked after the decision.

`Participants` is the coordinator's interface. `LocalParticipants` are the partitions of this broker;
`onceflow.broker.cluster.participants` adds those of the other brokers of a cluster.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.partitions import Partition, Partitions
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC
from onceflow.broker.transactions.transaction import Transaction
from onceflow.log.errors import InvalidProducerEpoch, LogError, StorageFailed
from onceflow.wire import TopicPartition
from onceflow.wire.errors import ErrorCode
from onceflow.wire.markers import ProducerMarker

logger = logging.getLogger(__name__)

Respond = Callable[[ErrorCode], None]
_OF_MARKERS = {
    ErrorCode.coordinator_not_available: ErrorCode.kafka_storage_error,
    ErrorCode.not_coordinator: ErrorCode.not_leader_or_follower,
}
"""Error of the groups → that of WriteTxnMarkers, after which Kafka's coordinator sends the marker again."""
Marked = Callable[[bool], None]
"""Called with true if the partition needs no marker any more, with false if it must be marked again later."""
WhenTopicsSynced = Callable[[Respond], None]


class GroupOffsets(Protocol):
    """Interface of the groups for transactions that commit offsets."""

    @property
    def error_code(self) -> ErrorCode:
        """`COORDINATOR_NOT_AVAILABLE` if their log cannot be written until the next start, `NOT_COORDINATOR` if it is
        another broker's."""
        ...

    def complete_transaction(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int | None = None
    ) -> None:
        """Append the marker, and commit or drop the transaction's offsets. Raises LogError."""
        ...

    def when_synced(self, settled: Respond) -> None:
        """Call `settled` once that is durable, or with an error if it cannot be."""
        ...


class Participants(Protocol):
    """Interface of the partitions of transactions."""

    @property
    def may_be_away(self) -> bool:
        """Whether other brokers lead some of them: a response does not wait long for these."""

    def sync(self, transaction: Transaction, synced: Respond) -> None:
        """Call `synced` once every acknowledged record of the transaction is durable, or with an error."""

    def mark(self, marker: ProducerMarker, place: TopicPartition, marked: Marked) -> None:
        """Write the marker to a partition; `marked` is called once, perhaps before this returns."""


class Syncs:
    """Calls `done` once, when every partition is synced, with an error if there was one.

    The deletion of a topic meanwhile does not count as an error.
    """

    def __init__(self, done: Respond) -> None:
        self._done = done
        self._missing = 1
        self._error_code = ErrorCode.none

    def expect(self, settled: Respond) -> Respond:
        """Wait for one more callback: the returned one must be called, and calls `settled` first."""
        self._missing += 1

        def both(error_code: ErrorCode) -> None:
            settled(error_code)
            self.settle(error_code)

        return both

    def wait_for(self, partition: Partition, settled: Respond = lambda _code: None) -> None:
        """Wait until everything in the partition's log now is durable."""
        partition.when_durable(self.expect(settled))

    def settle(self, error_code: ErrorCode = ErrorCode.none) -> None:
        """Count one sync as done."""
        if error_code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
            self._error_code = error_code
        self._missing -= 1
        if not self._missing:
            self._done(self._error_code)


class LocalParticipants:
    """Partitions with a log on this broker. One that has none belongs to a topic that was deleted."""

    may_be_away = False

    def __init__(
        self,
        partitions: Partitions,
        group_commit: GroupCommit,
        groups: Callable[[int], GroupOffsets],
        when_topics_synced: WhenTopicsSynced,
    ) -> None:
        self._partitions = partitions
        self._group_commit = group_commit
        self._groups = groups
        self._when_topics_synced = when_topics_synced

    def sync(self, transaction: Transaction, synced: Respond) -> None:
        """Sync every partition, whatever the producer's acks: a record may not be lost after PrepareCommit."""
        syncs = Syncs(synced)
        for topic, index in sorted(transaction.partitions):
            partition = self._partitions.get(topic, index)
            if partition is None:
                self._when_topics_synced(syncs.expect(lambda _code: None))
            else:
                self._group_commit.flush(partition, transaction.transactional_id)
                syncs.wait_for(partition)
        syncs.settle()

    def mark(self, marker: ProducerMarker, place: TopicPartition, marked: Marked) -> None:
        """Write the marker, and wait until it is durable."""
        partition = self._partitions.get(*place)
        if partition is None:
            self._skip_deleted(marked)
            return

        def synced(error_code: ErrorCode) -> None:
            if error_code == ErrorCode.unknown_topic_or_partition:
                self._skip_deleted(marked)
            else:
                marked(error_code == ErrorCode.none)

        try:
            self.write(marker, partition, synced)
        except InvalidProducerEpoch as error:
            # Only a batch outside transactions can have raised the epoch; no data waits for this.
            logger.warning("%s: the marker of producer %d cannot be written: %s", partition, marker.producer_id, error)
            marked(True)
        except StorageFailed:
            # Not logged again: the log has reported it once, and the marker is retried every second.
            marked(False)
        except LogError as error:
            logger.error("%s: the marker of producer %d is written later: %s", partition, marker.producer_id, error)
            marked(False)

    def write(self, marker: ProducerMarker, partition: Partition, synced: Respond, *, by_client: bool = False) -> None:
        """Append a marker to a partition; `synced` is called once it is durable, or with an error. Raises LogError."""
        if partition.log.durability.failure:
            # Logged when it failed; it accepts no marker until the next start.
            synced(ErrorCode.kafka_storage_error)
            return
        if partition.replica is not None and (refusal := partition.replica.refusal()):
            synced(refusal)
            return
        producer = marker.producer_id, marker.producer_epoch
        epoch = marker.coordinator_epoch
        if partition.topic == GROUP_OFFSETS_TOPIC:
            groups = self._groups(partition.index)
            is_postponed = groups.error_code is ErrorCode.coordinator_load_in_progress and partition.replica is not None
            if groups.error_code in _OF_MARKERS or is_postponed:
                # In a cluster the marker is sent again.
                synced(_OF_MARKERS.get(groups.error_code, ErrorCode.not_enough_replicas))
                return
            groups.complete_transaction(*producer, commit=marker.commit, coordinator_epoch=epoch)
            # Not the partition's sync: while the groups are loading, the marker is not in the log yet.
            groups.when_synced(lambda code: synced(_OF_MARKERS.get(code, code)))
        else:
            partition.log.append_marker(*producer, commit=marker.commit, coordinator_epoch=epoch, by_client=by_client)
            self._group_commit.flush(partition, marker)
            if partition.replica is not None:
                partition.replica.on_appended()
            partition.when_durable(synced)

    def _skip_deleted(self, marked: Marked) -> None:
        """A deleted partition needs no marker once the deletion is durable."""
        self._when_topics_synced(lambda error_code: marked(not error_code))
