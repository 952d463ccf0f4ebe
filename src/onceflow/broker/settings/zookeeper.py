"""Settings of the security of ZooKeeper."""

from dataclasses import dataclass

from onceflow.broker.config import BrokerConfig, Login
from onceflow.broker.settings.kinds import BOOLEAN, Choice, SettingRefused
from onceflow.broker.settings.security import FILE, PASSWORD, PASSWORD_TYPE
from onceflow.broker.settings.setting import Setting


@dataclass(frozen=True)
class Digest:
    """A user and a password with a colon between them."""

    kafka_type = PASSWORD_TYPE
    metavar = "USER:PASSWORD"
    allowed = "USER:PASSWORD"

    def read(self, text: str) -> Login:
        user, separator, password = text.partition(":")
        if not (user and separator and password):
            raise ValueError(f"is not {self.allowed}")
        return Login(user, password)

    def write(self, value: object) -> str | None:
        return None if value is None else "a login"


ZOOKEEPER_SECURITY: tuple[Setting, ...] = (
    Setting(
        "zookeeper.ssl.client.enable",
        "zookeeper_tls",
        BOOLEAN,
        "Whether the connection to ZooKeeper has TLS. zookeeper.connect names ZooKeeper's secure port then.",
    ),
    Setting(
        "zookeeper.ssl.truststore.location",
        "zookeeper_trust_store_file",
        FILE,
        "PEM file with the authorities of ZooKeeper's certificate. Default: those of the machine.",
    ),
    Setting(
        "zookeeper.ssl.keystore.location",
        "zookeeper_key_store_file",
        FILE,
        "PEM file with the private key and the certificate that the broker presents to ZooKeeper.",
    ),
    Setting(
        "zookeeper.ssl.keystore.password",
        "zookeeper_key_password",
        PASSWORD,
        "Password of that private key, if it is encrypted.",
        is_secret=True,
    ),
    Setting(
        "zookeeper.ssl.endpoint.identification.algorithm",
        "zookeeper_endpoint_identification",
        Choice({"HTTPS": "HTTPS", "": ""}),
        "Whether ZooKeeper's certificate must have its host name: HTTPS, or empty for not.",
    ),
    Setting(
        "zookeeper.digest",
        "zookeeper_digest",
        Digest(),
        "User and password of ZooKeeper's scheme digest. Onceflow only: Kafka has a JAAS file for SASL in its place.",
        is_secret=True,
    ),
    Setting(
        "zookeeper.set.acl",
        "zookeeper_acls",
        BOOLEAN,
        "Whether the nodes that the broker creates can be changed only by the user of zookeeper.digest, or of the"
        " certificate. The nodes of users can be read only by it too.",
    ),
)


def check_zookeeper(config: BrokerConfig) -> None:
    """Raise SettingRefused for settings without which others have no effect."""
    if config.zookeeper_acls and config.zookeeper_digest is None and config.zookeeper_key_store_file is None:
        raise SettingRefused("zookeeper.set.acl=true needs zookeeper.digest or zookeeper.ssl.keystore.location")
    if not config.zookeeper_tls:
        for name, value in (
            ("zookeeper.ssl.keystore.location", config.zookeeper_key_store_file),
            ("zookeeper.ssl.truststore.location", config.zookeeper_trust_store_file),
        ):
            if value is not None:
                raise SettingRefused(f"{name} has no effect without zookeeper.ssl.client.enable=true")
