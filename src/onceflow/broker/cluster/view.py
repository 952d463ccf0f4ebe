"""The cluster as its controller describes it in UpdateMetadata (kafka.server.metadata.ZkMetadataCache)."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceflow.broker.cluster.decision import SECURITY_PROTOCOL_IDS
from onceflow.broker.cluster.peer import Others, PlaintextOthers
from onceflow.broker.cluster.state import LiveBroker
from onceflow.broker.config import Endpoint
from onceflow.wire.inter_broker import LEADER_DURING_DELETE, UpdateMetadataPartition, UpdateMetadataRequest

NO_BROKER = -1
DESCRIBED_WITHIN_S = 10.0
"""Maximum wait of a client for the first UpdateMetadata; clients wait 30 s or more for a response."""
TOPICS_DESCRIBED_WITHIN_S = 1.0
"""Maximum wait of a client for the leaders of a new topic; librdkafka asks again after this time."""
_PROTOCOLS = {number: protocol for protocol, number in SECURITY_PROTOCOL_IDS.items()}


@dataclass(eq=False, slots=True)
class _Wait:
    """A client that waits until topics are described."""

    topics: Mapping[str, int]
    described: Callable[[], None]
    timer: asyncio.TimerHandle | None = None


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
        self._waits: dict[_Wait, None] = {}

    def when_described(self, topics: Mapping[str, int], described: Callable[[], None]) -> None:
        """Call `described` once the controller has named the brokers, and the leaders of these topics, given with the
        number of their partitions; or after DESCRIBED_WITHIN_S without brokers, TOPICS_DESCRIBED_WITHIN_S without
        leaders.

        A client must not see a cluster without brokers: librdkafka 2.16 never asks again. It would see a new topic
        without leaders on a broker that hears of it last.
        """
        if self._describes(topics):
            described()
            return
        loop, within_s = asyncio.get_running_loop(), TOPICS_DESCRIBED_WITHIN_S if self.changes else DESCRIBED_WITHIN_S
        wait = _Wait(topics, described)
        wait.timer = loop.call_later(within_s, self._end_wait, wait)
        self._waits[wait] = None

    def _describes(self, topics: Mapping[str, int]) -> bool:
        return bool(self.changes) and all(len(self._states.get(name, ())) >= count for name, count in topics.items())

    def _end_wait(self, wait: "_Wait") -> None:
        del self._waits[wait]
        assert wait.timer is not None
        wait.timer.cancel()
        wait.described()

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
        for wait in [wait for wait in self._waits if self._describes(wait.topics)]:
            self._end_wait(wait)
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
