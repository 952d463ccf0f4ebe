"""Terms of a controller: one that another controller has followed does not continue with what it knows."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from onceflow.broker.cluster.image import refuse_damaged
from onceflow.broker.cluster.look import read_changes
from onceflow.broker.cluster.registry import Deposed, Registry
from onceflow.broker.cluster.security import RegistrySecurity
from onceflow.broker.cluster.watch import Watch
from onceflow.broker.config import PROTOCOL_OF_NAME, Endpoint
from onceflow.broker.security.acls import Acls
from onceflow.broker.security.client_quotas import ClientQuotas
from onceflow.broker.security.credentials import Credentials
from onceflow.broker.topics.security_state import SecurityState
from onceflow.log.clock import SystemClock
from onceflow.testing.registry import MemoryRegistry, MemorySession

FORMER, OTHER = 1, 2


class Cluster:
    """The registrations of two brokers; the first one is the controller of epoch 1."""

    def __init__(self) -> None:
        self.nodes = MemoryRegistry()
        self.sessions: dict[int, MemorySession] = {}
        self.registries: dict[int, Registry] = {}
        for broker_id in (FORMER, OTHER):
            self.sessions[broker_id] = self.nodes.session()
            self.registries[broker_id] = Registry.open(self.sessions[broker_id], broker_id, SystemClock())
            self.registries[broker_id].join([Endpoint(port=broker_id)], PROTOCOL_OF_NAME)

    def elect_another(self) -> None:
        """End the first broker's session, and let the other one be the controller of epoch 2."""
        self.sessions[FORMER].expire()
        assert self.registries[OTHER].elect()

    def end_term_of_other(self) -> None:
        self.sessions[OTHER].expire()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    with ExitStack() as stack:
        for registry in made.registries.values():
            stack.callback(registry.close)
        yield made


def test_next_session_continues_the_term(cluster: Cluster) -> None:
    former = cluster.registries[FORMER]
    cluster.sessions[FORMER].expire()
    former.rejoin()
    assert former.term.epoch == 2


def test_followed_controller_leaves_office(cluster: Cluster) -> None:
    """It does not know what the other controller has changed."""
    former = cluster.registries[FORMER]
    cluster.elect_another()
    cluster.end_term_of_other()
    with pytest.raises(Deposed, match="elected as the controller after epoch 1"):
        former.rejoin()
    assert not former.is_controller
    assert cluster.nodes.value("/controller") is None
    assert former.elect()
    assert former.term.epoch == 4


@pytest.mark.parametrize("has_other_ended", [False, True])
def test_deposed_controller_forgets_before_another_term(cluster: Cluster, *, has_other_ended: bool) -> None:
    """Its decisions must be forgotten before another term."""
    former = cluster.registries[FORMER]
    cluster.elect_another()
    if has_other_ended:
        cluster.end_term_of_other()
    watch = Watch(former.zookeeper, SystemClock(), lambda: None, lambda _name: pytest.fail("there are no topics"))
    security = RegistrySecurity(former, SecurityState(Acls(), Credentials(), ClientQuotas()), has_acls=False)

    def look() -> bool:
        read_changes(former, watch, security, refuse_damaged)
        return former.is_controller

    assert not look()
    assert look() is has_other_ended
