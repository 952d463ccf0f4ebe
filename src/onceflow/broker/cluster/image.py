"""The topics in ZooKeeper, read at the start as the records that the metadata log would have.

Writes that a crash has prevented are completed: a topic whose partitions have no state gets them, as by Kafka's
controller (PartitionStateMachine), and what is left of a topic whose files are deleted is deleted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from onceflow.broker.cluster import nodes, writes
from onceflow.broker.cluster.registry import Write
from onceflow.broker.cluster.zookeeper import StoredNode, ZooKeeper
from onceflow.broker.topics.configs import InvalidConfig, normalized
from onceflow.broker.topics.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from onceflow.broker.topics.topics import Topics
from onceflow.errors import OnceflowError
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.remedies import Remedy


class SeveralBrokers(OnceflowError):
    """A partition in ZooKeeper belongs to another broker, or to several."""


class TopicReplaced(OnceflowError):
    """Another program has deleted a topic's node and created one of the same name."""


class Image(NamedTuple):
    """The topics, the writes that complete them, and deleted topics of which only a trace is left."""

    records: Sequence[MetadataRecord]
    repairs: Sequence[Write]
    traces: Sequence[str]


class StoredTopic(NamedTuple):
    """A topic in ZooKeeper."""

    name: str
    topic_id: UUID
    replicas: Mapping[int, Sequence[int]]
    configs: Mapping[str, str] | None
    """None: it has no node for them."""
    lacks_id: bool
    """Whether `topic_id` is not in its node yet."""


def read_image(
    zookeeper: ZooKeeper, topics: Sequence[StoredTopic], deletions: Sequence[str], broker_id: int, controller_epoch: int
) -> Image:
    """Return the image of all topics. Raises OutcomeUnknown, DamagedNode, SeveralBrokers."""
    records: list[MetadataRecord] = []
    for topic in topics:
        records += records_of(topic, broker_id)
        if topic.name in deletions:
            records.append(RemoveTopicRecord(topic.topic_id))
    present = [topic for topic in topics if topic.name not in deletions]
    repairs = [] if zookeeper.read(nodes.FEATURES) is not None else [writes.create_features()]
    repairs += [writes.set_missing_config(topic.name) for topic in present if topic.configs is None]
    repairs += missing_states(zookeeper, present, broker_id, controller_epoch)
    names = {topic.name for topic in topics}
    return Image(records, repairs, [name for name in deletions if name not in names])


def read_topics(
    zookeeper: ZooKeeper,
    names: Sequence[str],
    watch: Callable[[str], Callable[[], None]],
    on_damaged: Callable[[nodes.DamagedNode], None],
    id_of: Callable[[str], UUID],
) -> Iterator[StoredTopic]:
    """Yield the topics with these names that exist; `watch` returns the watch of a topic's partitions.

    A topic without an id gets that of `id_of`.
    A damaged one is left out if `on_damaged` does not raise its error. Raises OutcomeUnknown.
    """
    values = zookeeper.read_all([nodes.topic_path(name) for name in names], [watch(name) for name in names])
    configs = zookeeper.read_all([nodes.config_path(name) for name in names])
    for name, value, config in zip(names, values, configs, strict=True):
        if value is None:
            # Another program has deleted it since its name was read.
            continue
        try:
            yield _stored_topic(name, value, config, id_of)
        except nodes.DamagedNode as error:
            on_damaged(error)


def _stored_topic(
    name: str, stored: StoredNode, config: StoredNode | None, id_of: Callable[[str], UUID]
) -> StoredTopic:
    path = nodes.topic_path(name)
    topic = nodes.decode(nodes.TopicNode, path, stored.value)
    replicas = {nodes.decode_number(path, index.encode()): brokers for index, brokers in topic.partitions.items()}
    if set(replicas) != set(range(len(replicas))):
        raise nodes.damaged(path, stored.value, "partitions must be numbered from 0 without a gap")
    topic_id = id_of(name) if topic.topic_id is None else nodes.decode_uuid(path, topic.topic_id)
    return StoredTopic(name, topic_id, replicas, _configs(name, config), topic.topic_id is None)


def differences(topics: Topics, stored: StoredTopic, broker_id: int) -> list[MetadataRecord]:
    """Return the records after which `topics` has a topic as it is stored.

    Raises SeveralBrokers, DamagedNode, TopicReplaced.
    """
    records = list(records_of(stored, broker_id))
    local = topics.by_name.get(stored.name)
    if local is not None and local.topic_id != stored.topic_id:
        raise TopicReplaced(
            f"topic {stored.name} in ZooKeeper was replaced by another one while the broker serves it;"
            f" {Remedy.RESTART_BROKER}"
        )
    wanted = _normalized(stored)
    if local is None:
        return records
    new = [record for record in records if isinstance(record, PartitionRecord)][local.partition_count :]
    if local.is_internal:
        return [*new]
    removed = [ConfigRecord(local.name, name, None) for name in local.configs if name not in wanted]
    changed = [
        ConfigRecord(local.name, name, value) for name, value in wanted.items() if local.configs.get(name) != value
    ]
    return [*new, *removed, *changed]


def _configs(name: str, stored: StoredNode | None) -> Mapping[str, str] | None:
    if stored is None:
        return None
    return nodes.decode(nodes.ConfigNode, nodes.config_path(name), stored.value).config


def _normalized(topic: StoredTopic) -> Mapping[str, str]:
    configs = topic.configs or {}
    try:
        return normalized(configs)
    except InvalidConfig as error:
        raise nodes.damaged(nodes.config_path(topic.name), str(dict(configs)).encode(), str(error)) from error


def records_of(topic: StoredTopic, broker_id: int) -> Iterator[MetadataRecord]:
    """Yield the records of a topic. Raises SeveralBrokers, DamagedNode for a configuration that is not supported."""
    yield TopicRecord(topic.name, topic.topic_id)
    for name, value in _normalized(topic).items():
        yield ConfigRecord(topic.name, name, value)
    for index in range(len(topic.replicas)):
        if list(topic.replicas[index]) != [broker_id]:
            raise _foreign(f"partition {topic.name}-{index}", f"is assigned to brokers {list(topic.replicas[index])}")
        yield PartitionRecord(index, topic.topic_id, broker_id)


def missing_states(
    zookeeper: ZooKeeper, topics: Sequence[StoredTopic], broker_id: int, controller_epoch: int
) -> Iterator[Write]:
    """Yield the writes of missing states. Raises OutcomeUnknown, DamagedNode, SeveralBrokers."""
    places = [(topic.name, index) for topic in topics for index in range(len(topic.replicas))]
    missing: dict[str, list[int]] = {}
    stored = zookeeper.read_all([nodes.state_path(name, index) for name, index in places])
    for (name, index), node in zip(places, stored, strict=True):
        if node is None:
            missing.setdefault(name, []).append(index)
            continue
        path = nodes.state_path(name, index)
        state = nodes.decode(nodes.StateNode, path, node.value)
        if (state.leader, state.leader_epoch) != (broker_id, LEADER_EPOCH):
            raise _foreign(
                f"partition {name}-{index}", f"is led by broker {state.leader} in leader epoch {state.leader_epoch}"
            )
    for name, indexes in missing.items():
        above = [nodes.partition_path(name, index) for index in indexes]
        exists = zookeeper.read_all([f"{nodes.topic_path(name)}/partitions", *above])
        yield from writes.create_states(
            name,
            indexes,
            broker_id,
            controller_epoch,
            has_parent=exists[0] is not None,
            present={index for index, node in zip(indexes, exists[1:], strict=True) if node is not None},
        )


def _foreign(what: str, state: str) -> SeveralBrokers:
    return SeveralBrokers(
        f"{what} in ZooKeeper {state}, and clusters of several brokers are not supported; {Remedy.OTHER_CHROOT}"
    )
