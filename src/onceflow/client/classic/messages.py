"""Messages of producer and consumers, with their keys, offsets and topics."""

from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class KeyedMessage(Generic[K, V]):
    """A message for `topic`; `key` and `message` are input of the encoders.

    `partition_key` decides the partition instead of `key` and is not sent.
    """

    topic: str
    message: V
    key: K | None = None
    partition_key: object = None

    @property
    def partitioning_key(self) -> object:
        """Key for the partitioner; None: any partition."""
        return self.key if self.partition_key is None else self.partition_key


@dataclass(frozen=True, slots=True)
class MessageAndOffset:
    """One message of a fetch; `timestamp_ms` is since 1970, UTC."""

    offset: int
    key: bytes | None
    message: bytes | None
    timestamp_ms: int

    @property
    def next_offset(self) -> int:
        """Next offset to read after this message; `MessageSet.next_offset` is after the whole fetch."""
        return self.offset + 1


@dataclass(frozen=True, slots=True)
class MessageAndMetadata(Generic[K, V]):
    """One decoded message of a stream, and its position; `timestamp_ms` is since 1970, UTC."""

    topic: str
    partition: int
    offset: int
    key: K | None
    message: V | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
