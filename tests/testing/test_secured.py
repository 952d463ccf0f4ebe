"""A broker in this process with users and TLS, in one line."""

import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from onceflow.client.cluster import Cluster
from onceflow.client.security import read_security
from onceflow.testing import Broker, BrokerNotUsable

USERS = {"ada": "first secret", "eve": "second secret"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_and_tls(mechanism: str) -> None:
    with Broker(users=USERS, tls=True) as broker:
        broker.create_topic("visits")
        for user in (None, "eve"):
            settings: dict[str, Any] = broker.client_settings(user, mechanism)
            assert settings["sasl.username"] == (user or "ada")
            assert "visits" in AdminClient(settings).list_topics(timeout=15).topics
        authority = broker.authority
        assert authority is not None
    assert not authority.parent.exists()


def test_our_client_with_its_settings() -> None:
    """The client library, which has Kafka's names of the settings."""
    with Broker(users=USERS, tls=True) as broker:
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{login} username="ada" password="{USERS["ada"]}";',
            "ssl.truststore.location": str(broker.authority),
        }
        with Cluster(broker.bootstrap_servers, security=read_security(settings)) as cluster:
            cluster.create_topic("visits", 1)
            assert "visits" in cluster.topics()


@pytest.mark.parametrize(
    ("options", "protocol"),
    [({}, "PLAINTEXT"), ({"users": USERS}, "SASL_PLAINTEXT"), ({"tls": True}, "SSL")],
)
def test_protocols(options: dict[str, Any], protocol: str) -> None:
    with Broker(settings={"num.partitions": 3}, **options) as broker:
        settings: dict[str, Any] = broker.client_settings()
        assert settings["security.protocol"] == protocol
        assert AdminClient(settings).list_topics(timeout=15).brokers
        assert (broker.authority is None) == ("tls" not in options)


def test_a_wrong_password_is_refused() -> None:
    with Broker(users=USERS) as broker:
        settings: dict[str, Any] = broker.client_settings() | {"sasl.password": "wrong"}
        with pytest.raises(KafkaException):
            AdminClient(settings | {"log_level": 0}).list_topics(timeout=0.5)
        with pytest.raises(BrokerNotUsable, match="has no user 'bob', only ada, eve"):
            broker.client_settings("bob")


def test_acls() -> None:
    acls = ["ada Write topic:visit*", "eve describe cluster", "ada Describe topic:visits"]
    with Broker(users=USERS, acls=acls) as broker:
        broker.create_topic("visits")
        broker.create_topic("other")
        allowed = Producer(broker.client_settings("ada") | {"topic.metadata.refresh.interval.ms": -1})
        errors: list[object] = []
        allowed.produce("visits", b"click", on_delivery=lambda error, _message: errors.append(error))
        assert (allowed.flush(15), errors) == (0, [None])
        assert set(allowed.list_topics(timeout=15).topics) == {"visits"}
        settings: dict[str, Any] = broker.client_settings("eve")
        assert not AdminClient(settings).list_topics(timeout=15).topics


@pytest.mark.parametrize("acl", ["ada Read", "ada Reed topic:visits", "ada Read tropic:visits", "a b c d", ""])
def test_acls_that_are_none(acl: str) -> None:
    with pytest.raises(BrokerNotUsable, match="is not USER OPERATION RESOURCE, such as 'ada Read topic:visits'"):
        Broker(users=USERS, acls=[acl])


def test_a_later_start_keeps_authority_and_users(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", users=USERS, tls=True)
    with broker:
        assert broker.authority is not None
        first = broker.authority.read_text()
        size = (tmp_path / "data" / "__cluster_metadata-0" / f"{0:020}.log").stat().st_size
    with broker:
        settings: dict[str, Any] = broker.client_settings()
        assert AdminClient(settings).list_topics(timeout=15).brokers
        assert broker.authority is not None
        assert broker.authority.read_text() == first
        assert (tmp_path / "data" / "__cluster_metadata-0" / f"{0:020}.log").stat().st_size == size


def test_tls_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(BrokerNotUsable, match="tls=True needs the package trustme: pip install trustme"):
        Broker(tls=True).start()
