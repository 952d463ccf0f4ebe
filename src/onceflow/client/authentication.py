"""SASL on a new connection: agree on the mechanism, then send its messages in SaslAuthenticate (KIP-43, KIP-152).

PLAIN is RFC 4616, OAUTHBEARER is RFC 7628. SCRAM is RFC 5802 (by the library scramp); it also proves that the broker
knows the password.
"""

from collections.abc import Callable, Generator
from typing import Any

from onceflow.client import requests
from onceflow.client.addresses import Address
from onceflow.client.bearer import Bearer
from onceflow.client.errors import ClientError
from onceflow.client.security import Sasl
from onceflow.remedies import Remedy
from onceflow.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from onceflow.wire.errors import ErrorCode, error_name

HANDSHAKE_VERSION = 1
"""Version 1 announces SaslAuthenticate requests instead of bare tokens."""
AUTHENTICATE_VERSION = 0
"""Later versions return the session's lifetime; a broker that ends a session closes the connection, and a new one is
opened."""

Ask = Callable[[int, int, requests.Build], Any]
"""Send a request in exactly one version: (api key, version, build) → response."""


class AuthenticationFailed(ClientError):
    """The broker refused the name, the password or the mechanism, or did not prove that it knows the password."""


def authenticate(ask: Ask, address: Address, sasl: Sasl | Bearer) -> None:
    """Authenticate a connection. Raises AuthenticationFailed, InvalidSecurity, and what `ask` raises."""
    agreed = ask(SASL_HANDSHAKE, HANDSHAKE_VERSION, requests.message(SASL_HANDSHAKE, mechanism=sasl.mechanism))
    if agreed.error_code == ErrorCode.illegal_sasl_state:
        raise AuthenticationFailed(f"the listener at {address} has no SASL; {Remedy.SECURITY_PROTOCOL}")
    if agreed.error_code != ErrorCode.none:
        offered = ", ".join(agreed.mechanisms) or "none"
        raise AuthenticationFailed(f"{address} does not support SASL mechanism {sasl.mechanism}; it offers {offered}")
    messages, user, remedy = _messages(address, sasl)
    message = next(messages)
    while True:
        response = ask(SASL_AUTHENTICATE, AUTHENTICATE_VERSION, requests.message(SASL_AUTHENTICATE, auth_bytes=message))
        if response.error_code != ErrorCode.none:
            reason = response.error_message or error_name(response.error_code)
            raise AuthenticationFailed(f"{address} refuses user '{user}' with {sasl.mechanism}: {reason}; {remedy}")
        try:
            message = messages.send(response.auth_bytes)
        except StopIteration:
            return


def _messages(address: Address, sasl: Sasl | Bearer) -> tuple[Generator[bytes, bytes, None], str, str]:
    """Return the client's messages, the user, and the remedy if the broker refuses the user."""
    if isinstance(sasl, Bearer):
        token = sasl.read()
        return _bearer(address, token.text), token.user, Remedy.NEW_TOKEN.format(file=sasl.token_file)
    messages = _plain(sasl) if sasl.mechanism == "PLAIN" else _scram(address, sasl)
    return messages, sasl.username, Remedy.USER_PASSWORD


def _bearer(address: Address, token: str) -> Generator[bytes, bytes, None]:
    if (yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()):
        # The broker's error has to be acknowledged; it refuses the client then.
        yield b"\x01"
        raise AuthenticationFailed(f"{address} did not accept the token with OAUTHBEARER")


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
            f"{address} did not prove with {sasl.mechanism} that it knows the password of '{sasl.username}': {error}"
        ) from error
