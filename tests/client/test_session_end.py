"""Sessions of our clients that end while they are connected (connections.max.reauth.ms, KIP-368)."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.broker.config import Endpoint, SecurityConfig
from onceflow.client.cluster import Cluster
from onceflow.client.producer import EventWriter
from onceflow.client.security import read_security
from onceflow.client.transactional import TransactionalProducer
from onceflow.testing import ManualClock
from tests.broker.driven_broker import InnerBroker
from tests.client.test_wrong_protocol import JAAS

SESSION_MS = 1000
SETTINGS = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}


@pytest.fixture
def clock() -> ManualClock:
    """A clock that starts now: the clients' timestamps are those of this machine."""
    return ManualClock(int(time.time() * 1000))


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[InnerBroker]:
    security = SecurityConfig(
        sasl_mechanisms=("PLAIN",), plain_passwords={"ada": "right"}, reauthentication_ms_max=SESSION_MS
    )
    listeners = (Endpoint(port=0, listener="SASL_PLAINTEXT"),)
    with InnerBroker(tmp_path / "data", clock=clock, listeners=listeners, security=security) as running:
        yield running


def test_requests_continue_on_a_new_connection(broker: InnerBroker, clock: ManualClock) -> None:
    with Cluster(broker.bootstrap, security=read_security(SETTINGS)) as cluster:
        cluster.create_topic("visits", 1)
        first = set(cluster.router._connections.values())
        for _ in range(3):
            clock.advance_ms(2 * SESSION_MS)
            assert cluster.list_offsets("visits", {0: -1})[0].offset == 0
        assert first.isdisjoint(cluster.router._connections.values())


def test_a_transaction_continues(broker: InnerBroker, clock: ManualClock) -> None:
    """Each request after the end is repeated, and its record is there once."""
    security = read_security(SETTINGS)
    with Cluster(broker.bootstrap, security=security) as cluster:
        cluster.create_topic("visits", 1)
        with TransactionalProducer(broker.bootstrap, "job", security=security) as producer:
            for step in (producer.begin, lambda: producer.send("visits", b"once"), producer.flush, producer.commit):
                clock.advance_ms(2 * SESSION_MS)
                step()
        clock.advance_ms(2 * SESSION_MS)
        fetched = cluster.fetch("visits", 0, 0, read_committed=True)
        assert bytes(fetched.records).count(b"once") == 1


def test_librdkafka_continues(broker: InnerBroker, clock: ManualClock) -> None:
    security = read_security(SETTINGS)
    with Cluster(broker.bootstrap, security=security) as cluster:
        cluster.create_topic("visits", 1)
    with EventWriter(broker.bootstrap, "visits", security=security) as writer:
        for number in range(3):
            writer.write(b"ada", b"%d" % number)
            writer.flush()
            clock.advance_ms(2 * SESSION_MS)
    assert writer.delivered == 3
