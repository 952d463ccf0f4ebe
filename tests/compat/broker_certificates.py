"""Certificates of the brokers of a cluster, for their listeners and for ZooKeeper."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.client.tls import Authority, java_key

NAME = {"organization_name": "Engine, Inc", "organization_unit_name": "brokers", "common_name": "broker"}
PRINCIPAL = "User:CN=broker,OU=brokers,O=Engine\\, Inc"
"""Principal of a certificate with that name, as Java writes it."""


@dataclass(frozen=True)
class Certificates:
    """An authority's certificate, and that of a broker with its key."""

    trusted: Path
    broker: Path

    @property
    def settings(self) -> Mapping[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trusted),
        }

    @property
    def zookeeper_settings(self) -> Mapping[str, str]:
        """Settings for a secured ZooKeeper, of brokers and of Kafka's tools."""
        named = {f"zookeeper.{name}": value for name, value in self.settings.items()}
        netty = "org.apache.zookeeper.ClientCnxnSocketNetty"
        return {"zookeeper.ssl.client.enable": "true", "zookeeper.clientCnxnSocket": netty, **named}

    @property
    def kazoo(self) -> dict[str, object]:
        """Settings of KazooClient."""
        return {
            "use_ssl": True,
            "ca": str(self.trusted),
            "certfile": str(self.broker),
            "keyfile": str(self.broker),
        }


def issue(authority: Authority) -> Certificates:
    return Certificates(authority.trusted, java_key(authority.issue("127.0.0.1", file="broker", **NAME)))
