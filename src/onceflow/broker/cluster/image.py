"""The topics in ZooKeeper, read at the start as the records that the metadata log would have.

Writes that a crash has prevented are completed: a topic whose partitions have no state gets them, as by Kafka's
controller (PartitionStateMachine), and what is left of a topic whose files are deleted is deleted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from onceflow.broker.cluster import nodes, writes
from onceflow.broker.cluster.registry import Write
from onceflow.broker.cluster.zookeeper import StoredNode, ZooKeeper
from onceflow.broker.topics.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from onceflow.errors import OnceflowError
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.remedies import Remedy


class SeveralBrokers(OnceflowError):
    """A partition in ZooKeeper belongs to another broker, or to several."""


class Image(NamedTuple):
    """The topics, the writes that complete them, and deleted topics of which only a trace is left."""

    records: Sequence[MetadataRecord]
    repairs: Sequence[Write]
    traces: Sequence[str]


class _StoredTopic(NamedTuple):
    name: str
    topic_id: UUID
    replicas: Mapping[int, Sequence[int]]
    configs: Mapping[str, str] | None
    is_being_deleted: bool


def read_image(zookeeper: ZooKeeper, broker_id: int, controller_epoch: int) -> Image:
    """Read all topics. Raises OutcomeUnknown, DamagedNode, SeveralBrokers."""
    names = zookeeper.children(nodes.TOPICS)
    deleted = zookeeper.children(nodes.DELETIONS)
    topics = list(_topics(zookeeper, names, set(deleted)))
    records = [record for topic in topics for record in _records(topic, broker_id)]
    present = [topic for topic in topics if not topic.is_being_deleted]
    repairs = [writes.set_missing_config(topic.name) for topic in present if topic.configs is None]
    repairs += _missing_states(zookeeper, present, broker_id, controller_epoch)
    return Image(records, repairs, [name for name in deleted if name not in names])


def _topics(zookeeper: ZooKeeper, names: Sequence[str], deleted: set[str]) -> Iterator[_StoredTopic]:
    values = zookeeper.read_all([nodes.topic_path(name) for name in names])
    configs = zookeeper.read_all([nodes.config_path(name) for name in names])
    for name, value, config in zip(names, values, configs, strict=True):
        if value is None:
            # Another program has deleted it since its name was read.
            continue
        path = nodes.topic_path(name)
        topic = nodes.decode(nodes.TopicNode, path, value.value)
        replicas = {nodes.decode_number(path, index.encode()): brokers for index, brokers in topic.partitions.items()}
        if set(replicas) != set(range(len(replicas))):
            raise nodes.damaged(path, value.value, "partitions must be numbered from 0 without a gap")
        yield _StoredTopic(
            name, nodes.decode_uuid(path, topic.topic_id), replicas, _configs(name, config), name in deleted
        )


def _configs(name: str, stored: StoredNode | None) -> Mapping[str, str] | None:
    if stored is None:
        return None
    return nodes.decode(nodes.ConfigNode, nodes.config_path(name), stored.value).config


def _records(topic: _StoredTopic, broker_id: int) -> Iterator[MetadataRecord]:
    yield TopicRecord(topic.name, topic.topic_id)
    for name, value in (topic.configs or {}).items():
        yield ConfigRecord(topic.name, name, value)
    for index in range(len(topic.replicas)):
        if list(topic.replicas[index]) != [broker_id]:
            raise _foreign(f"partition {topic.name}-{index}", f"is assigned to brokers {list(topic.replicas[index])}")
        yield PartitionRecord(index, topic.topic_id, broker_id)
    if topic.is_being_deleted:
        yield RemoveTopicRecord(topic.topic_id)


def _missing_states(
    zookeeper: ZooKeeper, topics: Sequence[_StoredTopic], broker_id: int, controller_epoch: int
) -> Iterator[Write]:
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
