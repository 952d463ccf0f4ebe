"""A connection to another broker, for requests one after another."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from onceflow.broker.config import Endpoint
from onceflow.wire.frames import SIZE_BYTES, decode_response, encode_request

RESPONSE_SECONDS_MAX = 30.0
"""Kafka's controller.socket.timeout.ms."""
RESPONSE_BYTES_MAX = 64 * 1024 * 1024

_SIZE = struct.Struct(">i")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[Endpoint], Awaitable[Streams]]
"""Opens a connection to a broker. Raises OSError."""


async def connect_plaintext(address: Endpoint) -> Streams:
    """Open a connection without encryption and authentication."""
    return await asyncio.open_connection(address.host, address.port)


class Limits(NamedTuple):
    """Limits of one response."""

    seconds_max: float = RESPONSE_SECONDS_MAX
    bytes_max: int = RESPONSE_BYTES_MAX


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
        self._streams: Streams | None = None
        self._correlation_id = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, which the broker may have closed."""
        return self._streams is not None

    async def exchange(self, message: Any) -> Any:
        """Return the response to a message, of which the class knows API and version.

        Raises OSError, EOFError, WireError.
        """
        api_key, version = int(message.__api_key__), int(message.__version__)

        def encode(correlation_id: int, client_id: str) -> bytes:
            return encode_request(api_key, version, correlation_id, client_id, message)

        _correlation_id, response = decode_response(api_key, version, await self.exchange_frames(encode))
        return response

    async def exchange_frames(self, encode: Callable[[int, str], bytes]) -> bytes:
        """Send what `encode` returns for a correlation id and the client id; return the response without its size.

        Raises OSError, EOFError.
        """
        try:
            async with asyncio.timeout(self._limits.seconds_max):
                return await self._exchange(encode)
        except BaseException:
            self.close()
            raise

    async def _exchange(self, encode: Callable[[int, str], bytes]) -> bytes:
        if self._streams is None:
            address = self._address_of()
            if address is None:
                raise OSError("the broker is not alive, or has no listener for other brokers")
            self._streams = await self._connect(address)
        reader, writer = self._streams
        self._correlation_id += 1
        writer.write(encode(self._correlation_id, self._client_id))
        await writer.drain()
        (size_bytes,) = _SIZE.unpack(await reader.readexactly(SIZE_BYTES))
        if not _SIZE.size <= size_bytes <= self._limits.bytes_max:
            raise OSError(f"a response of {size_bytes} bytes")
        response = await reader.readexactly(size_bytes)
        (correlation_id,) = _SIZE.unpack_from(response)
        if correlation_id != self._correlation_id:
            raise OSError(f"response {correlation_id} to request {self._correlation_id}")
        return response

    def close(self) -> None:
        """Close the connection; another request opens a new one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
