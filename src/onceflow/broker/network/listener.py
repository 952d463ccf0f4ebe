"""The listening socket and the connections that it took: how many there may be, how long, and how they end."""

import asyncio
import errno
import logging
import select
import socket
from collections import Counter
from typing import Any

from onceflow.broker.config import BrokerConfig
from onceflow.broker.loop.turn import Turn
from onceflow.broker.network.client_socket import LEFT_EVENTS, unread_bytes
from onceflow.broker.network.connection import Connection, Decode, Handle
from onceflow.broker.network.request_memory import RequestMemory
from onceflow.broker.network.response_budget import ResponseBudget
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock
from onceflow.remedies import Remedy

logger = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 64
ACCEPT_PAUSE_SECONDS = 1.0


class CannotListen(OnceflowError):
    """The broker's address cannot be listened on."""


class Listener:
    """Listens from the begin on; takes connections from `start` on. All methods are the event loop's."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        """Raises CannotListen."""
        self._config = config
        self._clock = clock
        self._socket = _listen(config)
        self._memory = RequestMemory(
            config.queued_request_bytes_max, config.produce_request_bytes_max, self._relieve_requests
        )
        self._answers = ResponseBudget(config.unsent_bytes_max, self._close_unread)
        self._handle: Handle | None = None
        self._decode: Decode | None = None
        self._turn: Turn | None = None
        self._connections: set[Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._refused = 0
        self._all_closed: asyncio.Event | None = None
        self.port: int = self._socket.getsockname()[1]

    def start(self, handle: Handle, decode: Decode, turn: Turn) -> None:
        """Take connections; `handle` or what `decode` returns gets each request, and puts work off by `turn`."""
        self._handle = handle
        self._decode = decode
        self._turn = turn
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Take no more connections; the address is free for another broker."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()

    async def stop(self) -> None:
        """Take no more connections or requests, send the answers that can be given, and close all.

        Takes at most `stop_timeout_ms`: what then is not answered or not read by its client is closed all the same.
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
                    "%d connections did not end within stop.timeout.ms=%d: they are closed",
                    len(self._connections),
                    self._config.stop_timeout_ms,
                )
        for connection in list(self._connections):
            connection.close(None)

    def close_descriptors(self) -> None:
        """In a forked child, which has no loop: let go of the copies of what ends with the parent's broker."""
        self._socket.close()
        for connection in self._connections:
            connection.close_descriptor()

    def look_after(self) -> None:
        """About once a second: close idle and abandoned connections, log how many were refused."""
        self._close_abandoned()
        now = self._clock.monotonic()
        for connection in list(self._connections):
            connection.look_after(now)
        if self._refused:
            logger.warning(
                "%d connections were refused: there are %d, allowed are max.connections=%d and"
                " max.connections.per.ip=%d",
                self._refused,
                len(self._connections),
                self._config.connections_max,
                self._config.connections_per_address_max,
            )
            self._refused = 0

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                client, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            self._take(client, peer)

    def _take(self, client: socket.socket, peer: tuple[Any, ...]) -> None:
        config, host = self._config, str(peer[0])
        is_too_many = self._per_address[host] >= config.connections_per_address_max
        if is_too_many or len(self._connections) >= config.connections_max:
            self._refused += 1
            client.close()
            return
        assert self._handle is not None
        assert self._decode is not None
        assert self._turn is not None
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Who vanished without a word is not idle while an answer is awaited: the kernel finds out, as with Kafka.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._per_address[host] += 1
        connection = Connection(
            client,
            peer,
            config,
            self._memory,
            self._answers,
            self._clock,
            self._turn,
            self._handle,
            self._decode,
            self._forget,
        )
        self._connections.add(connection)

    def _close_unread(self) -> None:
        """Close those who left most of their answers unread, until there is room again."""
        for connection in sorted(self._connections, key=lambda each: each.unsent_bytes, reverse=True):
            if not self._answers.is_too_full:
                return
            connection.close(
                f"{connection.unsent_bytes} bytes of its answers are unread, and unsent.max.bytes="
                f"{self._config.unsent_bytes_max} is used up"
            )

    def _relieve_requests(self) -> None:
        """Free memory of requests for those that wait: buffers that nothing needs, then those of slow requests."""
        now = self._clock.monotonic()
        slow = []
        for connection in self._connections:
            connection.shrink_if_needless()
            connection.watch_arrival(now)
            pace = connection.slow_bytes_per_second
            if pace is not None and connection.reservation.is_contended:
                slow.append((pace, connection))
        for pace, connection in sorted(slow, key=lambda each: each[0]):
            if connection.reservation.is_share_full:
                connection.close(
                    f"other requests wait for memory (queued.max.request.bytes={self._config.queued_request_bytes_max})"
                    f" while its own arrives at {pace:.0f} bytes per second"
                )

    def _close_abandoned(self) -> None:
        """Close connections whose client has left, which they cannot see for themselves.

        Not where the client had sent its request to the end before: acks=0 waits for nothing.
        """
        poll = select.poll()
        blind = {connection.fileno(): connection for connection in self._connections if connection.is_blind}
        for descriptor in blind:
            poll.register(descriptor, LEFT_EVENTS)
        for descriptor, _ in poll.poll(0):
            if not blind[descriptor].has_whole_request(unread_bytes(descriptor)):
                blind[descriptor].close(None)

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._per_address[connection.peer_host] -= 1
        if not self._per_address[connection.peer_host]:
            del self._per_address[connection.peer_host]
        if self._all_closed is not None and not self._connections:
            self._all_closed.set()

    def _pause_accepting(self, error: OSError) -> None:
        """Without a free descriptor the listener stays readable: trying again at once would spin."""
        logger.error("no connection can be accepted for %s s: %s", ACCEPT_PAUSE_SECONDS, error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)


def _listen(config: BrokerConfig) -> socket.socket:
    host, port = config.host, config.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=config.listen_backlog)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} of {host} is taken; {Remedy.OTHER_BROKER_PORT}"
        else:
            reason = f"{host}:{port}: {error}"
        raise CannotListen(f"the broker cannot listen: {reason}") from error
    # The connections inherit these; a receive buffer that is set later is too late for the window's scale.
    if config.socket_send_buffer_bytes != -1:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.socket_send_buffer_bytes)
    if config.socket_receive_buffer_bytes != -1:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes)
    listener.setblocking(False)
    return listener
