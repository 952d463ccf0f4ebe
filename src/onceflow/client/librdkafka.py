"""TLS and SASL settings under librdkafka's names (those in `security` are Kafka's), and its errors as text."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onceflow.client.bearer import Bearer
from onceflow.client.security import MECHANISMS, Sasl, Security, Tls
from onceflow.wire.errors import error_name

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_TRUSTED_BY_SYSTEM = "probe"
"""librdkafka searches the certificate directories of Linux distributions (`ssl.ca.location`)."""


def error_text(error: "KafkaError") -> str:
    """Return librdkafka's text, and Kafka's name of a code of the protocol, which is positive."""
    return f"{error_name(error.code())} ({error.str()})" if error.code() > 0 else str(error.str())


def librdkafka_settings(security: Security) -> dict[str, Any]:
    """Return librdkafka's settings for `security`; none for a plain connection."""
    if security.tls is None and security.sasl is None:
        return {}
    protocol = ("SASL_" if security.sasl else "") + ("SSL" if security.tls else "PLAINTEXT")
    return {"security.protocol": protocol} | _tls(security.tls) | _sasl(security.sasl)


def _tls(tls: Tls | None) -> dict[str, str]:
    if tls is None:
        return {}
    settings = {
        # One file holds the key and its certificates; librdkafka extracts each.
        "ssl.key.location": tls.key_file,
        "ssl.certificate.location": tls.key_file,
        "ssl.key.pem": tls.key,
        "ssl.certificate.pem": tls.certificates,
        "ssl.key.password": tls.key_password,
        "ssl.ca.location": tls.trusted_file or (None if tls.trusted else _TRUSTED_BY_SYSTEM),
        "ssl.ca.pem": tls.trusted,
        "ssl.endpoint.identification.algorithm": "https" if tls.checks_host else "none",
    }
    return {name: value for name, value in settings.items() if value is not None}


def _sasl(sasl: Sasl | Bearer | None) -> dict[str, Any]:
    if sasl is None:
        return {}
    if isinstance(sasl, Bearer):
        return {"sasl.mechanism": sasl.mechanism, "oauth_cb": _token_source(sasl)}
    assert sasl.mechanism in MECHANISMS
    return {"sasl.mechanism": sasl.mechanism, "sasl.username": sasl.username, "sasl.password": sasl.password}


def _token_source(bearer: Bearer) -> Callable[[str], tuple[str, float]]:
    """Return the callback from which librdkafka takes a token before the one it has ends."""

    def read(_config: str) -> tuple[str, float]:
        token = bearer.read()
        return token.text, token.ends_at

    return read
