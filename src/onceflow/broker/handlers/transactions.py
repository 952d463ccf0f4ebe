"""Transactional APIs: requests of any version become the coordinator's values, its results become responses."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from onceflow.broker.handlers.group_offsets import commit_record, offset_error
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS
from onceflow.broker.transactions.coordinator import InitRequest, ProducerRequest
from onceflow.broker.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Event,
)
from onceflow.wire import TopicPartition, apis
from onceflow.wire.errors import ErrorCode

FENCED_FROM_INIT = 4
FENCED_FROM = 2
"""First versions with PRODUCER_FENCED; earlier ones get INVALID_PRODUCER_EPOCH instead."""
GROUP_OFFSETS = (GROUP_OFFSETS_TOPIC, 0)


def handle_init_producer_id(node: Node, request: Request) -> None:
    """Serve one InitProducerId request of a transactional or an idempotent producer."""
    body = request.decode()

    def respond(error_code: ErrorCode, producer_id: int, producer_epoch: int) -> None:
        if request.version < FENCED_FROM_INIT:
            error_code = _for_old_clients(error_code)
        request.respond(error_code=error_code, producer_id=producer_id, producer_epoch=producer_epoch)

    if body.transactional_id is None:
        node.metadata.next_producer_id(
            lambda code, producer_id: respond(code, producer_id, NO_PRODUCER_EPOCH if code else 0)
        )
        return
    init = InitRequest(
        body.transactional_id,
        _milliseconds(body.transaction_timeout),
        getattr(body, "producer_id", NO_PRODUCER_ID),
        getattr(body, "producer_epoch", NO_PRODUCER_EPOCH),
    )
    node.transactions.init(init, respond)


def _for_old_clients(error_code: ErrorCode) -> ErrorCode:
    return ErrorCode.invalid_producer_epoch if error_code is ErrorCode.producer_fenced else error_code


def _milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def handle_add_partitions(node: Node, request: Request) -> None:
    """Serve one AddPartitionsToTxn request: all partitions are added, or none."""
    body = request.decode()
    topics = body.v3_and_below_topics
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    producer = ProducerRequest(
        body.v3_and_below_transactional_id, body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
    )
    refusals = {partition: code for partition in partitions if (code := _add_refusal(node, partition))}

    def respond(error_codes: Callable[[TopicPartition], ErrorCode]) -> None:
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
        respond(lambda _partition: code)

    if refusals:
        respond(lambda partition: refusals.get(partition, ErrorCode.operation_not_attempted))
    else:
        node.transactions.add(producer, frozenset(partitions), settled)


def _add_refusal(node: Node, partition: TopicPartition) -> ErrorCode:
    if partition[0] in INTERNAL_TOPICS:
        return ErrorCode.topic_authorization_failed
    if node.partitions.get(*partition) is None:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def _producer(body: Any) -> ProducerRequest:
    return ProducerRequest(body.transactional_id, body.producer_id, body.producer_epoch)


def handle_add_offsets(node: Node, request: Request) -> None:
    """Serve one AddOffsetsToTxn request: add the groups' partition to the transaction."""
    body = request.decode()
    node.transactions.add(_producer(body), frozenset({GROUP_OFFSETS}), _single_response(request))


def handle_end(node: Node, request: Request) -> None:
    """Serve one EndTxn request."""
    body = request.decode()
    event = Event.COMMIT if body.committed else Event.ABORT
    node.transactions.end(_producer(body), event, _single_response(request))


def _single_response(request: Request) -> Callable[[ErrorCode], None]:
    def respond(error_code: ErrorCode) -> None:
        code = _for_old_clients(error_code) if request.version < FENCED_FROM else error_code
        request.respond(error_code=code)

    return respond


def handle_offset_commit(node: Node, request: Request) -> None:
    """Serve one TxnOffsetCommit request: its offsets are the group's once the transaction commits."""
    body = request.decode()
    refusals: dict[TopicPartition, ErrorCode] = {}
    records = []
    for topic in body.topics:
        for entry in topic.partitions:
            partition = (topic.name, entry.partition_index)
            refusals[partition] = offset_error(node, *partition, entry.committed_metadata)
            if not refusals[partition]:
                records.append(commit_record(node, body.group_id, topic.name, entry))

    def respond(error_code: ErrorCode) -> None:
        request.respond(
            topics=[
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": entry.partition_index,
                            "error_code": refusals[topic.name, entry.partition_index] or error_code,
                        }
                        for entry in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
        )

    refusal = _offset_commit_refusal(node, body) if records else ErrorCode.none
    if refusal:
        # A producer that was fenced in a response must remain fenced after a crash.
        node.transactions.when_synced(lambda error_code: respond(error_code or refusal))
    elif not records:
        respond(refusal)
    else:
        node.group_requests.record_transactional(body.producer_id, body.producer_epoch, records, respond)


def _offset_commit_refusal(node: Node, body: Any) -> ErrorCode:
    if not body.group_id:
        return ErrorCode.invalid_group_id
    refusal = node.transactions.check_produce(
        body.producer_id, body.producer_epoch, body.transactional_id, *GROUP_OFFSETS
    )
    if refusal is ErrorCode.not_enough_replicas:
        # Kafka's group coordinator uses this code.
        return ErrorCode.coordinator_not_available
    return refusal or node.groups.transactional_commit_error(
        body.group_id,
        getattr(body, "member_id", ""),
        getattr(body, "generation_id", -1),
        getattr(body, "group_instance_id", None),
    )


HANDLERS = {
    apis.INIT_PRODUCER_ID: handle_init_producer_id,
    apis.ADD_PARTITIONS_TO_TXN: handle_add_partitions,
    apis.ADD_OFFSETS_TO_TXN: handle_add_offsets,
    apis.END_TXN: handle_end,
    apis.TXN_OFFSET_COMMIT: handle_offset_commit,
}
