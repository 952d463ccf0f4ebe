"""A client whose security.protocol is not that of the listener: the error says so, at once."""

import ssl
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config import PROTOCOLS, Endpoint, SecurityConfig
from onceflow.client.cluster import Cluster
from onceflow.client.errors import ClientError
from onceflow.client.security import Security, read_security
from onceflow.remedies import Remedy
from tests import remedies
from tests.broker.driven_broker import InnerBroker
from tests.client.tls import Authority

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ada" password="right";'
Place = tuple[InnerBroker, Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker with a listener of each protocol, and what its clients trust."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    security = SecurityConfig(
        key_store_file=str(authority.issue("127.0.0.1")), sasl_mechanisms=("PLAIN",), plain_passwords={"ada": "right"}
    )
    listeners = tuple(Endpoint(port=0, listener=name) for name in PROTOCOLS)
    settings: dict[str, Any] = {"listeners": listeners, "security": security}
    with InnerBroker(tmp_path_factory.mktemp("broker") / "data", **settings) as running:
        yield running, authority.trusted


def secured(protocol: str, trusted: Path) -> Security:
    settings = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        settings["ssl.truststore.location"] = str(trusted)
    if protocol.startswith("SASL"):
        settings |= {"sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}
    return read_security(settings)


@pytest.mark.remedy(Remedy.SECURITY_PROTOCOL)
@pytest.mark.parametrize(("protocol", "listener"), list(permutations(PROTOCOLS, 2)))
def test_the_error_names_the_setting(place: Place, protocol: str, listener: str) -> None:
    broker, trusted = place
    cluster = Cluster(broker.addresses[listener], security=secured(protocol, trusted))
    with pytest.raises(ClientError) as raised:
        cluster.topics()
    remedies.find(Remedy.SECURITY_PROTOCOL, raised.value)
    cluster.close()
    with Cluster(broker.addresses[listener], security=secured(listener, trusted)) as right:
        assert "nothing" not in right.topics()


def test_a_later_loss_has_other_reasons(place: Place) -> None:
    """The setting is right once a request had a response."""
    broker, trusted = place
    cluster = Cluster(broker.addresses["SSL"], security=secured("SSL", trusted))
    assert "nothing" not in cluster.topics()
    connection = next(iter(cluster.router._connections.values()))
    assert isinstance(connection._socket, ssl.SSLSocket)
    assert Remedy.SECURITY_PROTOCOL not in connection._after_loss()
    cluster.close()
