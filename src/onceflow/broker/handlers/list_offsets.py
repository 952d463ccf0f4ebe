"""ListOffsets and OffsetForLeaderEpoch.

A response that depends on a log's end waits until everything appended before the request is synced: a client with
acks=1 counts an acknowledged record at once. A search by time reads and decompresses batches, so it runs in a thread,
one request at a time, while the loop serves other requests. Its response follows when the searches in all partitions
are over.
"""

import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

from onceflow.broker.handlers.sliced_responses import Element, respond_in_slices, tags_of
from onceflow.broker.loop.background import run_in_thread
from onceflow.broker.network.request import Request, close_unless_responded
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import Access
from onceflow.broker.storage.partitions import Partition, when_ends_synced
from onceflow.log.epochs import UNKNOWN_END, EpochEnd
from onceflow.log.errors import LogError
from onceflow.log.time_search import TimeSearch
from onceflow.wire import apis
from onceflow.wire.acls import AclOperation, ResourceType
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
"""First version of each kind and of those above it (KIP-734, KIP-405, KIP-1005)."""
INDEPENDENT_OF_END = frozenset((EARLIEST, EARLIEST_LOCAL, LATEST_TIERED))
"""Kinds with a result that no append changes. A search by time depends on the end: it may find the last record."""
NO_TIMESTAMP = -1
NOT_FOUND = (-1, -1)
NO_OFFSET = -1
NO_LEADER_EPOCH = -1
WORK_PER_PARTITION = 4

THROTTLE_FROM = 2
EPOCH_FROM = 4
_ROW = struct.Struct(">ihqq")
"""Partition index, error code, timestamp, offset; then a leader epoch from EPOCH_FROM on, and tagged fields."""
_NO_THROTTLE = INT32.pack(0)


MayDescribe = Callable[[str], bool]
"""Whether the client may describe a topic."""


class _Search(NamedTuple):
    """A search by time; a result below `offset_end` goes into `response`."""

    response: dict[str, Any]
    offset_end: int
    run: TimeSearch
    partition: Partition


def handle_list_offsets(node: Node, request: Request) -> None:
    """Serve one ListOffsets request; with READ_COMMITTED it considers offsets before the last stable offset.

    All of a log is local: nothing is in tiered storage, for which version 10 has a timeout.
    """
    body = request.decode()
    may_describe = _may_describe(node.access(request))

    when_ends_synced(
        request.reply,
        _partitions_by_end(node, body, may_describe),
        lambda errors: _list_offsets(node, request, body, errors, may_describe),
    )


def _may_describe(access: Access) -> MayDescribe:
    return partial(access.may, AclOperation.DESCRIBE, ResourceType.TOPIC)


def _partitions_by_end(node: Node, body: Any, may_describe: MayDescribe) -> Iterator[Partition]:
    """Yield the partitions of a request with a response that depends on their end.

    A follower asks for the log's end, which needs no sync.
    """
    if body.replica_id >= 0:
        return
    for topic in body.topics:
        if not may_describe(topic.name):
            continue
        for entry in topic.partitions:
            partition = node.partitions.get(topic.name, entry.partition_index)
            if partition is not None and entry.timestamp not in INDEPENDENT_OF_END:
                yield partition


def _list_offsets(
    node: Node, request: Request, body: Any, errors: Mapping[Partition, ErrorCode], may_describe: MayDescribe
) -> None:
    """Respond with the present offsets; `errors` has the partitions with a failed sync."""
    if request.version == 0:
        _respond_with_offsets_before(node, request, body, errors, may_describe)
        return
    listing = _Listing(node, request.version, body, errors, may_describe)

    def listed() -> None:
        if listing.searches:
            run_in_thread(node.search_thread, lambda: [_run(search) for search in listing.searches], searched)
        else:
            _respond_with_listed(request, listing.topics)

    def searched(results: Sequence[tuple[int, int] | ErrorCode]) -> None:
        with close_unless_responded(request.reply):
            for search, result in zip(listing.searches, results, strict=True):
                search.response.update(_result(search, result))
            _respond_with_listed(request, listing.topics)

    request.in_slices(listing.run(), listed)


def _respond_with_listed(request: Request, topics: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
    """Send the response, by hand: kio needs ten times as long for very many partitions."""
    tags = tags_of(request)
    flexible = tags != b""

    def elements() -> Iterator[Element]:
        for name, partitions in topics:
            buffer = bytearray()
            append_string(buffer, name, flexible=flexible)
            append_count(buffer, len(partitions), flexible=flexible)
            for entry in partitions:
                timestamp_ms, offset = entry.get("timestamp", NO_TIMESTAMP), entry.get("offset", NO_OFFSET)
                buffer += _ROW.pack(entry["partition_index"], entry["error_code"], timestamp_ms, offset)
                if request.version >= EPOCH_FROM:
                    buffer += INT32.pack(entry.get("leader_epoch", NO_LEADER_EPOCH))
                buffer += tags
                yield b"", 1
            yield bytes(buffer + tags), 1

    head = _NO_THROTTLE if request.version >= THROTTLE_FROM else b""
    respond_in_slices(request, head, elements(), tags)


def _epoch_error(partition: Partition, current_leader_epoch: int) -> ErrorCode:
    """Compare a request's `current_leader_epoch` with the partition's (Kafka's Partition.checkCurrentLeaderEpoch)."""
    if current_leader_epoch in (NO_LEADER_EPOCH, partition.leader_epoch):
        return ErrorCode.none
    is_older = current_leader_epoch < partition.leader_epoch
    return ErrorCode.fenced_leader_epoch if is_older else ErrorCode.unknown_leader_epoch


def _end_error(partition: Partition, errors: Mapping[Partition, ErrorCode], timestamp: int) -> ErrorCode:
    """Return the error of a partition with an unknown end, if this kind depends on it."""
    return ErrorCode.none if timestamp in INDEPENDENT_OF_END else errors.get(partition, ErrorCode.none)


class _Listing:
    """Results of one request; a search by time is added to `searches` and fills in its result later."""

    def __init__(
        self,
        node: Node,
        version: int,
        body: Any,
        errors: Mapping[Partition, ErrorCode],
        may_describe: MayDescribe,
    ) -> None:
        self.searches: list[_Search] = []
        self.topics: list[tuple[str, list[dict[str, Any]]]] = []
        self._body = body
        self._node = node
        self._errors = errors
        self._may_describe = may_describe
        self._version = version
        self._isolation_level = getattr(body, "isolation_level", READ_UNCOMMITTED)
        self._times_named = Counter(
            (topic.name, entry.partition_index) for topic in body.topics for entry in topic.partitions
        )

    def run(self) -> Iterator[int]:
        """List the partitions in slices, each once; a repeated partition has an error."""
        for topic in self._body.topics:
            by_index = {entry.partition_index: entry for entry in topic.partitions}
            partitions: list[dict[str, Any]] = []
            self.topics.append((topic.name, partitions))
            is_allowed = self._may_describe(topic.name)
            for entry in by_index.values():
                if is_allowed:
                    partitions.append(self._offset(topic.name, entry))
                else:
                    partitions.append(_unauthorized(entry))
                yield WORK_PER_PARTITION

    def _offset(self, topic: str, entry: Any) -> dict[str, Any]:
        partition = self._node.partitions.get(topic, entry.partition_index)
        response: dict[str, Any] = {"partition_index": entry.partition_index}
        response["error_code"] = self._error(topic, partition, entry)
        if response["error_code"]:
            return response
        assert partition is not None
        visible = partition.log.visible
        is_committed = self._isolation_level == READ_COMMITTED
        offset_end = visible.last_stable_offset if is_committed else visible.high_watermark
        if self._body.replica_id >= 0:
            offset_end = partition.log.log_end_offset
        if entry.timestamp == LATEST:
            response.update(timestamp=-1, offset=offset_end, leader_epoch=partition.leader_epoch)
        elif entry.timestamp in (EARLIEST, EARLIEST_LOCAL):
            response.update(_at(partition, -1, partition.log.log_start_offset))
        elif entry.timestamp == LATEST_TIERED:
            response.update(_at(partition, *NOT_FOUND))
        elif entry.timestamp == MAX_TIMESTAMP:
            self.searches.append(_Search(response, offset_end, visible.search_max_timestamp(), partition))
        else:
            self.searches.append(_Search(response, offset_end, visible.search_timestamp(entry.timestamp), partition))
        return response

    def _error(self, topic: str, partition: Partition | None, entry: Any) -> ErrorCode:
        """Check in Kafka's order (KafkaApis.handleListOffsetRequest, ReplicaManager.fetchOffset)."""
        if self._isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            return ErrorCode.unknown_server_error
        if self._times_named[topic, entry.partition_index] > 1:
            return ErrorCode.invalid_request
        if partition is None:
            return self._node.partitions.error_of_missing(topic, entry.partition_index)
        if entry.timestamp < next(kind for version, kind in EARLIEST_KIND_FROM if self._version >= version):
            return ErrorCode.unsupported_version
        return (
            _epoch_error(partition, getattr(entry, "current_leader_epoch", NO_LEADER_EPOCH))
            or _end_error(partition, self._errors, entry.timestamp)
            or self._availability(partition, entry.timestamp)
        )

    def _availability(self, partition: Partition, timestamp: int) -> ErrorCode:
        """Return OFFSET_NOT_AVAILABLE for an end that a new leader does not know yet (KIP-207)."""
        is_known = partition.replica is None or partition.replica.is_end_known or timestamp in INDEPENDENT_OF_END
        return ErrorCode.none if is_known or self._body.replica_id >= 0 else ErrorCode.offset_not_available


def _unauthorized(entry: Any) -> dict[str, Any]:
    return {"partition_index": entry.partition_index, "error_code": ErrorCode.topic_authorization_failed}


def _respond_with_offsets_before(
    node: Node, request: Request, body: Any, errors: Mapping[Partition, ErrorCode], may_describe: MayDescribe
) -> None:
    """Respond to version 0: segments' first offsets, latest first (fetchOffsetsForTimestamp in Kafka 3)."""

    def elements() -> Iterator[Element]:
        for topic in body.topics:
            buffer = bytearray()
            append_string(buffer, topic.name, flexible=False)
            append_count(buffer, len(topic.partitions), flexible=False)
            is_allowed = may_describe(topic.name)
            for entry in topic.partitions:
                if is_allowed:
                    response = _offsets_before(node, topic.name, entry, errors)
                else:
                    response = _unauthorized(entry)
                offsets = response.get("old_style_offsets", ())
                buffer += struct.pack(">ih", entry.partition_index, response["error_code"])
                append_count(buffer, len(offsets), flexible=False)
                buffer += struct.pack(f">{len(offsets)}q", *offsets)
                yield b"", WORK_PER_PARTITION + len(offsets)
            yield bytes(buffer), 1

    respond_in_slices(request, b"", elements(), b"")


def _offsets_before(node: Node, topic: str, entry: Any, errors: Mapping[Partition, ErrorCode]) -> dict[str, Any]:
    response = {"partition_index": entry.partition_index}
    partition = node.partitions.get(topic, entry.partition_index)
    if partition is None:
        return {**response, "error_code": node.partitions.error_of_missing(topic, entry.partition_index)}
    error_code = _end_error(partition, errors, entry.timestamp)
    if error_code:
        return {**response, "error_code": error_code}
    begins = partition.log.visible.segment_starts()
    if entry.timestamp == EARLIEST:
        candidates = [begins[0][0]]
    elif entry.timestamp == LATEST:
        candidates = [begin for begin, _max_timestamp_ms in begins] + [partition.log.high_watermark]
    else:
        candidates = [begin for begin, max_timestamp_ms in begins if 0 <= max_timestamp_ms <= entry.timestamp]
    latest_first = sorted(set(candidates), reverse=True)
    return {
        **response,
        "error_code": ErrorCode.none,
        "old_style_offsets": latest_first[: max(entry.max_num_offsets, 0)],
    }


def _run(search: _Search) -> tuple[int, int] | ErrorCode:
    """Run a search in the search thread."""
    try:
        return search.run() or NOT_FOUND
    except LogError as error:
        return error.error_code
    except OSError as error:
        # A file is missing where retention has just removed its segment; the client retries.
        logger.warning("%s could not be searched by time: %s", search.partition, error)
        return ErrorCode.kafka_storage_error


def _result(search: _Search, result: tuple[int, int] | ErrorCode) -> dict[str, Any]:
    if isinstance(result, ErrorCode):
        return {"error_code": result}
    timestamp_ms, offset = result
    return _at(search.partition, *((timestamp_ms, offset) if 0 <= offset < search.offset_end else NOT_FOUND))


def _at(partition: Partition, timestamp_ms: int, offset: int) -> dict[str, Any]:
    epoch = partition.log.epochs.epoch_at(offset) if offset >= 0 else NO_LEADER_EPOCH
    return {"timestamp": timestamp_ms, "offset": offset, "leader_epoch": epoch}


def handle_offset_for_leader_epoch(node: Node, request: Request) -> None:
    """Serve one OffsetForLeaderEpoch request.

    The last epoch ends at the log's end, as in Kafka, once everything below it is synced.
    """
    body = request.decode()
    access = node.access(request)
    sees_all = access.may_on_cluster(AclOperation.CLUSTER_ACTION)
    allowed = {topic.topic for topic in body.topics if sees_all or _may_describe(access)(topic.topic)}

    when_ends_synced(
        request.reply,
        _partitions_by_epoch(node, body, allowed),
        lambda errors: _respond_with_epoch_ends(node, request, body, errors, allowed),
    )


def _partitions_by_epoch(node: Node, body: Any, allowed: Set[str]) -> Iterator[Partition]:
    """Yield the partitions of a request for the end of their last epoch."""
    for topic in body.topics:
        if topic.topic not in allowed:
            continue
        for entry in topic.partitions:
            partition = node.partitions.get(topic.topic, entry.partition)
            if partition is not None and entry.leader_epoch == partition.log.epochs.latest:
                yield partition


def _respond_with_epoch_ends(
    node: Node, request: Request, body: Any, errors: Mapping[Partition, ErrorCode], allowed: Set[str]
) -> None:
    def epoch_end(topic: str, entry: Any) -> dict[str, Any]:
        if topic in allowed:
            partition = node.partitions.get(topic, entry.partition)
            if partition is not None:
                return _epoch_end(partition, entry, errors)
            return _no_epoch_end(entry, node.partitions.error_of_missing(topic, entry.partition))
        return _no_epoch_end(entry, ErrorCode.topic_authorization_failed)

    request.respond(
        topics=[
            {"topic": topic.topic, "partitions": [epoch_end(topic.topic, entry) for entry in topic.partitions]}
            for topic in body.topics
        ]
    )


def _no_epoch_end(entry: Any, error_code: ErrorCode) -> dict[str, Any]:
    return {
        "partition": entry.partition,
        "error_code": error_code,
        "leader_epoch": NO_LEADER_EPOCH,
        "end_offset": NO_OFFSET,
    }


def _epoch_end(partition: Partition, entry: Any, errors: Mapping[Partition, ErrorCode]) -> dict[str, Any]:
    error_code, end = ErrorCode.none, UNKNOWN_END
    if _epoch_error(partition, entry.current_leader_epoch):
        error_code = _epoch_error(partition, entry.current_leader_epoch)
    elif partition in errors:
        error_code = errors[partition]
    elif entry.leader_epoch == partition.log.epochs.latest:
        end = EpochEnd(entry.leader_epoch, partition.log.high_watermark)
    else:
        end = partition.log.end_of_epoch(entry.leader_epoch)
    return {
        "partition": entry.partition,
        "error_code": error_code,
        "leader_epoch": end.epoch,
        "end_offset": end.end_offset,
    }


HANDLERS = {
    apis.LIST_OFFSETS: handle_list_offsets,
    apis.OFFSET_FOR_LEADER_EPOCH: handle_offset_for_leader_epoch,
}
