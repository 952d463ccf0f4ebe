"""ListOffsets, and InitProducerId for idempotent producers."""

import logging
from typing import Any

from onceflow.broker.node import Node
from onceflow.broker.request import Request
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.log.errors import LogError
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
NOT_FOUND = (-1, -1)
NO_PRODUCER_ID = -1


def handle_list_offsets(node: Node, request: Request) -> None:
    """Serve one ListOffsets request; without transactions the last stable offset is the high watermark."""
    asked = request.decode()
    request.answer(
        topics=[
            {"name": topic.name, "partitions": [_offset(node, topic.name, each) for each in topic.partitions]}
            for topic in asked.topics
        ]
    )


def _offset(node: Node, topic: str, asked: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"partition_index": asked.partition_index, "error_code": ErrorCode.none}
    partition = node.partitions.get(topic, asked.partition_index)
    if partition is None:
        return {**answer, "error_code": ErrorCode.unknown_topic_or_partition}
    if getattr(asked, "current_leader_epoch", -1) > LEADER_EPOCH:
        return {**answer, "error_code": ErrorCode.unknown_leader_epoch}
    log = partition.log
    try:
        if asked.timestamp == LATEST:
            timestamp_ms, offset = -1, log.high_watermark
        elif asked.timestamp == EARLIEST:
            timestamp_ms, offset = -1, log.log_start_offset
        elif asked.timestamp == MAX_TIMESTAMP:
            timestamp_ms, offset = log.max_timestamp() or NOT_FOUND
        elif asked.timestamp >= 0:
            timestamp_ms, offset = log.offset_for_timestamp(asked.timestamp) or NOT_FOUND
        else:
            return {**answer, "error_code": ErrorCode.unsupported_version}
    except LogError as error:
        return {**answer, "error_code": error.error_code}
    return {**answer, "timestamp": timestamp_ms, "offset": offset, "leader_epoch": LEADER_EPOCH if offset >= 0 else -1}


def handle_init_producer_id(node: Node, request: Request) -> None:
    """Serve one InitProducerId request."""
    asked = request.decode()
    if asked.transactional_id is not None:
        # No transactions yet. Of Kafka's codes this is the one that no client takes for a passing or a rights problem.
        logger.warning("transactional.id %r is refused: this broker has no transactions", asked.transactional_id)
        request.answer(error_code=ErrorCode.unsupported_version, producer_id=NO_PRODUCER_ID, producer_epoch=-1)
        return

    def answer(error_code: ErrorCode, producer_id: int) -> None:
        epoch = 0 if error_code == ErrorCode.none else -1
        request.answer(error_code=error_code, producer_id=producer_id, producer_epoch=epoch)

    node.next_producer_id(answer)


HANDLERS = {
    apis.LIST_OFFSETS: handle_list_offsets,
    apis.INIT_PRODUCER_ID: handle_init_producer_id,
}
