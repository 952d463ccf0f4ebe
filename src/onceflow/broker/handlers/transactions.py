"""The transactional APIs: requests of any version become the coordinator's values, its answers become responses."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from onceflow.broker.groups.records import OffsetCommit
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS
from onceflow.broker.transactions.coordinator import InitRequest, ProducerRequest
from onceflow.broker.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Event,
    TopicPartition,
)
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

FENCED_FROM_INIT = 4
FENCED_FROM = 2
"""From these versions on clients know PRODUCER_FENCED; before, INVALID_PRODUCER_EPOCH says the same."""
GROUP_OFFSETS = (GROUP_OFFSETS_TOPIC, 0)


def handle_init_producer_id(node: Node, request: Request) -> None:
    """Serve one InitProducerId request, of a transactional producer or an idempotent one."""
    asked = request.decode()

    def answer(error_code: ErrorCode, producer_id: int, producer_epoch: int) -> None:
        if request.version < FENCED_FROM_INIT:
            error_code = _for_old_clients(error_code)
        request.respond(error_code=error_code, producer_id=producer_id, producer_epoch=producer_epoch)

    if asked.transactional_id is None:
        node.metadata.next_producer_id(
            lambda code, producer_id: answer(code, producer_id, NO_PRODUCER_EPOCH if code else 0)
        )
        return
    init = InitRequest(
        asked.transactional_id,
        _milliseconds(asked.transaction_timeout),
        getattr(asked, "producer_id", NO_PRODUCER_ID),
        getattr(asked, "producer_epoch", NO_PRODUCER_EPOCH),
    )
    node.transactions.init(init, answer)


def _for_old_clients(error_code: ErrorCode) -> ErrorCode:
    return ErrorCode.invalid_producer_epoch if error_code is ErrorCode.producer_fenced else error_code


def _milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def handle_add_partitions(node: Node, request: Request) -> None:
    """Serve one AddPartitionsToTxn request: all partitions are added, or none."""
    asked = request.decode()
    topics = asked.v3_and_below_topics
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    producer = ProducerRequest(
        asked.v3_and_below_transactional_id, asked.v3_and_below_producer_id, asked.v3_and_below_producer_epoch
    )
    refusals = {each: code for each in partitions if (code := _add_refusal(node, each))}

    def answer(error_codes: Callable[[TopicPartition], ErrorCode]) -> None:
        request.respond(
            results_by_topic_v3_and_below=[
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": index, "partition_error_code": error_codes((topic.name, index))}
                        for index in topic.partitions
                    ],
                }
                for topic in topics
            ]
        )

    def settled(error_code: ErrorCode) -> None:
        code = _for_old_clients(error_code) if request.version < FENCED_FROM else error_code
        answer(lambda _partition: code)

    if refusals:
        answer(lambda partition: refusals.get(partition, ErrorCode.operation_not_attempted))
    else:
        node.transactions.add(producer, frozenset(partitions), settled)


def _add_refusal(node: Node, partition: TopicPartition) -> ErrorCode:
    if partition[0] in INTERNAL_TOPICS:
        return ErrorCode.topic_authorization_failed
    if node.partitions.get(*partition) is None:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def _producer(asked: Any) -> ProducerRequest:
    return ProducerRequest(asked.transactional_id, asked.producer_id, asked.producer_epoch)


def handle_add_offsets(node: Node, request: Request) -> None:
    """Serve one AddOffsetsToTxn request: the groups' partition is one of the transaction's from now on."""
    asked = request.decode()
    node.transactions.add(_producer(asked), frozenset({GROUP_OFFSETS}), _single_response(request))


def handle_end(node: Node, request: Request) -> None:
    """Serve one EndTxn request."""
    asked = request.decode()
    event = Event.COMMIT if asked.committed else Event.ABORT
    node.transactions.end(_producer(asked), event, _single_response(request))


def _single_response(request: Request) -> Callable[[ErrorCode], None]:
    def answer(error_code: ErrorCode) -> None:
        code = _for_old_clients(error_code) if request.version < FENCED_FROM else error_code
        request.respond(error_code=code)

    return answer


def handle_offset_commit(node: Node, request: Request) -> None:
    """Serve one TxnOffsetCommit request: its offsets are the group's once the transaction commits."""
    asked = request.decode()
    refusals: dict[TopicPartition, ErrorCode] = {}
    records = []
    for topic in asked.topics:
        for each in topic.partitions:
            partition = (topic.name, each.partition_index)
            refusals[partition] = _offset_refusal(node, topic.name, each)
            if not refusals[partition]:
                records.append(_offset_record(node, asked.group_id, topic.name, each))

    def answer(error_code: ErrorCode) -> None:
        request.respond(
            topics=[
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": each.partition_index,
                            "error_code": refusals[topic.name, each.partition_index] or error_code,
                        }
                        for each in topic.partitions
                    ],
                }
                for topic in asked.topics
            ]
        )

    refusal = _offset_commit_refusal(node, asked) if records else ErrorCode.none
    if refusal:
        # Who is told that it is fenced must not find it otherwise after a crash.
        node.transactions.when_synced(lambda error_code: answer(error_code or refusal))
    elif not records:
        answer(refusal)
    else:
        node.group_requests.record_transactional(asked.producer_id, asked.producer_epoch, records, answer)


def _offset_refusal(node: Node, topic: str, asked: Any) -> ErrorCode:
    if node.partitions.get(topic, asked.partition_index) is None:
        return ErrorCode.unknown_topic_or_partition
    if len((asked.committed_metadata or "").encode()) > node.config.offset_metadata_bytes_max:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def _offset_record(node: Node, group_id: str, topic: str, asked: Any) -> OffsetCommit:
    return OffsetCommit(
        group_id,
        topic,
        asked.partition_index,
        asked.committed_offset,
        getattr(asked, "committed_leader_epoch", -1),
        asked.committed_metadata or "",
        node.clock.now_ms(),
    )


def _offset_commit_refusal(node: Node, asked: Any) -> ErrorCode:
    if not asked.group_id:
        return ErrorCode.invalid_group_id
    refusal = node.transactions.check_produce(
        asked.producer_id, asked.producer_epoch, asked.transactional_id, *GROUP_OFFSETS
    )
    if refusal is ErrorCode.not_enough_replicas:
        # As Kafka's group coordinator says it.
        return ErrorCode.coordinator_not_available
    return refusal or node.groups.transactional_commit_error(
        asked.group_id,
        getattr(asked, "member_id", ""),
        getattr(asked, "generation_id", -1),
        getattr(asked, "group_instance_id", None),
    )


HANDLERS = {
    apis.INIT_PRODUCER_ID: handle_init_producer_id,
    apis.ADD_PARTITIONS_TO_TXN: handle_add_partitions,
    apis.ADD_OFFSETS_TO_TXN: handle_add_offsets,
    apis.END_TXN: handle_end,
    apis.TXN_OFFSET_COMMIT: handle_offset_commit,
}
