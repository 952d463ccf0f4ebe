"""Requests of a broker for tests on their way to its dispatch: one that meets a fault is treated as the fault says.

A request is served through a channel of its own, so that its response comes here first. While no fault was ever
requested, only requests that wait for records or other clients are: a fault may begin while they wait. All methods of
the interception run on the broker's event loop, except `change`.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from onceflow.broker.network.connection import Connection, Decode, Handle
from onceflow.broker.network.reply import Piece, Reply
from onceflow.testing.error_responses import Concerned, error_response, merged, selected, with_topic_errors
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, MalformedFrame, WireError
from onceflow.wire.frames import (
    REQUEST_HEADER,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    encode_unsupported_api_versions,
    read_request_header,
    response_class,
)
from onceflow.wire.primitives import SHORT_OF_BYTES, read_nullable_string

if TYPE_CHECKING:
    from onceflow.broker.config import Endpoint
    from onceflow.broker.security.principal import KafkaPrincipal

logger = logging.getLogger(__name__)

LONG_WAITS = frozenset((apis.FETCH, apis.JOIN_GROUP, apis.SYNC_GROUP))
Respond = Callable[[Sequence[Piece]], None]


class Rule(Protocol):
    """Interface of a fault."""

    @property
    def concerned(self) -> Concerned:
        """Topic and partition of the fault."""

    def fits(self, api_key: int, client_id: str | None) -> bool:
        """Return whether a request of this API and client can meet it."""

    def take(self) -> bool:
        """Count a request that meets it; return whether it has an effect on this one."""

    def apply(self, exchange: "Exchange") -> None:
        """Treat the request."""


class Plan(NamedTuple):
    """All faults of now."""

    rules: Sequence[Rule] = ()
    versions_max: Mapping[int, int] = {}
    """Highest versions of APIs, where they are limited."""
    paused: frozenset[str | None] = frozenset()
    """Clients whose network is paused; None: all."""

    peers: Set[str | None] = frozenset()
    """Client ids of other brokers, which only faults for one of them are for."""

    def is_paused(self, client_id: str | None) -> bool:
        """Return whether a client's network is paused."""
        return bool(self.paused) and (client_id in self.paused or (None in self.paused and client_id not in self.peers))

    def limits(self, client_id: str | None) -> Mapping[int, int]:
        """Return the highest versions for a client, where they are limited."""
        return {} if client_id in self.peers else self.versions_max


class Interception:
    """Layer of a broker above its dispatch (`network.listener.Layer`)."""

    def __init__(self) -> None:
        self._plan = Plan()
        self._is_used = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: list[tuple[str | None, Callable[[], None]]] = []
        """Requests and responses of clients whose network is paused: at most one of each for a request."""

    def begin(self) -> None:
        """Belong to the event loop of a broker that starts."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._held.clear()

    def change(self, plan: Plan) -> None:
        """Apply these faults from now on. Any thread."""
        with self._lock:
            self._plan, self._is_used = plan, True
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        """Continue with what was held for clients whose network is not paused any more."""
        held, self._held = self._held, []
        for client_id, continue_ in held:
            self.unless_paused(client_id, continue_)

    def unless_paused(self, client_id: str | None, act: Callable[[], None]) -> None:
        """Act now, or when the client's network is not paused any more."""
        if self._plan.is_paused(client_id):
            self._held.append((client_id, act))
        else:
            act()

    def handling(self, handle: Handle) -> Handle:
        """Return `handle` behind the faults."""

        def handle_intercepted(frame: memoryview, reply: Reply, connection: Connection) -> None:
            if self._is_used or frame[0] << 8 | frame[1] in LONG_WAITS:
                self._intercept(handle, frame, reply, connection)
            else:
                handle(frame, reply, connection)

        return handle_intercepted

    def decoding(self, decode: Decode) -> Decode:
        """Return `decode` so that large requests meet the faults when they are decoded."""

        def decode_intercepted(frame: memoryview, connection: Connection) -> Generator[int, None, Handle]:
            handle = yield from decode(frame, connection)
            return self.handling(handle)

        return decode_intercepted

    def _intercept(self, handle: Handle, frame: memoryview, reply: Reply, connection: Connection) -> None:
        try:
            api_key, version, correlation_id = REQUEST_HEADER.unpack_from(frame, 0)
            client_id, _end = read_nullable_string(frame, REQUEST_HEADER.size, flexible=False)
        except (*SHORT_OF_BYTES, MalformedFrame):
            # Bare tokens of old clients of SASL; the handler closes the connection for others.
            handle(frame, reply, connection)
            return
        exchange = Exchange(self, handle, frame, reply, connection, api_key, version, correlation_id, client_id)
        if self._plan.is_paused(client_id):
            exchange.frame = memoryview(bytearray(frame))
            # Parked: the client's next requests stay in the socket, and a broker that stops does not wait.
            reply.is_long_wait = True
            self._held.append((client_id, lambda: self._resume(exchange)))
        else:
            self._meet(exchange)

    def _resume(self, exchange: "Exchange") -> None:
        """Serve a request that was held, as its connection would."""
        connection = exchange.connection
        if not connection.is_open:
            return
        exchange.reply.is_long_wait = False
        try:
            self._meet(exchange)
        except WireError as error:
            connection.close(str(error))
        except Exception:
            logger.exception("request of %s failed; closing its connection", connection.peer)
            connection.close("internal error")

    def _meet(self, exchange: "Exchange") -> None:
        served = apis.CLUSTER_APIS.get(exchange.api_key)
        if served is None or not served.version_min <= exchange.version <= served.version_max:
            exchange.serve(exchange.respond)
            return
        limits = self._plan.limits(exchange.client_id)
        version_max = limits.get(exchange.api_key)
        if version_max is not None and exchange.version > version_max:
            if exchange.api_key != apis.API_VERSIONS:
                exchange.connection.close(f"API key {exchange.api_key} version {exchange.version} is not served")
                return
            exchange.respond([_limited(encode_unsupported_api_versions(exchange.correlation_id), 0, limits)])
            return
        for rule in self._plan.rules:
            if rule.fits(exchange.api_key, exchange.client_id) and exchange.concerns(rule.concerned) and rule.take():
                rule.apply(exchange)
                return
        if exchange.api_key == apis.API_VERSIONS and limits:
            exchange.serve(lambda pieces: exchange.respond([_limited(joined(pieces), exchange.version, limits)]))
        else:
            exchange.serve(exchange.respond)


class Exchange:
    """One request, and the way of its response to the client."""

    def __init__(
        self,
        interception: Interception,
        handle: Handle,
        frame: memoryview,
        reply: Reply,
        connection: Connection,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
    ) -> None:
        self._interception = interception
        self._handle = handle
        self.frame = frame
        self.reply = reply
        self.connection = connection
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def concerns(self, concerned: Concerned) -> bool:
        """Return whether the request names the topic and the partition."""
        return concerned.is_everything or selected(self._request(), concerned) is not None

    def _header(self) -> RequestHeader:
        return read_request_header(self.frame, served=apis.CLUSTER_APIS)

    def _request(self) -> Any:
        return decode_request(self.frame, self._header())

    def serve(self, respond: Respond) -> None:
        """Let the broker handle the request, and give the response to `respond`."""
        self._serve(self._handle, self.frame, respond)

    def _serve(self, handle: Handle, frame: memoryview, respond: Respond) -> None:
        reply, inner = self.reply, Reply(_Tap(self.connection, respond))

        def abandon() -> None:
            if inner.on_abandoned is not None:
                inner.on_abandoned()

        def stop() -> None:
            if inner.on_stop is not None and inner.pieces is None:
                inner.on_stop()

        reply.on_abandoned, reply.on_stop = abandon, stop
        handle(frame, inner, self.connection)
        if inner.rest is not None:
            deque(inner.rest, maxlen=0)
        reply.is_long_wait = inner.is_long_wait

    def respond(self, pieces: Sequence[Piece]) -> None:
        """Send a response, once the client's network is not paused."""
        self._interception.unless_paused(self.client_id, lambda: self.reply.send(pieces))

    def close(self) -> None:
        """Close the connection."""
        self.connection.close(None)

    def drop(self) -> None:
        """Handle the request; neither its response nor any later one reaches the client."""
        self.serve(lambda _pieces: None)
        self.reply.is_long_wait = True

    def delay(self, seconds: float) -> None:
        """Handle the request, and respond that much later, or when the broker stops."""
        loop = asyncio.get_running_loop()

        def respond_later(pieces: Sequence[Piece]) -> None:
            self.reply.on_stop = lambda: self.reply.send(pieces)
            loop.call_later(seconds, self.respond, pieces)

        self.serve(respond_later)

    def fail(self, error_code: ErrorCode, concerned: Concerned) -> None:
        """Respond with the error to what is concerned; the broker handles only the rest."""
        if self.api_key == apis.METADATA:
            self.serve(lambda pieces: self._respond_to_metadata(pieces, error_code, concerned))
            return
        if self.api_key == apis.API_VERSIONS and error_code == ErrorCode.unsupported_version:
            self.respond([encode_unsupported_api_versions(self.correlation_id)])
            return
        header, request = self._header(), self._request()
        if self.api_key == apis.PRODUCE and request.acks == 0:
            # There is no response: Kafka closes the connection (KafkaApis.handleProduceRequest).
            self.close()
            return
        # A request without topics is concerned as a whole.
        failed = selected(request, concerned) or request
        errors = error_response(self.api_key, response_class(self.api_key, self.version), failed, error_code, concerned)
        rest = selected(request, concerned, rest=True)
        if rest is None:
            self.respond([self._encoded(errors)])
            return
        frame = encode_request(self.api_key, self.version, self.correlation_id, header.client_id, rest)

        def respond(pieces: Sequence[Piece]) -> None:
            self.respond([self._encoded(merged(self._decoded(pieces), errors))])

        # Writable, as the buffer of a connection: the broker sets offsets in it.
        self._serve(self._handle, memoryview(bytearray(frame))[4:], respond)

    def _respond_to_metadata(self, pieces: Sequence[Piece], error_code: ErrorCode, concerned: Concerned) -> None:
        self.respond([self._encoded(with_topic_errors(self._decoded(pieces), error_code, concerned))])

    def _decoded(self, pieces: Sequence[Piece]) -> Any:
        return decode_response(self.api_key, self.version, joined(pieces)[4:])[1]

    def _encoded(self, response: Any) -> bytes:
        return encode_response(self.api_key, self.version, self.correlation_id, response)


class _Tap:
    """Channel of one request (`network.reply.Channel`): its response goes to `respond`."""

    def __init__(self, connection: Connection, respond: Respond) -> None:
        self._connection = connection
        self._respond = respond

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    @property
    def endpoint(self) -> "Endpoint":
        return self._connection.endpoint

    @property
    def principal(self) -> "KafkaPrincipal":
        return self._connection.principal

    def enqueue_response(self, pieces: Sequence[Piece]) -> None:
        if self._connection.is_open:
            self._respond(pieces)

    def close(self, reason: str | None) -> None:
        self._connection.close(reason)


def joined(pieces: Sequence[Piece]) -> bytes:
    """Return the bytes of a response."""
    return b"".join(
        piece if isinstance(piece, bytes) else piece.file.read(piece.size_bytes, piece.position) for piece in pieces
    )


def _limited(frame: bytes, version: int, versions_max: Mapping[int, int]) -> bytes:
    """Return an ApiVersions response with limited versions, without the APIs of which none is left."""
    correlation_id, response = decode_response(apis.API_VERSIONS, version, frame[4:])
    limited = (
        replace(api, max_version=type(api.max_version)(min(api.max_version, versions_max[api.api_key])))
        if api.api_key in versions_max
        else api
        for api in response.api_keys
    )
    kept = tuple(api for api in limited if api.max_version >= max(api.min_version, 0))
    return encode_response(apis.API_VERSIONS, version, correlation_id, replace(response, api_keys=kept))
