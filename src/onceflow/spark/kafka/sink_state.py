"""Kafka sinks as commands see them: both copies of a marker, and their deletion."""

from dataclasses import dataclass

from onceflow.client.admin import Admin
from onceflow.client.admin_responses import TransactionDescription
from onceflow.client.cluster import Cluster
from onceflow.client.errors import RequestRefused
from onceflow.client.security import Security
from onceflow.client.transactional import TransactionalProducer
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.errors import SinkStopped
from onceflow.spark.kafka.marker import (
    KafkaMarker,
    MarkerLocation,
    agreed,
    kafka_reset,
    newest_values,
    parse,
    with_offset_of,
)
from onceflow.wire.errors import ErrorCode
from onceflow.wire.murmur2 import partition_for_key

PREFIX = "onceflow-"
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""States of an open transaction."""
QUERY_ID_CHARACTERS = 36


class NoMarkerTopic(OnceflowError):
    """The topic with the sinks' markers does not exist."""


@dataclass(frozen=True, slots=True)
class KafkaSinkState:
    """Both copies of the marker at `location`; `conflict` says why they do not agree."""

    location: MarkerLocation
    in_group: KafkaMarker | None
    record_offset: int | None
    in_record: KafkaMarker | None
    conflict: str | None
    transaction: TransactionDescription | None

    @property
    def marker(self) -> KafkaMarker | None:
        """The marker that both copies agree on."""
        return None if self.conflict is not None else agreed(self.location, self.in_group, self.in_record)

    @property
    def sink(self) -> str:
        """Name of the sink within its query."""
        return parts_of(self.location.name)[1]

    @property
    def query(self) -> str:
        return parts_of(self.location.name)[0]

    @property
    def is_open(self) -> bool:
        """Whether its transaction is open: a driver writes, or one died and the time-out has not expired."""
        return self.transaction is not None and self.transaction.state in OPEN


def kafka_sinks(
    cluster: Cluster, marker_topic: str, query: str | None, sink: str | None, checkpoint: str | None
) -> list[KafkaSinkState]:
    """Return the sinks with at least one copy of their marker, of one query or of all; messages name `checkpoint`.

    Raises NoMarkerTopic.
    """
    topic = cluster.topics(marker_topic).get(marker_topic)
    if topic is None:
        raise NoMarkerTopic(
            f"there is no topic {marker_topic} at {cluster.bootstrap}, so no Kafka sink has written there: "
            f"{Remedy.NAME_MARKER_TOPIC}"
        )
    admin = Admin(cluster)
    groups = {group.group_id for group in admin.list_groups()}
    keys = {key for partition in topic.partitions for key in newest_values(cluster, marker_topic, partition)}
    locations = []
    for name in sorted(groups | {key.decode("utf-8", "replace") for key in keys}):
        its_query, its_sink = parts_of(name)
        if its_sink and query in (None, its_query) and sink in (None, its_sink):
            partition = partition_for_key(name.encode(), len(topic.partitions))
            reset = kafka_reset(cluster.bootstrap, its_sink, checkpoint, query=its_query, marker_topic=marker_topic)
            locations.append(MarkerLocation(name, marker_topic, partition, reset))
    return [state for location in locations if (state := _state(admin, location)) is not None]


def parts_of(name: str) -> tuple[str, str]:
    """Return query id and sink's name of a transactional id; both empty if it is not of a sink."""
    begin = len(PREFIX) + QUERY_ID_CHARACTERS
    if not name.startswith(PREFIX) or name[begin : begin + 1] != "-":
        return "", ""
    return name[len(PREFIX) : begin], name[begin + 1 :]


def _state(admin: Admin, location: MarkerLocation) -> KafkaSinkState | None:
    """Return the sink's state; None for a group of that name without marker."""
    conflict: str | None = None
    in_group = in_record = record_offset = None
    committed = admin.group_offsets(location.name).get((location.topic, location.partition))
    try:
        if committed is not None and committed.offset >= 0:
            marker, record_offset = parse("the group's offset", location, committed.metadata)
            in_group = with_offset_of(location, committed.offset, marker)
        in_record = location.read_record(admin.cluster, record_offset)
        agreed(location, in_group, in_record)
    except SinkStopped as error:
        conflict = str(error)
    if conflict is None and in_group is None and in_record is None:
        return None
    return KafkaSinkState(location, in_group, record_offset, in_record, conflict, _transaction(admin, location.name))


def _transaction(admin: Admin, name: str) -> TransactionDescription | None:
    try:
        return admin.describe_transaction(name)
    except RequestRefused as error:
        if error.error_code != ErrorCode.transactional_id_not_found:
            raise
        return None


def forget_kafka_sink(cluster: Cluster, state: KafkaSinkState, security: Security) -> None:
    """Fence the sink's producer, then delete both copies of the marker; a remaining driver then stops.

    The marker is valid until the second copy is deleted, so an interrupted call can be repeated.
    """
    location = state.location
    with TransactionalProducer(cluster.bootstrap, location.name, security=security) as producer:
        producer.begin()
        producer.send(location.topic, None, key=location.name.encode(), partition=location.partition)
        producer.commit()
    try:
        Admin(cluster).delete_group(location.name)
    except RequestRefused as error:
        if error.error_code != ErrorCode.group_id_not_found:
            raise
