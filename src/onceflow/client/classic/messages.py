"""What goes in and what comes out: messages with their keys, offsets and topics."""

from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class KeyedMessage(Generic[K, V]):
    """A message on its way to `topic`; `key` and `message` are what the encoders take.

    `partition_key` decides the partition in place of `key` and is not sent.
    """

    topic: str
    message: V
    key: K | None = None
    partition_key: object = None

    @property
    def deciding_key(self) -> object:
        """What the partitioner is given; None: any partition will do."""
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
        """Where to read on behind this message; `MessageSet.next_offset` is behind the whole fetch."""
        return self.offset + 1


@dataclass(frozen=True, slots=True)
class MessageAndMetadata(Generic[K, V]):
    """One message of a stream, decoded, and where it stood; `timestamp_ms` is since 1970, UTC."""

    topic: str
    partition: int
    offset: int
    key: K | None
    message: V | None
    timestamp_ms: int
