"""ListOffsets and OffsetForLeaderEpoch.

The ends of a log are known at once. A search by time reads batches and unpacks them, so it runs in a thread, one
request at a time, while the loop serves the others; its answer follows when every partition's search is over.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from onceflow.broker.node import Node
from onceflow.broker.partitions import Partition
from onceflow.broker.request import Request, closed_if_unanswered
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.log.errors import LogError
from onceflow.log.time_search import TimeSearch
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.wire.fetch import READ_COMMITTED

logger = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
NOT_FOUND = (-1, -1)
NO_LEADER_EPOCH = -1
NO_OFFSET = -1


class _Search(NamedTuple):
    """A search by time whose result goes into `answer`, if it lies before `offset_end`."""

    answer: dict[str, Any]
    offset_end: int
    run: TimeSearch
    partition: Partition


def handle_list_offsets(node: Node, request: Request) -> None:
    """Serve one ListOffsets request; who reads committed data is told of what lies before the last stable offset."""
    asked = request.decode()
    if request.version == 0:
        _answer_offsets_before(node, request, asked)
        return
    is_committed = getattr(asked, "isolation_level", None) == READ_COMMITTED
    searches: list[_Search] = []
    topics = [
        {
            "name": topic.name,
            "partitions": [
                _offset(node.partitions.get(topic.name, each.partition_index), each, is_committed, searches)
                for each in topic.partitions
            ],
        }
        for topic in asked.topics
    ]
    if not searches:
        request.answer(topics=topics)
        return

    def searched(results: Sequence[tuple[int, int] | ErrorCode]) -> None:
        with closed_if_unanswered(request.reply):
            for search, result in zip(searches, results, strict=True):
                search.answer.update(_found(search, result))
            request.answer(topics=topics)

    node.in_search_thread(lambda: [_run(search) for search in searches], searched)


def _answer_offsets_before(node: Node, request: Request, asked: Any) -> None:
    """Version 0: segments' first offsets, the latest first (Kafka 3's fetchOffsetsForTimestamp of old clients)."""
    topics = [
        {
            "name": topic.name,
            "partitions": [
                _offsets_before(node.partitions.get(topic.name, each.partition_index), each)
                for each in topic.partitions
            ],
        }
        for topic in asked.topics
    ]
    request.answer(topics=topics)


def _offsets_before(partition: Partition | None, asked: Any) -> dict[str, Any]:
    answer = {"partition_index": asked.partition_index}
    if partition is None:
        return {**answer, "error_code": ErrorCode.unknown_topic_or_partition}
    begins = partition.log.segment_begins()
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


def _offset(partition: Partition | None, asked: Any, is_committed: bool, searches: list[_Search]) -> dict[str, Any]:
    """The partition's answer; a search by time is added to `searches` and fills the answer later."""
    answer: dict[str, Any] = {"partition_index": asked.partition_index, "error_code": ErrorCode.none}
    if partition is None:
        return {**answer, "error_code": ErrorCode.unknown_topic_or_partition}
    if getattr(asked, "current_leader_epoch", NO_LEADER_EPOCH) > LEADER_EPOCH:
        return {**answer, "error_code": ErrorCode.unknown_leader_epoch}
    log = partition.log
    offset_end = log.last_stable_offset if is_committed else log.high_watermark
    if asked.timestamp == LATEST:
        answer.update(_at(-1, offset_end))
    elif asked.timestamp == EARLIEST:
        answer.update(_at(-1, log.log_start_offset))
    elif asked.timestamp == MAX_TIMESTAMP:
        searches.append(_Search(answer, offset_end, log.search_max_timestamp(), partition))
    elif asked.timestamp >= 0:
        searches.append(_Search(answer, offset_end, log.search_timestamp(asked.timestamp), partition))
    else:
        answer["error_code"] = ErrorCode.unsupported_version
    return answer


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

    Kafka answers with the log's end. Here it is the high watermark, behind which nothing is shown to anybody.
    """
    asked = request.decode()
    request.answer(
        topics=[
            {
                "topic": topic.topic,
                "partitions": [
                    _epoch_end(node.partitions.get(topic.topic, each.partition), each) for each in topic.partitions
                ],
            }
            for topic in asked.topics
        ]
    )


def _epoch_end(partition: Partition | None, asked: Any) -> dict[str, Any]:
    error_code, leader_epoch, end_offset = ErrorCode.none, NO_LEADER_EPOCH, NO_OFFSET
    if partition is None:
        error_code = ErrorCode.unknown_topic_or_partition
    elif asked.current_leader_epoch > LEADER_EPOCH:
        error_code = ErrorCode.unknown_leader_epoch
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
