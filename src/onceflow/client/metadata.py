"""Metadata of a cluster: brokers, topics, leaders, as values read from a Metadata response."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceflow.client.addresses import Address
from onceflow.client.errors import LeaderUnavailable, RequestRefused
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode, error_name

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic. `partitions` maps partition → leader's broker id, -1 without a leader.

    `topic_id` is None if the broker is older than Kafka 2.8; a topic that is deleted and recreated gets another one.
    """

    name: str
    topic_id: uuid.UUID | None
    partitions: Mapping[int, int]
    internal: bool
    replicas: Mapping[int, tuple[int, ...]]
    in_sync_replicas: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """One Metadata response: `brokers` maps broker id → address; topics that do not exist are not in `topics`."""

    brokers: Mapping[int, Address]
    controller_id: int
    topics: Mapping[str, TopicMetadata]


def read_metadata(response: Any) -> ClusterMetadata:
    """Read kio's MetadataResponse of any version. Raises LeaderUnavailable or RequestRefused for a topic's error."""
    topics = [_topic(entry) for entry in response.topics if entry.error_code != ErrorCode.unknown_topic_or_partition]
    return ClusterMetadata(
        brokers={broker.node_id: Address(broker.host, broker.port) for broker in response.brokers},
        controller_id=response.controller_id,
        topics={topic.name: topic for topic in topics},
    )


def _topic(entry: Any) -> TopicMetadata:
    if entry.error_code == ErrorCode.leader_not_available:
        raise LeaderUnavailable(f"topic {entry.name} is still being created; {Remedy.TRY_AGAIN}")
    if entry.error_code == ErrorCode.invalid_topic_exception:
        raise RequestRefused(
            f"'{entry.name}' is not a valid topic name; expected at most 249 ASCII letters, digits, '.', '_' and '-'",
            entry.error_code,
        )
    if entry.error_code != ErrorCode.none:
        raise RequestRefused(
            f"the metadata of topic '{entry.name}' was refused: {error_name(entry.error_code)}", entry.error_code
        )
    partitions = sorted(entry.partitions, key=lambda partition: int(partition.partition_index))
    return TopicMetadata(
        name=entry.name,
        topic_id=getattr(entry, "topic_id", None),
        partitions={partition.partition_index: partition.leader_id for partition in partitions},
        internal=entry.is_internal,
        replicas={partition.partition_index: tuple(partition.replica_nodes) for partition in partitions},
        in_sync_replicas={partition.partition_index: tuple(partition.isr_nodes) for partition in partitions},
    )
