"""Responses on their way to the client: their order on a connection, and the pieces that they consist of."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onceflow.broker.config import Endpoint
from onceflow.broker.security.principal import KafkaPrincipal
from onceflow.log.disk import File

SLICE_BYTES_SMALL = 32 * 1024
JOINED_BYTES_MAX = 64 * 1024


class FileSlice(Protocol):
    """Bytes of a file; holding it keeps the file's descriptor open."""

    @property
    def file(self) -> File: ...
    @property
    def position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


Piece = bytes | FileSlice


@dataclass(slots=True)
class SendingSlice:
    """Unsent rest of a slice."""

    file: File
    position: int
    size_bytes: int


def join_small(
    unsent: deque[bytes | memoryview | SendingSlice], read: Callable[[SendingSlice], bytes | memoryview]
) -> bytes:
    """Remove the small pieces at the front of `unsent` and return them as one, for one call; slices are read."""
    joined = bytearray()
    while unsent and len(joined) < JOINED_BYTES_MAX:
        piece = unsent[0]
        if isinstance(piece, SendingSlice):
            if piece.size_bytes > SLICE_BYTES_SMALL:
                break
            piece = read(piece)
        elif len(piece) > JOINED_BYTES_MAX:
            break
        joined += piece
        unsent.popleft()
    return bytes(joined)


class Channel(Protocol):
    """Part of a connection that its replies need."""

    def __hash__(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def principal(self) -> KafkaPrincipal: ...
    def enqueue_response(self, pieces: Sequence[Piece]) -> None: ...
    def close(self, reason: str | None) -> None: ...


class Limit(Protocol):
    """Quotas applied to one request."""

    throttle_ms: int
    """Throttle time that its handler found."""

    def timed(self, work: Iterator[int]) -> Iterator[int]:
        """Return work on the request in the same steps, whose time counts."""
        ...

    def throttled(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return the response as it is sent, with the throttle time, and throttle the connection."""
        ...


class Reply:
    """Position of one response in its connection's order of responses."""

    __slots__ = ("connection", "is_long_wait", "limit", "on_abandoned", "on_stop", "pieces", "rest")

    def __init__(self, connection: "Channel") -> None:
        self.connection = connection
        """The connection, also as the requester that gets a fair share."""
        self.pieces: Sequence[Piece] | None = None
        self.limit: Limit | None = None
        """Quotas of the client, which may throttle it; None without any."""
        self.on_abandoned: Callable[[], None] | None = None
        """Called when the connection closes before there is a response."""
        self.on_stop: Callable[[], None] | None = None
        """Called when the broker stops before there is a response: sends the one that is possible now."""
        self.is_long_wait = False
        """Whether the response waits for other clients, for records or for the `rest`, not for the disk.

        It then parks the connection, and a broker that stops does not wait for it.
        """
        self.rest: Iterator[int] | None = None
        """Rest of the work on a large request; each step yields its cost in units of about a microsecond."""

    @property
    def is_open(self) -> bool:
        """Whether a client still waits for the response."""
        return self.connection.is_open

    @property
    def endpoint(self) -> Endpoint:
        """The advertised address of the listener that the client connected to."""
        return self.connection.endpoint

    @property
    def principal(self) -> KafkaPrincipal:
        """The client's identity, for requests without a `Request`: repeated Produce requests."""
        return self.connection.principal

    def send(self, pieces: Sequence[Piece]) -> None:
        """Respond; `pieces` are sent once every earlier response has been. No pieces: no response (acks=0)."""
        if self.pieces is None:
            if self.limit is not None:
                pieces = self.limit.throttled(pieces)
            self.pieces = pieces
            self.connection.enqueue_response(pieces)

    def count_error(self, error_code: int) -> None:
        """Do nothing; `metrics.traffic.MeteredReply` counts the error of a response."""

    def count_errors(self, values: Mapping[str, Any]) -> Iterator[int]:
        """Do nothing; `metrics.traffic.MeteredReply` counts the errors in a response's fields, in steps."""
        return iter(())

    def close_connection(self, reason: str) -> None:
        """Close the connection, as Kafka does where its protocol has no response."""
        self.connection.close(reason)
