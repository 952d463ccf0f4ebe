"""The place of one response in its connection's order, and the pieces that a response consists of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from onceflow.log.disk import File


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
    """The part of a slice that is still to be sent."""

    file: File
    position: int
    size_bytes: int


class Channel(Protocol):
    """Part of a connection that its replies need."""

    @property
    def is_open(self) -> bool: ...
    def enqueue_response(self, pieces: Sequence[Piece]) -> None: ...
    def close(self, reason: str | None) -> None: ...


class Reply:
    """The place of one answer in its connection's order of answers."""

    __slots__ = ("_connection", "is_long_wait", "on_abandoned", "on_stop", "pieces")

    def __init__(self, connection: "Channel") -> None:
        self._connection = connection
        self.pieces: Sequence[Piece] | None = None
        self.on_abandoned: Callable[[], None] | None = None
        """Called when the connection closes before there is an answer."""
        self.on_stop: Callable[[], None] | None = None
        """Called when the broker stops and there is no answer yet: gives the answer that is possible now."""
        self.is_long_wait = False
        """The answer waits for other clients or for records, not for the disk.

        It parks the connection, and a broker that stops does not wait for it.
        """

    @property
    def requester(self) -> int:
        """Identity of the connection, for fair shares."""
        return id(self._connection)

    @property
    def is_open(self) -> bool:
        """Whether anybody still waits for the answer."""
        return self._connection.is_open

    def send(self, pieces: Sequence[Piece]) -> None:
        """Answer; `pieces` go out as soon as every earlier answer has. No pieces: no answer (acks=0)."""
        if self.pieces is None:
            self.pieces = pieces
            self._connection.enqueue_response(pieces)

    def close_connection(self, reason: str) -> None:
        """There is no answer that Kafka's protocol has for this: close, as Kafka does."""
        self._connection.close(reason)
