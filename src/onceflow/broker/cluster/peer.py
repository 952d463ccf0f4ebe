"""A connection to another broker, for requests one after another."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from onceflow.broker.cluster.state import LiveBroker, plaintext_address
from onceflow.broker.config import Endpoint
from onceflow.wire.frames import SIZE_BYTES, decode_response, encode_request

RESPONSE_SECONDS_MAX = 30.0
"""Kafka's controller.socket.timeout.ms."""
RESPONSE_BYTES_MAX = 64 * 1024 * 1024

_SIZE = struct.Struct(">i")

Encode = Callable[[int, str], bytes]
"""Returns the frame of a request with a correlation id and a client id."""


class Opened(NamedTuple):
    """A connection that was opened, and authenticated if the listener asks for that."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used_until: float = float("inf")
    """Time of the loop after which another one is opened: the session ends then."""


Connect = Callable[[Endpoint], Awaitable[Opened]]
"""Opens a connection to a broker. Raises OSError, EOFError, WireError."""


async def connect_plaintext(address: Endpoint) -> Opened:
    """Open a connection without encryption and authentication."""
    return Opened(*await asyncio.open_connection(address.host, address.port))


class Others(Protocol):
    """Interface of the connections to other brokers."""

    def address(self, broker: LiveBroker) -> Endpoint | None:
        """Return where this broker connects to another one; None if that has no such listener."""

    async def connect(self, address: Endpoint) -> Opened:
        """Open a connection. Raises OSError, EOFError, WireError."""
        ...


class PlaintextOthers:
    """Connections to the listeners without encryption and authentication."""

    address = staticmethod(plaintext_address)
    connect = staticmethod(connect_plaintext)


class Limits(NamedTuple):
    """Limits of one response."""

    seconds_max: float = RESPONSE_SECONDS_MAX
    bytes_max: int = RESPONSE_BYTES_MAX


class Session:
    """Requests on one connection, each after the response to the one before it."""

    def __init__(self, opened: Opened, client_id: str, bytes_max: int) -> None:
        self.opened = opened
        self._client_id = client_id
        self._bytes_max = bytes_max
        self._correlation_id = 0

    async def exchange(self, encode: Encode) -> bytes:
        """Return the response without its size. Raises OSError, EOFError."""
        reader, writer, _used_until = self.opened
        self._correlation_id += 1
        writer.write(encode(self._correlation_id, self._client_id))
        await writer.drain()
        (size_bytes,) = _SIZE.unpack(await reader.readexactly(SIZE_BYTES))
        if not _SIZE.size <= size_bytes <= self._bytes_max:
            raise OSError(f"a response of {size_bytes} bytes")
        response = await reader.readexactly(size_bytes)
        (correlation_id,) = _SIZE.unpack_from(response)
        if correlation_id != self._correlation_id:
            raise OSError(f"response {correlation_id} to request {self._correlation_id}")
        return response


class Peer:
    """A connection that is opened when it is needed, with one request in flight.

    After an error it is closed, and the next request opens another one.
    """

    def __init__(
        self,
        address_of: Callable[[], Endpoint | None],
        client_id: str,
        *,
        connect: Connect = connect_plaintext,
        limits: Limits = Limits(),  # noqa: B008 - immutable
    ) -> None:
        """`address_of` is called to connect; None: the broker has no address now."""
        self._address_of = address_of
        self._client_id = client_id
        self._connect = connect
        self._limits = limits
        self._session: Session | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, which the broker may have closed."""
        return self._session is not None

    async def exchange(self, message: Any) -> Any:
        """Return the response to a message, of which the class knows API and version.

        Raises OSError, EOFError, WireError.
        """
        api_key, version = int(message.__api_key__), int(message.__version__)

        def encode(correlation_id: int, client_id: str) -> bytes:
            return encode_request(api_key, version, correlation_id, client_id, message)

        _correlation_id, response = decode_response(api_key, version, await self.exchange_frames(encode))
        return response

    async def exchange_frames(self, encode: Encode) -> bytes:
        """Send what `encode` returns for a correlation id and the client id; return the response without its size.

        Raises OSError, EOFError, WireError.
        """
        try:
            async with asyncio.timeout(self._limits.seconds_max):
                return await (await self._opened()).exchange(encode)
        except BaseException:
            self.close()
            raise

    async def _opened(self) -> Session:
        session = self._session
        if session is not None and asyncio.get_running_loop().time() < session.opened.used_until:
            return session
        self.close()
        address = self._address_of()
        if address is None:
            raise OSError("the broker is not alive, or has no listener for other brokers")
        self._session = Session(await self._connect(address), self._client_id, self._limits.bytes_max)
        return self._session

    def close(self) -> None:
        """Close the connection; another request opens a new one."""
        if self._session is not None:
            # At once: TLS would wait for the other broker.
            self._session.opened.writer.transport.abort()
            self._session = None
