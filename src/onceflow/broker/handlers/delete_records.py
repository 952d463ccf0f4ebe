"""DeleteRecords: a log begins later than it did, in the middle of a segment if need be."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from onceflow.broker.network.request import Request, close_unless_responded
from onceflow.broker.node import Node
from onceflow.broker.storage.partitions import Partition, when_ends_synced
from onceflow.broker.topics.topics import INTERNAL_TOPICS
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

HIGH_WATERMARK = -1
NO_OFFSET = -1


def handle_delete_records(node: Node, request: Request) -> None:
    """Serve one DeleteRecords request; answered when the new beginnings are durable.

    An offset is compared with the log's end only when everything appended before the request is synced.
    """
    asked = request.decode()

    when_ends_synced(
        request.reply, _partitions_by_end(node, asked), lambda errors: _delete_records(node, request, asked, errors)
    )


def _partitions_by_end(node: Node, asked: Any) -> Iterator[Partition]:
    """The partitions of a request whose new start depends on what is not synced yet."""
    for topic in asked.topics:
        for each in topic.partitions:
            partition = node.partitions.get(topic.name, each.partition_index)
            if partition is not None and not _is_synced(partition, each.offset):
                yield partition


def _is_synced(partition: Partition, offset: int) -> bool:
    return 0 <= offset <= partition.log.high_watermark


def _delete_records(node: Node, request: Request, asked: Any, errors: Mapping[Partition, ErrorCode]) -> None:
    log_starts: dict[Partition, int] = {}
    topics = [
        {
            "name": topic.name,
            "partitions": [_decide(node, topic.name, each, log_starts, errors) for each in topic.partitions],
        }
        for topic in asked.topics
    ]
    if not log_starts:
        request.respond(topics=topics)
        return

    deletion = asyncio.get_running_loop().create_task(node.housekeeping.delete_records(log_starts))

    def deleted(finished: asyncio.Task[None]) -> None:
        with close_unless_responded(request.reply):
            error_code = ErrorCode.none
            error = None if finished.cancelled() else finished.exception()
            if finished.cancelled() or error is not None:
                logger.error("records could not be deleted: %r", error)
                error_code = ErrorCode.kafka_storage_error
            for topic in topics:
                for answer in topic["partitions"]:
                    _complete(node.partitions.get(topic["name"], answer["partition_index"]), answer, error_code)
            request.respond(topics=topics)

    deletion.add_done_callback(deleted)


def _decide(
    node: Node, topic: str, asked: Any, log_starts: dict[Partition, int], errors: Mapping[Partition, ErrorCode]
) -> dict[str, Any]:
    """The answer for one partition, its low watermark still to come where there is no error."""
    partition = node.partitions.get(topic, asked.partition_index)
    error_code = _refusal(topic, partition, asked.offset, errors)
    if not error_code:
        assert partition is not None
        wanted = partition.log.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
        log_starts[partition] = max(wanted, log_starts.get(partition, 0))
    return {"partition_index": asked.partition_index, "low_watermark": NO_OFFSET, "error_code": error_code}


def _refusal(topic: str, partition: Partition | None, offset: int, errors: Mapping[Partition, ErrorCode]) -> ErrorCode:
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    if topic in INTERNAL_TOPICS:
        return ErrorCode.invalid_topic_exception
    if not partition.log.config.cleanup_delete:
        return ErrorCode.policy_violation
    if partition in errors and not _is_synced(partition, offset):
        return errors[partition]
    if not HIGH_WATERMARK <= offset <= partition.log.high_watermark:
        return ErrorCode.offset_out_of_range
    return ErrorCode.none


def _complete(partition: Partition | None, answer: dict[str, Any], error_code: ErrorCode) -> None:
    if answer["error_code"]:
        return
    if partition is None:
        answer["error_code"] = ErrorCode.unknown_topic_or_partition
    elif error_code:
        answer["error_code"] = error_code
    else:
        answer["low_watermark"] = partition.log.log_start_offset


HANDLERS = {
    apis.DELETE_RECORDS: handle_delete_records,
}
