"""Produce requests that say nothing new but their correlation id and their batch.

With every batch for a partition a producer repeats its name, acks, timeout and topic, byte for byte. A request that
was parsed once is known by the bytes between its correlation id and the length of its batch: the next one is looked
up, and its batch found, without reading what stands around it, which is most of the work of parsing a small one.

Known are requests of version 9 for one partition that have a client id, names of less than 127 bytes, all in all no
more than `KNOWN_BYTES_MAX`, and no tagged fields. All others are parsed.
"""

from typing import NamedTuple

from onceflow.wire.apis import PRODUCE
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.frames import REQUEST_HEADER, SIZE_BYTES, RequestHeader
from onceflow.wire.primitives import read_uvarint
from onceflow.wire.produce import ProduceRequest, SinglePartitionResponse, encode_request

KNOWN_VERSION = SinglePartitionResponse.VERSION
KNOWN_BYTES_MAX = 512
"""The longest bytes that a request is known by."""
GENERATION_MAX = 2000
"""Requests in each of two generations; both together have 3.4 MB (tracemalloc), 6.2 MB with the longest names."""

_END = bytes(3)
"""Behind the batch: no tagged fields of partition, topic and request."""


class Known(NamedTuple):
    """What a request has in common with the next ones."""

    transactional_id: str | None
    acks: int
    topic: str
    partition: int
    single_partition_response: SinglePartitionResponse


class KnownRequests:
    """The requests that were parsed before.

    When the young generation is full it becomes the old one, and what was not asked for since then is forgotten.
    """

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[bytes, Known] = {}
        self._old: dict[bytes, Known] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def find(self, frame: memoryview) -> tuple[Known, int, memoryview] | None:
        """(what is known, correlation id, batch as a view of `frame`), or None: then the frame must be parsed.

        `frame` has at least the eight bytes up to the correlation id.
        """
        api_key, version, correlation_id = REQUEST_HEADER.unpack_from(frame)
        if api_key != PRODUCE or version != KNOWN_VERSION:
            return None
        try:
            position = _length_at(frame)
            if position > KNOWN_BYTES_MAX:
                return None
            repeated = bytes(frame[8:position])
            known = self._young.get(repeated)
            if known is None:
                known = self._old.get(repeated)
                if known is None:
                    return None
                self._keep(repeated, known)
            length, begin = read_uvarint(frame, position)
        except (IndexError, MalformedFrame):
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
        try:
            position = _length_at(frame)
            length, begin = read_uvarint(frame, position)
        except (IndexError, MalformedFrame):
            return
        if position > KNOWN_BYTES_MAX or length != len(batch) + 1:
            return
        # The length may have been found where it is not: unless all before it is as our own encoder writes it, every
        # length in its shortest form and without tagged fields.
        before = encode_request(header.version, header.correlation_id, header.client_id, **asked._asdict())[0]
        if frame[:begin] == memoryview(before)[SIZE_BYTES:]:
            known = Known(asked.transactional_id, asked.acks, topic, partition, SinglePartitionResponse(topic))
            self._keep(bytes(frame[8:position]), known)

    def _keep(self, repeated: bytes, known: Known) -> None:
        if len(self._young) >= GENERATION_MAX:
            self._old, self._young = self._young, {}
        self._young[repeated] = known


def _length_at(frame: memoryview) -> int:
    """Where the length of the batch stands in a request of the kind; somewhere in another one. Raises IndexError."""
    # The client id, behind its length.
    position = 10 + (frame[8] << 8 | frame[9])
    # A tagged section, the transactional id (its length and one more, 0: null), acks, timeout, and a count.
    position += frame[position + 1] or 1
    position += 8
    # The topic, a count, and the partition.
    return position + frame[position] + 5
