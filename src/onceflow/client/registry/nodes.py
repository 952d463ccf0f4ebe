"""Paths and values of a consumer group's nodes, and the addresses of brokers (kafka.utils.ZkUtils)."""

import socket
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from onceflow.client.topic_filter import Blacklist, Whitelist
from onceflow.wire import TopicPartition
from onceflow.zookeeper.nodes import BrokerNode, decode

INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics that no filter allows (`exclude.internal.topics` of Kafka's consumer)."""


class RegistrationNode(msgspec.Struct, kw_only=True, frozen=True):
    """`/consumers/G/ids/C`, ephemeral: number of streams for each topic, or for the expression of a filter."""

    version: int = 1
    subscription: dict[str, int]
    pattern: str
    timestamp: str | int = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """Subscription of one consumer: streams for each topic, or for each topic that a filter allows."""

    topics: Mapping[str, int]
    topic_filter: Whitelist | Blacklist | None = None
    streams: int = 0

    def streams_by_topic(self, existing: Collection[str]) -> dict[str, int]:
        """Return the number of streams for each topic; a filter decides about the existing ones."""
        if self.topic_filter is None:
            return dict(self.topics)
        allowed = (name for name in existing if name not in INTERNAL and self.topic_filter.allows(name))
        return dict.fromkeys(allowed, self.streams)

    def encode(self) -> bytes:
        """Return the node's value, with the time of now."""
        pattern, subscription = "static", dict(self.topics)
        if self.topic_filter is not None:
            pattern, subscription = self.topic_filter.kind, {self.topic_filter.expression: self.streams}
        return msgspec.json.encode(
            RegistrationNode(subscription=subscription, pattern=pattern, timestamp=str(int(time.time() * 1000)))
        )


def decode_registration(path: str, value: bytes) -> Registration:
    """Return the subscription of a consumer (kafka.consumer.TopicCount). Raises DamagedNode."""
    node = decode(RegistrationNode, path, value)
    kinds: dict[str, type[Whitelist | Blacklist]] = {kind.kind: kind for kind in (Whitelist, Blacklist)}
    if node.pattern not in kinds or not node.subscription:
        return Registration(node.subscription)
    ((expression, streams),) = list(node.subscription.items())[:1]
    return Registration({}, kinds[node.pattern](expression), streams)


def new_consumer_id(group: str) -> str:
    """Return an id as Kafka's consumer makes it: group, host, time and eight random digits."""
    return f"{group}_{socket.gethostname()}-{int(time.time() * 1000)}-{uuid.uuid4().hex[:8]}"


def ids_path(group: str) -> str:
    return f"/consumers/{group}/ids"


def owners_path(group: str, topic: str) -> str:
    return f"/consumers/{group}/owners/{topic}"


def owner_path(group: str, place: TopicPartition) -> str:
    return f"/consumers/{group}/owners/{place[0]}/{place[1]}"


def offsets_path(group: str, topic: str) -> str:
    return f"/consumers/{group}/offsets/{topic}"


def offset_path(group: str, place: TopicPartition) -> str:
    return f"/consumers/{group}/offsets/{place[0]}/{place[1]}"


def addresses(node: BrokerNode, protocol: str) -> list[str]:
    """Return where clients reach a broker with a security protocol, as HOST:PORT."""
    if not node.endpoints:
        return [f"{node.host}:{node.port}"] if protocol == "PLAINTEXT" and node.host is not None else []
    reached = []
    for endpoint in node.endpoints:
        listener, _, address = endpoint.partition("://")
        if node.listener_security_protocol_map.get(listener, listener) == protocol:
            reached.append(address)
    return reached
