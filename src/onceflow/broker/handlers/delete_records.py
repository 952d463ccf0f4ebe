"""DeleteRecords: moves a log's start, possibly into the middle of a segment."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Set
from typing import Any

from onceflow.broker.network.request import Request, close_unless_responded
from onceflow.broker.node import Node
from onceflow.broker.storage.partitions import Partition, when_ends_synced
from onceflow.broker.topics.topics import INTERNAL_TOPICS
from onceflow.wire import apis
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

HIGH_WATERMARK = -1
NO_OFFSET = -1


def handle_delete_records(node: Node, request: Request) -> None:
    """Serve one DeleteRecords request; the response waits until the new log starts are durable.

    An offset is compared with the log's end only when everything appended before the request is synced.
    """
    body = request.decode()
    access = node.access(request)
    allowed = {topic.name for topic in body.topics if access.may(AclOperation.DELETE, ResourceType.TOPIC, topic.name)}

    when_ends_synced(
        request.reply,
        _partitions_by_end(node, body, allowed),
        lambda errors: _delete_records(node, request, body, errors, allowed),
    )


def _partitions_by_end(node: Node, body: Any, allowed: Set[str]) -> Iterator[Partition]:
    """Yield the partitions of a request with a new start that depends on unsynced records."""
    for topic in body.topics:
        if topic.name not in allowed:
            continue
        for entry in topic.partitions:
            partition = node.partitions.get(topic.name, entry.partition_index)
            if partition is not None and not _is_synced(partition, entry.offset):
                yield partition


def _is_synced(partition: Partition, offset: int) -> bool:
    return 0 <= offset <= partition.log.high_watermark


def _delete_records(
    node: Node, request: Request, body: Any, errors: Mapping[Partition, ErrorCode], allowed: Set[str]
) -> None:
    log_starts: dict[Partition, int] = {}
    topics = [
        {
            "name": topic.name,
            "partitions": [
                _decide(node, topic.name, entry, log_starts, errors)
                if topic.name in allowed
                else _result(entry, ErrorCode.topic_authorization_failed)
                for entry in topic.partitions
            ],
        }
        for topic in body.topics
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
                for response in topic["partitions"]:
                    _complete(node.partitions.get(topic["name"], response["partition_index"]), response, error_code)
            request.respond(topics=topics)

    deletion.add_done_callback(deleted)


def _decide(
    node: Node, topic: str, entry: Any, log_starts: dict[Partition, int], errors: Mapping[Partition, ErrorCode]
) -> dict[str, Any]:
    """Return one partition's part of the response, without its low watermark if there is no error."""
    partition = node.partitions.get(topic, entry.partition_index)
    if partition is None:
        return _result(entry, node.partitions.error_of_missing(topic, entry.partition_index))
    error_code = _refusal(topic, partition, entry.offset, errors)
    if not error_code:
        wanted = partition.log.high_watermark if entry.offset == HIGH_WATERMARK else entry.offset
        log_starts[partition] = max(wanted, log_starts.get(partition, 0))
    return _result(entry, error_code)


def _result(entry: Any, error_code: ErrorCode) -> dict[str, Any]:
    return {"partition_index": entry.partition_index, "low_watermark": NO_OFFSET, "error_code": error_code}


def _refusal(topic: str, partition: Partition, offset: int, errors: Mapping[Partition, ErrorCode]) -> ErrorCode:
    if topic in INTERNAL_TOPICS:
        return ErrorCode.invalid_topic_exception
    if not partition.log.config.cleanup_delete:
        return ErrorCode.policy_violation
    if partition in errors and not _is_synced(partition, offset):
        return errors[partition]
    if not HIGH_WATERMARK <= offset <= partition.log.high_watermark:
        return ErrorCode.offset_out_of_range
    return ErrorCode.none


def _complete(partition: Partition | None, response: dict[str, Any], error_code: ErrorCode) -> None:
    if response["error_code"]:
        return
    if partition is None:
        response["error_code"] = ErrorCode.unknown_topic_or_partition
    elif error_code:
        response["error_code"] = error_code
    else:
        response["low_watermark"] = partition.log.log_start_offset


HANDLERS = {
    apis.DELETE_RECORDS: handle_delete_records,
}
