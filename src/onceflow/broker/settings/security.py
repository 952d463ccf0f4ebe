"""Settings of TLS. A listener's own have the prefix `listener.name.` and its name in lower case."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from onceflow.broker.security.principal_rules import parse_rules
from onceflow.broker.settings.kinds import COUNT, MS_POSITIVE, Choice, Word
from onceflow.broker.settings.setting import Setting

PASSWORD_TYPE = 9
"""DescribeConfigsResponse.ConfigType."""

_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


@dataclass(frozen=True)
class Pem:
    """Text of one or more PEM blocks, on several lines or with spaces in their place, as Kafka's files have it."""

    content: str
    kafka_type = PASSWORD_TYPE
    metavar = "PEM"

    def read(self, text: str) -> str:
        if not _PEM.search(text):
            raise ValueError(f"is not {self.allowed}")
        return text

    def write(self, value: object) -> str | None:
        return None if value is None else str(value)

    @property
    def allowed(self) -> str:
        return f"{self.content} in PEM"


@dataclass(frozen=True)
class Versions:
    """Versions of TLS, separated by commas."""

    known: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    kafka_type = 7
    metavar = "VERSIONS"

    def read(self, text: str) -> tuple[str, ...]:
        given = {part.strip() for part in text.split(",")}
        if not given <= set(self.known):
            raise ValueError(f"is not {self.allowed}")
        return tuple(version for version in self.known if version in given)

    def write(self, value: object) -> str:
        assert isinstance(value, tuple)
        return ",".join(value)

    @property
    def allowed(self) -> str:
        return f"{', '.join(self.known)} or both"


@dataclass(frozen=True)
class Rules:
    """Rules that map a certificate's name to a principal's."""

    kafka_type = 2
    metavar = "RULES"
    allowed = "DEFAULT or RULE:PATTERN/REPLACEMENT/[LU], separated by commas"

    def read(self, text: str) -> str:
        parse_rules(text)
        return text

    def write(self, value: object) -> str:
        return str(value)


FILE = Word(r".+", "a file", "FILE")
PASSWORD = Word(r"(?s).+", "a password", "PASSWORD", kafka_type=PASSWORD_TYPE)

SECURITY: tuple[Setting, ...] = (
    Setting(
        "ssl.keystore.location",
        "security.key_store_file",
        FILE,
        "PEM file with the broker's private key and its certificate, followed by intermediate certificates. A changed"
        " file is loaded within a second.",
    ),
    Setting(
        "ssl.keystore.key",
        "security.key",
        Pem("a private key"),
        "The broker's private key as text, in place of ssl.keystore.location.",
        is_secret=True,
    ),
    Setting(
        "ssl.keystore.certificate.chain",
        "security.certificates",
        Pem("certificates"),
        "The broker's certificate as text, followed by intermediate certificates.",
        is_secret=True,
    ),
    Setting(
        "ssl.key.password",
        "security.key_password",
        PASSWORD,
        "Password of the private key, if it is encrypted.",
        is_secret=True,
    ),
    Setting(
        "ssl.truststore.location",
        "security.trust_store_file",
        FILE,
        "PEM file with the certificates of the authorities that issue clients' certificates. A changed file is loaded"
        " within a second.",
    ),
    Setting(
        "ssl.truststore.certificates",
        "security.trusted",
        Pem("certificates"),
        "The authorities' certificates as text, in place of ssl.truststore.location.",
        is_secret=True,
    ),
    Setting(
        "ssl.client.auth",
        "security.client_auth",
        Choice({name: name for name in ("none", "requested", "required")}),
        "Whether a client presents a certificate. Its name becomes the client's principal. A listener with SASL uses"
        " this only with its own prefix, as in Kafka.",
    ),
    Setting(
        "ssl.principal.mapping.rules",
        "security.principal_rules",
        Rules(),
        "How a certificate's name becomes the name of a principal: the first rule whose pattern matches. A client"
        " whose certificate matches none is refused.",
    ),
    Setting(
        "ssl.enabled.protocols",
        "security.tls_versions",
        Versions(),
        "Versions of TLS.",
    ),
    Setting(
        "authentication.timeout.ms",
        "authentication_ms_max",
        MS_POSITIVE,
        "Maximum time for the TLS handshake of a new connection. Onceflow only.",
    ),
    Setting(
        "max.unauthenticated.connections",
        "unauthenticated_connections_max",
        COUNT,
        "Maximum number of connections whose TLS handshake is not finished. Beyond it, the oldest of them is closed."
        " Onceflow only.",
    ),
)

OF_LISTENERS: Mapping[str, Setting] = {
    setting.name: setting for setting in SECURITY if setting.field.startswith("security.")
}
"""Settings that a listener may have of its own."""
