"""What a cluster tells about itself: brokers, topics, leaders. Values only, read from a Metadata answer."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceflow.client.addresses import Address
from onceflow.client.errors import LeaderUnavailable, RequestRefused
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic. `partitions` maps partition → leader's broker id, -1 while there is none.

    `topic_id` is None where the broker is older than Kafka 2.8; a topic deleted and made again has another one.
    """

    name: str
    topic_id: uuid.UUID | None
    partitions: Mapping[int, int]
    internal: bool
    replicas: Mapping[int, tuple[int, ...]]
    in_sync_replicas: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """One Metadata answer: `brokers` maps broker id → address; topics that do not exist are not in `topics`."""

    brokers: Mapping[int, Address]
    controller_id: int
    topics: Mapping[str, TopicMetadata]


def read_metadata(answer: Any) -> ClusterMetadata:
    """Read kio's MetadataResponse of any version; raises LeaderUnavailable or RequestRefused for a topic's error."""
    topics = [_topic(entry) for entry in answer.topics if entry.error_code != ErrorCode.unknown_topic_or_partition]
    return ClusterMetadata(
        brokers={broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers},
        controller_id=answer.controller_id,
        topics={topic.name: topic for topic in topics},
    )


def _topic(entry: Any) -> TopicMetadata:
    if entry.error_code == ErrorCode.leader_not_available:
        raise LeaderUnavailable(f"topic {entry.name} is still being created: {Remedy.TRY_AGAIN}")
    if entry.error_code == ErrorCode.invalid_topic_exception:
        raise RequestRefused(
            f"'{entry.name}' can be no topic's name: ASCII letters, digits, '.', '_' and '-' make one, at most 249",
            entry.error_code,
        )
    if entry.error_code != ErrorCode.none:
        raise RequestRefused(
            f"the broker refuses metadata of topic '{entry.name}': {entry.error_code.name}", entry.error_code
        )
    return TopicMetadata(
        name=entry.name,
        topic_id=getattr(entry, "topic_id", None),
        partitions={each.partition_index: each.leader_id for each in _by_partition(entry)},
        internal=entry.is_internal,
        replicas={each.partition_index: tuple(each.replica_nodes) for each in _by_partition(entry)},
        in_sync_replicas={each.partition_index: tuple(each.isr_nodes) for each in _by_partition(entry)},
    )


def _by_partition(entry: Any) -> list[Any]:
    return sorted(entry.partitions, key=lambda each: int(each.partition_index))
