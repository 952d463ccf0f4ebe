"""ListOffsets and OffsetForLeaderEpoch.

A response that depends on a log's end waits until everything appended before the request is synced: a client that
was told of a record (acks=1) counts it at once. A search by time reads batches and unpacks them, so it runs in a
thread, one request at a time, while the loop serves the others; its answer follows when every partition's search is
over.
"""

import logging
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from onceflow.broker.handlers.leader_epoch import NO_LEADER_EPOCH, epoch_error
from onceflow.broker.handlers.sliced_responses import Element, respond_in_slices
from onceflow.broker.loop.background import run_in_thread
from onceflow.broker.network.request import Request, close_unless_responded
from onceflow.broker.node import Node
from onceflow.broker.storage.partitions import Partition, when_ends_synced
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.log.errors import LogError
from onceflow.log.time_search import TimeSearch
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from onceflow.wire.primitives import INT32, append_count, append_string

logger = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_KIND_FROM = ((9, LATEST_TIERED), (8, EARLIEST_LOCAL), (7, MAX_TIMESTAMP), (0, EARLIEST))
"""The first version that may ask for each kind, and for those above it (KIP-734, KIP-405, KIP-1005)."""
INDEPENDENT_OF_END = frozenset((EARLIEST, EARLIEST_LOCAL, LATEST_TIERED))
"""Kinds whose answer no append changes; a search by time does depend on the end, since it may find the last record."""
NO_TIMESTAMP = -1
NOT_FOUND = (-1, -1)
NO_OFFSET = -1
WORK_PER_PARTITION = 4

THROTTLE_FROM = 2
EPOCH_FROM = 4
_ROW = struct.Struct(">ihqq")
"""Partition index, error code, timestamp, offset; a leader epoch follows from EPOCH_FROM on, then tagged fields."""
_NO_THROTTLE = INT32.pack(0)
_NO_TAGS = b"\x00"


class _Search(NamedTuple):
    """A search by time whose result goes into `answer`, if it lies before `offset_end`."""

    answer: dict[str, Any]
    offset_end: int
    run: TimeSearch
    partition: Partition


def handle_list_offsets(node: Node, request: Request) -> None:
    """Serve one ListOffsets request; who reads committed data is told of what lies before the last stable offset.

    Nothing is in tiered storage: all of a log is local. Version 10's time-out is for looking there.
    """
    asked = request.decode()

    when_ends_synced(
        request.reply, _partitions_by_end(node, asked), lambda errors: _list_offsets(node, request, asked, errors)
    )


def _partitions_by_end(node: Node, asked: Any) -> Iterator[Partition]:
    """The partitions of a request whose answer depends on their end."""
    for topic in asked.topics:
        for each in topic.partitions:
            partition = node.partitions.get(topic.name, each.partition_index)
            if partition is not None and each.timestamp not in INDEPENDENT_OF_END:
                yield partition


def _list_offsets(node: Node, request: Request, asked: Any, errors: Mapping[Partition, ErrorCode]) -> None:
    """Answer with the offsets of now; `errors` of partitions whose sync failed."""
    if request.version == 0:
        _respond_with_offsets_before(node, request, asked, errors)
        return
    listing = _Listing(node, request.version, asked, errors)

    def listed() -> None:
        if listing.searches:
            run_in_thread(node.search_thread, lambda: [_run(search) for search in listing.searches], searched)
        else:
            _respond_with_listed(request, listing.topics)

    def searched(results: Sequence[tuple[int, int] | ErrorCode]) -> None:
        with close_unless_responded(request.reply):
            for search, result in zip(listing.searches, results, strict=True):
                search.answer.update(_found(search, result))
            _respond_with_listed(request, listing.topics)

    request.in_slices(listing.run(), listed)


def _respond_with_listed(request: Request, topics: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
    """By hand: kio needs ten times as long for one of very many partitions."""
    flexible = request.version >= request.header.api.flexible_from
    tags = _NO_TAGS if flexible else b""

    def elements() -> Iterator[Element]:
        for name, partitions in topics:
            buffer = bytearray()
            append_string(buffer, name, flexible=flexible)
            append_count(buffer, len(partitions), flexible=flexible)
            for each in partitions:
                timestamp_ms, offset = each.get("timestamp", NO_TIMESTAMP), each.get("offset", NO_OFFSET)
                buffer += _ROW.pack(each["partition_index"], each["error_code"], timestamp_ms, offset)
                if request.version >= EPOCH_FROM:
                    buffer += INT32.pack(each.get("leader_epoch", NO_LEADER_EPOCH))
                buffer += tags
                yield b"", 1
            yield bytes(buffer + tags), 1

    head = _NO_THROTTLE if request.version >= THROTTLE_FROM else b""
    respond_in_slices(request, head, elements(), tags)


def _end_error(partition: Partition, errors: Mapping[Partition, ErrorCode], timestamp: int) -> ErrorCode:
    """The error of a partition whose end cannot be known, if this kind depends on it."""
    return ErrorCode.none if timestamp in INDEPENDENT_OF_END else errors.get(partition, ErrorCode.none)


class _Listing:
    """The answers to one request; a search by time is added to `searches` and fills its answer later."""

    def __init__(self, node: Node, version: int, asked: Any, errors: Mapping[Partition, ErrorCode]) -> None:
        self.searches: list[_Search] = []
        self.topics: list[tuple[str, list[dict[str, Any]]]] = []
        self._asked = asked
        self._node = node
        self._errors = errors
        self._version = version
        self._isolation_level = getattr(asked, "isolation_level", READ_UNCOMMITTED)
        self._times_named = Counter(
            (topic.name, each.partition_index) for topic in asked.topics for each in topic.partitions
        )

    def run(self) -> Iterator[int]:
        """List one partition after the other, in slices; once each, whose error it is to be named twice."""
        for topic in self._asked.topics:
            by_index = {each.partition_index: each for each in topic.partitions}
            partitions: list[dict[str, Any]] = []
            self.topics.append((topic.name, partitions))
            for each in by_index.values():
                partitions.append(self._offset(topic.name, each))
                yield WORK_PER_PARTITION

    def _offset(self, topic: str, asked: Any) -> dict[str, Any]:
        partition = self._node.partitions.get(topic, asked.partition_index)
        answer: dict[str, Any] = {"partition_index": asked.partition_index}
        answer["error_code"] = self._error(topic, partition, asked)
        if answer["error_code"]:
            return answer
        assert partition is not None
        log = partition.log
        offset_end = log.last_stable_offset if self._isolation_level == READ_COMMITTED else log.high_watermark
        if asked.timestamp == LATEST:
            answer.update(_at(-1, offset_end))
        elif asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
            answer.update(_at(-1, log.log_start_offset))
        elif asked.timestamp == LATEST_TIERED:
            answer.update(_at(*NOT_FOUND))
        elif asked.timestamp == MAX_TIMESTAMP:
            self.searches.append(_Search(answer, offset_end, log.search_max_timestamp(), partition))
        else:
            self.searches.append(_Search(answer, offset_end, log.search_timestamp(asked.timestamp), partition))
        return answer

    def _error(self, topic: str, partition: Partition | None, asked: Any) -> ErrorCode:
        """In Kafka's order (KafkaApis.handleListOffsetRequest, ReplicaManager.fetchOffset)."""
        if self._isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            return ErrorCode.unknown_server_error
        if self._times_named[topic, asked.partition_index] > 1:
            return ErrorCode.invalid_request
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        if asked.timestamp < next(kind for version, kind in EARLIEST_KIND_FROM if self._version >= version):
            return ErrorCode.unsupported_version
        return epoch_error(getattr(asked, "current_leader_epoch", NO_LEADER_EPOCH)) or _end_error(
            partition, self._errors, asked.timestamp
        )


def _respond_with_offsets_before(
    node: Node, request: Request, asked: Any, errors: Mapping[Partition, ErrorCode]
) -> None:
    """Version 0: segments' first offsets, the latest first (Kafka 3's fetchOffsetsForTimestamp of old clients)."""

    def elements() -> Iterator[Element]:
        for topic in asked.topics:
            buffer = bytearray()
            append_string(buffer, topic.name, flexible=False)
            append_count(buffer, len(topic.partitions), flexible=False)
            for each in topic.partitions:
                answer = _offsets_before(node.partitions.get(topic.name, each.partition_index), each, errors)
                offsets = answer.get("old_style_offsets", ())
                buffer += struct.pack(">ih", each.partition_index, answer["error_code"])
                append_count(buffer, len(offsets), flexible=False)
                buffer += struct.pack(f">{len(offsets)}q", *offsets)
                yield b"", WORK_PER_PARTITION + len(offsets)
            yield bytes(buffer), 1

    respond_in_slices(request, b"", elements(), b"")


def _offsets_before(partition: Partition | None, asked: Any, errors: Mapping[Partition, ErrorCode]) -> dict[str, Any]:
    answer = {"partition_index": asked.partition_index}
    if partition is None:
        return {**answer, "error_code": ErrorCode.unknown_topic_or_partition}
    error_code = _end_error(partition, errors, asked.timestamp)
    if error_code:
        return {**answer, "error_code": error_code}
    begins = partition.log.segment_starts()
    if asked.timestamp == EARLIEST:
        candidates = [begins[0][0]]
    elif asked.timestamp == LATEST:
        candidates = [begin for begin, _max_timestamp_ms in begins] + [partition.log.high_watermark]
    else:
        candidates = [begin for begin, max_timestamp_ms in begins if 0 <= max_timestamp_ms <= asked.timestamp]
    latest_first = sorted(set(candidates), reverse=True)
    return {
        **answer,
        "error_code": ErrorCode.none,
        "old_style_offsets": latest_first[: max(asked.max_num_offsets, 0)],
    }


def _run(search: _Search) -> tuple[int, int] | ErrorCode:
    """In the search thread."""
    try:
        return search.run() or NOT_FOUND
    except LogError as error:
        return error.error_code
    except OSError as error:
        # A file is missing where retention has just removed its segment; the client asks again.
        logger.warning("%s could not be searched by time: %s", search.partition, error)
        return ErrorCode.kafka_storage_error


def _found(search: _Search, result: tuple[int, int] | ErrorCode) -> dict[str, Any]:
    if isinstance(result, ErrorCode):
        return {"error_code": result}
    timestamp_ms, offset = result
    return _at(timestamp_ms, offset) if 0 <= offset < search.offset_end else _at(*NOT_FOUND)


def _at(timestamp_ms: int, offset: int) -> dict[str, Any]:
    return {
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": LEADER_EPOCH if offset >= 0 else NO_LEADER_EPOCH,
    }


def handle_offset_for_leader_epoch(node: Node, request: Request) -> None:
    """Serve one OffsetForLeaderEpoch request (LeaderEpochFileCache.endOffsetFor, with the one epoch that there is).

    The end is the log's, as in Kafka, once everything below it is synced.
    """
    asked = request.decode()

    when_ends_synced(
        request.reply,
        _partitions_by_epoch(node, asked),
        lambda errors: _respond_with_epoch_ends(node, request, asked, errors),
    )


def _partitions_by_epoch(node: Node, asked: Any) -> Iterator[Partition]:
    """The partitions of a request that asks for the end of their present epoch."""
    for topic in asked.topics:
        for each in topic.partitions:
            partition = node.partitions.get(topic.topic, each.partition)
            if partition is not None and each.leader_epoch == LEADER_EPOCH:
                yield partition


def _respond_with_epoch_ends(node: Node, request: Request, asked: Any, errors: Mapping[Partition, ErrorCode]) -> None:
    request.respond(
        topics=[
            {
                "topic": topic.topic,
                "partitions": [
                    _epoch_end(node.partitions.get(topic.topic, each.partition), each, errors)
                    for each in topic.partitions
                ],
            }
            for topic in asked.topics
        ]
    )


def _epoch_end(partition: Partition | None, asked: Any, errors: Mapping[Partition, ErrorCode]) -> dict[str, Any]:
    error_code, leader_epoch, end_offset = ErrorCode.none, NO_LEADER_EPOCH, NO_OFFSET
    if partition is None:
        error_code = ErrorCode.unknown_topic_or_partition
    elif epoch_error(asked.current_leader_epoch):
        error_code = epoch_error(asked.current_leader_epoch)
    elif asked.leader_epoch == LEADER_EPOCH and partition in errors:
        error_code = errors[partition]
    elif asked.leader_epoch == LEADER_EPOCH:
        leader_epoch, end_offset = LEADER_EPOCH, partition.log.high_watermark
    elif asked.leader_epoch < NO_LEADER_EPOCH:
        # Before the first epoch: it ends where that begins.
        leader_epoch, end_offset = asked.leader_epoch, partition.log.log_start_offset
    return {
        "partition": asked.partition,
        "error_code": error_code,
        "leader_epoch": leader_epoch,
        "end_offset": end_offset,
    }


HANDLERS = {
    apis.LIST_OFFSETS: handle_list_offsets,
    apis.OFFSET_FOR_LEADER_EPOCH: handle_offset_for_leader_epoch,
}
