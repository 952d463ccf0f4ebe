"""Changes of the topics as writes to ZooKeeper.

A topic's creation is its configuration and its assignment in one write, then the states of its partitions. A deletion
is its node in `/admin/delete_topics`; the rest follows when its files are deleted (`Registry.delete_topic`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from uuid import UUID

from onceflow.broker.cluster import nodes
from onceflow.broker.cluster.registry import Write
from onceflow.broker.cluster.zookeeper import Create, Operation, Set
from onceflow.broker.topics.topics import Topic
from onceflow.log.checkpoint import LEADER_EPOCH

PARTITIONS_IN_A_WRITE = 500
"""About 200 KB; ZooKeeper's limit of a request is 1 MB (jute.maxbuffer)."""


def create_topic(topic: Topic, broker_id: int, controller_epoch: int) -> Iterator[Write]:
    """Yield the writes of a new topic."""
    yield [
        Create(nodes.config_path(topic.name), _config(topic.configs)),
        Create(nodes.topic_path(topic.name), _assignment(topic, broker_id)),
    ]
    yield from create_states(topic.name, range(topic.partition_count), broker_id, controller_epoch, has_parent=False)


def create_partitions(topic: Topic, start: int, broker_id: int, controller_epoch: int) -> Iterator[Write]:
    """Yield the writes of a topic's new partitions, from `start` on."""
    yield [Set(nodes.topic_path(topic.name), _assignment(topic, broker_id))]
    indexes = range(start, topic.partition_count)
    yield from create_states(topic.name, indexes, broker_id, controller_epoch, has_parent=True)


def create_states(
    name: str,
    indexes: Sequence[int],
    broker_id: int,
    controller_epoch: int,
    *,
    has_parent: bool,
    present: Collection[int] = (),
) -> Iterator[Write]:
    """Yield the writes of the partitions' states; `present` are the partitions that have a node without a state."""
    state = nodes.StateNode(
        controller_epoch=controller_epoch, leader=broker_id, leader_epoch=LEADER_EPOCH, isr=[broker_id]
    )
    value = nodes.encode(state)
    operations: list[Operation] = [] if has_parent else [Create(f"{nodes.topic_path(name)}/partitions")]
    for first in range(0, len(indexes), PARTITIONS_IN_A_WRITE):
        for index in indexes[first : first + PARTITIONS_IN_A_WRITE]:
            if index not in present:
                operations.append(Create(nodes.partition_path(name, index)))
            operations.append(Create(nodes.state_path(name, index), value))
        yield operations
        operations = []


def set_topic_id(name: str, topic_id: UUID, replicas: Mapping[int, Sequence[int]]) -> Write:
    """Return the write of the id of a topic that a tool has created without one (KafkaZkClient.setTopicIds)."""
    return [Set(nodes.topic_path(name), nodes.encode(nodes.topic(topic_id, replicas)))]


def set_config(topic: Topic) -> Iterator[Write]:
    """Yield the write of a topic's configuration, with the notice of it (AdminZkClient.changeEntityConfig)."""
    notice = nodes.ConfigChangeNode(entity_path=f"topics/{topic.name}")
    yield [
        Set(nodes.config_path(topic.name), _config(topic.configs)),
        Create(nodes.CONFIG_CHANGE, nodes.encode(notice), sequence=True),
    ]


def create_features() -> Write:
    """Return the write of the cluster's features, by its first controller."""
    return [Create(nodes.FEATURES, nodes.encode(nodes.FeaturesNode()))]


def set_missing_config(name: str) -> Write:
    """Return the write of an empty configuration."""
    return [Create(nodes.config_path(name), _config({}))]


def begin_deletion(name: str) -> Iterator[Write]:
    """Yield the write after which a topic does not exist any more."""
    yield [Create(nodes.deletion_path(name))]


def _config(configs: Mapping[str, str]) -> bytes:
    return nodes.encode(nodes.ConfigNode(config=dict(configs)))


def _assignment(topic: Topic, broker_id: int) -> bytes:
    replicas = {index: [broker_id] for index in range(topic.partition_count)}
    return nodes.encode(nodes.topic(topic.topic_id, replicas))
