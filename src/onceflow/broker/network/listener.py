"""The listening sockets and their connections: their number, their time limits and their end."""

import asyncio
import logging
import select
import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from onceflow.broker.config import BrokerConfig, Endpoint
from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.network.connection import Connection, Decode, Handle
from onceflow.broker.network.connection_limits import ConnectionLimits
from onceflow.broker.network.incoming import DISCONNECT_EVENTS, largest_frame_bytes, unread_bytes
from onceflow.broker.network.listening_socket import ListeningSocket
from onceflow.broker.network.newcomer_connection import NewcomerConnection
from onceflow.broker.network.newcomers import Newcomers
from onceflow.broker.network.reply import Reply
from onceflow.broker.network.request_memory import RequestMemory
from onceflow.broker.network.response_budget import ResponseBudget
from onceflow.broker.network.tls_connection import TlsConnection, TlsSocket
from onceflow.log.clock import Clock

logger = logging.getLogger(__name__)

Serving = tuple[Handle, Decode]
"""Handling of a connection's requests, and decoding of the large ones."""
NO_LOGINS: Mapping[str, Serving] = MappingProxyType({})
ACCEPTS_PER_TURN = 64
ACCEPT_PAUSE_SECONDS = 1.0
THROTTLED_MAX = 1000
BLOCKED_SECONDS_MAX = 30.0
"""Time for which a request that arrives slowly may have memory that others wait for."""


class Layer(Protocol):
    """Part of the broker between its connections and its dispatch, such as its metrics."""

    def handling(self, handle: Handle) -> Handle:
        """Return `handle` so that this layer sees each request first."""

    def decoding(self, decode: Decode) -> Decode:
        """Return `decode` so that this layer sees each large request first, when it is handled."""


class Usage(NamedTuple):
    """Connections and memory of a listener: now, and since its start."""

    connections: int
    accepted: int
    refused: int
    failed: int
    """Connections that the broker closed for a reason, such as a malformed request."""
    request_bytes: int
    request_bytes_max: int
    waiting_requests: int
    """Requests that wait for memory."""
    response_bytes: int
    response_bytes_max: int


class Listener:
    """Listens from its creation; accepts connections after `start`. All methods run on the event loop."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        """Listen on the configured addresses. Raises CannotListen, InvalidTls."""
        self._config = config
        self._clock = clock
        self._sockets = _listen_on_all(config)
        self._memory = RequestMemory(
            config.queued_request_bytes_max, largest_frame_bytes(config), self._reclaim_request_memory
        )
        self._response_budget = ResponseBudget(config.unsent_bytes_max, self._close_unread)
        self._newcomers = Newcomers(config, clock)
        self._handle: Handle | None = None
        self._decode: Decode | None = None
        self._logins: Mapping[str, Serving] = {}
        self._deferred: DeferredCalls | None = None
        self._new_reply: Callable[[Connection], Reply] = Reply
        self._take_connection: Callable[[str], int] | None = None
        self._throttled: dict[socket.socket, asyncio.TimerHandle] = {}
        """Connections beyond a rate: accepted a little later, or closed if it is the rate of their address."""
        self._connections: set[Connection] = set()
        self._limits = ConnectionLimits(config, clock)
        self._refused = 0
        self._accepted_total = self._refused_total = self._failed_total = 0
        self._all_closed: asyncio.Event | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The addresses, with the ports that were free."""
        return tuple(listening.endpoint for listening in self._sockets)

    def start(
        self,
        handle: Handle,
        decode: Decode,
        deferred: DeferredCalls,
        new_reply: Callable[[Connection], Reply] = Reply,
        logins: Mapping[str, Serving] = NO_LOGINS,
        *,
        take_connection: Callable[[str], int] | None = None,
    ) -> None:
        """Accept connections; `handle`, or what `decode` returns, serves each request and defers work by `deferred`.

        `new_reply` creates the reply of each request. `logins` has what serves the listeners with SASL, by name.
        `take_connection` counts a connection from an address, and returns how many ms one that exceeds its quota must
        wait.
        """
        self._handle = handle
        self._decode = decode
        self._logins = logins
        self._deferred = deferred
        self._new_reply = new_reply
        self._take_connection = take_connection
        for listening in self._sockets:
            self._resume_accepting(listening)

    def close(self) -> None:
        """Accept no more connections; the addresses are free for another broker."""
        for listening in self._sockets:
            if listening.socket.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(listening.socket.fileno())
                listening.socket.close()
        for client, timer in self._throttled.items():
            timer.cancel()
            client.close()
        self._throttled.clear()

    def abort(self) -> None:
        """Accept no more connections, and close all without the responses."""
        self.close()
        for connection in list(self._connections):
            connection.close(None)

    async def stop(self) -> None:
        """Accept no more connections or requests, send the responses that are possible, and close all.

        After `stop_timeout_ms`, close connections with pending or unread responses too.
        """
        self.close()
        self._all_closed = asyncio.Event()
        for connection in list(self._connections):
            connection.finish()
        if self._connections:
            try:
                await asyncio.wait_for(self._all_closed.wait(), self._config.stop_timeout_ms / 1000)
            except TimeoutError:
                logger.warning(
                    "%d connections did not end within stop.timeout.ms=%d; closing them",
                    len(self._connections),
                    self._config.stop_timeout_ms,
                )
        for connection in list(self._connections):
            connection.close(None)

    def close_descriptors(self) -> None:
        """Close the copied descriptors in a forked child, which has no loop; the parent keeps its own."""
        for listening in self._sockets:
            listening.socket.close()
        for connection in self._connections:
            connection.close_descriptor()

    def check_connections(self) -> None:
        """Close idle and abandoned connections, and log how many were refused; called once a second.

        Load certificates again whose files have changed.
        """
        self._newcomers.check()
        self._close_abandoned()
        for listening in self._sockets:
            if listening.tls is not None:
                listening.tls.reload_if_changed()
        now = self._clock.monotonic()
        for connection in list(self._connections):
            connection.check_activity(now)
        if self._refused:
            logger.warning(
                "%d connections were refused: %d are open; limits are max.connections=%d and max.connections.per.ip=%d",
                self._refused,
                len(self._connections),
                self._config.connections_max,
                self._config.connections_per_address_max,
            )
            self._refused = 0

    def reload_certificates(self) -> None:
        """Load the certificates of all listeners again; new connections use them."""
        for listening in self._sockets:
            if listening.tls is not None:
                listening.tls.reload()

    def _accept(self, listening: ListeningSocket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                client, peer = listening.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(listening, error)
                return
            wait_seconds = self._limits.wait_seconds(listening.endpoint.listener)
            if wait_seconds:
                self._open_later(listening, client, peer, wait_seconds)
                return
            self._open_connection(listening, client, peer)

    def _open_later(
        self, listening: ListeningSocket, client: socket.socket, peer: tuple[Any, ...], seconds: float
    ) -> None:
        """Open a connection after a while; the listener accepts none before, as Kafka's acceptor."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.socket.fileno())

        def open_now() -> None:
            self._throttled.pop(client).cancel()
            self._open_connection(listening, client, peer)
            self._resume_accepting(listening)

        self._throttled[client] = loop.call_later(seconds, open_now)

    def _open_connection(self, listening: ListeningSocket, client: socket.socket, peer: tuple[Any, ...]) -> None:
        config, name, host = self._config, listening.endpoint.listener, str(peer[0])
        if self._limits.is_full(name, host):
            self._refused += 1
            self._refused_total += 1
            client.close()
            return
        throttle_ms = self._take_connection(host) if self._take_connection is not None else 0
        if throttle_ms:
            self._limits.take_back(name)
            self._close_later(client, throttle_ms / 1000)
            return
        assert self._handle is not None
        assert self._decode is not None
        assert self._deferred is not None
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A client that vanished is not idle while it waits for a response: the kernel notices, as with Kafka.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        arguments = (
            peer,
            listening.advertised,
            config,
            self._memory,
            self._response_budget,
            self._clock,
            self._deferred,
            *((self._handle, self._decode) if not listening.has_sasl else self._logins[name]),
            self._new_reply,
            self._forget,
        )
        tls = listening.tls
        if tls is not None:
            connection: Connection = TlsConnection(TlsSocket(client, tls.context), tls, *arguments, self._newcomers)
        elif listening.has_sasl:
            connection = NewcomerConnection(client, *arguments, self._newcomers)
        else:
            connection = Connection(client, *arguments)
        self._limits.opened(name, host)
        self._connections.add(connection)
        self._accepted_total += 1

    def _close_later(self, client: socket.socket, seconds: float) -> None:
        """Close a connection that exceeds a quota after a while, so that its client does not try again at once."""
        self._refused_total += 1
        if len(self._throttled) >= THROTTLED_MAX:
            client.close()
            return

        def close() -> None:
            self._throttled.pop(client).cancel()
            client.close()

        self._throttled[client] = asyncio.get_running_loop().call_later(seconds, close)

    def usage(self) -> Usage:
        """Return the numbers of connections and bytes."""
        return Usage(
            len(self._connections),
            self._accepted_total,
            self._refused_total,
            self._failed_total,
            self._memory.used_bytes,
            self._memory.bytes_max,
            sum(len(share.waiting) for share in self._memory.shares),
            self._response_budget.used_bytes,
            self._response_budget.bytes_max,
        )

    def _close_unread(self) -> None:
        """Close the connections with most unread bytes until the budget suffices."""
        for connection in sorted(self._connections, key=lambda connection: connection.unsent_bytes, reverse=True):
            if not self._response_budget.is_too_full:
                return
            connection.close(
                f"{connection.unsent_bytes} bytes of its responses are unread, and unsent.max.bytes="
                f"{self._config.unsent_bytes_max} is used up"
            )

    def _reclaim_request_memory(self) -> None:
        """Free memory for requests that wait: unneeded buffers, then those of requests that would block them long."""
        now = self._clock.monotonic()
        for connection in self._connections:
            connection.shrink_if_unneeded()
            connection.measure_pace(now)
        for connection in [one for one in self._connections if one.reservation.is_blocking]:
            seconds = connection.remaining_seconds
            if seconds > BLOCKED_SECONDS_MAX:
                connection.close(
                    f"other requests wait for memory (queued.max.request.bytes={self._config.queued_request_bytes_max})"
                    f" while its own arrives at a pace that needs {seconds:.0f} s more"
                )

    def _close_abandoned(self) -> None:
        """Close connections that do not read and whose client has disconnected.

        Those whose request is whole stay: a client with acks=0 waits for nothing.
        """
        poll = select.poll()
        blind = {connection.fileno(): connection for connection in self._connections if connection.is_blind}
        for descriptor in blind:
            poll.register(descriptor, DISCONNECT_EVENTS)
        for descriptor, _ in poll.poll(0):
            if not blind[descriptor].has_whole_request(unread_bytes(descriptor)):
                blind[descriptor].close(None)

    def _forget(self, connection: Connection, is_failed: bool) -> None:
        self._connections.discard(connection)
        self._failed_total += is_failed
        self._limits.closed(connection.endpoint.listener, connection.peer_host)
        if self._all_closed is not None and not self._connections:
            self._all_closed.set()

    def _pause_accepting(self, listening: ListeningSocket, error: OSError) -> None:
        """Stop accepting for a while: without a free descriptor the listener stays readable, and a retry would spin."""
        logger.error("cannot accept connections: %s; retrying in %s s", error, ACCEPT_PAUSE_SECONDS)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.socket.fileno())
        loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume_accepting, listening)

    def _resume_accepting(self, listening: ListeningSocket) -> None:
        if listening.socket.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening.socket.fileno(), self._accept, listening)


def _listen_on_all(config: BrokerConfig) -> list[ListeningSocket]:
    sockets: list[ListeningSocket] = []
    try:
        for endpoint in config.listeners:
            sockets.append(ListeningSocket.open(endpoint, config))
    except BaseException:
        for listening in sockets:
            listening.socket.close()
        raise
    return sockets
