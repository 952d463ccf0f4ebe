"""The TLS context of a listener, loaded from PEM files or texts, and loaded again when a file has changed.

What is missing, unreadable, expired or does not fit together raises at the start. A later change that does is logged,
and new connections keep the context before it. There are no session tickets: a client that resumed a session would
not present its certificate again.
"""

import contextlib
import logging
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from onceflow.broker.config import SecurityConfig
from onceflow.broker.security.certificate import MalformedCertificate, read_certificate
from onceflow.broker.security.file_state import FileState, file_state
from onceflow.broker.security.principal import ANONYMOUS, KafkaPrincipal
from onceflow.broker.security.principal_rules import map_name, parse_rules
from onceflow.errors import OnceflowError
from onceflow.private_files import MODE, is_exposed

logger = logging.getLogger(__name__)

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
BEGIN_CERTIFICATE, END_CERTIFICATE = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
END_PRIVATE_KEY = "PRIVATE KEY-----"
NAME_CHARACTERS_MAX = 4096
"""Length of a client's name: a pattern of the mapping rules may need its square."""
REPLACEMENT = "\ufffd"
"""Character in place of bytes that are not UTF-8."""
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----")


class InvalidTls(OnceflowError):
    """Certificates or keys of a listener that cannot be used."""


class UnmappedName(OnceflowError):
    """A client's certificate has a name that no mapping rule matches."""


class _Certificates:
    """A context that is loaded again; `context` is for new connections."""

    def __init__(self, listener: str, security: SecurityConfig) -> None:
        """Load the certificates. Raises InvalidTls."""
        self._listener = listener
        self._security = security
        self._state = self._file_state()
        self.context = self._load(listener, security)

    @staticmethod
    def _load(listener: str, security: SecurityConfig) -> ssl.SSLContext:
        raise NotImplementedError

    def reload_if_changed(self) -> None:
        """Load the certificates again if a file is another one than before."""
        if self._file_state() != self._state:
            self.reload()

    def reload(self) -> None:
        """Load the certificates again; log the reason if they cannot be used."""
        self._state = self._file_state()
        try:
            self.context = self._load(self._listener, self._security)
        except InvalidTls as error:
            logger.error("%s; new connections still use the certificates loaded before", error)
        else:
            logger.info("loaded the certificates of listener %s again", self._listener)

    def _file_state(self) -> tuple[FileState, ...]:
        return tuple(map(file_state, (self._security.key_store_file, self._security.trust_store_file)))


class PeerTls(_Certificates):
    """TLS of the connections to other brokers, with the certificates of the listener that they use."""

    @staticmethod
    def _load(listener: str, security: SecurityConfig) -> ssl.SSLContext:
        return _load_client(listener, security)


class ListenerTls(_Certificates):
    """TLS of one listener."""

    def __init__(self, listener: str, security: SecurityConfig, *, is_authentication: bool = True) -> None:
        """Load the certificates. Raises InvalidTls."""
        super().__init__(listener, security)
        self.is_authentication = is_authentication
        """Whether the client's certificate is its principal; SASL follows otherwise."""
        self._rules = parse_rules(security.principal_rules)

    @staticmethod
    def _load(listener: str, security: SecurityConfig) -> ssl.SSLContext:
        return _load_server(listener, security)

    def principal(self, der: bytes | None) -> KafkaPrincipal:
        """Return the principal of a client's certificate; without one it is anonymous. Raises UnmappedName."""
        if der is None:
            return ANONYMOUS
        try:
            subject = read_certificate(der).subject
        except MalformedCertificate as error:
            raise UnmappedName(f"the client's certificate is {error}") from error
        if len(subject) > NAME_CHARACTERS_MAX:
            raise UnmappedName(f"the client's name has {len(subject)} characters, more than {NAME_CHARACTERS_MAX}")
        if REPLACEMENT in subject:
            # Different names would be one.
            raise UnmappedName(f"the client's name {subject!r} is not UTF-8")
        name = map_name(self._rules, subject)
        if name is None:
            raise UnmappedName(f"no rule of ssl.principal.mapping.rules matches the client's name {subject!r}")
        return KafkaPrincipal("User", name)


def _load_client(listener: str, security: SecurityConfig) -> ssl.SSLContext:
    """Create the context of this broker as a client of the others. Raises InvalidTls."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = VERSIONS[security.tls_versions[0]]
    context.maximum_version = VERSIONS[security.tls_versions[-1]]
    context.check_hostname = security.endpoint_identification == "https"
    if security.key_store_file is not None or security.key is not None or security.certificates is not None:
        _load_key(listener, context, security)
    if security.trust_store_file is None and security.trusted is None:
        context.load_default_certs()
    else:
        _load_trusted(listener, context, security)
    return context


def _load_server(listener: str, security: SecurityConfig) -> ssl.SSLContext:
    """Create the context. Raises InvalidTls."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[security.tls_versions[0]]
    context.maximum_version = VERSIONS[security.tls_versions[-1]]
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    _load_key(listener, context, security)
    _load_trusted(listener, context, security)
    context.verify_mode = CLIENT_AUTH[security.client_auth]
    return context


def _load_key(listener: str, context: ssl.SSLContext, security: SecurityConfig) -> None:
    has_texts = security.key is not None or security.certificates is not None
    if security.key_store_file is not None and has_texts:
        raise InvalidTls(f"listener {listener}: ssl.keystore.location and ssl.keystore.key exclude each other")
    if security.key_store_file is not None:
        name, text = f"ssl.keystore.location={security.key_store_file}", _read(listener, security.key_store_file)
        if is_exposed(security.key_store_file):
            raise InvalidTls(f"listener {listener}: {name}: every user of this machine can read the key; {MODE}")
    elif security.key is not None and security.certificates is not None:
        name, text = "ssl.keystore.key", f"{_lines(security.key)}\n{_lines(security.certificates)}\n"
    else:
        raise InvalidTls(
            f"listener {listener}: TLS needs ssl.keystore.location, or both ssl.keystore.key and"
            " ssl.keystore.certificate.chain"
        )
    _check_time(listener, name, text)
    if END_PRIVATE_KEY not in text:
        raise InvalidTls(
            f"listener {listener}: {name} has no private key; expected the key and its certificates in one PEM text"
        )
    try:
        file = security.key_store_file
        with contextlib.nullcontext(file) if file is not None else _private_file(text) as path:
            # Without a password OpenSSL would prompt on the terminal.
            context.load_cert_chain(path, password=security.key_password or "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidTls(f"listener {listener}: {name} cannot be used: {_reason(error)}") from error


def _load_trusted(listener: str, context: ssl.SSLContext, security: SecurityConfig) -> None:
    if security.trust_store_file is not None and security.trusted is not None:
        raise InvalidTls(
            f"listener {listener}: ssl.truststore.location and ssl.truststore.certificates exclude each other"
        )
    if security.trust_store_file is not None:
        name, text = f"ssl.truststore.location={security.trust_store_file}", _read(listener, security.trust_store_file)
    elif security.trusted is not None:
        name, text = "ssl.truststore.certificates", _lines(security.trusted)
    elif security.client_auth != "none":
        raise InvalidTls(
            f"listener {listener}: ssl.client.auth={security.client_auth} needs ssl.truststore.location or"
            " ssl.truststore.certificates"
        )
    else:
        return
    try:
        # Bundles of authorities have names in comments; text with any other letter is a TypeError.
        context.load_verify_locations(cadata=text.encode("ascii", errors="replace").decode())
    except (ssl.SSLError, ValueError) as error:
        raise InvalidTls(f"listener {listener}: {name} cannot be used: {_reason(error)}") from error


def _read(listener: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise InvalidTls(f"listener {listener}: {path} cannot be read: {error.strerror}") from error
    if "-----BEGIN " not in text:
        raise InvalidTls(
            f"listener {listener}: {path} is not PEM; 'keytool -importkeystore -srckeystore STORE -destkeystore"
            " STORE.p12 -deststoretype PKCS12' and 'openssl pkcs12 -in STORE.p12 -out STORE.pem' convert a Java key"
            " store"
        )
    return text


def _lines(text: str) -> str:
    """Return PEM with line breaks: a settings file may have spaces in their place."""
    if "\n" in text:
        return text
    return "\n".join(
        f"-----BEGIN {kind}-----\n" + "\n".join(content.split()) + f"\n-----END {kind}-----"
        for kind, content in _BLOCK.findall(text)
    )


def _check_time(listener: str, name: str, text: str) -> None:
    """Refuse a certificate that is not valid now. Raises InvalidTls."""
    begin, end = text.find(BEGIN_CERTIFICATE), text.find(END_CERTIFICATE)
    if begin < 0 or end < begin:
        raise InvalidTls(f"listener {listener}: {name} has no certificate")
    try:
        certificate = read_certificate(ssl.PEM_cert_to_DER_cert(text[begin : end + len(END_CERTIFICATE)]))
    except ValueError as error:
        raise InvalidTls(f"listener {listener}: {name} cannot be used: {error}") from error
    now = datetime.now(UTC)
    if now > certificate.valid_until:
        raise InvalidTls(f"listener {listener}: the certificate of {name} expired at {certificate.valid_until}")
    if now < certificate.valid_from:
        raise InvalidTls(f"listener {listener}: the certificate of {name} is valid only from {certificate.valid_from}")


@contextlib.contextmanager
def _private_file(text: str) -> Iterator[str]:
    """Write a temporary file that only this user can read: OpenSSL reads keys only from files."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink()


def _reason(error: Exception) -> str:
    """Return OpenSSL's reason without the place in its source."""
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if isinstance(reason, str) else str(error)
