"""SASL on a listener: which requests a client may send until it is authenticated, and again when its session ends.

The states, error codes and messages are Kafka's (org.apache.kafka.common.security.authenticator.
SaslServerAuthenticator). Nothing but ApiVersions, SaslHandshake and SaslAuthenticate is served before authentication;
after SaslHandshake 0 the tokens come without a request around them. A client that supports it may authenticate again on
its connection (KIP-368), as the same user and by the same mechanism.
"""

import logging
from collections.abc import Callable, Generator
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import Any

from onceflow.broker.config import SecurityConfig
from onceflow.broker.handlers import metadata
from onceflow.broker.network.connection import Connection, Decode, Handle
from onceflow.broker.network.reply import Reply
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.security.credentials import CredentialKey
from onceflow.broker.security.jwks import JwksValidator
from onceflow.broker.security.principal import KafkaPrincipal
from onceflow.broker.security.sasl import (
    OAUTHBEARER,
    PLAIN,
    AuthenticationFailed,
    BearerServer,
    PlainServer,
    SaslServer,
    ScramServer,
    Validate,
    load_validator,
)
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, UnsupportedVersion
from onceflow.wire.frames import encode_unsupported_api_versions, read_request_header
from onceflow.wire.primitives import INT32
from onceflow.wire.scram import BY_NAME

logger = logging.getLogger(__name__)

HANDSHAKE_KEY = apis.SASL_HANDSHAKE.to_bytes(2, "big")
REAUTHENTICATION_SECONDS_MIN = 1.0
"""Time between two authentications of one connection (org.apache.kafka.common.network.KafkaChannel)."""
WITH_LIFETIME_FROM = 1
"""Version of SaslAuthenticate whose clients can authenticate again."""


class State(Enum):
    """Frames that a connection may send next."""

    FIRST = auto()
    """ApiVersions or SaslHandshake."""
    HANDSHAKE = auto()
    """SaslHandshake."""
    TOKEN = auto()
    """A token without a request around it."""
    AUTHENTICATE = auto()
    """SaslAuthenticate."""
    DONE = auto()
    """Any request."""
    FAILED = auto()
    """None: the response to a failure waits for its delay."""


class Login:
    """State of one connection's authentication."""

    __slots__ = ("began_at", "can_repeat", "ends_at", "mechanism", "principal", "server", "state")

    def __init__(self) -> None:
        self.state = State.FIRST
        self.mechanism = ""
        self.server: SaslServer | None = None
        self.principal: KafkaPrincipal | None = None
        """The authenticated user; it stays when the client authenticates again."""
        self.can_repeat = False
        self.began_at = 0.0
        self.ends_at: float | None = None
        """End of the session; None: never."""


def new_validator(listener: str, security: SecurityConfig) -> Validate | None:
    """Return the validator of a listener's tokens; None without one.

    Raises UnusableValidator, UnusableKeys, and ModuleNotFoundError without the package PyJWT.
    """
    if OAUTHBEARER not in security.sasl_mechanisms:
        return None
    if security.bearer_validator is not None:
        return load_validator(security.bearer_validator)
    return JwksValidator(listener, security) if security.bearer_keys_file is not None else None


class Authenticator:
    """Authentication on the connections of one listener. All methods run on the event loop."""

    def __init__(
        self, node: Node, security: SecurityConfig, validate: Validate | None, handle: Handle, decode: Decode
    ) -> None:
        """`handle` and `decode` serve authenticated clients, `validate` is for tokens of OAUTHBEARER."""
        self._node = node
        self._security = security
        self._handle = handle
        self._decode = decode
        self._validate = validate

    def handle(self, frame: memoryview, reply: Reply, connection: Connection) -> None:
        """Serve one frame of a connection."""
        self._serve(self._handle, frame, reply, connection)

    def decode(self, frame: memoryview, connection: Connection) -> Generator[int, None, Handle]:
        """Decode a large request of an authenticated client."""
        try:
            key = read_request_header(frame).api.key
        except UnsupportedVersion:
            return self.handle
        if key in (apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE, apis.API_VERSIONS):
            return self.handle
        handle = yield from self._decode(frame, connection)
        return partial(self._serve, handle)

    def _serve(self, handle: Handle, frame: memoryview, reply: Reply, connection: Connection) -> None:
        login = connection.login
        if not isinstance(login, Login):
            login = connection.login = Login()
        if login.state == State.DONE:
            now = self._node.clock.monotonic()
            if frame[:2] == HANDSHAKE_KEY and self._may_repeat(login, now):
                login.state, login.began_at = State.HANDSHAKE, now
            elif login.ends_at is not None and now > login.ends_at:
                connection.close("its session has ended without a new authentication (connections.max.reauth.ms)")
                return
            else:
                handle(frame, reply, connection)
                return
        try:
            self._continue(login, frame, reply, connection)
        except AuthenticationFailed as error:
            self._fail(login, reply, connection, None, error)

    @staticmethod
    def _may_repeat(login: Login, now: float) -> bool:
        return login.can_repeat and now - login.began_at >= REAUTHENTICATION_SECONDS_MIN

    def _continue(self, login: Login, frame: memoryview, reply: Reply, connection: Connection) -> None:
        """Serve the next frame of an authentication. Raises AuthenticationFailed without a response, WireError."""
        if login.state == State.TOKEN:
            self._take_token(login, bytes(frame), reply, connection)
            return
        try:
            header = read_request_header(frame, self._node.config.request_tags_max)
        except UnsupportedVersion as error:
            if error.api_key == apis.API_VERSIONS and login.state == State.FIRST:
                reply.send([encode_unsupported_api_versions(error.correlation_id)])
                return
            raise
        request = Request(header, frame, reply, connection.peer_host, self._node.config.request_elements_max)
        if header.api.key == apis.API_VERSIONS and login.state == State.FIRST:
            login.state = State.HANDSHAKE
            metadata.handle_api_versions(self._node, request)
        elif header.api.key == apis.SASL_HANDSHAKE and login.state in (State.FIRST, State.HANDSHAKE):
            self._take_handshake(login, request, connection)
        elif header.api.key == apis.SASL_AUTHENTICATE and login.state == State.AUTHENTICATE:
            self._take_request(login, request, connection)
        else:
            raise AuthenticationFailed(f"unexpected {header.api.name} request during SASL authentication")

    def _take_handshake(self, login: Login, request: Request, connection: Connection) -> None:
        mechanism = request.decode().mechanism
        offered = list(self._security.sasl_mechanisms)
        if mechanism not in offered:
            code = ErrorCode.unsupported_sasl_mechanism
            response = request.encoded(error_code=code, mechanisms=offered)
            reason = f"unsupported SASL mechanism {mechanism[:40]!r}"
            self._fail(login, request.reply, connection, (code, response), reason)
            return
        is_changed = login.principal is not None and login.mechanism != mechanism
        login.mechanism = mechanism
        # Another mechanism than before fails with the first token, as in Kafka.
        login.server = None if is_changed else self._new_server(mechanism)
        login.state = State.AUTHENTICATE if request.version >= 1 else State.TOKEN
        request.respond(error_code=ErrorCode.none, mechanisms=offered)

    def _new_server(self, mechanism: str) -> SaslServer:
        if mechanism == PLAIN:
            return PlainServer(self._security.plain_passwords)
        if mechanism == OAUTHBEARER and self._validate is not None:
            return BearerServer(self._validate, lambda: self._node.clock.now_ms() / 1000)
        scram = BY_NAME[mechanism]
        by_key = self._node.credentials.by_key
        return ScramServer(scram, lambda user: by_key.get(CredentialKey(user, scram.number)))

    def _take_token(self, login: Login, token: bytes, reply: Reply, connection: Connection) -> None:
        """Take a token without a request. Raises AuthenticationFailed."""
        response = self._evaluate(login, token)
        self._admit_if_done(login, connection)
        # The client of PLAIN waits for the empty response too.
        reply.send([INT32.pack(len(response)) + response])

    def _take_request(self, login: Login, request: Request, connection: Connection) -> None:
        login.can_repeat = login.can_repeat or request.version >= WITH_LIFETIME_FROM
        try:
            response = self._evaluate(login, request.decode().auth_bytes)
            lifetime_ms = self._admit_if_done(login, connection)
        except AuthenticationFailed as error:
            code = ErrorCode.sasl_authentication_failed
            values: dict[str, Any] = {"auth_bytes": b"", "session_lifetime": timedelta(0)}
            encoded = request.encoded(error_code=code, error_message=str(error), **values)
            self._fail(login, request.reply, connection, (code, encoded), error)
            return
        request.respond(
            error_code=ErrorCode.none,
            error_message="",
            auth_bytes=response,
            session_lifetime=timedelta(milliseconds=lifetime_ms),
        )

    @staticmethod
    def _evaluate(login: Login, token: bytes) -> bytes:
        if login.server is None:
            raise AuthenticationFailed(
                f"SASL mechanism '{login.mechanism}' requested by client is not supported for re-authentication"
            )
        return login.server.respond(token)

    def _admit_if_done(self, login: Login, connection: Connection) -> int:
        """Admit the client if it is authenticated now; return the lifetime of its session, 0 for no limit."""
        server = login.server
        if server is None or server.user is None:
            return 0
        user = server.user
        principal = KafkaPrincipal("User", user)
        if login.principal is not None and login.principal != principal:
            raise AuthenticationFailed(
                f"Cannot change principals during re-authentication from User.{login.principal.name}: User.{user}"
            )
        login.principal, login.server, login.state = principal, None, State.DONE
        now = self._node.clock.monotonic()
        login.began_at = now
        lifetime_ms = self._security.reauthentication_ms_max
        if server.valid_until is not None:
            left_ms = max(1, int(server.valid_until * 1000 - self._node.clock.now_ms()))
            lifetime_ms = min(left_ms, lifetime_ms) if lifetime_ms > 0 else left_ms
        login.ends_at = now + lifetime_ms / 1000 if lifetime_ms > 0 else None
        connection.admit(principal)
        return lifetime_ms

    def _fail(
        self,
        login: Login,
        reply: Reply,
        connection: Connection,
        response: tuple[ErrorCode, bytes] | None,
        error: AuthenticationFailed | str,
    ) -> None:
        """Send the response, if any, and close, both after a delay that slows down guesses."""
        login.state = State.FAILED
        reply.is_long_wait = True
        reason = error.reason if isinstance(error, AuthenticationFailed) else error
        logger.warning("%s failed to authenticate: %s", connection.peer, reason)
        if response is not None:
            reply.count_error(response[0])
        delay_seconds = self._node.config.failed_login_delay_ms / 1000
        connection.close_later(reply, [response[1]] if response is not None else [], delay_seconds)


def handle_handshake(_node: Node, request: Request) -> None:
    """Refuse a SaslHandshake request of a client that needs no authentication, or has authenticated."""
    request.decode()
    request.respond(error_code=ErrorCode.illegal_sasl_state, mechanisms=())


def handle_authenticate(_node: Node, request: Request) -> None:
    """Refuse a SaslAuthenticate request of a client that needs no authentication, or has authenticated."""
    request.decode()
    request.respond(
        error_code=ErrorCode.illegal_sasl_state,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
        session_lifetime=timedelta(0),
    )


HANDLERS: dict[int, Callable[[Node, Request], None]] = {
    apis.SASL_HANDSHAKE: handle_handshake,
    apis.SASL_AUTHENTICATE: handle_authenticate,
}
