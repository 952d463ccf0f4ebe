"""TLS and SASL settings of connections, under the names of Kafka's own client settings.

| setting | value |
|---|---|
| `security.protocol` | `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL` |
| `sasl.mechanism` | `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER` |
| `sasl.jaas.config` | `….PlainLoginModule required username="…" password="…";` or ScramLoginModule |
| `sasl.oauthbearer.token.endpoint.url` | of OAUTHBEARER: `file:///…`, a file with a token, which is a JWT |
| `ssl.truststore.location` | PEM file with the trusted certificates; default: those of the system |
| `ssl.truststore.certificates` | the same, as PEM text |
| `ssl.keystore.location` | PEM file with the client's own key and its certificates |
| `ssl.keystore.key`, `ssl.keystore.certificate.chain` | the same, as PEM text |
| `ssl.key.password` | password of an encrypted key |
| `ssl.truststore.type`, `ssl.keystore.type` | `PEM` |
| `ssl.endpoint.identification.algorithm` | `https`: the certificate must name the host; empty: any name (KAFKA-4667) |

Java's own key stores (JKS, PKCS12) cannot be read and are refused with the command that converts one to PEM.
"""

import difflib
import os
import re
import socket
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from onceflow.client.bearer import TOKEN_URL, Bearer, read_bearer
from onceflow.client.errors import InvalidSecurity
from onceflow.private_files import MODE, is_exposed

SECURITY_PROTOCOL = "security.protocol"
SASL_MECHANISM = "sasl.mechanism"
SASL_JAAS_CONFIG = "sasl.jaas.config"
TRUSTSTORE_LOCATION = "ssl.truststore.location"
TRUSTSTORE_CERTIFICATES = "ssl.truststore.certificates"
TRUSTSTORE_TYPE = "ssl.truststore.type"
KEYSTORE_LOCATION = "ssl.keystore.location"
KEYSTORE_KEY = "ssl.keystore.key"
KEYSTORE_CHAIN = "ssl.keystore.certificate.chain"
KEYSTORE_TYPE = "ssl.keystore.type"
KEY_PASSWORD = "ssl.key.password"
ENDPOINT_IDENTIFICATION = "ssl.endpoint.identification.algorithm"

NAMES = (
    SECURITY_PROTOCOL,
    SASL_MECHANISM,
    SASL_JAAS_CONFIG,
    TOKEN_URL,
    TRUSTSTORE_LOCATION,
    TRUSTSTORE_CERTIFICATES,
    TRUSTSTORE_TYPE,
    KEYSTORE_LOCATION,
    KEYSTORE_KEY,
    KEYSTORE_CHAIN,
    KEYSTORE_TYPE,
    KEY_PASSWORD,
    ENDPOINT_IDENTIFICATION,
)
SECRETS = frozenset((SASL_JAAS_CONFIG, KEYSTORE_KEY, KEY_PASSWORD))
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", Bearer.mechanism)

_LIBRDKAFKA_NAMES = {
    "sasl.mechanisms": SASL_MECHANISM,
    "sasl.username": SASL_JAAS_CONFIG,
    "sasl.password": SASL_JAAS_CONFIG,
    "ssl.ca.location": TRUSTSTORE_LOCATION,
    "ssl.ca.pem": TRUSTSTORE_CERTIFICATES,
    "ssl.certificate.location": KEYSTORE_LOCATION,
    "ssl.certificate.pem": KEYSTORE_CHAIN,
    "ssl.key.location": KEYSTORE_LOCATION,
    "ssl.key.pem": KEYSTORE_KEY,
}
"""librdkafka's name → Kafka's for the same setting: users of kcat or confluent-kafka type the former."""

_LOGIN_MODULES = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    Bearer.mechanism: "OAuthBearerLoginModule",
}
_JAAS = re.compile(r"\s*([\w.$]+)\s+required((?:\s+\w+\s*=\s*\"(?:[^\"\\]|\\.)*\")*)\s*;\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"(\w+)\s*=\s*\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tls:
    """Trusted certificates and the client's own. Texts and files are PEM."""

    trusted_file: str | None = None
    trusted: str | None = None
    key_file: str | None = None
    key: str | None = field(default=None, repr=False)
    certificates: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_host: bool = True

    def wrap(self, plain: socket.socket, host: str) -> ssl.SSLSocket:
        """Perform TLS's handshake within the socket's timeout. Raises ssl.SSLError, OSError, InvalidSecurity."""
        return _context(self).wrap_socket(plain, server_hostname=host)


@dataclass(frozen=True, slots=True)
class Sasl:
    """Name, password and authentication mechanism."""

    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Security:
    """Encryption and authentication of a connection."""

    tls: Tls | None = None
    sasl: Sasl | Bearer | None = None


PLAINTEXT = Security()


def kafka_name_hint(name: str) -> str | None:
    """Return a hint with Kafka's name for librdkafka's name; None for any other."""
    known = _LIBRDKAFKA_NAMES.get(name)
    return known and f"that is librdkafka's name; Kafka's is {known}"


def read_security(config: Mapping[str, str]) -> Security:
    """Read Kafka's settings by name; other names are refused. Raises InvalidSecurity.

    A setting without effect, such as a truststore without TLS, is refused too.
    """
    for name in config:
        if name not in NAMES:
            nearest = difflib.get_close_matches(name, NAMES, n=1)
            suggestion = f"did you mean {nearest[0]}?" if nearest else f"expected one of {', '.join(NAMES)}"
            hint = kafka_name_hint(name) or suggestion
            raise InvalidSecurity(f"{name} is not a supported setting of TLS or SASL; {hint}")
    protocol = config.get(SECURITY_PROTOCOL, "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidSecurity(f"{SECURITY_PROTOCOL}={protocol!r} is not one of {', '.join(PROTOCOLS)}")
    uses_tls, uses_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for name in config:
        if (name.startswith("ssl.") and not uses_tls) or (name.startswith("sasl.") and not uses_sasl):
            raise InvalidSecurity(
                f"{name} has no effect with {SECURITY_PROTOCOL}={protocol}; choose another or remove it"
            )
    return Security(_read_tls(config) if uses_tls else None, _read_sasl(config) if uses_sasl else None)


def _read_tls(config: Mapping[str, str]) -> Tls:
    for name, location in ((TRUSTSTORE_TYPE, TRUSTSTORE_LOCATION), (KEYSTORE_TYPE, KEYSTORE_LOCATION)):
        if config.get(name, "PEM").upper() != "PEM":
            raise InvalidSecurity(_not_pem(f"{name}={config[name]}"))
        if location in config:
            _require_pem(location, config[location])
    if TRUSTSTORE_LOCATION in config and TRUSTSTORE_CERTIFICATES in config:
        raise InvalidSecurity(f"{TRUSTSTORE_LOCATION} and {TRUSTSTORE_CERTIFICATES} exclude each other: give one")
    if KEYSTORE_LOCATION in config and (KEYSTORE_KEY in config or KEYSTORE_CHAIN in config):
        raise InvalidSecurity(f"{KEYSTORE_LOCATION} contains key and certificates; remove {KEYSTORE_KEY} and its chain")
    if (KEYSTORE_KEY in config) != (KEYSTORE_CHAIN in config):
        raise InvalidSecurity(f"{KEYSTORE_KEY} and {KEYSTORE_CHAIN} belong together; give both")
    identification = config.get(ENDPOINT_IDENTIFICATION, "https").lower()
    if identification not in ("https", ""):
        raise InvalidSecurity(f"{ENDPOINT_IDENTIFICATION}={identification!r} is neither https nor empty")
    tls = Tls(
        trusted_file=config.get(TRUSTSTORE_LOCATION),
        trusted=config.get(TRUSTSTORE_CERTIFICATES),
        key_file=config.get(KEYSTORE_LOCATION),
        key=config.get(KEYSTORE_KEY),
        certificates=config.get(KEYSTORE_CHAIN),
        key_password=config.get(KEY_PASSWORD),
        checks_host=identification == "https",
    )
    _context(tls)
    return tls


def _require_pem(name: str, location: str) -> None:
    try:
        with Path(location).open("rb") as file:
            start = file.read(1 << 20)
    except OSError as error:
        raise InvalidSecurity(f"{name}={location}: {error.strerror}") from error
    if b"-----BEGIN" not in start:
        raise InvalidSecurity(_not_pem(f"{name}={location}"))
    if name == KEYSTORE_LOCATION and is_exposed(location):
        raise InvalidSecurity(f"{name}={location}: every user of this machine can read the key; {MODE}")


def _not_pem(setting: str) -> str:
    return (
        f"{setting} is not PEM; 'keytool -importkeystore -srckeystore STORE -destkeystore STORE.p12 -deststoretype"
        " PKCS12' and 'openssl pkcs12 -in STORE.p12 -out STORE.pem' convert a Java key store"
    )


@lru_cache(maxsize=16)
def _context(tls: Tls) -> ssl.SSLContext:
    """Create the TLS context. Raises InvalidSecurity."""
    try:
        context = ssl.create_default_context(cafile=tls.trusted_file, cadata=tls.trusted)
        if tls.key_file is not None:
            context.load_cert_chain(tls.key_file, password=_password(tls))
        elif tls.key is not None:
            _load_texts(context, tls)
    except (ssl.SSLError, OSError) as error:
        raise InvalidSecurity(f"ssl.truststore or ssl.keystore cannot be used: {error}") from error
    context.check_hostname = tls.checks_host
    return context


def _password(tls: Tls) -> str:
    # Without a password OpenSSL would prompt on the terminal.
    return tls.key_password or ""


def _load_texts(context: ssl.SSLContext, tls: Tls) -> None:
    """Load key and certificates through a temporary file that only this user can read: OpenSSL reads keys only from
    files."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{tls.key}\n{tls.certificates}\n")
        context.load_cert_chain(path, password=_password(tls))
    finally:
        Path(path).unlink()


def _read_sasl(config: Mapping[str, str]) -> Sasl | Bearer:
    mechanism = config.get(SASL_MECHANISM, "").upper()
    if mechanism not in MECHANISMS:
        problem = (
            f"{SASL_MECHANISM}={mechanism!r} is not one of" if mechanism else f"{SASL_MECHANISM} is required: one of"
        )
        raise InvalidSecurity(f"{problem} {', '.join(MECHANISMS)}")
    if mechanism == Bearer.mechanism:
        return _read_bearer(config)
    if TOKEN_URL in config:
        raise InvalidSecurity(f"{TOKEN_URL} has no effect with {SASL_MECHANISM}={mechanism}; remove it")
    options = _read_jaas(config, mechanism, ' username="…" password="…"')
    example = _jaas_example(mechanism, ' username="…" password="…"')
    unknown = set(options) - {"username", "password"}
    if unknown or len(options) < 2:
        raise InvalidSecurity(
            f"{SASL_JAAS_CONFIG} has {', '.join(sorted(options)) or 'no options'}; it requires {example}"
        )
    return Sasl(mechanism, options["username"], options["password"])


def _read_bearer(config: Mapping[str, str]) -> Bearer:
    if SASL_JAAS_CONFIG in config:
        options = _read_jaas(config, Bearer.mechanism, "")
        if options:
            raise InvalidSecurity(
                f"{SASL_JAAS_CONFIG} has options without effect: {', '.join(sorted(options))}; remove them"
            )
    if TOKEN_URL not in config:
        raise InvalidSecurity(f"{TOKEN_URL} is required: the URL of a file with a token, such as file:///run/token")
    return read_bearer(config[TOKEN_URL])


def _jaas_example(mechanism: str, options: str) -> str:
    return f"org.apache.kafka.common.security….{_LOGIN_MODULES[mechanism]} required{options};"


def _read_jaas(config: Mapping[str, str], mechanism: str, example_options: str) -> dict[str, str]:
    """Return the options of the mechanism's login module. Raises InvalidSecurity."""
    example = _jaas_example(mechanism, example_options)
    match = _JAAS.fullmatch(config.get(SASL_JAAS_CONFIG, ""))
    # The message does not repeat the value, which contains a password.
    if match is None:
        raise InvalidSecurity(f"{SASL_JAAS_CONFIG} is not in the form {example}")
    if not match[1].endswith(_LOGIN_MODULES[mechanism]):
        raise InvalidSecurity(
            f"{SASL_JAAS_CONFIG} names {match[1]}, but {SASL_MECHANISM}={mechanism} requires {example}"
        )
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in _JAAS_OPTION.findall(match[2])}
