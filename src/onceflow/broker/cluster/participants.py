"""The partitions of transactions in a cluster, whose leaders are different brokers.

Markers for the partitions of another broker are sent to it by WriteTxnMarkers, as kafka.coordinator.transaction.
TransactionMarkerChannelManager does: joined in batches, one request in flight for each broker. One that is not written
is returned to the coordinator, which sends it again, perhaps to another leader.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from onceflow.broker.cluster.batches import BrokerQueues
from onceflow.broker.cluster.view import ClusterView
from onceflow.broker.storage.partitions import Partition, Partitions, Place
from onceflow.wire.apis import WRITE_TXN_MARKERS
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import request_class
from onceflow.wire.markers import ProducerMarker
from onceflow.wire.messages import message_of

logger = logging.getLogger(__name__)

VERSION = 1
WAIT_FOR_REPLICAS_S = 30.0
"""Time after which a marker that not all in-sync replicas have is written again (Kafka's request.timeout.ms)."""

Respond = Callable[[ErrorCode], None]
Marked = Callable[[bool], None]


class LocalPartitions(Protocol):
    """Interface of the partitions that this broker leads (`transactions.participants.LocalParticipants`)."""

    def mark(self, marker: ProducerMarker, place: Place, marked: Marked) -> None:
        """Write the marker to a partition that this broker leads."""

    def write(self, marker: ProducerMarker, partition: Partition, synced: Respond, *, by_client: bool = False) -> None:
        """Append a marker that was requested. Raises LogError."""


class Existence(Protocol):
    """Interface of the cluster's topics."""

    def when_read(self, topics: Sequence[str], read: Callable[[], None]) -> None:
        """Call `read` once these topics have been read from ZooKeeper as they are now."""


class PendingMarker(NamedTuple):
    """A marker that another broker writes."""

    marker: ProducerMarker
    place: Place
    marked: Marked


class ClusterParticipants:
    """Partitions of this broker and of the others."""

    may_be_away = True

    def __init__(
        self,
        broker_id: int,
        local: LocalPartitions,
        partitions: Partitions,
        view: ClusterView,
        existence: Existence,
        has_partition: Callable[[str, int], bool],
    ) -> None:
        """`has_partition`: whether a partition exists in the cluster, as far as this broker has read."""
        self._broker_id = broker_id
        self._local = local
        self._partitions = partitions
        self._view = view
        self._existence = existence
        self._has_partition = has_partition
        self._queues: BrokerQueues[PendingMarker] = BrokerQueues(
            f"broker-{broker_id}-txn-marker-sender", view, _request, _settle
        )
        self.write = local.write

    def sync(self, _transaction: Any, synced: Respond) -> None:
        """Call `synced` at once: a transactional batch is acknowledged when all in-sync replicas have it."""
        synced(ErrorCode.none)

    def mark(self, marker: ProducerMarker, place: Place, marked: Marked) -> None:
        """Write the marker, or let the partition's leader write it."""
        if self._partitions.get(*place) is not None:
            self._local.mark(marker, place, marked)
            return
        state = self._view.state(*place)
        if state is None:
            # Unknown to the controller, or not known here yet.
            self._existence.when_read([place[0]], lambda: marked(not self._has_partition(*place)))
        elif state.leader == self._broker_id or not self._queues.add(
            state.leader, PendingMarker(marker, place, marked)
        ):
            marked(False)

    def forget_dead(self) -> None:
        """Return the markers for brokers that are not alive any more; called often."""
        self._queues.forget_dead()

    async def close(self) -> None:
        """Send nothing more."""
        await self._queues.close()


def _request(items: Sequence[PendingMarker]) -> Any:
    markers: dict[ProducerMarker, dict[str, list[int]]] = {}
    for marker, (topic, index), _marked in items:
        markers.setdefault(marker, {}).setdefault(topic, []).append(index)
    return message_of(
        request_class(WRITE_TXN_MARKERS, VERSION),
        {
            "markers": [
                {
                    "producer_id": marker.producer_id,
                    "producer_epoch": marker.producer_epoch,
                    "transaction_result": marker.commit,
                    "topics": [{"name": topic, "partition_indexes": indexes} for topic, indexes in topics.items()],
                    "coordinator_epoch": marker.coordinator_epoch,
                }
                for marker, topics in markers.items()
            ]
        },
    )


def _settle(items: Sequence[PendingMarker], response: Any) -> None:
    """React to each partition's error (TransactionMarkerRequestCompletionHandler.onComplete)."""
    codes: dict[tuple[int, Place], ErrorCode] = {}
    for marker in () if response is None else response.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                place = topic.name, partition.partition_index
                codes[marker.producer_id, place] = ErrorCode(partition.error_code)
    for pending in items:
        code = codes.get((pending.marker.producer_id, pending.place), ErrorCode.network_exception)
        if code is ErrorCode.invalid_producer_epoch:
            # Only a batch outside transactions can have raised the epoch; no data waits for this.
            logger.warning("%s-%d: the marker of producer %d cannot be written", *pending.place, pending.marker[0])
        elif code:
            logger.info("%s-%d: a marker is written later: %s", *pending.place, code.name)
        pending.marked(code in (ErrorCode.none, ErrorCode.invalid_producer_epoch))
