"""SASL on a fresh connection: the mechanism is agreed on, then its messages go in SaslAuthenticate (KIP-43, KIP-152).

PLAIN is RFC 4616, SCRAM RFC 5802 (by the library scramp), which also shows that the broker knows the password.
"""

from collections.abc import Callable, Generator
from typing import Any

from onceflow.client.addresses import Address
from onceflow.client.errors import ClientError
from onceflow.client.security import Sasl
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
HANDSHAKE_VERSION = 1
"""Version 1 says that SaslAuthenticate requests follow, and not bare tokens."""
AUTHENTICATE_VERSION = 0
"""Later ones tell how long the session lasts; a broker that ends it closes the connection, and a new one is opened."""

Ask = Callable[[int, int, Callable[[Any, int], Any]], Any]
"""Sends a request in exactly one version: (api key, version, build) → answer."""


class AuthenticationFailed(ClientError):
    """The broker refused the name, the password or the mechanism, or did not show that it knows the password."""


def authenticate(ask: Ask, address: Address, sasl: Sasl) -> None:
    """Raises AuthenticationFailed, and what `ask` raises."""
    agreed = ask(
        SASL_HANDSHAKE,
        HANDSHAKE_VERSION,
        lambda schema, _: schema.SaslHandshakeRequest(mechanism=sasl.mechanism),
    )
    if agreed.error_code != ErrorCode.none:
        offered = ", ".join(agreed.mechanisms) or "none"
        raise AuthenticationFailed(f"{address} does not take SASL mechanism {sasl.mechanism}: it offers {offered}")
    messages = _plain(sasl) if sasl.mechanism == "PLAIN" else _scram(address, sasl)
    message = next(messages)
    while True:
        answer = ask(SASL_AUTHENTICATE, AUTHENTICATE_VERSION, _carrying(message))
        if answer.error_code != ErrorCode.none:
            reason = answer.error_message or answer.error_code.name
            raise AuthenticationFailed(
                f"{address} refuses user '{sasl.username}' with {sasl.mechanism}: {reason}; {Remedy.USER_PASSWORD}"
            )
        try:
            message = messages.send(answer.auth_bytes)
        except StopIteration:
            return


def _carrying(message: bytes) -> Callable[[Any, int], Any]:
    return lambda schema, _: schema.SaslAuthenticateRequest(auth_bytes=message)


def _plain(sasl: Sasl) -> Generator[bytes, bytes, None]:
    yield b"\0".join((b"", sasl.username.encode(), sasl.password.encode()))


def _scram(address: Address, sasl: Sasl) -> Generator[bytes, bytes, None]:
    import scramp

    client = scramp.ScramClient([sasl.mechanism], sasl.username, sasl.password)
    try:
        client.set_server_first((yield client.get_client_first().encode()).decode())
        client.set_server_final((yield client.get_client_final().encode()).decode())
    except (scramp.ScramException, UnicodeDecodeError) as error:
        raise AuthenticationFailed(
            f"{address} did not show with {sasl.mechanism} that it knows the password of '{sasl.username}': {error}"
        ) from error
