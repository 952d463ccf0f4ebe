"""The cluster as its controller describes it in UpdateMetadata (kafka.server.metadata.ZkMetadataCache)."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from onceflow.broker.cluster.decision import SECURITY_PROTOCOL_IDS
from onceflow.broker.cluster.peer import Others, PlaintextOthers
from onceflow.broker.cluster.state import LiveBroker
from onceflow.broker.config import Endpoint
from onceflow.wire.inter_broker import LEADER_DURING_DELETE, UpdateMetadataPartition, UpdateMetadataRequest

NO_BROKER = -1
DESCRIBED_WITHIN_S = 10.0
"""Maximum wait of a client for the first UpdateMetadata; clients wait 30 s or more for a response."""
_PROTOCOLS = {number: protocol for protocol, number in SECURITY_PROTOCOL_IDS.items()}


class ClusterView:
    """Live brokers, the controller, and the state of each partition. Empty until the first UpdateMetadata."""

    def __init__(self, others: Others = PlaintextOthers()) -> None:  # noqa: B008 - immutable
        self._address_of = others.address
        self.connect = others.connect
        """Opens a connection to another broker."""
        self.controller_id = NO_BROKER
        self.brokers: dict[int, LiveBroker] = {}
        self._states: dict[str, dict[int, UpdateMetadataPartition]] = {}
        self.changes = 0
        """Number of UpdateMetadata so far."""
        self._waiting: list[Callable[[], None]] = []

    def when_described(self, described: Callable[[], None]) -> None:
        """Call `described` after the first UpdateMetadata, or after DESCRIBED_WITHIN_S without one.

        A client must not see a cluster without brokers: librdkafka 2.16 never asks again.
        """
        if self.changes:
            described()
            return
        if not self._waiting:
            asyncio.get_running_loop().call_later(DESCRIBED_WITHIN_S, self._end_waits)
        self._waiting.append(described)

    def _end_waits(self) -> None:
        waiting, self._waiting = self._waiting, []
        for described in waiting:
            described()

    def apply(self, request: UpdateMetadataRequest) -> list[str]:
        """Follow the controller; return the names of topics that are being deleted."""
        self.controller_id = request.controller_id
        self.brokers = {broker.id: _live(broker) for broker in request.live_brokers}
        self.changes += 1
        deleted: dict[str, None] = {}
        for topic in request.topic_states:
            states = self._states.setdefault(topic.topic_name, {})
            for state in topic.partition_states:
                if state.leader == LEADER_DURING_DELETE:
                    states.pop(state.partition_index, None)
                    deleted[topic.topic_name] = None
                else:
                    states[state.partition_index] = state
            if not states:
                del self._states[topic.topic_name]
        self._end_waits()
        return list(deleted)

    def state(self, topic: str, index: int) -> UpdateMetadataPartition | None:
        """Return the state of a partition, None while it is unknown."""
        return self._states.get(topic, {}).get(index)

    def states(self) -> Iterator[tuple[str, UpdateMetadataPartition]]:
        """Yield the state of every partition, with the topic's name."""
        for topic, states in self._states.items():
            for index in sorted(states):
                yield topic, states[index]

    def leader(self, topic: str, index: int) -> LiveBroker | None:
        """Return the live leader of a partition."""
        state = self.state(topic, index)
        return None if state is None else self.brokers.get(state.leader)

    def has_topic(self, topic: str) -> bool:
        """Return whether the controller has named a topic."""
        return topic in self._states

    def inter_broker_address(self, broker_id: int) -> Endpoint | None:
        """Return the address of a live broker for other brokers."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else self._address_of(broker)

    def nodes(self, listener: str) -> Sequence[tuple[int, Endpoint, str | None]]:
        """Return the live brokers that have a listener of this name, with its address and their rack."""
        addresses = [(broker, broker.address(listener)) for _id, broker in sorted(self.brokers.items())]
        return [(broker.broker_id, address, broker.rack) for broker, address in addresses if address is not None]


def _live(broker: Any) -> LiveBroker:
    endpoints = tuple(Endpoint(address.host, address.port, address.listener) for address in broker.endpoints)
    protocols: Mapping[int, str] = _PROTOCOLS
    shown = tuple(protocols.get(address.security_protocol, "") for address in broker.endpoints)
    return LiveBroker(broker.id, NO_BROKER, endpoints, shown, broker.rack)
