"""Cache of Produce requests that repeat everything but their correlation id and their batch.

With every batch for a partition a producer repeats its name, acks, timeout and topic, byte for byte. The key of a
parsed request is the bytes between its correlation id and the length of its batch. The next one is looked up, and its
batch located, without reading the fields around it, which is most of the work of parsing a small request.

The cache has requests of version 9 for one partition with a client id, names of less than 127 bytes, at most
`KNOWN_BYTES_MAX` bytes together, and no tagged fields. All others are parsed.
"""

from typing import NamedTuple

from onceflow.wire.apis import PRODUCE
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.frames import REQUEST_HEADER, SIZE_BYTES, RequestHeader
from onceflow.wire.primitives import read_uvarint
from onceflow.wire.produce import ProduceRequest, SinglePartitionResponse, encode_request

KNOWN_VERSION = SinglePartitionResponse.VERSION
KNOWN_BYTES_MAX = 512
"""Maximum size of a request's known bytes."""
GENERATION_MAX = 2000
"""Requests in each of two generations; both together have 3.4 MB (tracemalloc), 6.2 MB with the longest names."""

_END = bytes(3)
"""End of a request after the batch: no tagged fields of partition, topic and request."""


class Known(NamedTuple):
    """Fields that a request has in common with later ones."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic: str
    partition: int
    single_partition_response: SinglePartitionResponse


class KnownRequests:
    """Previously parsed requests.

    When the young generation is full it becomes the old one, and requests unused since then are forgotten.
    """

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[bytes, Known] = {}
        self._old: dict[bytes, Known] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def find(self, frame: memoryview) -> tuple[Known, int, memoryview] | None:
        """Return (known fields, correlation id, batch as a view of `frame`), None if the frame must be parsed.

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

    def learn(self, frame: memoryview, header: RequestHeader, request: ProduceRequest) -> None:
        """Remember a parsed request if `find` reads it like the parser does."""
        if header.version != KNOWN_VERSION or len(request.topics) != 1 or len(request.topics[0][1]) != 1:
            return
        topic, ((partition, batch),) = request.topics[0]
        if batch is None:
            return
        try:
            position = _length_at(frame)
            length, begin = read_uvarint(frame, position)
        except (IndexError, MalformedFrame):
            return
        if position > KNOWN_BYTES_MAX or length != len(batch) + 1:
            return
        # The length's position may be wrong unless everything before it is as our own encoder writes it, every length
        # in its shortest form and without tagged fields.
        before = encode_request(header.version, header.correlation_id, header.client_id, **request._asdict())[0]
        if frame[:begin] == memoryview(before)[SIZE_BYTES:]:
            known = Known(
                request.transactional_id,
                request.acks,
                request.timeout_ms,
                topic,
                partition,
                SinglePartitionResponse(topic),
            )
            self._keep(bytes(frame[8:position]), known)

    def _keep(self, repeated: bytes, known: Known) -> None:
        if len(self._young) >= GENERATION_MAX:
            self._old, self._young = self._young, {}
        self._young[repeated] = known


def _length_at(frame: memoryview) -> int:
    """Return the position of the batch's length in a request of this kind; arbitrary in others. Raises IndexError."""
    # The client id, after its length.
    position = 10 + (frame[8] << 8 | frame[9])
    # A tagged section, the transactional id (its length and one more, 0: null), acks, timeout, and a count.
    position += frame[position + 1] or 1
    position += 8
    # The topic, a count, and the partition.
    return position + frame[position] + 5
