"""What a cluster tells its administrators, as values, and how they are read from kio's answers of any version."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onceflow.client.addresses import Address
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.primitives import SHORT_OF_BYTES, read_count, read_string

CONFIG_SOURCES: Mapping[int, str] = {
    0: "UNKNOWN",
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "CLIENT_METRICS_CONFIG",
    8: "GROUP_CONFIG",
}
"""org.apache.kafka.common.requests.DescribeConfigsResponse.ConfigSource."""
CONFIG_TYPES: Mapping[int, str] = {
    0: "UNKNOWN",
    1: "BOOLEAN",
    2: "STRING",
    3: "INT",
    4: "SHORT",
    5: "LONG",
    6: "DOUBLE",
    7: "LIST",
    8: "CLASS",
    9: "PASSWORD",
}
CONSUMER_PROTOCOL = "consumer"


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A setting that a config takes its value from when those before it have none."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config of a topic or broker; `value` is None where it is sensitive. `source` and `type` in Kafka's words."""

    name: str
    value: str | None
    source: str
    type: str
    read_only: bool
    sensitive: bool
    documentation: str | None
    synonyms: tuple[ConfigSynonym, ...]


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """A broker of the cluster."""

    broker_id: int
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """Who is in the cluster."""

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerEntry, ...]


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One directory of one broker: the bytes of each (topic, partition) there; sizes of the volume, -1 if untold."""

    broker_id: int
    path: str
    size_bytes: Mapping[tuple[str, int], int]
    total_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group's line in the list; `state` is empty where the broker is older than Kafka 2.6."""

    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member and the (topic, partition) pairs that it reads, empty where the group is no group of consumers."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group; one that does not exist has the state "Dead"."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]
    coordinator: Address


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's place in one partition: the next offset that it reads."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id's line in the list."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id's transaction; `start_time_ms` is -1 where none is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that a partition remembers; `transaction_first_offset` is -1 while it has none open there."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


def read_configs(entries: Iterable[Any]) -> dict[str, ConfigEntry]:
    """The configs of one resource in a DescribeConfigs answer, by name."""
    return {each.name: _config(each) for each in entries}


def _config(entry: Any) -> ConfigEntry:
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=CONFIG_SOURCES.get(entry.config_source, "UNKNOWN"),
        type=CONFIG_TYPES.get(getattr(entry, "config_type", 0), "UNKNOWN"),
        read_only=entry.read_only,
        sensitive=entry.is_sensitive,
        documentation=getattr(entry, "documentation", None),
        synonyms=tuple(
            ConfigSynonym(each.name, each.value, CONFIG_SOURCES.get(each.source, "UNKNOWN")) for each in entry.synonyms
        ),
    )


def read_cluster(answer: Any) -> ClusterDescription:
    """A DescribeCluster answer."""
    brokers = (BrokerEntry(each.broker_id, Address(each.host, each.port), each.rack) for each in answer.brokers)
    return ClusterDescription(answer.cluster_id, answer.controller_id, tuple(brokers))


def read_log_directory(broker_id: int, entry: Any) -> LogDirectory:
    """One directory in a DescribeLogDirs answer; replicas that are on their way to another one are not counted."""
    size_bytes = {
        (topic.name, each.partition_index): each.partition_size
        for topic in entry.topics
        for each in topic.partitions
        if not each.is_future_key
    }
    total_bytes, usable_bytes = getattr(entry, "total_bytes", -1), getattr(entry, "usable_bytes", -1)
    return LogDirectory(broker_id, entry.log_dir, size_bytes, total_bytes, usable_bytes)


def read_group(group: Any, coordinator: Address) -> GroupDescription:
    """One group in a DescribeGroups answer."""
    is_consumers = group.protocol_type == CONSUMER_PROTOCOL
    members = (
        GroupMember(
            each.member_id,
            getattr(each, "group_instance_id", None),
            each.client_id,
            each.client_host,
            _assigned(bytes(each.member_assignment)) if is_consumers else (),
        )
        for each in group.members
    )
    return GroupDescription(
        group.group_id, group.group_state, group.protocol_type, group.protocol_data, tuple(members), coordinator
    )


def _assigned(assignment: bytes) -> tuple[tuple[str, int], ...]:
    """Kafka's ConsumerProtocolAssignment: version, then per topic its name and partitions. Raises MalformedFrame."""
    if not assignment:
        return ()
    view, found = memoryview(assignment), []
    try:
        topics, position = read_count(view, 2, flexible=False, element_bytes_min=6)
        for _ in range(topics):
            name, position = read_string(view, position, flexible=False)
            count, position = read_count(view, position, flexible=False, element_bytes_min=4)
            found += [(name, index) for index in struct.unpack_from(f">{count}i", view, position)]
            position += 4 * count
    except SHORT_OF_BYTES as error:
        raise MalformedFrame(f"a member's assignment of {len(assignment)} bytes: {error}") from error
    return tuple(found)


def read_transaction(state: Any) -> TransactionDescription:
    """One transactional id in a DescribeTransactions answer."""
    start = state.transaction_start_time
    return TransactionDescription(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=round(state.transaction_timeout.total_seconds() * 1000),
        start_time_ms=round(start.timestamp() * 1000) if start is not None else -1,
        partitions=tuple((each.topic, index) for each in state.topics for index in each.partitions),
    )


def read_producers(entries: Iterable[Any]) -> list[ActiveProducer]:
    """The producers of one partition in a DescribeProducers answer."""
    return [
        ActiveProducer(
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in entries
    ]
