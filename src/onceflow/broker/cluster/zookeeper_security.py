"""A broker's session with ZooKeeper: its TLS, authentication and ACLs (kafka.zk.ZkData.defaultAcls)."""

import ssl
from typing import Any

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from onceflow.broker.config import BrokerConfig
from onceflow.errors import OnceflowError
from onceflow.private_files import MODE, is_exposed
from onceflow.zookeeper.kazoo_session import ZooKeeper

SENSITIVE = ("/config/users", "/config/brokers", "/delegation_token/tokens")
"""Nodes that others must not read either: they have users' keys."""
OPEN = "/consumers"
"""Node below which clients of Kafka's first releases write."""


class InvalidZooKeeperTls(OnceflowError):
    """Certificates or keys for ZooKeeper that cannot be used."""


def zookeeper_session(config: BrokerConfig) -> ZooKeeper:
    """Prepare the session that the settings `zookeeper.*` name. Raises InvalidZooKeeperTls."""
    assert config.zookeeper_connect is not None
    return ZooKeeper(
        config.zookeeper_connect,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
        security=ZooKeeperSecurity(config),
    )


class ZooKeeperSecurity:
    """Security of one broker's sessions."""

    def __init__(self, config: BrokerConfig) -> None:
        """Check the files. Raises InvalidZooKeeperTls."""
        self._config = config
        if config.zookeeper_tls:
            _check_files(config)

    @property
    def client_settings(self) -> dict[str, Any]:
        """The arguments of KazooClient."""
        config = self._config
        settings: dict[str, Any] = {}
        if config.zookeeper_tls:
            settings |= {
                "use_ssl": True,
                "ca": config.zookeeper_trust_store_file,
                "certfile": config.zookeeper_key_store_file,
                "keyfile": config.zookeeper_key_store_file,
                "keyfile_password": config.zookeeper_key_password,
                "check_hostname": config.zookeeper_endpoint_identification == "HTTPS",
            }
        if config.zookeeper_digest is not None:
            login = config.zookeeper_digest
            settings["auth_data"] = [("digest", f"{login.user}:{login.password}")]
        return settings

    def acl_of(self, path: str) -> list[Any]:
        """Return the ACL of a node that the broker creates; `path` is without the chroot."""
        if not self._config.zookeeper_acls or path == OPEN:
            return list(OPEN_ACL_UNSAFE)
        return [*CREATOR_ALL_ACL, *(() if path.startswith(SENSITIVE) else READ_ACL_UNSAFE)]


def _check_files(config: BrokerConfig) -> None:
    """Load the files once: kazoo would repeat a connection that they make impossible."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted, own = config.zookeeper_trust_store_file, config.zookeeper_key_store_file
    name = f"zookeeper.ssl.truststore.location={trusted}"
    try:
        if trusted is not None:
            context.load_verify_locations(trusted)
        name = f"zookeeper.ssl.keystore.location={own}"
        if own is not None:
            # Without a password OpenSSL would prompt on the terminal.
            context.load_cert_chain(own, password=config.zookeeper_key_password or "")
    except (OSError, ValueError) as error:
        raise InvalidZooKeeperTls(f"{name} cannot be used: {error}") from error
    if own is not None and is_exposed(own):
        raise InvalidZooKeeperTls(f"{name}: every user of this machine can read the key; {MODE}")
