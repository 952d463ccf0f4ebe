"""Nodes in ZooKeeper that brokers write and consumers read: paths and JSON values of Kafka 3.9 (kafka.zk.ZkData).

The order of a value's fields is that of Kafka's own values; readers find them by name.
"""

from typing import TypeVar

import msgspec

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"

Node = TypeVar("Node")


class DamagedNode(OnceflowError):
    """A node in ZooKeeper does not have the form that Kafka writes."""


class BrokerNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/brokers/ids/N`, ephemeral: a live broker and where clients reach it. Version 1 has no endpoints."""

    features: dict[str, object] = {}
    listener_security_protocol_map: dict[str, str] = {}
    endpoints: list[str] = []
    rack: str | msgspec.UnsetType | None = msgspec.UNSET
    jmx_port: int = -1
    port: int
    host: str | None
    version: int = 5
    timestamp: str = ""


class TopicNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/brokers/topics/T`: the brokers of each partition, the preferred leader first.

    A topic has no id until the controller gives it one, if a tool has created it.
    """

    partitions: dict[str, list[int]]
    topic_id: str | None = None
    adding_replicas: dict[str, list[int]] = {}
    removing_replicas: dict[str, list[int]] = {}
    version: int = 3


def decode(kind: type[Node], path: str, value: bytes) -> Node:
    """Parse the JSON value of a node. Raises DamagedNode."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise damaged(path, value, str(error)) from error


def damaged(path: str, value: bytes, reason: str) -> DamagedNode:
    """Return the error of a value that cannot be read."""
    return DamagedNode(f"{path} in ZooKeeper holds {value[:200]!r}: {reason}; {Remedy.FIX_NODE}")


def broker_path(broker_id: int | str) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"
