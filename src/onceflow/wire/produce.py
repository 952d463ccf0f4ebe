"""Produce requests and responses, versions 3 to 9, written by hand: a broker's hottest path.

Records are never copied: a parsed request holds views of its frame, an encoded one is a list of pieces for `sendmsg`.
"""

import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

from typing_extensions import Buffer

from onceflow.wire.apis import APIS, PRODUCE
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.frames import SIZE_AND_CORRELATION_ID, RequestHeader, append_request_header, read_response_header
from onceflow.wire.primitives import (
    INT32,
    SHORT_OF_BYTES,
    append_count,
    append_string,
    read_count,
    read_nullable_bytes,
    read_nullable_string,
    read_string,
    skip_tags,
)

_FLEXIBLE_FROM = APIS[PRODUCE].flexible_from
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
ERROR_MESSAGE_CHARACTERS_MAX = 4096
"""Maximum length of an error message; a longer one is cut.

Before version 9 a string ends at 32,767 bytes, and a character has up to 4.
"""
_PARTITION_MIN_BYTES = {False: 8, True: 6}
_TOPIC_MIN_BYTES = {False: 6, True: 3}

# A partition's part of a response, without the fields that later versions appended.
_PARTITION_FROM_2 = struct.Struct(">ihqq")
_PARTITION_FROM_5 = struct.Struct(">ihqqq")
_NO_ERRORS_FROM_8 = b"\x00\x00\x00\x00\xff\xff"
_NO_ERRORS_FROM_9 = b"\x01\x00\x00"


class ProduceRequest(NamedTuple):
    """A Produce request. `topics`: (topic, [(partition, record batches or None)]) in the order of the request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[tuple[int, memoryview | None]]]]


class PartitionResponse(NamedTuple):
    """Response for one partition; `log_append_time_ms` is -1 unless the topic uses log-append time."""

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None


def parse_request(frame: memoryview, header: RequestHeader, *, entries_max: int = sys.maxsize) -> ProduceRequest:
    """Parse the body of a Produce request; record batches are views of `frame`. Raises MalformedFrame.

    `entries_max` bounds its topics and partitions together.
    """
    flexible = header.version >= _FLEXIBLE_FROM
    try:
        transactional_id, position = read_nullable_string(frame, header.body_position, flexible=flexible)
        acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
        topics, position = _read_topics(frame, position + 6, entries_max, header.tags_max, flexible=flexible)
        if flexible:
            position = skip_tags(frame, position, header.tags_max)
    except (*SHORT_OF_BYTES, MalformedFrame) as error:
        raise MalformedFrame(f"Produce request version {header.version}: {error}") from error
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_topics(
    frame: memoryview, position: int, entries_max: int, tags_max: int, *, flexible: bool
) -> tuple[list[tuple[str, list[tuple[int, memoryview | None]]]], int]:
    topics = []
    entries = 0
    count, position = read_count(frame, position, flexible=flexible, element_bytes_min=_TOPIC_MIN_BYTES[flexible])
    for _ in range(count):
        name, position = read_string(frame, position, flexible=flexible)
        partitions: list[tuple[int, memoryview | None]] = []
        partition_count, position = read_count(
            frame, position, flexible=flexible, element_bytes_min=_PARTITION_MIN_BYTES[flexible]
        )
        entries += 1 + partition_count
        if entries > entries_max:
            raise MalformedFrame(f"more than {entries_max} topics and partitions")
        for _ in range(partition_count):
            (partition,) = INT32.unpack_from(frame, position)
            records, position = read_nullable_bytes(frame, position + 4, flexible=flexible)
            if flexible:
                position = skip_tags(frame, position, tags_max)
            partitions.append((partition, records))
        if flexible:
            position = skip_tags(frame, position, tags_max)
        topics.append((name, partitions))
    return topics, position


def encode_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str, Sequence[PartitionResponse]]],
    *,
    throttle_ms: int = 0,
) -> bytes:
    """Encode a whole Produce response, size included."""
    flexible = version >= _FLEXIBLE_FROM
    buffer = bytearray(8)
    if flexible:
        buffer.append(0)
    append_count(buffer, len(topics), flexible=flexible)
    for name, partitions in topics:
        append_string(buffer, name, flexible=flexible)
        append_count(buffer, len(partitions), flexible=flexible)
        for partition in partitions:
            _append_partition(buffer, version, partition)
        if flexible:
            buffer.append(0)
    buffer += INT32.pack(throttle_ms)
    if flexible:
        buffer.append(0)
    SIZE_AND_CORRELATION_ID.pack_into(buffer, 0, len(buffer) - 4, correlation_id)
    return bytes(buffer)


class SinglePartitionResponse:
    """Encoder of responses of version 9 for one partition of a topic: the constant part is encoded once."""

    __slots__ = ("_begin", "_end", "_layout", "_size_bytes")

    VERSION = 9

    def __init__(self, topic: str) -> None:
        whole = encode_response(self.VERSION, 0, [(topic, [PartitionResponse(0, 0, 0)])])
        none = encode_response(self.VERSION, 0, [(topic, [])])
        # After the last partition: no tags of the topic, throttle time, no tags of the response.
        partition_begin = len(none) - 6
        fixed_end = partition_begin + _PARTITION_FROM_5.size
        self._begin, self._end = whole[8:partition_begin], whole[fixed_end:]
        self._layout = struct.Struct(f">ii{len(self._begin)}s{_PARTITION_FROM_5.format[1:]}{len(self._end)}s")
        self._size_bytes = len(whole) - 4

    def encode(self, correlation_id: int, response: PartitionResponse) -> bytes:
        """Encode the whole response, size included, without the error message of `response`."""
        return self._layout.pack(self._size_bytes, correlation_id, self._begin, *response[:5], self._end)


def _append_partition(buffer: bytearray, version: int, response: PartitionResponse) -> None:
    if version < 5:
        buffer += _PARTITION_FROM_2.pack(*response[:4])
        return
    buffer += _PARTITION_FROM_5.pack(*response[:5])
    if version < 8:
        return
    flexible = version >= _FLEXIBLE_FROM
    if response.error_message is None:
        buffer += _NO_ERRORS_FROM_9 if flexible else _NO_ERRORS_FROM_8
        if flexible:
            return
    else:
        append_count(buffer, 0, flexible=flexible)
        append_string(buffer, response.error_message[:ERROR_MESSAGE_CHARACTERS_MAX], flexible=flexible)
    if flexible:
        buffer.append(0)


def encode_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    *,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Sequence[tuple[str, Sequence[tuple[int, Buffer | None]]]],
) -> list[Buffer]:
    """Encode a whole Produce request, size included, as pieces: the given record batches and the bytes between them."""
    flexible = version >= _FLEXIBLE_FROM
    pieces: list[Buffer] = []
    piece = bytearray(4)
    append_request_header(piece, PRODUCE, version, correlation_id, client_id, flexible=flexible)
    append_string(piece, transactional_id, flexible=flexible)
    piece += _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
    append_count(piece, len(topics), flexible=flexible)
    for name, partitions in topics:
        append_string(piece, name, flexible=flexible)
        append_count(piece, len(partitions), flexible=flexible)
        for partition, records in partitions:
            piece += INT32.pack(partition)
            append_count(piece, -1 if records is None else memoryview(records).nbytes, flexible=flexible)
            if records is not None:
                pieces += (piece, records)
                piece = bytearray()
            if flexible:
                piece.append(0)
        if flexible:
            piece.append(0)
    if flexible:
        piece.append(0)
    pieces.append(piece)
    size_bytes = sum(memoryview(part).nbytes for part in pieces)
    INT32.pack_into(pieces[0], 0, size_bytes - 4)
    return pieces


def parse_response(version: int, frame: Buffer) -> tuple[int, list[tuple[str, list[PartitionResponse]]], int]:
    """Return (correlation id, topics, throttle_ms) of a response without its size. Raises MalformedFrame."""
    view = memoryview(frame)
    flexible = version >= _FLEXIBLE_FROM
    correlation_id, position = read_response_header(view, flexible=flexible)
    topics = []
    try:
        count, position = read_count(view, position, flexible=flexible, element_bytes_min=_TOPIC_MIN_BYTES[flexible])
        for _ in range(count):
            name, position = read_string(view, position, flexible=flexible)
            partitions = []
            partition_count, position = read_count(view, position, flexible=flexible, element_bytes_min=22)
            for _ in range(partition_count):
                partition, position = _read_partition(view, position, version)
                partitions.append(partition)
            if flexible:
                position = skip_tags(view, position)
            topics.append((name, partitions))
        (throttle_ms,) = INT32.unpack_from(view, position)
        position += 4
        if flexible:
            position = skip_tags(view, position)
    except (*SHORT_OF_BYTES, MalformedFrame) as error:
        raise MalformedFrame(f"Produce response version {version}: {error}") from error
    if position != len(view):
        raise MalformedFrame(f"Produce response version {version}: {len(view) - position} bytes follow its end")
    return correlation_id, topics, throttle_ms


def _read_partition(view: memoryview, position: int, version: int) -> tuple[PartitionResponse, int]:
    layout = _PARTITION_FROM_5 if version >= 5 else _PARTITION_FROM_2
    fixed = layout.unpack_from(view, position)
    position += layout.size
    if version < 8:
        return PartitionResponse(*fixed), position
    flexible = version >= _FLEXIBLE_FROM
    message, position = _read_record_errors(view, position, flexible=flexible)
    error_message, position = read_nullable_string(view, position, flexible=flexible)
    if flexible:
        position = skip_tags(view, position)
    return PartitionResponse._make((*fixed, error_message or message)), position


def _read_record_errors(view: memoryview, position: int, *, flexible: bool) -> tuple[str | None, int]:
    """Return the first message about a single record, if any."""
    first = None
    count, position = read_count(view, position, flexible=flexible, element_bytes_min=5)
    for _ in range(count):
        message, position = read_nullable_string(view, position + 4, flexible=flexible)
        first = first or message
        if flexible:
            position = skip_tags(view, position)
    return first, position
