"""Listener and security of the connections between brokers (KafkaConfig.interBrokerListenerName, SaslChannelBuilder).

Each broker has its own settings, so that a cluster can be switched to another listener broker by broker.
"""

import asyncio
import logging
import re
import ssl
from typing import Any

from onceflow.broker.cluster.peer import Opened, Session
from onceflow.broker.cluster.state import LiveBroker, plaintext_address
from onceflow.broker.config import PLAINTEXT, BrokerConfig, Endpoint, Login
from onceflow.broker.security.logins import listener_of_others, login_at_others
from onceflow.broker.security.sasl import PLAIN
from onceflow.broker.security.tls import PeerTls
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import decode_response, encode_request, request_class
from onceflow.wire.messages import message_of
from onceflow.wire.scram import ITERATIONS_MAX

logger = logging.getLogger(__name__)

HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2
CLIENT_ID = "inter-broker"
LOGIN_BYTES_MAX = 512 * 1024
SESSION_PART = 0.85
"""Part of a session's lifetime after which it is not used any more (SaslClientAuthenticator.ReauthInfo)."""

_ITERATIONS = re.compile(r"(?:^|,)i=(\d{1,9})(?:,|$)")


class LoginRefused(ConnectionError):
    """Another broker refuses this one's user, or does not prove that it knows the password."""


class InterBroker:
    """Opens the connections of this broker to others."""

    def __init__(self, config: BrokerConfig) -> None:
        """Load certificates. Raises InvalidTls."""
        listener = listener_of_others(config)
        self._listener = listener
        protocol = PLAINTEXT if listener is None else config.listener_protocols[listener]
        security = config.security if listener is None else config.security_of(listener)
        self._tls = PeerTls(listener or PLAINTEXT, security) if protocol.endswith("SSL") else None
        mechanism = config.inter_broker_mechanism if protocol.startswith("SASL_") else None
        self._login = None if mechanism is None else login_at_others(security, mechanism)
        self._mechanism = mechanism or ""

    def address(self, broker: LiveBroker) -> Endpoint | None:
        """Return where this broker connects to another one; None if that has no such listener."""
        return plaintext_address(broker) if self._listener is None else broker.address(self._listener)

    async def connect(self, address: Endpoint) -> Opened:
        """Open a connection, and authenticate. Raises OSError, EOFError, WireError."""
        try:
            return await self._connect(address)
        except (ssl.SSLError, LoginRefused) as error:
            logger.error("a connection to another broker at %s:%d failed: %s", address.host, address.port, error)
            raise

    async def _connect(self, address: Endpoint) -> Opened:
        if self._tls is None:
            streams = await asyncio.open_connection(address.host, address.port)
        else:
            self._tls.reload_if_changed()
            streams = await asyncio.open_connection(
                address.host, address.port, ssl=self._tls.context, server_hostname=address.host
            )
        opened = Opened(*streams)
        if self._login is None:
            return opened
        try:
            return opened._replace(used_until=await self._log_in(opened, self._login))
        except BaseException:
            opened.writer.transport.abort()
            raise

    async def _log_in(self, opened: Opened, login: Login) -> float:
        """Authenticate; return the time of the loop until which the session is used."""
        session = Session(opened, CLIENT_ID, LOGIN_BYTES_MAX)
        agreed = await _ask(session, apis.SASL_HANDSHAKE, HANDSHAKE_VERSION, mechanism=self._mechanism)
        if agreed.error_code:
            offered = ", ".join(agreed.mechanisms) or "no mechanism"
            raise LoginRefused(f"{ErrorCode(agreed.error_code).name}: {self._mechanism} is refused; it has {offered}")
        if self._mechanism == PLAIN:
            seconds = await _plain(session, login)
        else:
            seconds = await _scram(session, self._mechanism, login)
        return asyncio.get_running_loop().time() + SESSION_PART * seconds if seconds else float("inf")


async def _ask(session: Session, api_key: int, version: int, **fields: Any) -> Any:
    message = message_of(request_class(api_key, version), fields)

    def encode(correlation_id: int, client_id: str) -> bytes:
        return encode_request(api_key, version, correlation_id, client_id, message)

    _correlation_id, response = decode_response(api_key, version, await session.exchange(encode))
    return response


async def _authenticate(session: Session, token: bytes) -> Any:
    """Return the response to one message of the mechanism. Raises LoginRefused."""
    response = await _ask(session, apis.SASL_AUTHENTICATE, AUTHENTICATE_VERSION, auth_bytes=token)
    if response.error_code:
        raise LoginRefused(response.error_message or ErrorCode(response.error_code).name)
    return response


async def _plain(session: Session, login: Login) -> float:
    """Log in; return the lifetime of the session in seconds, 0 without a limit."""
    token = b"\0".join((b"", login.user.encode(), login.password.encode()))
    return _lifetime_seconds(await _authenticate(session, token))


def _lifetime_seconds(response: Any) -> float:
    seconds: float = response.session_lifetime.total_seconds()
    return seconds


async def _scram(session: Session, mechanism: str, login: Login) -> float:
    """Log in; return the lifetime of the session in seconds, 0 without a limit."""
    # Imported here: only this needs it, and it takes a while.
    import scramp

    client = scramp.ScramClient([mechanism], login.user, login.password)
    first = await _authenticate(session, client.get_client_first().encode())
    try:
        text = first.auth_bytes.decode()
        iterations = _ITERATIONS.search(text)
        if iterations is None or int(iterations[1]) > ITERATIONS_MAX:
            raise LoginRefused(f"its first message does not have up to {ITERATIONS_MAX} iterations")
        client.set_server_first(text)
        final = await _authenticate(session, client.get_client_final().encode())
        client.set_server_final(final.auth_bytes.decode())
    except (scramp.ScramException, UnicodeDecodeError) as error:
        raise LoginRefused(f"the other broker did not prove that it knows the password: {error}") from error
    return _lifetime_seconds(final)
