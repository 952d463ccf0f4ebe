"""Kafka sinks seen from outside: what both copies of a marker say, and forgetting them."""

from dataclasses import dataclass

from onceflow.client.admin import Admin
from onceflow.client.admin_answers import TransactionDescription
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import RequestRefused
from onceflow.client.records import read_records
from onceflow.client.security import Security
from onceflow.client.transactional import TransactionalProducer
from onceflow.errors import OnceflowError
from onceflow.spark.decision import Wording
from onceflow.spark.kafka_marker import KafkaMarker, Place, agreed, parse, with_offset_of
from onceflow.spark.sink_errors import SinkStopped
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
        return self.place.name[len(PREFIX) + QUERY_ID_CHARACTERS + 1 :]

    @property
    def query(self) -> str:
        return self.place.name[len(PREFIX) :][:QUERY_ID_CHARACTERS]

    @property
    def is_open(self) -> bool:
        """Whether its transaction is open: a driver writes, or one died and the time-out is not over."""
        return self.transaction is not None and self.transaction.state in OPEN


def kafka_sinks(cluster: Cluster, marker_topic: str, query: str | None, sink: str | None) -> list[KafkaSinkState]:
    """Those of which a copy of the marker or the transactional id is known, of one query or of all.

    Raises NoMarkerTopic.
    """
    topic = cluster.topics(marker_topic).get(marker_topic)
    if topic is None:
        raise NoMarkerTopic(
            f"there is no topic {marker_topic} at {cluster.bootstrap}, so no Kafka sink has written there: name the "
            "sinks' own with --marker-topic"
        )
    admin = Admin(cluster)
    groups = {each.group_id for each in admin.list_groups()}
    keys = {name for partition in topic.partitions for name in _keys(cluster, marker_topic, partition)}
    places = [
        Place(name, marker_topic, partition_for_key(name.encode(), len(topic.partitions)))
        for name in sorted(groups | keys)
        if _is_wanted(name, query, sink)
    ]
    return [state for place in places if (state := _state(admin, place)) is not None]


def _is_wanted(name: str, query: str | None, sink: str | None) -> bool:
    begin = len(PREFIX) + QUERY_ID_CHARACTERS
    if not name.startswith(PREFIX) or name[begin : begin + 1] != "-":
        return False
    return query in (None, name[len(PREFIX) : begin]) and sink in (None, name[begin + 1 :])


def _keys(cluster: Cluster, topic: str, partition: int) -> set[str]:
    """The names of the markers that have a record there, and no tombstone behind it."""
    start, end = (cluster.list_offsets(topic, {partition: at})[partition].offset for at in (EARLIEST, LATEST))
    newest: dict[bytes | None, bytes | None] = {}
    for record in read_records(cluster, topic, partition, start, end):
        newest[record.key] = record.value
    return {key.decode("utf-8", "replace") for key, value in newest.items() if key is not None and value is not None}


def _state(admin: Admin, place: Place) -> KafkaSinkState | None:
    """None for a group of that name which is no marker's."""
    conflict: str | None = None
    in_group = in_record = record_offset = None
    committed = admin.group_offsets(place.name).get((place.topic, place.partition))
    try:
        if committed is not None and committed.offset >= 0:
            found, record_offset = parse(f"the group's offset of {place}", committed.metadata)
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


def kafka_wording(state: KafkaSinkState, reset: str) -> Wording:
    """How sentences name a Kafka sink's things."""
    return Wording(
        marker=str(state.place),
        target="the cluster",
        data="output",
        elsewhere="another name= or another cluster",
        anew=f"forget marker and checkpoint with '{reset}' and write anew, to another or an emptied topic",
    )


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
