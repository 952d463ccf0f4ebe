"""Fetch requests and responses, versions 4 to 17, written by hand.

A response is encoded without its records, as pieces between which the broker sends each partition's bytes
straight from the file. A parsed response holds views of its frame.

Version 13 and later name topics by their ids (KIP-516). They are received only: requests are encoded, and responses
parsed, up to version 12.
"""

import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from typing_extensions import Buffer

from onceflow.wire.apis import APIS, FETCH
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.frames import SIZE_AND_CORRELATION_ID, RequestHeader, append_request_header, read_response_header
from onceflow.wire.primitives import (
    INT32,
    SHORT_OF_BYTES,
    append_count,
    append_string,
    append_uvarint,
    bounded,
    read_count,
    read_nullable_bytes,
    read_string,
    read_tag_count,
    read_uvarint,
    skip_tags,
)

_FLEXIBLE_FROM = APIS[FETCH].flexible_from
_VERSION_OF_ONE = 12
"""Most requests and responses have one partition; this version has a faster path for them."""
_SESSIONS_FROM = 7
_RACK_FROM = 11
_EPOCHS_FROM = 12
IDS_FROM = 13
"""First version with ids of topics instead of their names."""
_REPLICA_STATE_FROM = 15

_LIMITS = struct.Struct(">iiiib")
_LIMITS_FROM_15 = struct.Struct(">iiib")
"""Without the replica id, which is in a tagged field with the replica's broker epoch (KIP-903)."""
_REPLICA_STATE_TAG = 1
_REPLICA_ID = struct.Struct(">i")
_TOPIC_ID_BYTES = 16
_SESSION = struct.Struct(">ii")
_ERROR_AND_SESSION = struct.Struct(">hi")
_ABORTED = struct.Struct(">qq")

_DIVERGING_EPOCH = struct.Struct(">BBBiqB")
"""A section of one tagged field: epoch and end offset, without tagged fields of their own."""
_DIVERGING_EPOCH_TAG = bytes((0, 13))
"""Number and size of the field, which is the first one if it is there."""

# Fixed part of a partition in a request: partition, [leader epoch,] fetch offset, [last fetched epoch,] [log start
# offset,] max bytes.
_ASKED_FROM_4 = struct.Struct(">iqi")
_ASKED_FROM_5 = struct.Struct(">iqqi")
_ASKED_FROM_9 = struct.Struct(">iiqqi")
_ASKED_FROM_12 = struct.Struct(">iiqiqi")

# ... and in a response: partition, error, high watermark, last stable offset[, log start offset].
_RESPONDED_FROM_4 = struct.Struct(">ihqq")
_RESPONDED_FROM_5 = struct.Struct(">ihqqq")
_LIMITS_SESSION_AND_TOPIC = struct.Struct(">iiiibiiBB")
"""..., and two compact lengths: number of topics, and that of the first one's name."""
_AFTER_ONE_REQUESTED = b"\x00\x00\x01\x01\x00"
"""No tagged fields of partition and topic, no forgotten topics, no rack, no tagged fields."""

_AFTER_ONE_RESPONDED = bytes(3)
"""No tagged fields of partition, topic and response."""

_TOPIC_MIN_BYTES = {False: 6, True: 3}
READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class FetchPartition(NamedTuple):
    """A request's part for one partition; -1 for fields that its version does not have."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    log_start_offset: int
    max_bytes: int
    last_fetched_epoch: int = -1


Topic = tuple[str, list[FetchPartition]]
NameOf = Callable[[UUID], str | None]
"""Returns the name of the topic with an id, None for an unknown id."""

_NO_IDS: Mapping[str, UUID] = MappingProxyType({})


class FetchRequest(NamedTuple):
    """A Fetch request. `topics`: (topic, partitions) in the order of the request and the response."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[Topic]
    rack_id: str = ""
    """Rack of the client, from version 11 on."""
    topic_ids: Mapping[str, UUID] = _NO_IDS
    """Ids of the topics, from version 13 on."""
    unknown: Sequence[tuple[UUID, list[FetchPartition]]] = ()
    """Topics with unknown ids, from version 13 on."""


class PartitionResponse(NamedTuple):
    """A response's part for one partition; `records_bytes` of records follow it.

    `aborted`: (producer id, first offset) for read_committed, None (null) for read_uncommitted. `diverging_epoch`:
    (leader epoch, end offset) where the reader's log and the leader's part, from version 12 on.
    `preferred_read_replica`: a broker that the client reads from instead (KIP-392), from version 11 on.
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records_bytes: int
    aborted: Sequence[tuple[int, int]] | None = None
    diverging_epoch: tuple[int, int] | None = None
    preferred_read_replica: int = -1


TopicResponse = tuple[str | UUID, Sequence[PartitionResponse]]
"""A response's part for one topic: its name, from version 13 on its id."""


class FetchedPartition(NamedTuple):
    """One partition of a parsed response. `records` is a view of the frame: batches, of which the last may be cut."""

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    records: memoryview
    diverging_epoch: tuple[int, int] | None = None
    preferred_read_replica: int = -1


class FetchResponse(NamedTuple):
    """A parsed response; the error code applies to the whole request."""

    correlation_id: int
    throttle_ms: int
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


def _unnamed(_topic_id: UUID) -> None:
    return None


def parse_request(
    frame: memoryview, header: RequestHeader, *, entries_max: int = sys.maxsize, name_of: NameOf = _unnamed
) -> FetchRequest:
    """Parse the body of a Fetch request. `entries_max` bounds its topics and partitions together; `name_of` is for
    versions with ids of topics. Raises MalformedFrame."""
    version = header.version
    if version == _VERSION_OF_ONE and entries_max >= 2:
        asked = _parse_one(frame, header.body_position)
        if asked is not None:
            return asked
    flexible = version >= _FLEXIBLE_FROM
    position = header.body_position
    session_id, session_epoch, rack_id = 0, -1, ""
    try:
        limits, position = _read_limits(frame, position, version)
        if version >= _SESSIONS_FROM:
            session_id, session_epoch = _SESSION.unpack_from(frame, position)
            position += _SESSION.size
        named = _NamedTopics(name_of)
        position = _read_topics(frame, position, version, entries_max, header.tags_max, named)
        if version >= _SESSIONS_FROM:
            position = _skip_forgotten(frame, position, header.tags_max, version)
        if version >= _RACK_FROM:
            rack_id, position = read_string(frame, position, flexible=flexible)
        if version >= _REPLICA_STATE_FROM:
            limits = (_read_replica_id(frame, position, header.tags_max), *limits[1:])
        elif flexible:
            skip_tags(frame, position, header.tags_max)
    except (*SHORT_OF_BYTES, MalformedFrame) as error:
        raise MalformedFrame(f"Fetch request version {version}: {error}") from error
    return FetchRequest._make(
        (*limits, session_id, session_epoch, named.topics, rack_id, named.topic_ids, tuple(named.unknown))
    )


class _NamedTopics:
    """The topics of a request that is being read."""

    def __init__(self, name_of: NameOf) -> None:
        self._name_of = name_of
        self.topics: list[Topic] = []
        self.topic_ids: dict[str, UUID] = {}
        self.unknown: list[tuple[UUID, list[FetchPartition]]] = []

    def begin(self, frame: memoryview, position: int, version: int) -> tuple[list[FetchPartition], int]:
        """Read a topic's name or id; return the list for its partitions, and the position after it."""
        partitions: list[FetchPartition] = []
        if version < IDS_FROM:
            name, position = read_string(frame, position, flexible=version >= _FLEXIBLE_FROM)
            self.topics.append((name, partitions))
            return partitions, position
        end = bounded(_TOPIC_ID_BYTES, frame, position)
        topic_id = UUID(bytes=bytes(frame[position:end]))
        known = self._name_of(topic_id)
        if known is None:
            self.unknown.append((topic_id, partitions))
        else:
            self.topics.append((known, partitions))
            self.topic_ids[known] = topic_id
        return partitions, end


def _read_limits(frame: memoryview, position: int, version: int) -> tuple[tuple[int, ...], int]:
    """Read replica id, times, sizes and isolation level. The replica id is -1 where a tagged field has it."""
    if version >= _REPLICA_STATE_FROM:
        return (-1, *_LIMITS_FROM_15.unpack_from(frame, position)), position + _LIMITS_FROM_15.size
    return _LIMITS.unpack_from(frame, position), position + _LIMITS.size


def _read_replica_id(frame: memoryview, position: int, tags_max: int) -> int:
    """Read the last tagged fields of a request; return the replica id, -1 without one. With ZooKeeper nothing checks
    the broker epoch beside it (kafka.cluster.Replica)."""
    replica_id = -1
    count, position = read_tag_count(frame, position, tags_max)
    for _ in range(count):
        tag, position = read_uvarint(frame, position)
        size_bytes, position = read_uvarint(frame, position)
        end = bounded(size_bytes, frame, position)
        if tag == _REPLICA_STATE_TAG:
            (replica_id,) = _REPLICA_ID.unpack_from(frame[position:end])
        position = end
    return replica_id


def _parse_one(frame: memoryview, position: int) -> FetchRequest | None:
    """Parse a request for one partition as most consumers send it: without forgotten topics, rack and tagged fields.

    Returns None for all others: they are parsed field by field, which takes more than twice as long.
    """
    try:
        fixed = _LIMITS_SESSION_AND_TOPIC.unpack_from(frame, position)
        topic_count, name_length = fixed[7:]
        position += _LIMITS_SESSION_AND_TOPIC.size
        end = position + name_length - 1
        if topic_count != 2 or name_length >= 0x80 or frame[end] != 2:
            return None
        partition, epoch, offset, last_epoch, log_start_offset, max_bytes = _ASKED_FROM_12.unpack_from(frame, end + 1)
        if frame[end + 1 + _ASKED_FROM_12.size :] != _AFTER_ONE_REQUESTED:
            return None
        name = str(frame[position:end], "utf-8")
    except SHORT_OF_BYTES:
        return None
    asked = FetchPartition(partition, epoch, offset, log_start_offset, max_bytes, last_epoch)
    return FetchRequest._make((*fixed[:7], [(name, [asked])], "", _NO_IDS, ()))


def _read_topics(
    frame: memoryview, position: int, version: int, entries_max: int, tags_max: int, named: _NamedTopics
) -> int:
    flexible = version >= _FLEXIBLE_FROM
    layout = _asked_layout(version)
    entries = 0
    count, position = read_count(frame, position, flexible=flexible, element_bytes_min=_TOPIC_MIN_BYTES[flexible])
    for _ in range(count):
        partitions, position = named.begin(frame, position, version)
        partition_count, position = read_count(frame, position, flexible=flexible, element_bytes_min=layout.size)
        entries += 1 + partition_count
        if entries > entries_max:
            raise MalformedFrame(f"more than {entries_max} topics and partitions")
        for _ in range(partition_count):
            partitions.append(_asked(layout.unpack_from(frame, position), version))
            position += layout.size
            if flexible:
                position = skip_tags(frame, position, tags_max)
        if flexible:
            position = skip_tags(frame, position, tags_max)
    return position


def _asked_layout(version: int) -> struct.Struct:
    if version >= 12:
        return _ASKED_FROM_12
    if version >= 9:
        return _ASKED_FROM_9
    return _ASKED_FROM_5 if version >= 5 else _ASKED_FROM_4


def _asked(values: tuple[int, ...], version: int) -> FetchPartition:
    if version >= 12:
        partition, epoch, offset, last_epoch, log_start_offset, max_bytes = values
        return FetchPartition(partition, epoch, offset, log_start_offset, max_bytes, last_epoch)
    if version >= 9:
        return FetchPartition(*values)
    if version >= 5:
        return FetchPartition(values[0], -1, *values[1:])
    return FetchPartition(values[0], -1, values[1], -1, values[2])


def _skip_forgotten(frame: memoryview, position: int, tags_max: int, version: int) -> int:
    """Skip partitions that leave a fetch session; there are no sessions here, every response has session id 0
    (KIP-227)."""
    flexible = version >= _FLEXIBLE_FROM
    count, position = read_count(frame, position, flexible=flexible, element_bytes_min=_TOPIC_MIN_BYTES[flexible])
    for _ in range(count):
        if version >= IDS_FROM:
            position = bounded(_TOPIC_ID_BYTES, frame, position)
        else:
            _, position = read_string(frame, position, flexible=flexible)
        partition_count, position = read_count(frame, position, flexible=flexible, element_bytes_min=4)
        position = bounded(4 * max(partition_count, 0), frame, position)
        if flexible:
            position = skip_tags(frame, position, tags_max)
    return position


def encode_response(
    version: int,
    correlation_id: int,
    topics: Sequence[TopicResponse],
    *,
    error_code: int = 0,
    throttle_ms: int = 0,
) -> list[bytes]:
    """Encode a whole response, size included, without the records, as pieces.

    Piece i precedes the records of the i-th partition that has any (`records_bytes` > 0), in the order of `topics`. One
    last piece ends the response, so there is one more piece than such partitions.
    """
    if version == _VERSION_OF_ONE and len(topics) == 1 and not error_code and not throttle_ms:
        name, partitions = topics[0]
        if len(partitions) == 1 and isinstance(name, str):
            data = partitions[0]
            if not (data.aborted or data.error_code or data.diverging_epoch) and data.preferred_read_replica < 0:
                return _encode_one(correlation_id, name, data)
    return _encode_response(version, correlation_id, topics, error_code, throttle_ms)


def _encode_response(
    version: int,
    correlation_id: int,
    topics: Sequence[TopicResponse],
    error_code: int,
    throttle_ms: int,
) -> list[bytes]:
    flexible = version >= _FLEXIBLE_FROM
    pieces = []
    piece = bytearray(8)
    records_bytes = 0
    if flexible:
        piece.append(0)
    piece += INT32.pack(throttle_ms)
    if version >= _SESSIONS_FROM:
        piece += _ERROR_AND_SESSION.pack(error_code, 0)
    append_count(piece, len(topics), flexible=flexible)
    for topic, partitions in topics:
        if isinstance(topic, UUID):
            piece += topic.bytes
        else:
            append_string(piece, topic, flexible=flexible)
        append_count(piece, len(partitions), flexible=flexible)
        for data in partitions:
            _append_response(piece, version, data)
            if data.records_bytes > 0:
                records_bytes += data.records_bytes
                pieces.append(piece)
                piece = bytearray()
            if data.diverging_epoch is not None and version >= _EPOCHS_FROM:
                piece += _DIVERGING_EPOCH.pack(1, *_DIVERGING_EPOCH_TAG, *data.diverging_epoch, 0)
            elif flexible:
                piece.append(0)
        if flexible:
            piece.append(0)
    if flexible:
        piece.append(0)
    pieces.append(piece)
    size_bytes = sum(map(len, pieces)) + records_bytes
    SIZE_AND_CORRELATION_ID.pack_into(pieces[0], 0, size_bytes - 4, correlation_id)
    return [bytes(part) for part in pieces]


def _encode_one(correlation_id: int, name: str, data: PartitionResponse) -> list[bytes]:
    """Encode a response of that version with one partition, without an error and without aborted transactions."""
    layout, begin = _single_partition_response(name)
    length = bytearray()
    append_uvarint(length, data.records_bytes + 1)
    size_bytes = layout.size + len(length) + max(data.records_bytes, 0) + len(_AFTER_ONE_RESPONDED) - 4
    aborted = 0 if data.aborted is None else 1
    piece = layout.pack(size_bytes, correlation_id, begin, *data[:5], aborted, -1) + length
    if data.records_bytes > 0:
        return [piece, _AFTER_ONE_RESPONDED]
    return [piece + _AFTER_ONE_RESPONDED]


@lru_cache(maxsize=1000)
def _single_partition_response(name: str) -> tuple[struct.Struct, bytes]:
    """Return (layout up to the records' length, bytes between correlation id and partition) for a topic that exists.

    Its name has at most 249 characters.
    """
    nothing = PartitionResponse(0, 0, 0, 0, 0, 0)
    (whole,) = _encode_response(_VERSION_OF_ONE, 0, [(name, [nothing])], 0, 0)
    changing = _RESPONDED_FROM_5.format[1:] + "Bi"
    behind_bytes = struct.calcsize(">" + changing) + 1 + len(_AFTER_ONE_RESPONDED)
    begin = whole[8 : len(whole) - behind_bytes]
    return struct.Struct(f">ii{len(begin)}s{changing}"), begin


def _append_response(piece: bytearray, version: int, data: PartitionResponse) -> None:
    flexible = version >= _FLEXIBLE_FROM
    if version >= 5:
        piece += _RESPONDED_FROM_5.pack(*data[:5])
    else:
        piece += _RESPONDED_FROM_4.pack(*data[:4])
    if data.aborted is None:
        append_count(piece, -1, flexible=flexible)
    else:
        append_count(piece, len(data.aborted), flexible=flexible)
        for producer_id, first_offset in data.aborted:
            piece += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                piece.append(0)
    if version >= _RACK_FROM:
        piece += INT32.pack(data.preferred_read_replica)
    append_count(piece, data.records_bytes, flexible=flexible)


def encode_request(version: int, correlation_id: int, client_id: str | None, request: FetchRequest) -> bytes:
    """Encode a whole request, size included, without a session's forgotten topics."""
    flexible = version >= _FLEXIBLE_FROM
    buffer = bytearray(4)
    append_request_header(buffer, FETCH, version, correlation_id, client_id, flexible=flexible)
    buffer += _LIMITS.pack(*request[:5])
    if version >= _SESSIONS_FROM:
        buffer += _SESSION.pack(request.session_id, request.session_epoch)
    append_count(buffer, len(request.topics), flexible=flexible)
    for name, partitions in request.topics:
        append_string(buffer, name, flexible=flexible)
        append_count(buffer, len(partitions), flexible=flexible)
        for partition in partitions:
            _append_asked(buffer, version, partition)
        if flexible:
            buffer.append(0)
    if version >= _SESSIONS_FROM:
        append_count(buffer, 0, flexible=flexible)
    if version >= _RACK_FROM:
        append_string(buffer, request.rack_id, flexible=flexible)
    if flexible:
        buffer.append(0)
    INT32.pack_into(buffer, 0, len(buffer) - 4)
    return bytes(buffer)


def _append_asked(buffer: bytearray, version: int, asked: FetchPartition) -> None:
    partition, epoch, offset, log_start_offset, max_bytes, last_epoch = asked
    if version >= 12:
        buffer += _ASKED_FROM_12.pack(partition, epoch, offset, last_epoch, log_start_offset, max_bytes)
        buffer.append(0)
    elif version >= 9:
        buffer += _ASKED_FROM_9.pack(partition, epoch, offset, log_start_offset, max_bytes)
    elif version >= 5:
        buffer += _ASKED_FROM_5.pack(partition, offset, log_start_offset, max_bytes)
    else:
        buffer += _ASKED_FROM_4.pack(partition, offset, max_bytes)


def parse_response(version: int, frame: Buffer) -> FetchResponse:
    """Parse a response without its size; records are views of `frame`. Raises MalformedFrame."""
    view = memoryview(frame)
    flexible = version >= _FLEXIBLE_FROM
    correlation_id, position = read_response_header(view, flexible=flexible)
    partitions: list[FetchedPartition] = []
    error_code, session_id = 0, 0
    try:
        (throttle_ms,) = INT32.unpack_from(view, position)
        position += 4
        if version >= _SESSIONS_FROM:
            error_code, session_id = _ERROR_AND_SESSION.unpack_from(view, position)
            position += _ERROR_AND_SESSION.size
        count, position = read_count(view, position, flexible=flexible, element_bytes_min=_TOPIC_MIN_BYTES[flexible])
        for _ in range(count):
            position = _read_fetched_topic(view, position, version, partitions)
        if flexible:
            position = skip_tags(view, position)
    except (*SHORT_OF_BYTES, MalformedFrame) as error:
        raise MalformedFrame(f"Fetch response version {version}: {error}") from error
    if position != len(view):
        raise MalformedFrame(f"Fetch response version {version}: {len(view) - position} bytes follow its end")
    return FetchResponse(correlation_id, throttle_ms, error_code, session_id, partitions)


def _read_fetched_topic(view: memoryview, position: int, version: int, partitions: list[FetchedPartition]) -> int:
    flexible = version >= _FLEXIBLE_FROM
    topic, position = read_string(view, position, flexible=flexible)
    count, position = read_count(view, position, flexible=flexible, element_bytes_min=_RESPONDED_FROM_4.size)
    for _ in range(count):
        partition, position = _read_fetched(view, position, version, topic)
        partitions.append(partition)
    return skip_tags(view, position) if flexible else position


def _read_fetched(view: memoryview, position: int, version: int, topic: str) -> tuple[FetchedPartition, int]:
    flexible = version >= _FLEXIBLE_FROM
    fixed: tuple[int, ...]
    if version >= 5:
        fixed = _RESPONDED_FROM_5.unpack_from(view, position)
        position += _RESPONDED_FROM_5.size
    else:
        fixed = (*_RESPONDED_FROM_4.unpack_from(view, position), -1)
        position += _RESPONDED_FROM_4.size
    aborted = []
    preferred_read_replica = -1
    count, position = read_count(view, position, flexible=flexible, element_bytes_min=_ABORTED.size, nullable=True)
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(view, position))
        position += _ABORTED.size
        if flexible:
            position = skip_tags(view, position)
    if version >= _RACK_FROM:
        (preferred_read_replica,) = INT32.unpack_from(view, position)
        position += INT32.size
    records, position = read_nullable_bytes(view, position, flexible=flexible)
    diverging_epoch = None
    if flexible:
        diverging_epoch, position = _read_diverging_epoch(view, position)
    partition, error_code, high_watermark, last_stable_offset, log_start_offset = fixed
    fetched = FetchedPartition(
        topic,
        partition,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        view[0:0] if records is None else records,
        diverging_epoch,
        preferred_read_replica,
    )
    return fetched, position


def _read_diverging_epoch(view: memoryview, position: int) -> tuple[tuple[int, int] | None, int]:
    """Read the tagged fields of a partition; return the diverging epoch, if any, and the position after them."""
    end = skip_tags(view, position)
    if not view[position] or view[position + 1 : position + 3] != _DIVERGING_EPOCH_TAG:
        return None, end
    *_, epoch, end_offset, _tags = _DIVERGING_EPOCH.unpack_from(view, position)
    return (epoch, end_offset), end
