"""Decisions of a controller: states to write, then requests to brokers, in their order.

A request is built when it is decided, so that later changes of the state do not show in it
(kafka.controller.AbstractControllerBrokerRequestBatch).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from onceflow.broker.cluster.state import LiveBroker, Replicas, State
from onceflow.broker.config import PLAINTEXT, Endpoint
from onceflow.broker.storage.partitions import Place
from onceflow.wire.inter_broker import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LiveLeader,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)

PARTITIONS_IN_A_REQUEST = 1000
"""About 70 KB: a broker serves its clients between two of them."""
SECURITY_PROTOCOL_IDS = {PLAINTEXT: 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""org.apache.kafka.common.security.auth.SecurityProtocol."""


AddressOf = Callable[[LiveBroker], Endpoint | None]
"""Returns where this broker connects to another one; None if that has no such listener."""


class Write(NamedTuple):
    """A partition's state to write; `is_new` if its node does not exist yet."""

    place: Place
    state: State
    is_new: bool


class Assignment(NamedTuple):
    """The replicas of all partitions of a topic, to write."""

    name: str
    topic_id: UUID
    replicas: Mapping[int, Replicas]


class Unclean(NamedTuple):
    """An election of a leader that was not in sync."""

    place: Place
    leader: int
    isr: tuple[int, ...]
    """The replicas in sync before: records that only these had are lost."""


class ControlRequest(NamedTuple):
    """A request for one broker: an entity of `wire.inter_broker`, which knows its API and version."""

    broker_id: int
    broker_epoch: int
    message: Any

    @property
    def api_key(self) -> int:
        return int(self.message.__api_key__)


@dataclass(frozen=True, slots=True)
class Decision:
    """Assignments to write first, states to write, and the requests to send after that."""

    writes: tuple[Write, ...] = ()
    requests: tuple[ControlRequest, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    unclean: tuple[Unclean, ...] = ()
    """Elections to report."""

    def then(self, other: "Decision") -> "Decision":
        """Return both decisions as one, in their order."""
        return Decision(
            self.writes + other.writes,
            self.requests + other.requests,
            self.assignments + other.assignments,
            self.unclean + other.unclean,
        )


class Known(Protocol):
    """State that requests are built from."""

    controller_id: int
    epoch: int
    brokers: dict[int, LiveBroker]
    topic_ids: dict[str, UUID]
    replicas: dict[Place, Replicas]
    states: dict[Place, State]
    deleting: dict[str, set[tuple[int, int]]]
    address_of: AddressOf


@dataclass(slots=True)
class Outbox:
    """Collects what one event causes, at most one request of each kind for each broker."""

    known: Known
    _assigned: dict[str, None] = field(default_factory=dict)
    _unclean: list[Unclean] = field(default_factory=list)
    _writes: list[Write] = field(default_factory=list)
    _announced: dict[int, None] = field(default_factory=dict)
    _leaders: dict[int, dict[Place, bool]] = field(default_factory=dict)
    _metadata: dict[int, dict[Place, None]] = field(default_factory=dict)
    _stopped: dict[int, dict[Place, bool]] = field(default_factory=dict)

    def announce(self, brokers: Iterable[int]) -> None:
        """Tell brokers which brokers are live, before anything else: Kafka's followers require a live leader."""
        self._announced.update(dict.fromkeys(brokers))

    def lead_or_follow(self, brokers: Iterable[int], place: Place, *, is_new: bool = False) -> None:
        for broker_id in brokers:
            self._leaders.setdefault(broker_id, {}).setdefault(place, is_new)

    def tell(self, brokers: Iterable[int], places: Iterable[Place]) -> None:
        places = dict.fromkeys(places)
        if places:
            for broker_id in brokers:
                self._metadata.setdefault(broker_id, {}).update(places)

    def stop(self, broker_id: int, place: Place, *, delete: bool) -> None:
        self._stopped.setdefault(broker_id, {})[place] = delete

    def write(self, place: Place, *, is_new: bool = False) -> None:
        """Write the state of a partition."""
        self._writes.append(Write(place, self.known.states[place], is_new))

    def assign(self, name: str) -> None:
        """Write the replicas of a topic."""
        self._assigned[name] = None

    def report_unclean(self, place: Place, leader: int, isr: tuple[int, ...]) -> None:
        """Report an unclean election."""
        self._unclean.append(Unclean(place, leader, isr))

    def close(self) -> Decision:
        """Return the decision."""
        requests = [
            *self._requests({broker_id: {} for broker_id in self._announced}, self._update_metadata),
            *self._requests(self._leaders, self._leader_and_isr),
            *self._requests(self._metadata, self._update_metadata),
            *self._requests(self._stopped, self._stop_replica),
        ]
        assignments = tuple(assignment_of(self.known, name) for name in self._assigned)
        return Decision(tuple(self._writes), tuple(requests), assignments, tuple(self._unclean))

    def _requests(
        self,
        places_by_broker: Mapping[int, Mapping[Place, Any]],
        build: Callable[[LiveBroker, Mapping[Place, Any]], Any],
    ) -> Iterator[ControlRequest]:
        """Yield the requests to live brokers, each about a limited number of partitions."""
        for broker_id, places in places_by_broker.items():
            broker = self.known.brokers.get(broker_id)
            if broker is not None:
                for some in _pieces(places):
                    yield ControlRequest(broker_id, broker.epoch, build(broker, some))

    def _sender(self, broker: LiveBroker) -> dict[str, Any]:
        return {
            "controller_id": self.known.controller_id,
            "controller_epoch": self.known.epoch,
            "broker_epoch": broker.epoch,
        }

    def _leader_and_isr(self, broker: LiveBroker, places: Mapping[Place, bool]) -> LeaderAndIsrRequest:
        known = self.known
        leaders = {known.states[place].leader for place in places}
        live = [known.brokers[leader] for leader in sorted(leaders & known.brokers.keys())]
        return LeaderAndIsrRequest(
            **self._sender(broker),
            type=0,
            topic_states=tuple(
                LeaderAndIsrTopic(
                    topic_name=name,
                    topic_id=known.topic_ids[name],
                    partition_states=tuple(self._leader_of(place, is_new=places[place]) for place in of_topic),
                )
                for name, of_topic in _by_topic(places).items()
            ),
            live_leaders=tuple(
                LiveLeader(broker_id=leader.broker_id, host_name=address.host, port=address.port)
                for leader in live
                if (address := known.address_of(leader)) is not None
            ),
        )

    def _leader_of(self, place: Place, *, is_new: bool) -> LeaderAndIsrPartition:
        state, wanted = self.known.states[place], self.known.replicas[place]
        return LeaderAndIsrPartition(
            partition_index=place[1],
            controller_epoch=state.controller_epoch,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            partition_epoch=state.version,
            replicas=wanted.replicas,
            adding_replicas=wanted.adding,
            removing_replicas=wanted.removing,
            is_new=is_new,
            leader_recovery_state=int(state.is_recovering),
        )

    def _update_metadata(self, broker: LiveBroker, places: Mapping[Place, None]) -> UpdateMetadataRequest:
        known = self.known
        return UpdateMetadataRequest(
            **self._sender(broker),
            topic_states=tuple(
                UpdateMetadataTopic(
                    topic_name=name,
                    topic_id=known.topic_ids[name],
                    partition_states=tuple(self._metadata_of(place) for place in of_topic),
                )
                for name, of_topic in _by_topic(places).items()
            ),
            live_brokers=tuple(map(_shown, known.brokers.values())),
        )

    def _metadata_of(self, place: Place) -> UpdateMetadataPartition:
        known = self.known
        state, replicas = known.states[place], known.replicas[place].replicas
        is_deleting = place[0] in known.deleting
        return UpdateMetadataPartition(
            partition_index=place[1],
            controller_epoch=state.controller_epoch,
            leader=LEADER_DURING_DELETE if is_deleting else state.leader,
            leader_epoch=0 if is_deleting else state.leader_epoch,
            isr=state.isr,
            zk_version=0 if is_deleting else state.version,
            replicas=replicas,
            offline_replicas=tuple(broker for broker in replicas if broker not in known.brokers),
        )

    def _stop_replica(self, broker: LiveBroker, places: Mapping[Place, bool]) -> StopReplicaRequest:
        return StopReplicaRequest(
            **self._sender(broker),
            topic_states=tuple(
                StopReplicaTopic(
                    topic_name=name,
                    partition_states=tuple(
                        StopReplicaPartition(
                            partition_index=place[1],
                            leader_epoch=self._stopped_epoch(place),
                            delete_partition=places[place],
                        )
                        for place in of_topic
                    ),
                )
                for name, of_topic in _by_topic(places).items()
            ),
        )

    def _stopped_epoch(self, place: Place) -> int:
        if place[0] in self.known.deleting:
            return EPOCH_DURING_DELETE
        return self.known.states[place].leader_epoch


def assignment_of(known: Known, name: str) -> Assignment:
    """Return the replicas of a topic."""
    replicas = {index: replicas for (topic, index), replicas in known.replicas.items() if topic == name}
    return Assignment(name, known.topic_ids[name], dict(sorted(replicas.items())))


def _pieces(places: Mapping[Place, Any]) -> Iterator[Mapping[Place, Any]]:
    """Yield the places in pieces; one empty piece if there are none."""
    entries = list(places.items())
    for first in range(0, max(len(entries), 1), PARTITIONS_IN_A_REQUEST):
        yield dict(entries[first : first + PARTITIONS_IN_A_REQUEST])


def _by_topic(places: Iterable[Place]) -> Mapping[str, list[Place]]:
    by_topic: dict[str, list[Place]] = {}
    for place in places:
        by_topic.setdefault(place[0], []).append(place)
    return by_topic


def _shown(broker: LiveBroker) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=broker.broker_id,
        rack=broker.rack,
        endpoints=tuple(
            UpdateMetadataEndpoint(
                port=endpoint.port,
                host=endpoint.host,
                listener=endpoint.listener,
                security_protocol=SECURITY_PROTOCOL_IDS[protocol],
            )
            for endpoint, protocol in zip(broker.endpoints, broker.protocols, strict=True)
        ),
    )
