"""State of the cluster that a controller knows: live brokers, and the replicas, leader and ISR of each partition.

Election rules are those of kafka.controller.PartitionLeaderElectionAlgorithms.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from onceflow.broker.config import PLAINTEXT, Endpoint


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker that is registered: its epoch is the czxid of its node."""

    broker_id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    protocols: tuple[str, ...]
    """Security protocol of each endpoint."""
    rack: str | None = None

    def address(self, listener: str) -> Endpoint | None:
        """Return the address for clients of a listener; None if the broker has none of that name."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


def plaintext_address(broker: LiveBroker) -> Endpoint | None:
    """Return the first address of a broker without TLS and authentication; None without one."""
    for endpoint, protocol in zip(broker.endpoints, broker.protocols, strict=True):
        if protocol == PLAINTEXT:
            return endpoint
    return None


@dataclass(frozen=True, slots=True)
class State:
    """Leader and in-sync replicas of a partition, as in its node; `version` is that of the node."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    version: int
    is_recovering: bool = False
    """Whether the leader was elected from outside the in-sync replicas and has not confirmed it (KIP-704)."""

    def changed(self, leader: int, isr: Sequence[int], controller_epoch: int) -> "State":
        """Return the state after an election or the loss of a replica (LeaderAndIsr.newLeaderAndIsr)."""
        return replace(
            self,
            leader=leader,
            leader_epoch=self.leader_epoch + 1,
            isr=tuple(isr),
            controller_epoch=controller_epoch,
            version=self.version + 1,
        )


class Replicas(NamedTuple):
    """Brokers of a partition, the preferred leader first; those of a reassignment are among them."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the reassignment; their order may be another one."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def is_reassigned(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)

    def reassigned(self, target: Sequence[int]) -> "Replicas":
        """Return the replicas while these are to be the only ones (kafka.controller.ReplicaAssignment.reassignTo)."""
        origin = self.origin
        replicas = tuple(dict.fromkeys((*target, *origin)))
        return Replicas(
            replicas,
            tuple(broker for broker in replicas if broker not in origin),
            tuple(broker for broker in replicas if broker not in target),
        )


class Elected(NamedTuple):
    """Result of an election."""

    leader: int
    isr: tuple[int, ...]
    is_unclean: bool = False


def elect_first(replicas: Sequence[int], live: Collection[int]) -> Elected | None:
    """Elect the first leader of a new partition: all live replicas are in sync."""
    isr = tuple(broker for broker in replicas if broker in live)
    return Elected(isr[0], isr) if isr else None


def elect_offline(
    replicas: Sequence[int], isr: Sequence[int], live: Collection[int], *, unclean: bool
) -> Elected | None:
    """Elect the first live in-sync replica; only if `unclean`, and none is live, the first live replica."""
    for broker in replicas:
        if broker in live and broker in isr:
            return Elected(broker, tuple(other for other in isr if other in live))
    if unclean:
        for broker in replicas:
            if broker in live:
                return Elected(broker, (broker,), is_unclean=True)
    return None


def elect_preferred(replicas: Sequence[int], isr: Sequence[int], live: Collection[int]) -> Elected | None:
    """Elect the first of the assigned replicas, if it is live and in sync."""
    first = replicas[0]
    return Elected(first, tuple(isr)) if first in live and first in isr else None


def elect_for_reassignment(target: Sequence[int], isr: Collection[int], live: Collection[int]) -> int | None:
    """Elect the first of the wanted replicas that is live and in sync."""
    return next((broker for broker in target if broker in live and broker in isr), None)


def elect_for_shutdown(
    replicas: Sequence[int], isr: Sequence[int], live: Collection[int], shutting_down: Collection[int]
) -> Elected | None:
    """Elect the first live in-sync replica that does not shut down, and remove those that do from the ISR."""
    for broker in replicas:
        if broker in live and broker in isr and broker not in shutting_down:
            return Elected(broker, tuple(other for other in isr if other not in shutting_down))
    return None
