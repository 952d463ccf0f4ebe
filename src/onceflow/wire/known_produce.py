"""Produce requests that say nothing new but their correlation id and their batch.

With every batch for a partition a producer repeats its name, acks, timeout and topic, byte for byte. A request that
was parsed once is known by these bytes: the next one is looked up, and its batch found, without reading what stands
around it, which is most of the work of parsing a small one.

Known are requests of the newest version with one batch, without tagged fields; all others are parsed.
"""

import struct
from typing import NamedTuple

from onceflow.wire.apis import APIS, PRODUCE
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.frames import SIZE_BYTES, RequestHeader
from onceflow.wire.primitives import read_uvarint
from onceflow.wire.produce import ProduceRequest, encode_request

KNOWN_MAX = 1000
KNOWN_BYTES_MAX = 1024
"""The longest bytes that are remembered; what is known takes a megabyte, and is forgotten when it is too much."""

KNOWN_VERSION = APIS[PRODUCE].version_max
_HEADER = struct.Struct(">hhi")
_CLIENT_ID = 10
_END = bytes(3)
"""Behind the batch: no tagged fields of partition, topic and request."""


class Known(NamedTuple):
    """What a request has in common with the next ones."""

    asked: ProduceRequest
    """Without its topics."""
    topic: str
    partition: int


class KnownRequests:
    """The requests that were parsed before, by the bytes between correlation id and batch."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def find(self, frame: memoryview) -> tuple[Known, int, memoryview] | None:
        """(what is known, correlation id, batch as a view of `frame`), or None: then the frame must be parsed."""
        try:
            api_key, version, correlation_id = _HEADER.unpack_from(frame)
            if api_key != PRODUCE or version != KNOWN_VERSION:
                return None
            position = _length_at(frame)
            known = self._known.get(bytes(frame[8:position]))
            if known is None:
                return None
            length, begin = read_uvarint(frame, position)
        except (IndexError, struct.error, MalformedFrame):
            return None
        end = begin + length - 1
        if not length or frame[end:] != _END:
            return None
        return known, correlation_id, frame[begin:end]

    def learn(self, frame: memoryview, header: RequestHeader, asked: ProduceRequest) -> None:
        """Remembers a request that was parsed, where it is one that `find` reads as the parser does."""
        if header.version != KNOWN_VERSION or len(asked.topics) != 1 or len(asked.topics[0][1]) != 1:
            return
        topic, ((partition, batch),) = asked.topics[0]
        if batch is None:
            return
        # As our own encoder writes it: every length in its shortest form, no tagged fields.
        before, _batch, behind = encode_request(
            header.version, header.correlation_id, header.client_id, **asked._asdict()
        )
        begin = memoryview(before).nbytes - SIZE_BYTES
        if frame[:begin] != memoryview(before)[SIZE_BYTES:] or frame[begin + len(batch) :] != behind:
            return
        try:
            position = _length_at(frame)
            if position > KNOWN_BYTES_MAX or read_uvarint(frame, position) != (len(batch) + 1, begin):
                return
        except (IndexError, MalformedFrame):
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[bytes(frame[8:position])] = Known(asked._replace(topics=[]), topic, partition)


def _length_at(frame: memoryview) -> int:
    """Where the length of the batch stands, if the client id is not null, it and the names are shorter than 127 bytes,
    and there are no tagged fields; somewhere if not. Raises IndexError."""
    position = _CLIENT_ID + (frame[8] << 8 | frame[9])
    # A tagged section, the transactional id (its length and one more, 0: null), acks, timeout, and a count.
    position += frame[position + 1] or 1
    position += 8
    # The topic, a count, and the partition.
    return position + frame[position] + 5
