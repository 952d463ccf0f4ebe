"""Simulated network between brokers: connections whose bytes arrive in order, late, or never.

A direction between two brokers can be blocked: its bytes wait, and a new connection does not open. A connection breaks
at random, or with the process at one end; what is in flight is lost, and the other end learns of it later. Bytes of
different connections overtake each other.
"""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from onceflow.broker.config import Endpoint
from onceflow.broker.network.reply import Reply
from onceflow.broker.security.principal import ANONYMOUS

REGISTRY = 0
"""Place of the registry in the network."""
RETRANSMISSION_MS = 40
SIZE_BYTES = 4
FLIPPED = 0.02
"""Share of the pieces of records that are read with a wrong bit."""


class Host(Protocol):
    """A broker's process."""

    id: int
    is_up: bool
    is_frozen: bool

    @property
    def is_serving(self) -> bool:
        """Whether it handles requests: a broker registers before."""

    def inside(self) -> Any:
        """Return a context in which its event loop runs."""

    def serve(self, frame: bytes, line: "Line") -> None:
        """Handle a request."""


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: "Network", source: int, target: int, arrived: Callable[[bytes], None]) -> None:
        self._network = network
        self._direction = source, target
        self._arrived = arrived
        self._pieces: deque[bytes] = deque()
        self._last_ms = 0.0
        self.is_open = True

    def send(self, data: bytes) -> None:
        if not self.is_open:
            return
        self._pieces.append(data)
        self._last_ms = max(self._last_ms, self._network.now_ms + self._network.delay_ms())
        self._network.at(self._last_ms, self._deliver)

    def _deliver(self) -> None:
        if not self.is_open or not self._pieces:
            return
        if self._network.is_blocked(*self._direction):
            self._network.at(self._network.now_ms + RETRANSMISSION_MS, self._deliver)
            return
        self._arrived(self._pieces.popleft())

    def close(self) -> None:
        self.is_open = False
        self._pieces.clear()


class Line:
    """The server's end of a connection (`broker.network.reply.Channel`)."""

    peer_host = "127.0.0.1"
    principal = ANONYMOUS
    endpoint = Endpoint(port=1)

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.reply: Reply | None = None

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    def enqueue_response(self, pieces: Any) -> None:
        data = b"".join(piece if isinstance(piece, bytes) else self._records(piece) for piece in pieces)
        self._connection.back.send(data)

    def _records(self, piece: Any) -> bytes:
        """Read records from a log; sometimes a bit of the last batch is wrong."""
        data: bytes = piece.file.read(piece.size_bytes, piece.position)
        network = self._connection.network
        if network.flips_bits and network.chance.random() < FLIPPED:
            network.flipped += 1
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    def close(self, _reason: str | None) -> None:
        self._connection.break_off()


class Writer:
    """The client's end of a connection, for sending."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        self._connection.there.send(bytes(data))

    async def drain(self) -> None:
        if not self._connection.is_open:
            raise ConnectionResetError("the connection is broken")

    def close(self) -> None:
        self._connection.break_off()

    @property
    def transport(self) -> "Writer":
        return self

    def abort(self) -> None:
        self.close()


class Connection:
    """A connection from one process to another."""

    def __init__(self, network: "Network", client: Host, server: Host, reader: asyncio.StreamReader) -> None:
        self.network = network
        self.client, self.server = client, server
        self.reader = reader
        self.is_open = True
        self.line = Line(self)
        self._received = bytearray()
        self.there = Pipe(network, client.id, server.id, self._request_arrived)
        self.back = Pipe(network, server.id, client.id, self._response_arrived)

    def _request_arrived(self, data: bytes) -> None:
        if not self.server.is_up:
            self.break_off()
            return
        self._received += data
        while len(self._received) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(self._received[:SIZE_BYTES], "big")
            if len(self._received) < end:
                return
            frame = bytes(self._received[SIZE_BYTES:end])
            del self._received[:end]
            self.server.serve(frame, self.line)

    def _response_arrived(self, data: bytes) -> None:
        if self.client.is_up:
            with self.client.inside():
                self.reader.feed_data(data)

    def break_off(self) -> None:
        """Lose everything in flight; both ends learn of it, the client later."""
        if not self.is_open:
            return
        self.is_open = False
        self.there.close()
        self.back.close()
        del self.network.connections[self]
        reply = self.line.reply
        if reply is not None and reply.on_abandoned is not None and self.server.is_up:
            with self.server.inside():
                reply.on_abandoned()
        self.network.at(self.network.now_ms + self.network.delay_ms(), self._notice)

    def _notice(self) -> None:
        if self.client.is_up and self.reader.exception() is None:
            with self.client.inside():
                self.reader.set_exception(ConnectionResetError("the connection is broken"))


class Network:
    """All connections, and the events that are due."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_ms = 0.0
        self.slowest_ms = chance.choice((5, 30, 120))
        self.flips_bits = True
        self.flipped = 0
        self.blocked: set[tuple[int, int]] = set()
        self.hosts: dict[int, Host] = {}
        self.connections: dict[Connection, None] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def delay_ms(self) -> float:
        """Return how long a message takes, a few of them long."""
        slowest_ms = self.slowest_ms if self.chance.random() < 0.2 else 4
        return self.chance.random() * slowest_ms

    def is_blocked(self, source: int, target: int) -> bool:
        """Return whether bytes must wait: for the direction, or for a process that is frozen."""
        return (source, target) in self.blocked or (target != REGISTRY and self.hosts[target].is_frozen)

    def at(self, when_ms: float, happen: Callable[[], None]) -> None:
        """Call `happen` when the time has come."""
        self._count += 1
        heapq.heappush(self._events, (when_ms, self._count, happen))

    def advance(self, now_ms: float) -> None:
        """Let everything happen until then."""
        while self._events and self._events[0][0] <= now_ms:
            when_ms, _number, happen = heapq.heappop(self._events)
            self.now_ms = max(self.now_ms, when_ms)
            happen()
        self.now_ms = now_ms

    def reach(self, source: int, target: int, happen: Callable[[], None]) -> None:
        """Call `happen` once a message arrives, which waits while its direction is blocked."""

        def arrive() -> None:
            if self.is_blocked(source, target):
                self.at(self.now_ms + RETRANSMISSION_MS, arrive)
            else:
                happen()

        self.at(self.now_ms + self.delay_ms(), arrive)

    async def connect(self, client: Host, target: int) -> tuple[asyncio.StreamReader, Writer]:
        """Open a connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[bool] = loop.create_future()

        def end(is_serving: bool) -> None:
            if client.is_up and not opened.done():
                with client.inside():
                    opened.set_result(is_serving)

        def respond() -> None:
            is_serving = self.hosts[target].is_serving
            self.reach(target, client.id, lambda: end(is_serving))

        self.reach(client.id, target, respond)
        if not await opened:
            raise ConnectionRefusedError(f"broker {target} is down")
        reader = asyncio.StreamReader(loop=loop)
        connection = Connection(self, client, self.hosts[target], reader)
        self.connections[connection] = None
        return reader, Writer(connection)

    def break_some(self, broker_id: int | None = None) -> None:
        """Break the connections of one process, or a random one."""
        open_ones = list(self.connections)
        if broker_id is None:
            victims = [self.chance.choice(open_ones)] if open_ones else []
        else:
            victims = [c for c in open_ones if broker_id in (c.client.id, c.server.id)]
        for connection in victims:
            connection.break_off()
