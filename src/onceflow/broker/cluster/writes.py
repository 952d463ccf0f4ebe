"""Changes of the topics as writes to ZooKeeper.

A topic's creation is its configuration and its assignment in one write, then the states of its partitions. A deletion
is its node in `/admin/delete_topics`; the rest follows when its files are deleted (`Registry.delete_topic`).
"""

from collections.abc import Mapping
from uuid import UUID

from onceflow.broker.cluster import nodes
from onceflow.broker.cluster.decision import Assignment
from onceflow.broker.cluster.registry import Write
from onceflow.broker.cluster.state import Replicas
from onceflow.broker.topics.topics import Topic
from onceflow.zookeeper.nodes import topic_path
from onceflow.zookeeper.session import Create, Put, Set


def create_topic(topic: Topic) -> Write:
    """Return the write of a new topic, without the states of its partitions.

    A tool that was killed may have left its configuration.
    """
    return [
        Put(nodes.config_path(topic.name), _config(topic.configs)),
        Create(topic_path(topic.name), _assignment(topic)),
    ]


def assign(assignment: Assignment) -> Write:
    """Return the write of the brokers of a topic's partitions."""
    return set_topic_id(*assignment)


def set_topic_id(name: str, topic_id: UUID, replicas: Mapping[int, Replicas]) -> Write:
    """Return the write of the id of a topic that a tool has created without one (KafkaZkClient.setTopicIds)."""
    return [Set(topic_path(name), nodes.encode(nodes.topic(topic_id, replicas)))]


def set_config(topic: Topic) -> Write:
    """Return the write of a topic's configuration, with the notice of it (AdminZkClient.changeEntityConfig)."""
    notice = nodes.ConfigChangeNode(entity_path=f"topics/{topic.name}")
    return [
        Set(nodes.config_path(topic.name), _config(topic.configs)),
        Create(nodes.CONFIG_CHANGE, nodes.encode(notice), sequence=True),
    ]


def create_features() -> Write:
    """Return the write of the cluster's features, by its first controller."""
    return [Create(nodes.FEATURES, nodes.encode(nodes.FeaturesNode()))]


def set_missing_config(name: str) -> Write:
    """Return the write of an empty configuration."""
    return [Create(nodes.config_path(name), _config({}))]


def begin_deletion(name: str) -> Write:
    """Return the write after which a topic does not exist any more."""
    return [Create(nodes.deletion_path(name))]


def _config(configs: Mapping[str, str]) -> bytes:
    return nodes.encode(nodes.ConfigNode(config=dict(configs)))


def _assignment(topic: Topic) -> bytes:
    return nodes.encode(
        nodes.topic(topic.topic_id, {index: Replicas(replicas) for index, replicas in enumerate(topic.replicas)})
    )
