"""Which topics exist and which producer ids were handed out: decided here, recorded in `__cluster_metadata-0`.

`decide` functions raise TopicRefused or give the records of a change; `replay` applies a record, at run time and at
start-up alike.
"""

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onceflow.broker import topic_configs
from onceflow.broker.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from onceflow.errors import OnceflowError
from onceflow.wire.errors import ErrorCode

GROUP_OFFSETS_TOPIC = "__consumer_offsets"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
NAME_CHARACTERS_MAX = 249
PRODUCER_IDS_IN_A_BLOCK = 1000
PARTITIONS_MAX = 2000
"""Partitions of all topics together: each holds files open, and the usual limit is a few thousand of them."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicRefused(OnceflowError):
    """A change of the topics that Kafka's error code `error_code` refuses."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass(slots=True)
class Topic:
    """One topic. Its partitions are all on this broker."""

    name: str
    topic_id: uuid.UUID
    partition_count: int = 0
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name == GROUP_OFFSETS_TOPIC


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that somebody wants; -1 stands for the broker's default."""

    name: str
    partition_count: int
    replication_factor: int = 1
    configs: Mapping[str, str | None] = field(default_factory=dict)


class Topics:
    """The topics and the next producer id. Single-threaded: the event loop is its lock."""

    def __init__(
        self, node_id: int, partition_count_default: int, make_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    ) -> None:
        self.node_id = node_id
        self.partition_count_default = partition_count_default
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[uuid.UUID, Topic] = {}
        self.removed: dict[uuid.UUID, str] = {}
        """Deleted topics' names, by which start-up tells a deletion cut short from a stray directory."""
        self.being_deleted: set[str] = set()
        """Names whose old directories are on their way out: a new topic must not find them."""
        self.next_producer_id = 0
        self._make_uuid = make_uuid

    def decide_create(self, new: NewTopic) -> list[MetadataRecord]:
        """Records of a new topic, all to be appended in one batch."""
        check_name(new.name)
        if new.name in self.by_name:
            raise TopicRefused(ErrorCode.topic_already_exists, f"topic {new.name} exists already")
        if new.name in self.being_deleted:
            raise TopicRefused(ErrorCode.topic_already_exists, f"topic {new.name} is being deleted; try again")
        partition_count = self.partition_count_default if new.partition_count == -1 else new.partition_count
        self._check_counts(new, partition_count)
        try:
            topic_configs.check(new.name, new.configs)
        except topic_configs.InvalidConfig as error:
            raise TopicRefused(error.error_code, str(error)) from error
        topic_id = self._make_uuid()
        records: list[MetadataRecord] = [TopicRecord(new.name, topic_id)]
        records += [ConfigRecord(new.name, name, value) for name, value in new.configs.items()]
        records += [PartitionRecord(index, topic_id, self.node_id) for index in range(partition_count)]
        return records

    def _check_counts(self, new: NewTopic, partition_count: int) -> None:
        if partition_count < 1:
            raise TopicRefused(
                ErrorCode.invalid_partitions, f"topic {new.name}: {partition_count} partitions; at least 1 is needed"
            )
        present = sum(topic.partition_count for topic in self.by_name.values())
        if present + partition_count > PARTITIONS_MAX:
            raise TopicRefused(
                ErrorCode.invalid_partitions,
                f"topic {new.name}: {partition_count} partitions beside the {present} that exist are more than the"
                f" {PARTITIONS_MAX} that this broker serves; ask for fewer or delete topics",
            )
        if new.replication_factor not in (-1, 1):
            raise TopicRefused(
                ErrorCode.invalid_replication_factor,
                f"topic {new.name}: replication factor {new.replication_factor} on a single broker; use 1 or -1",
            )

    def decide_delete(self, topic: Topic) -> list[MetadataRecord]:
        """Records of a topic's end."""
        if topic.is_internal:
            raise TopicRefused(ErrorCode.invalid_request, f"topic {topic.name} is the broker's own; it stays")
        if self.by_id.get(topic.topic_id) is not topic:
            raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"topic {topic.name} is deleted already")
        return [RemoveTopicRecord(topic.topic_id)]

    def decide_producer_ids(self) -> list[MetadataRecord]:
        """Records that reserve the next block of producer ids, so that none is handed out again after a crash."""
        return [ProducerIdsRecord(self.node_id, self.next_producer_id + PRODUCER_IDS_IN_A_BLOCK)]

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record."""
        match record:
            case TopicRecord(name, topic_id):
                self.by_name[name] = self.by_id[topic_id] = Topic(name, topic_id)
            case PartitionRecord(partition, topic_id, _leader):
                self.by_id[topic_id].partition_count = partition + 1
            case ConfigRecord(topic, name, None):
                self.by_name[topic].configs.pop(name, None)
            case ConfigRecord(topic, name, str(value)):
                self.by_name[topic].configs[name] = value
            case RemoveTopicRecord(topic_id):
                self._replay_removal(topic_id)
            case ProducerIdsRecord(_broker_id, next_producer_id):
                self.next_producer_id = next_producer_id

    def _replay_removal(self, topic_id: uuid.UUID) -> None:
        """Of two removals of one topic, which earlier releases could write, the second changes nothing."""
        removed = self.by_id.pop(topic_id, None)
        if removed is not None:
            del self.by_name[removed.name]
            self.removed[topic_id] = removed.name


def check_name(name: str) -> None:
    """Raises TopicRefused for a name that Kafka does not allow (org.apache.kafka.common.internals.Topic)."""
    if name in (".", "..") or not _LEGAL_NAME.fullmatch(name):
        raise TopicRefused(
            ErrorCode.invalid_topic_exception,
            f"topic name {name[: NAME_CHARACTERS_MAX + 1]!r}: 1 to {NAME_CHARACTERS_MAX} letters, digits, '.', '_' and"
            " '-' are allowed, and not '.' or '..'",
        )
    if name == CLUSTER_METADATA_TOPIC:
        raise TopicRefused(ErrorCode.invalid_topic_exception, f"topic {name} is the broker's own")
