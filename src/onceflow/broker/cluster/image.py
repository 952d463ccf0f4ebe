"""The topics in ZooKeeper, read as the records that the metadata log would have, and the states of their partitions."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from onceflow.broker.cluster import nodes
from onceflow.broker.cluster.state import Replicas, State
from onceflow.broker.storage.partitions import Place
from onceflow.broker.topics.configs import InvalidConfig, normalized
from onceflow.broker.topics.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from onceflow.broker.topics.topics import CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Topics, is_legal_name
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.zookeeper.nodes import DamagedNode, TopicNode, damaged, decode, topic_path
from onceflow.zookeeper.session import Session, StoredNode

logger = logging.getLogger(__name__)

COMPRESSION = "compression.type"
AS_PRODUCED, UNCOMPRESSED = "producer", "uncompressed"


class TopicReplaced(OnceflowError):
    """Another program has deleted a topic's node and created one of the same name."""


def refuse_damaged(error: OnceflowError) -> None:
    """Raise the error of a damaged node, at the start."""
    raise error


def log_not_followed(error: OnceflowError) -> None:
    """Log the error of a damaged node; the broker continues with what it read before."""
    logger.error("a change in ZooKeeper by another program is not followed: %s", error)


class StoredTopic(NamedTuple):
    """A topic in ZooKeeper."""

    name: str
    topic_id: UUID
    replicas: Mapping[int, Replicas]
    configs: Mapping[str, str] | None
    """None: it has no node for them."""
    lacks_id: bool
    """Whether `topic_id` is not in its node yet."""


def read_topics(
    zookeeper: Session,
    names: Sequence[str],
    watch: Callable[[str], Callable[[], None]],
    on_damaged: Callable[[DamagedNode], None],
    id_of: Callable[[str], UUID],
) -> Iterator[StoredTopic]:
    """Yield the topics with these names that exist; `watch` returns the watch of a topic's partitions.

    A topic without an id gets that of `id_of`.
    A damaged one is left out if `on_damaged` does not raise its error. Raises OutcomeUnknown.
    """
    values = zookeeper.read_all([topic_path(name) for name in names], [watch(name) for name in names])
    configs = zookeeper.read_all([nodes.config_path(name) for name in names])
    for name, value, config in zip(names, values, configs, strict=True):
        if value is None:
            # Another program has deleted it since its name was read.
            continue
        try:
            yield _stored_topic(name, value, config, id_of)
        except DamagedNode as error:
            on_damaged(error)


def _stored_topic(
    name: str, stored: StoredNode, config: StoredNode | None, id_of: Callable[[str], UUID]
) -> StoredTopic:
    path = topic_path(name)
    if not is_legal_name(name) or name == CLUSTER_METADATA_TOPIC:
        raise damaged(path, stored.value, f"{name!r} is not the name of a topic")
    topic = decode(TopicNode, path, stored.value)
    replicas = {
        nodes.decode_number(path, index.encode()): Replicas(
            tuple(brokers), tuple(topic.adding_replicas.get(index, ())), tuple(topic.removing_replicas.get(index, ()))
        )
        for index, brokers in topic.partitions.items()
    }
    if set(replicas) != set(range(len(replicas))):
        raise damaged(path, stored.value, "partitions must be numbered from 0 without a gap")
    if not all(brokers.target for brokers in replicas.values()):
        raise damaged(path, stored.value, "a partition has no replicas")
    topic_id = id_of(name) if topic.topic_id is None else nodes.decode_uuid(path, topic.topic_id)
    return StoredTopic(name, topic_id, replicas, _configs(name, config), topic.topic_id is None)


def differences(topics: Topics, stored: StoredTopic, *, is_controller: bool) -> list[MetadataRecord]:
    """Return the records after which `topics` has a topic as it is stored.

    The controller itself decides about the replicas of the partitions that it knows. Raises DamagedNode, TopicReplaced.
    """
    records = list(records_of(stored))
    local = topics.by_name.get(stored.name)
    if local is not None and local.topic_id != stored.topic_id:
        raise TopicReplaced(
            f"topic {stored.name} in ZooKeeper was replaced by another one while the broker serves it;"
            f" {Remedy.RESTART_BROKER}"
        )
    wanted = _normalized(stored)
    if local is None:
        return records
    partitions = [record for record in records if isinstance(record, PartitionRecord)]
    new = partitions[local.partition_count :]
    if not is_controller:
        present = zip(partitions, local.replicas, strict=False)
        new = [*(record for record, replicas in present if record.replicas != replicas), *new]
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
    return decode(nodes.ConfigNode, nodes.config_path(name), stored.value).config


def _normalized(topic: StoredTopic) -> Mapping[str, str]:
    configs = dict(topic.configs or {})
    if topic.name == TRANSACTION_STATE_TOPIC and configs.get(COMPRESSION) == UNCOMPRESSED:
        # Kafka's own. Only coordinators write to it, and here without compression too.
        configs[COMPRESSION] = AS_PRODUCED
    try:
        return normalized(configs)
    except InvalidConfig as error:
        raise damaged(nodes.config_path(topic.name), str(configs).encode(), str(error)) from error


def records_of(topic: StoredTopic) -> Iterator[MetadataRecord]:
    """Yield the records of a topic. Raises DamagedNode for a configuration that is not supported."""
    yield TopicRecord(topic.name, topic.topic_id)
    for name, value in _normalized(topic).items():
        yield ConfigRecord(topic.name, name, value)
    for index in range(len(topic.replicas)):
        replicas = topic.replicas[index].replicas
        yield PartitionRecord(index, topic.topic_id, replicas[0], replicas)


def read_states(
    zookeeper: Session, topics: Sequence[StoredTopic], on_damaged: Callable[[DamagedNode], None]
) -> tuple[Sequence[StoredTopic], Mapping[Place, State]]:
    """Return the topics, and the states of their partitions, without those that have none.

    A topic with a damaged state is left out if `on_damaged` does not raise its error. Raises OutcomeUnknown.
    """
    places = [(topic.name, index) for topic in topics for index in range(len(topic.replicas))]
    paths = [nodes.state_path(*place) for place in places]
    stored = zookeeper.read_all(paths)
    states: dict[Place, State] = {}
    damaged: set[str] = set()
    for place, path, node in zip(places, paths, stored, strict=True):
        try:
            if node is not None:
                states[place] = nodes.state_of(path, node)
        except DamagedNode as error:
            on_damaged(error)
            damaged.add(place[0])
    return [topic for topic in topics if topic.name not in damaged], states
