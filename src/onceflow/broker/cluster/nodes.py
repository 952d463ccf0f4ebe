"""Kafka's nodes in ZooKeeper: paths and JSON values, as Kafka 3.9 writes them (kafka.zk.ZkData).

The order of a value's fields is that of Kafka's own values; readers find them by name.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from onceflow.broker.cluster.state import LiveBroker, Replicas, State
from onceflow.broker.config import PLAINTEXT, PROTOCOLS, Endpoint
from onceflow.log.checkpoint import encode_uuid
from onceflow.zookeeper.nodes import BROKER_IDS, TOPICS, BrokerNode, TopicNode, broker_path, damaged, decode
from onceflow.zookeeper.session import StoredNode

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
ADMIN = "/admin"
DELETIONS = f"{ADMIN}/delete_topics"
REASSIGNMENTS = f"{ADMIN}/reassign_partitions"
ELECTIONS = f"{ADMIN}/preferred_replica_election"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE = f"{CONFIG_CHANGES}/config_change_"
PRODUCER_IDS = "/latest_producer_id_block"
TOPIC_CONFIGS = "/config/topics"
FEATURES = "/feature"

ROOT = ""
"""The chroot, if there is one."""
PERSISTENT = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETIONS,
    "/brokers/seqid",
    "/isr_change_notification",
    "/log_dir_event_notification",
    TOPIC_CONFIGS,
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
)
"""Nodes without a value that every broker creates at its start (ZkData.PersistentZkPaths).

Kafka creates that of the producer ids too, with null, and cannot read the empty value that kazoo would write.
"""

FIRST_EPOCH = b"0"
PRODUCER_IDS_IN_A_BLOCK = 1000

_ENDPOINT = re.compile(r"(?P<listener>[^:]+)://(?P<host>\[[^\]]+\]|[^:]*):(?P<port>\d{1,5})")


class ControllerNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/controller`, ephemeral: the broker that decides about topics."""

    version: int = 2
    brokerid: int
    timestamp: str = ""
    kraft_controller_epoch: int = msgspec.field(default=-1, name="kraftControllerEpoch")


class ClusterNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/cluster/id`; its version is text."""

    version: str = "1"
    id: str


class FeaturesNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/feature`: the features that all brokers have enabled (kafka.zk.FeatureZNode); here none."""

    features: dict[str, object] = {}
    version: int = 2
    status: int = 1


class StateNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/brokers/topics/T/partitions/N/state`: who leads, and which replicas are in sync."""

    controller_epoch: int
    leader: int
    version: int = 1
    leader_epoch: int
    isr: list[int]
    leader_recovery_state: int | msgspec.UnsetType = msgspec.UNSET
    """1 while a leader from outside the ISR recovers; Kafka leaves it out otherwise."""


class ConfigNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/config/topics/T`."""

    version: int = 1
    config: dict[str, str]


class ConfigChangeNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/config/changes/config_change_N`, sequential: the entity whose configuration was written."""

    version: int = 2
    entity_path: str


class ProducerIdsNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/latest_producer_id_block`: the last block of producer ids that a broker has reserved, both ends inclusive."""

    version: int = 1
    broker: int
    block_start: str
    block_end: str


class ReassignedPartition(msgspec.Struct, kw_only=True, frozen=True):
    """Partition that a tool reassigns to other brokers."""

    topic: str
    partition: int
    replicas: list[int]


class ReassignmentsNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/admin/reassign_partitions`, written by Kafka's tools before 3.0; the controller removes what is completed."""

    version: int = 1
    partitions: list[ReassignedPartition]


class ElectedPartition(msgspec.Struct, kw_only=True, frozen=True):
    """Partition whose preferred replica is to lead."""

    topic: str
    partition: int


class ElectionsNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/admin/preferred_replica_election`, written by Kafka's tools before 3.0; the controller deletes it."""

    version: int = 1
    partitions: list[ElectedPartition]


def encode(node: msgspec.Struct) -> bytes:
    """Return the value of a node."""
    return msgspec.json.encode(node)


def decode_uuid(path: str, text: str) -> UUID:
    """Parse an id of 22 characters. Raises DamagedNode."""
    try:
        topic_id = UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (ValueError, binascii.Error) as error:
        raise damaged(path, text.encode(), str(error)) from error
    if encode_uuid(topic_id) != text:
        raise damaged(path, text.encode(), "it is not an id of 22 characters")
    return topic_id


def decode_number(path: str, value: bytes) -> int:
    """Parse the text of a number. Raises DamagedNode."""
    try:
        return int(value)
    except ValueError as error:
        raise damaged(path, value, str(error)) from error


def broker(
    endpoints: Sequence[Endpoint], protocols: Mapping[str, str], now_ms: int, rack: str | None = None
) -> BrokerNode:
    """Return the value of a broker that clients reach at these addresses, with the protocol of each listener.

    `host` and `port` are those of the first plaintext listener, for old clients (kafka.zk.BrokerIdZNode.encode).
    """
    plain = [endpoint for endpoint in endpoints if protocols[endpoint.listener] == PLAINTEXT]
    host, port = plain[0][:2] if plain else (None, -1)
    return BrokerNode(
        listener_security_protocol_map={endpoint.listener: protocols[endpoint.listener] for endpoint in endpoints},
        endpoints=[_endpoint_text(endpoint) for endpoint in endpoints],
        rack=msgspec.UNSET if rack is None else rack,
        host=host,
        port=port,
        timestamp=str(now_ms),
    )


def _endpoint_text(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.listener}://{host}:{endpoint.port}"


def topic(topic_id: UUID, replicas: Mapping[int, Replicas]) -> TopicNode:
    """Return the value of a topic with the brokers of each partition."""
    return TopicNode(
        partitions={str(index): list(brokers.replicas) for index, brokers in replicas.items()},
        topic_id=encode_uuid(topic_id),
        adding_replicas={str(index): list(brokers.adding) for index, brokers in replicas.items() if brokers.adding},
        removing_replicas={
            str(index): list(brokers.removing) for index, brokers in replicas.items() if brokers.removing
        },
    )


def partition_path(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}"


def state_path(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}/state"


def config_path(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def deletion_path(name: str) -> str:
    return f"{DELETIONS}/{name}"


def live_broker(broker_id: int, stored: StoredNode) -> LiveBroker:
    """Return a registered broker. Raises DamagedNode."""
    path = broker_path(broker_id)
    node = decode(BrokerNode, path, stored.value)
    endpoints = tuple(_endpoint(path, text) for text in node.endpoints)
    protocols = tuple(node.listener_security_protocol_map.get(address.listener, "") for address in endpoints)
    if not set(protocols) <= set(PROTOCOLS):
        raise damaged(path, stored.value, "a listener has no security protocol")
    rack = None if node.rack is msgspec.UNSET else node.rack
    return LiveBroker(broker_id, stored.creation_id, endpoints, protocols, rack)


def _endpoint(path: str, text: str) -> Endpoint:
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise damaged(path, text.encode(), "it is not LISTENER://HOST:PORT")
    return Endpoint(match["host"].strip("[]"), int(match["port"]), match["listener"])


def state_node(state: State) -> StateNode:
    """Return the value of a partition's state."""
    return StateNode(
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        leader_recovery_state=1 if state.is_recovering else msgspec.UNSET,
    )


def state_of(path: str, stored: StoredNode) -> State:
    """Return a partition's state. Raises DamagedNode."""
    node = decode(StateNode, path, stored.value)
    is_recovering = node.leader_recovery_state == 1
    return State(node.leader, node.leader_epoch, tuple(node.isr), node.controller_epoch, stored.version, is_recovering)
