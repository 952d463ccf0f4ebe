"""Results of administrative requests, read from kio's responses of any version."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onceflow.client.addresses import Address
from onceflow.wire import TopicPartition
from onceflow.wire.acls import AclBinding, AclOperation, AclPattern, AclPermission, PatternType, ResourceType
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


def read_acl(resource: Any, entry: Any) -> AclBinding:
    """Return an ACL of a response, from the entry of its resource and its own."""
    pattern = AclPattern(
        ResourceType(resource.resource_type), resource.resource_name, PatternType(resource.pattern_type)
    )
    operation, permission = AclOperation(entry.operation), AclPermission(entry.permission_type)
    return AclBinding(pattern, entry.principal, entry.host, operation, permission)


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A setting that provides a config's value when those before it are unset."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config of a topic or broker; `value` is None if it is sensitive. `source` and `type` are Kafka's names."""

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
    """Brokers of the cluster."""

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerEntry, ...]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in the list; `state` is empty if the broker is older than Kafka 2.6."""

    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member and the (topic, partition) pairs that it reads, none if the group is not a consumer group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


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
    """A group's position in one partition: the next offset that it reads."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in the list."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id's transaction; `start_time_ms` is -1 if none is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A known producer of a partition; `transaction_first_offset` is -1 if it has no open transaction there."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


def read_configs(entries: Iterable[Any]) -> dict[str, ConfigEntry]:
    """Read the configs of one resource in a DescribeConfigs response, by name."""
    return {entry.name: _config(entry) for entry in entries}


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
            ConfigSynonym(synonym.name, synonym.value, CONFIG_SOURCES.get(synonym.source, "UNKNOWN"))
            for synonym in entry.synonyms
        ),
    )


def read_cluster(response: Any) -> ClusterDescription:
    """Read a DescribeCluster response."""
    brokers = (
        BrokerEntry(broker.broker_id, Address(broker.host, broker.port), broker.rack) for broker in response.brokers
    )
    return ClusterDescription(response.cluster_id, response.controller_id, tuple(brokers))


def read_group(group: Any, coordinator: Address) -> GroupDescription:
    """Read one group in a DescribeGroups response."""
    is_consumer_group = group.protocol_type == CONSUMER_PROTOCOL
    members = (
        GroupMember(
            member.member_id,
            getattr(member, "group_instance_id", None),
            member.client_id,
            member.client_host,
            _assigned(bytes(member.member_assignment)) if is_consumer_group else (),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id, group.group_state, group.protocol_type, group.protocol_data, tuple(members), coordinator
    )


def _assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Parse Kafka's ConsumerProtocolAssignment: version, then name and partitions of each topic. Raises
    MalformedFrame."""
    if not assignment:
        return ()
    view, partitions = memoryview(assignment), []
    try:
        topics, position = read_count(view, 2, flexible=False, element_bytes_min=6)
        for _ in range(topics):
            name, position = read_string(view, position, flexible=False)
            count, position = read_count(view, position, flexible=False, element_bytes_min=4)
            partitions += [(name, index) for index in struct.unpack_from(f">{count}i", view, position)]
            position += 4 * count
    except SHORT_OF_BYTES as error:
        raise MalformedFrame(f"a member's assignment of {len(assignment)} bytes: {error}") from error
    return tuple(partitions)


def read_transaction(state: Any) -> TransactionDescription:
    """Read one transactional id in a DescribeTransactions response."""
    start = state.transaction_start_time
    return TransactionDescription(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=round(state.transaction_timeout.total_seconds() * 1000),
        start_time_ms=round(start.timestamp() * 1000) if start is not None else -1,
        partitions=tuple((topic.topic, index) for topic in state.topics for index in topic.partitions),
    )


def read_producers(entries: Iterable[Any]) -> list[ActiveProducer]:
    """Read the producers of one partition in a DescribeProducers response."""
    return [
        ActiveProducer(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_txn_start_offset,
        )
        for entry in entries
    ]
