"""A broker's session with ZooKeeper, and the ACLs of its nodes (kafka.zk.ZkData.defaultAcls)."""

from dataclasses import dataclass
from typing import Any

from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE

from onceflow.broker.config import BrokerConfig
from onceflow.zookeeper.kazoo_session import ZooKeeper
from onceflow.zookeeper.security import ZooKeeperSecurity
from onceflow.zookeeper.session_closer import SessionCloser

SENSITIVE = ("/config/users", "/config/brokers", "/delegation_token/tokens")
"""Nodes that others must not read either: they have users' keys."""
OPEN = "/consumers"
"""Node below which clients of Kafka's first releases write."""


def zookeeper_session(config: BrokerConfig) -> ZooKeeper:
    """Prepare the session that the settings `zookeeper.*` name. Raises InvalidZooKeeperTls."""
    return _session(config, _security(config))


def session_of_process(config: BrokerConfig) -> ZooKeeper:
    """Prepare a session that ends as soon as this process has died. Raises InvalidZooKeeperTls."""
    assert config.zookeeper_connect is not None
    security = _security(config)
    closer = SessionCloser(
        config.zookeeper_connect,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
        security=security,
    )
    closer.start()
    session = _session(config, security)
    session.on_session = closer.follow
    return session


def _session(config: BrokerConfig, security: "_BrokerSecurity") -> ZooKeeper:
    assert config.zookeeper_connect is not None
    return ZooKeeper(
        config.zookeeper_connect,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
        security=security,
    )


def _security(config: BrokerConfig) -> "_BrokerSecurity":
    login = config.zookeeper_digest
    return _BrokerSecurity(
        tls=config.zookeeper_tls,
        trust_store_file=config.zookeeper_trust_store_file,
        key_store_file=config.zookeeper_key_store_file,
        key_password=config.zookeeper_key_password,
        checks_host_name=config.zookeeper_endpoint_identification == "HTTPS",
        digest=None if login is None else f"{login.user}:{login.password}",
        sets_acls=config.zookeeper_acls,
    )


@dataclass(frozen=True)
class _BrokerSecurity(ZooKeeperSecurity):
    """Security of one broker's sessions."""

    sets_acls: bool = False

    def acl_of(self, path: str) -> list[Any]:
        """Return the ACL of a node that the broker creates; `path` is without the chroot."""
        if not self.sets_acls or path == OPEN:
            return super().acl_of(path)
        return [*CREATOR_ALL_ACL, *(() if path.startswith(SENSITIVE) else READ_ACL_UNSAFE)]
