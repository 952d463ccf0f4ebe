"""Settings of TLS and SASL. A listener's own have the prefix `listener.name.` and its name in lower case."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onceflow.broker.config import Login
from onceflow.broker.security.principal_rules import parse_rules
from onceflow.broker.security.sasl import OAUTHBEARER, PLAIN
from onceflow.broker.settings.kinds import BYTES, COUNT, INT32_MAX, MS, MS_POSITIVE, Choice, Whole, Word
from onceflow.broker.settings.oauth import OAUTH
from onceflow.broker.settings.setting import Setting
from onceflow.wire.scram import BY_NAME

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
class Names:
    """Some of the known names, separated by commas."""

    known: tuple[str, ...]
    kafka_type = 7
    metavar = "NAMES"

    def read(self, text: str) -> tuple[str, ...]:
        given = {part.strip() for part in text.split(",")}
        if not given <= set(self.known):
            raise ValueError(f"is not {self.allowed}")
        return tuple(name for name in self.known if name in given)

    def write(self, value: object) -> str:
        assert isinstance(value, tuple)
        return ",".join(value)

    @property
    def allowed(self) -> str:
        return f"one or more of {', '.join(self.known)}, separated by commas"


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


_JAAS = re.compile(r'\s*([\w.]+)\s+required((?:\s+\w\S*?\s*=\s*"(?:[^"\\]|\\.)*")*)\s*;?\s*', re.DOTALL)
_JAAS_OPTION = re.compile(r'(\w\S*?)\s*=\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)


def _jaas_options(text: str, module: str, allowed: str) -> dict[str, str]:
    """Return the options of a login module. Raises ValueError without the value, which has passwords."""
    match = _JAAS.fullmatch(text)
    if match is None or not match[1].endswith(module):
        raise ValueError(f"is not in the form {allowed}")
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in _JAAS_OPTION.findall(match[2])}


@dataclass(frozen=True)
class PlainUsers:
    """Users and passwords in the syntax of JAAS, as Kafka's PlainLoginModule has them."""

    kafka_type = PASSWORD_TYPE
    metavar = "JAAS"
    allowed = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD" …;'

    def read(self, text: str) -> tuple[Mapping[str, str], Login | None]:
        options = _jaas_options(text, "PlainLoginModule", self.allowed)
        unknown = [name for name in options if not name.startswith("user_") and name not in ("username", "password")]
        if unknown:
            raise ValueError(f"has unknown options: {', '.join(unknown)}; each user is user_NAME")
        passwords = {name.removeprefix("user_"): value for name, value in options.items() if name.startswith("user_")}
        return MappingProxyType(passwords), _login(options)

    def write(self, value: object) -> str | None:
        assert isinstance(value, tuple)
        return f"{len(value[0])} users" if value[0] else None


def _login(options: Mapping[str, str]) -> Login | None:
    """Return this broker's own login among the options of a login module. Raises ValueError."""
    if "username" in options and "password" in options:
        return Login(options["username"], options["password"])
    if "username" in options or "password" in options:
        raise ValueError("has only one of username and password")
    return None


@dataclass(frozen=True)
class ScramLogin:
    """The broker's own login in the syntax of JAAS, as Kafka's ScramLoginModule has it."""

    kafka_type = PASSWORD_TYPE
    metavar = "JAAS"
    allowed = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="NAME" password="PASSWORD";'

    def read(self, text: str) -> Login | None:
        options = _jaas_options(text, "ScramLoginModule", self.allowed)
        unknown = options.keys() - {"username", "password"}
        if unknown:
            raise ValueError(f"has unknown options: {', '.join(sorted(unknown))}")
        return _login(options)

    def write(self, value: object) -> str | None:
        return None if value is None else "a login"


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
        Names(("TLSv1.2", "TLSv1.3")),
        "Versions of TLS.",
    ),
    Setting(
        "ssl.endpoint.identification.algorithm",
        "security.endpoint_identification",
        Choice({"https": "https", "": ""}),
        "Whether the certificate of another broker must have the host name that it is connected by: https, or empty"
        " for not.",
    ),
    Setting(
        "authentication.timeout.ms",
        "authentication_ms_max",
        MS_POSITIVE,
        "Maximum time for the TLS handshake and the SASL login of a new connection. Onceflow only.",
    ),
    Setting(
        "max.unauthenticated.connections",
        "unauthenticated_connections_max",
        COUNT,
        "Maximum number of connections whose TLS handshake or SASL login is not finished. Beyond it, the oldest of them"
        " is closed. Onceflow only.",
    ),
)
SASL: tuple[Setting, ...] = (
    Setting(
        "sasl.enabled.mechanisms",
        "security.sasl_mechanisms",
        Names((PLAIN, *BY_NAME, OAUTHBEARER)),
        "Mechanisms that clients of listeners with SASL may use. Kafka's default is GSSAPI. Users of SCRAM are in the"
        " metadata log ('onceflow credential'), those of PLAIN in plain.sasl.jaas.config.",
    ),
    Setting(
        "plain.sasl.jaas.config",
        "security.plain_passwords security.plain_login",
        PlainUsers(),
        'Users of SASL/PLAIN, in Kafka\'s format: PlainLoginModule required user_NAME="PASSWORD" …; In Kafka it has'
        " always the prefix of a listener. `username` and `password` are the broker's own login at other brokers.",
        is_secret=True,
    ),
    Setting(
        "scram-sha-256.sasl.jaas.config",
        "security.scram_256_login",
        ScramLogin(),
        "The broker's own login at other brokers with SCRAM-SHA-256, in Kafka's format. Users are not here.",
        is_secret=True,
    ),
    Setting(
        "scram-sha-512.sasl.jaas.config",
        "security.scram_512_login",
        ScramLogin(),
        "The broker's own login at other brokers with SCRAM-SHA-512, in Kafka's format. Users are not here.",
        is_secret=True,
    ),
    *OAUTH,
    Setting(
        "connections.max.reauth.ms",
        "security.reauthentication_ms_max",
        MS,
        "Time after which a client with SASL must authenticate again; one that does not is disconnected by its next"
        " request. 0: never.",
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        "failed_login_delay_ms",
        Whole(0, INT32_MAX),
        "Time by which the response to a failed SASL login is delayed.",
    ),
    Setting(
        "sasl.server.max.receive.size",
        "login_bytes_max",
        BYTES,
        "Maximum size of a request before a SASL login has succeeded.",
    ),
)

OF_LISTENERS: Mapping[str, Setting] = {
    setting.name: setting for setting in (*SECURITY, *SASL) if setting.field.startswith("security.")
}
"""Settings that a listener may have of its own."""
