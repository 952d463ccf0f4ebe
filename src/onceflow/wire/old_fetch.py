"""Fetch requests and responses, versions 0 to 3, of consumers before Kafka 0.11 (removed in Kafka 4.0, KIP-896).

They have neither isolation levels nor sessions, and their records are message sets (`wire.message_sets`): format 0 in
versions 0 and 1, format 1 in 2 and 3. Version 0 has no throttle time.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from typing_extensions import Buffer

from onceflow.wire.errors import MalformedFrame
from onceflow.wire.fetch import READ_UNCOMMITTED, FetchPartition, FetchRequest, Topic
from onceflow.wire.frames import RequestHeader, encode_joined
from onceflow.wire.primitives import (
    INT32,
    SHORT_OF_BYTES,
    append_count,
    append_string,
    read_count,
    read_nullable_bytes,
    read_string,
)

VERSION_MAX = 3
ORDER_COUNTS_FROM = 3
"""First version with a limit of the whole response; its clients change the order of partitions (KIP-74)."""
_FORMAT_1_FROM = 2
_THROTTLE_FROM = 1
_NO_SESSION = (0, -1)
_INT32_MAX = 2**31 - 1

_LIMITS = struct.Struct(">iii")
"""Replica id, maximum wait, minimum bytes."""
_ASKED = struct.Struct(">iqi")
"""Partition, offset, maximum bytes."""
_RESPONDED = struct.Struct(">ihqi")
"""Partition, error, high watermark, size of the records."""
_TOPIC_MIN_BYTES = 6


class OldPartition(NamedTuple):
    """A response's part for one partition, with a message set."""

    partition: int
    error_code: int
    high_watermark: int
    records: bytes


OldTopic = tuple[str, Sequence[OldPartition]]


def record_format(version: int) -> int:
    """Return the format (magic) of the records in responses of a version."""
    return 1 if version >= _FORMAT_1_FROM else 0


def parse_request(frame: memoryview, header: RequestHeader, *, entries_max: int) -> FetchRequest:
    """Parse the body of a request; `entries_max` bounds its topics and partitions together. Raises MalformedFrame."""
    position = header.body_position
    max_bytes = _INT32_MAX
    try:
        replica_id, max_wait_ms, min_bytes = _LIMITS.unpack_from(frame, position)
        position += _LIMITS.size
        if header.version >= ORDER_COUNTS_FROM:
            (max_bytes,) = INT32.unpack_from(frame, position)
            position += INT32.size
        topics = _read_topics(frame, position, entries_max)
    except (*SHORT_OF_BYTES, MalformedFrame) as error:
        raise MalformedFrame(f"Fetch request version {header.version}: {error}") from error
    return FetchRequest(replica_id, max_wait_ms, min_bytes, max_bytes, READ_UNCOMMITTED, *_NO_SESSION, topics)


def _read_topics(frame: memoryview, position: int, entries_max: int) -> list[Topic]:
    topics: list[Topic] = []
    entries = 0
    count, position = read_count(frame, position, flexible=False, element_bytes_min=_TOPIC_MIN_BYTES)
    for _ in range(count):
        name, position = read_string(frame, position, flexible=False)
        partition_count, position = read_count(frame, position, flexible=False, element_bytes_min=_ASKED.size)
        entries += 1 + partition_count
        if entries > entries_max:
            raise MalformedFrame(f"more than {entries_max} topics and partitions")
        end = position + partition_count * _ASKED.size
        asked = _ASKED.iter_unpack(frame[position:end])
        topics.append((name, [FetchPartition(index, -1, offset, -1, bytes_max) for index, offset, bytes_max in asked]))
        position = end
    return topics


def encode_response(version: int, correlation_id: int, topics: Sequence[OldTopic]) -> bytes:
    """Encode a whole response, size included, without a throttle time."""
    body = bytearray() if version < _THROTTLE_FROM else bytearray(INT32.size)
    append_count(body, len(topics), flexible=False)
    for name, partitions in topics:
        append_string(body, name, flexible=False)
        append_count(body, len(partitions), flexible=False)
        for index, error_code, high_watermark, records in partitions:
            body += _RESPONDED.pack(index, error_code, high_watermark, len(records))
            body += records
    return encode_joined(correlation_id, [bytes(body)], flexible=False)


def parse_response(version: int, frame: Buffer) -> tuple[int, list[OldTopic]]:
    """Parse (correlation id, topics) of a response without its size. Raises MalformedFrame."""
    view = memoryview(frame)
    position = INT32.size if version < _THROTTLE_FROM else 2 * INT32.size
    topics: list[OldTopic] = []
    try:
        (correlation_id,) = INT32.unpack_from(view, 0)
        count, position = read_count(view, position, flexible=False, element_bytes_min=_TOPIC_MIN_BYTES)
        for _ in range(count):
            name, position = read_string(view, position, flexible=False)
            partitions, position = _read_partitions(view, position)
            topics.append((name, partitions))
    except (*SHORT_OF_BYTES, MalformedFrame) as error:
        raise MalformedFrame(f"Fetch response version {version}: {error}") from error
    if position != len(view):
        raise MalformedFrame(f"Fetch response version {version}: {len(view) - position} bytes follow its end")
    return correlation_id, topics


def _read_partitions(view: memoryview, position: int) -> tuple[list[OldPartition], int]:
    partitions = []
    count, position = read_count(view, position, flexible=False, element_bytes_min=_RESPONDED.size)
    for _ in range(count):
        index, error_code, high_watermark, _size_bytes = _RESPONDED.unpack_from(view, position)
        records, position = read_nullable_bytes(view, position + _RESPONDED.size - INT32.size, flexible=False)
        partitions.append(OldPartition(index, error_code, high_watermark, bytes(records or b"")))
    return partitions, position
