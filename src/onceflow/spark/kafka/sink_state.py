"""Kafka sinks seen from outside: what both copies of a marker say, and forgetting them."""

from dataclasses import dataclass

from onceflow.client.admin import Admin
from onceflow.client.admin_responses import TransactionDescription
from onceflow.client.cluster import Cluster
from onceflow.client.errors import RequestRefused
from onceflow.client.security import Security
from onceflow.client.transactional import TransactionalProducer
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.sink_errors import SinkStopped
from onceflow.spark.kafka.marker import KafkaMarker, Place, agreed, newest_values, parse, with_offset_of
from onceflow.spark.kafka.reset_command import kafka_reset
from onceflow.wire.errors import ErrorCode
from onceflow.wire.murmur2 import partition_for_key

PREFIX = "onceflow-"
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""The states in which a transaction is open."""
QUERY_ID_CHARACTERS = 36


class NoMarkerTopic(OnceflowError):
    """The topic in which the sinks keep their markers is not there."""


@dataclass(frozen=True, slots=True)
class KafkaSinkState:
    """Both copies of the marker at `place`; `conflict` says why they cannot be read as one."""

    place: Place
    in_group: KafkaMarker | None
    record_offset: int | None
    in_record: KafkaMarker | None
    conflict: str | None
    transaction: TransactionDescription | None

    @property
    def marker(self) -> KafkaMarker | None:
        """The one marker that both copies are."""
        return None if self.conflict is not None else agreed(self.place, self.in_group, self.in_record)

    @property
    def sink(self) -> str:
        """The sink's name within its query."""
        return parts_of(self.place.name)[1]

    @property
    def query(self) -> str:
        return parts_of(self.place.name)[0]

    @property
    def is_open(self) -> bool:
        """Whether its transaction is open: a driver writes, or one died and the time-out is not over."""
        return self.transaction is not None and self.transaction.state in OPEN


def kafka_sinks(
    cluster: Cluster, marker_topic: str, query: str | None, sink: str | None, checkpoint: str | None
) -> list[KafkaSinkState]:
    """Those of which a copy of the marker is there, of one query or of all; sentences name `checkpoint`.

    Raises NoMarkerTopic.
    """
    topic = cluster.topics(marker_topic).get(marker_topic)
    if topic is None:
        raise NoMarkerTopic(
            f"there is no topic {marker_topic} at {cluster.bootstrap}, so no Kafka sink has written there: "
            f"{Remedy.NAME_MARKER_TOPIC}"
        )
    admin = Admin(cluster)
    groups = {each.group_id for each in admin.list_groups()}
    keys = {key for partition in topic.partitions for key in newest_values(cluster, marker_topic, partition)}
    places = []
    for name in sorted(groups | {key.decode("utf-8", "replace") for key in keys}):
        its_query, its_sink = parts_of(name)
        if its_sink and query in (None, its_query) and sink in (None, its_sink):
            partition = partition_for_key(name.encode(), len(topic.partitions))
            reset = kafka_reset(cluster.bootstrap, its_sink, checkpoint, query=its_query, marker_topic=marker_topic)
            places.append(Place(name, marker_topic, partition, reset))
    return [state for place in places if (state := _state(admin, place)) is not None]


def parts_of(name: str) -> tuple[str, str]:
    """Query id and sink's name of a transactional id; both empty where it is not of a sink."""
    begin = len(PREFIX) + QUERY_ID_CHARACTERS
    if not name.startswith(PREFIX) or name[begin : begin + 1] != "-":
        return "", ""
    return name[len(PREFIX) : begin], name[begin + 1 :]


def _state(admin: Admin, place: Place) -> KafkaSinkState | None:
    """None for a group of that name which is no marker's."""
    conflict: str | None = None
    in_group = in_record = record_offset = None
    committed = admin.group_offsets(place.name).get((place.topic, place.partition))
    try:
        if committed is not None and committed.offset >= 0:
            found, record_offset = parse("the group's offset", place, committed.metadata)
            in_group = with_offset_of(place, committed.offset, found)
        in_record = place.read_record(admin.cluster, record_offset)
        agreed(place, in_group, in_record)
    except SinkStopped as error:
        conflict = str(error)
    if conflict is None and in_group is None and in_record is None:
        return None
    return KafkaSinkState(place, in_group, record_offset, in_record, conflict, _transaction(admin, place.name))


def _transaction(admin: Admin, name: str) -> TransactionDescription | None:
    try:
        return admin.describe_transaction(name)
    except RequestRefused as error:
        if error.error_code != ErrorCode.transactional_id_not_found:
            raise
        return None


def forget_kafka_sink(cluster: Cluster, state: KafkaSinkState, security: Security) -> None:
    """Shut the sink's producer out, then delete both copies of the marker; a driver left over finds none and stops.

    The marker is whole until the second copy is gone, so this can be called again after it was interrupted.
    """
    place = state.place
    with TransactionalProducer(cluster.bootstrap, place.name, security=security) as producer:
        producer.begin()
        producer.send(place.topic, None, key=place.name.encode(), partition=place.partition)
        producer.commit()
    try:
        Admin(cluster).delete_group(place.name)
    except RequestRefused as error:
        if error.error_code != ErrorCode.group_id_not_found:
            raise
