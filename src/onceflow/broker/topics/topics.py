"""Topics and reserved producer ids, recorded in `__cluster_metadata-0`.

`decide` methods return the records of a change or raise TopicRefused; `replay` applies a record, both at run time and
at start.
"""

import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import randrange

from onceflow.broker.topics import configs as topic_configs
from onceflow.broker.topics.assignment import assign_replicas, assign_to_racks
from onceflow.broker.topics.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode

GROUP_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = (GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC)
"""Topics of the broker itself; clients can read but not write them."""
NAME_CHARACTERS_MAX = 249
PRODUCER_IDS_IN_A_BLOCK = 1000
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicRefused(OnceflowError):
    """A change of the topics is refused, with the error code that Kafka uses."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass(slots=True)
class Topic:
    """One topic."""

    name: str
    topic_id: uuid.UUID
    partition_count: int = 0
    configs: dict[str, str] = field(default_factory=dict)
    replicas: list[tuple[int, ...]] = field(default_factory=list)
    """Brokers of each partition."""

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


Assignment = Sequence[int]
"""Ids of the brokers that should host a partition."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; a count of -1 means the broker's default, or that `assignments` determines it."""

    name: str
    partition_count: int
    replication_factor: int = 1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Sequence[tuple[int, Assignment]] = ()
    """(partition, brokers) of each partition; if empty, the broker decides."""


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """A topic to extend to `partition_count` partitions; `assignments` has the brokers of each new one."""

    name: str
    partition_count: int
    assignments: Sequence[Assignment] | None = None


class Topics:
    """The topics and the next producer id. Single-threaded: the event loop is its lock."""

    def __init__(
        self,
        node_id: int,
        partition_count_default: int,
        partitions_max: int,
        make_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
        *,
        replication_factor_default: int = 1,
    ) -> None:
        self.node_id = node_id
        self.partition_count_default = partition_count_default
        self.partitions_max = partitions_max
        """Limit of all topics together."""
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[uuid.UUID, Topic] = {}
        self.removed: dict[uuid.UUID, str] = {}
        """Names of deleted topics, to recognize unfinished deletions at start."""
        self.being_deleted: set[str] = set()
        """Names whose old directories are still being deleted: a new topic must not find them."""
        self.next_producer_id = 0
        self.partition_count = 0
        """Partitions of all topics together, without the internal ones, which the broker needs in any case."""
        self.replication_factor_default = replication_factor_default
        self.brokers: Collection[int] = (node_id,)
        """Live brokers, among which new partitions are assigned."""
        self.racks: Mapping[int, str] = {}
        """Racks of the live brokers that have one."""
        self._by_metric_name: dict[str, str] = {}
        self._make_uuid = make_uuid

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of the topic with an id, None for an unknown id."""
        topic = self.by_id.get(topic_id)
        return None if topic is None else topic.name

    def deleted_names(self) -> set[str]:
        """Return the names of topics that were deleted and not created again."""
        return set(self.removed.values()) - self.by_name.keys()

    def decide_create(self, new: NewTopic) -> list[MetadataRecord]:
        """Return the records of a new topic, to be appended in one batch."""
        check_name(new.name)
        if new.name == CLUSTER_METADATA_TOPIC:
            message = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
            raise TopicRefused(ErrorCode.invalid_request, message)
        if new.name in self.by_name:
            raise TopicRefused(ErrorCode.topic_already_exists, f"Topic '{new.name}' already exists.")
        if new.name in self.being_deleted:
            raise TopicRefused(ErrorCode.topic_already_exists, f"topic {new.name} is being deleted; {Remedy.TRY_AGAIN}")
        self._check_collision(new.name)
        try:
            configs = topic_configs.normalized(new.configs)
        except topic_configs.InvalidConfig as error:
            raise TopicRefused(error.error_code, str(error)) from error
        assigned = self._assigned(new)
        self._check_partition_limit(new.name, len(assigned))
        topic_id = self._make_uuid()
        records: list[MetadataRecord] = [TopicRecord(new.name, topic_id)]
        records += [ConfigRecord(new.name, name, value) for name, value in configs.items()]
        records += [PartitionRecord(index, topic_id, brokers[0], brokers) for index, brokers in enumerate(assigned)]
        return records

    def _check_collision(self, name: str) -> None:
        """Refuse a name that differs only in `.` and `_`: Kafka's metric names do not distinguish them."""
        other = self._by_metric_name.get(_metric_name(name))
        if other is not None:
            raise TopicRefused(
                ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}"
            )

    def _assigned(self, new: NewTopic) -> list[tuple[int, ...]]:
        """Return the brokers of each partition of a new topic."""
        if new.assignments:
            self._check_assignments(new)
            return [tuple(brokers) for _index, brokers in sorted(new.assignments)]
        if new.replication_factor < -1 or new.replication_factor == 0:
            message = "Replication factor must be larger than 0, or -1 to use the default value."
            raise TopicRefused(ErrorCode.invalid_replication_factor, message)
        if new.partition_count < -1 or new.partition_count == 0:
            message = "Number of partitions was set to an invalid non-positive value."
            raise TopicRefused(ErrorCode.invalid_partitions, message)
        replication_factor = new.replication_factor
        if replication_factor == -1:
            replication_factor = self.replication_factor_default
        if replication_factor > len(self.brokers):
            raise TopicRefused(
                ErrorCode.invalid_replication_factor,
                f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of"
                f" {replication_factor} cannot be reached because only {len(self.brokers)} broker(s) are registered.",
            )
        count = self.partition_count_default if new.partition_count == -1 else new.partition_count
        start, shift = randrange(len(self.brokers)), randrange(len(self.brokers))
        return self._assign(count, replication_factor, start=start, shift=shift)

    def _assign(
        self, count: int, replication_factor: int, *, start: int, shift: int, first: int = 0
    ) -> list[tuple[int, ...]]:
        """Return the brokers of new partitions, in different racks if the brokers have some
        (AdminUtils.assignReplicasToBrokers)."""
        brokers = sorted(self.brokers)
        if not self.racks:
            return assign_replicas(brokers, count, replication_factor, start=start, shift=shift, first=first)
        if any(broker not in self.racks for broker in brokers):
            raise TopicRefused(
                ErrorCode.unknown_server_error,
                "Not all brokers have rack information for replica rack aware assignment.",
            )
        racks = {broker: self.racks[broker] for broker in brokers}
        return assign_to_racks(racks, count, replication_factor, start=start, shift=shift, first=first)

    def _check_assignments(self, new: NewTopic) -> None:
        """Check that counts are unset and each partition occurs once, as in ReplicationControlManager.createTopic."""
        for field_name, value in (
            ("replication factor", new.replication_factor),
            ("numPartitions", new.partition_count),
        ):
            if value != -1:
                message = f"A manual partition assignment was specified, but {field_name} was not set to -1."
                raise TopicRefused(ErrorCode.invalid_request, message)
        seen: set[int] = set()
        for index, broker_ids in new.assignments:
            if index in seen:
                message = f"Found multiple manual partition assignments for partition {index}"
                raise TopicRefused(ErrorCode.invalid_replica_assignment, message)
            seen.add(index)
            self._check_assignment(broker_ids)
        if seen != set(range(len(seen))):
            message = "partitions should be a consecutive 0-based integer sequence"
            raise TopicRefused(ErrorCode.invalid_replica_assignment, message)

    def _check_assignment(self, broker_ids: Assignment) -> None:
        unknown = sorted(set(broker_ids) - set(self.brokers))
        repeated = [broker_id for broker_id, times in Counter(broker_ids).items() if times > 1]
        if not broker_ids:
            reason = "an empty replica list"
        elif unknown:
            reason = f"broker {unknown[0]}, but no such broker is registered"
        elif repeated:
            reason = f"the broker {repeated[0]} more than once"
        else:
            return
        message = f"The manual partition assignment includes {reason}."
        raise TopicRefused(ErrorCode.invalid_replica_assignment, message)

    def _check_partition_limit(self, name: str, partition_count: int) -> None:
        if name not in INTERNAL_TOPICS and self.partition_count + partition_count > self.partitions_max:
            raise TopicRefused(
                ErrorCode.invalid_partitions,
                f"topic {name}: {partition_count} partitions, in addition to the {self.partition_count} that exist,"
                f" exceed the limit of {self.partitions_max} (max.partitions); "
                f"{Remedy.FEWER_PARTITIONS}, or {Remedy.DELETE_TOPICS}",
            )

    def decide_more_partitions(self, wanted: MorePartitions) -> list[MetadataRecord]:
        """Return the records of new partitions, with the checks of ReplicationControlManager.createPartitions."""
        topic = self.by_name.get(wanted.name)
        if topic is None:
            raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"there is no topic {wanted.name}")
        present, count = topic.partition_count, wanted.partition_count
        if count == present:
            raise TopicRefused(ErrorCode.invalid_partitions, f"Topic already has {present} partition(s).")
        if count < present:
            message = f"The topic {topic.name} currently has {present} partition(s); {count} would not be an increase."
            raise TopicRefused(ErrorCode.invalid_partitions, message)
        if topic.is_internal:
            raise TopicRefused(
                ErrorCode.invalid_partitions, f"topic {topic.name} is internal; its partition count cannot be changed"
            )
        if wanted.assignments is not None:
            self._check_new_assignments(count - present, wanted.assignments)
        self._check_partition_limit(topic.name, count - present)
        if wanted.assignments is not None:
            assigned = [tuple(brokers) for brokers in wanted.assignments]
        else:
            brokers = sorted(self.brokers)
            start = next((at for at, broker in enumerate(brokers) if broker >= topic.replicas[0][0]), 0)
            replication_factor = min(len(topic.replicas[0]), len(brokers))
            assigned = self._assign(count - present, replication_factor, start=start, shift=start, first=present)
        return [PartitionRecord(present + at, topic.topic_id, to[0], to) for at, to in enumerate(assigned)]

    def _check_new_assignments(self, count: int, assignments: Sequence[Assignment]) -> None:
        if len(assignments) != count:
            raise TopicRefused(
                ErrorCode.invalid_replica_assignment,
                f"Attempted to add {count} additional partition(s), but only {len(assignments)} assignment(s) were"
                " specified.",
            )
        for broker_ids in assignments:
            self._check_assignment(broker_ids)

    def decide_configs(self, topic: Topic, configs: Mapping[str, str | None]) -> list[MetadataRecord]:
        """Return the records after which the topic has exactly these configurations; None is refused as a value."""
        if self.by_id.get(topic.topic_id) is not topic:
            raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"The topic '{topic.name}' does not exist.")
        if topic.is_internal:
            message = f"topic {topic.name} is internal; its configuration comes from the broker's settings"
            raise TopicRefused(ErrorCode.invalid_request, message)
        try:
            wanted = topic_configs.normalized(configs)
        except topic_configs.InvalidConfig as error:
            raise TopicRefused(error.error_code, str(error)) from error
        removed = [ConfigRecord(topic.name, name, None) for name in topic.configs if name not in wanted]
        changed = [(name, value) for name, value in wanted.items() if topic.configs.get(name) != value]
        return [*removed, *(ConfigRecord(topic.name, name, value) for name, value in changed)]

    def decide_delete(self, topic: Topic) -> list[MetadataRecord]:
        """Return the records of a topic's deletion."""
        if topic.is_internal:
            raise TopicRefused(ErrorCode.invalid_request, f"topic {topic.name} is internal; it cannot be deleted")
        if self.by_id.get(topic.topic_id) is not topic:
            raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"topic {topic.name} is deleted already")
        return [RemoveTopicRecord(topic.topic_id)]

    def decide_producer_ids(self) -> list[MetadataRecord]:
        """Return the records that reserve a block of producer ids, so that none is assigned twice after a crash."""
        return [ProducerIdsRecord(self.node_id, self.next_producer_id + PRODUCER_IDS_IN_A_BLOCK)]

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record; those of other state have no effect."""
        match record:
            case TopicRecord(name, topic_id):
                self.by_name[name] = self.by_id[topic_id] = Topic(name, topic_id)
                self._by_metric_name[_metric_name(name)] = name
            case PartitionRecord(partition, topic_id, leader, replicas):
                topic = self.by_id[topic_id]
                if partition < topic.partition_count:
                    topic.replicas[partition] = replicas
                else:
                    topic.partition_count = partition + 1
                    topic.replicas.append(replicas or (leader,))
                    self.partition_count += not topic.is_internal
            case ConfigRecord(topic_name, name, None):
                self.by_name[topic_name].configs.pop(name, None)
            case ConfigRecord(topic_name, name, str(value)):
                self.by_name[topic_name].configs[name] = value
            case RemoveTopicRecord(topic_id):
                self._replay_removal(topic_id)
            case ProducerIdsRecord(_broker_id, next_producer_id):
                self.next_producer_id = next_producer_id

    def _replay_removal(self, topic_id: uuid.UUID) -> None:
        """Remove a topic; a second removal, which earlier releases could write, has no effect."""
        removed = self.by_id.pop(topic_id, None)
        if removed is not None:
            del self.by_name[removed.name]
            self._by_metric_name.pop(_metric_name(removed.name), None)
            self.partition_count -= removed.partition_count
            self.removed[topic_id] = removed.name


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def is_legal_name(name: str) -> bool:
    """Return whether Kafka allows the name for a topic."""
    try:
        check_name(name)
    except TopicRefused:
        return False
    return True


def check_name(name: str) -> None:
    """Raise TopicRefused for a name that Kafka does not allow (org.apache.kafka.common.internals.Topic)."""
    reason = _reason_against_name(name)
    if reason is not None:
        raise TopicRefused(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}")


def _reason_against_name(name: str) -> str | None:
    shown = name[: NAME_CHARACTERS_MAX + 1]
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"the length of '{shown}' is longer than the max allowed length {NAME_CHARACTERS_MAX}"
    if not _LEGAL_NAME.fullmatch(name):
        return f"'{shown}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None
