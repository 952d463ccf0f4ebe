"""TLS and authentication of a session with ZooKeeper, and the ACLs of the nodes that it creates."""

import ssl
from dataclasses import dataclass, field
from typing import Any

from kazoo.security import OPEN_ACL_UNSAFE

from onceflow.errors import OnceflowError
from onceflow.private_files import MODE, is_exposed


class InvalidZooKeeperTls(OnceflowError):
    """Certificates or keys for ZooKeeper that cannot be used."""


@dataclass(frozen=True)
class ZooKeeperSecurity:
    """Security of sessions whose nodes everybody may change, as those of consumers. Raises InvalidZooKeeperTls."""

    tls: bool = False
    trust_store_file: str | None = None
    key_store_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_host_name: bool = True
    digest: str | None = field(default=None, repr=False)
    """USER:PASSWORD of ZooKeeper's scheme digest."""

    def __post_init__(self) -> None:
        if self.tls:
            self._check_files()

    @property
    def client_settings(self) -> dict[str, Any]:
        """The arguments of KazooClient."""
        settings: dict[str, Any] = {}
        if self.tls:
            settings |= {
                "use_ssl": True,
                "ca": self.trust_store_file,
                "certfile": self.key_store_file,
                "keyfile": self.key_store_file,
                "keyfile_password": self.key_password,
                "check_hostname": self.checks_host_name,
            }
        if self.digest is not None:
            settings["auth_data"] = [("digest", self.digest)]
        return settings

    def acl_of(self, path: str) -> list[Any]:
        """Return the ACL of a node that is created; `path` is without the chroot."""
        return list(OPEN_ACL_UNSAFE)

    def _check_files(self) -> None:
        """Load the files once: kazoo would repeat a connection that they make impossible."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        name = f"zookeeper.ssl.truststore.location={self.trust_store_file}"
        try:
            if self.trust_store_file is not None:
                context.load_verify_locations(self.trust_store_file)
            name = f"zookeeper.ssl.keystore.location={self.key_store_file}"
            if self.key_store_file is not None:
                # Without a password OpenSSL would prompt on the terminal.
                context.load_cert_chain(self.key_store_file, password=self.key_password or "")
        except (OSError, ValueError) as error:
            raise InvalidZooKeeperTls(f"{name} cannot be used: {error}") from error
        if self.key_store_file is not None and is_exposed(self.key_store_file):
            raise InvalidZooKeeperTls(f"{name}: every user of this machine can read the key; {MODE}")
