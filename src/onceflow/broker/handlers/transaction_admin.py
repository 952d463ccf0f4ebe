"""Administrative transaction APIs: WriteTxnMarkers, DescribeProducers, DescribeTransactions, ListTransactions."""

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from onceflow.broker.handlers.sliced_responses import Element, Send, encoded, once_durable, respond_in_slices
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import Access
from onceflow.broker.storage.partitions import Partition
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS, is_legal_name
from onceflow.broker.transactions.participants import Respond, Syncs
from onceflow.broker.transactions.transaction import Transaction, TransactionState
from onceflow.log.errors import LogError
from onceflow.log.producers import ProducerState
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition, apis
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.errors import ErrorCode
from onceflow.wire.markers import ProducerMarker
from onceflow.wire.primitives import INT16, INT32, INT64, append_count, append_string

STATES_BY_NAME = {state.value: state for state in TransactionState}
NO_THROTTLE = INT32.pack(0)
NO_TAGS = b"\x00"
"""Tags of the sliced responses here, which are flexible in all versions."""
WORK_PER_LISTED = 3
WORK_PER_DESCRIBED = 10

_PRODUCER = struct.Struct(">qiiqiqx")
"""DescribeProducersResponse's ProducerState, with the same field order as ours; the last byte: no tags."""


def handle_write_markers(node: Node, request: Request) -> None:
    """Serve one WriteTxnMarkers request: a coordinator ends a transaction, or an admin aborts it in one partition.

    In a cluster the marker is written, as in Kafka. The coordinator of a single broker knows every open transaction, so
    it aborts the whole; without an open transaction the marker is written.
    """
    body = request.decode()
    results = [
        (marker, {(topic.name, index): ErrorCode.none for topic in marker.topics for index in topic.partition_indexes})
        for marker in body.markers
    ]

    def respond(_error_code: ErrorCode) -> None:
        request.respond(markers=[_marker_response(marker, codes) for marker, codes in results])

    syncs = Syncs(respond)
    for marker, codes in results:
        producer = ProducerMarker(
            marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch
        )
        for at in codes:
            _write_marker(node, producer, at, syncs.expect(partial(codes.__setitem__, at)))
    syncs.settle()


def _write_marker(node: Node, marker: ProducerMarker, place: TopicPartition, respond: Respond) -> None:
    partition = node.partitions.get(*place)
    writable_internal = () if node.cluster is None else (GROUP_OFFSETS_TOPIC,)
    if partition is None or (place[0] in INTERNAL_TOPICS and place[0] not in writable_internal):
        respond(node.partitions.error_of_missing(*place))
    elif node.cluster is not None or not node.transactions.take_marker(marker, place, respond):
        try:
            node.participants.write(marker, partition, respond, by_client=True)
        except LogError as error:
            respond(error.error_code)


def refuse_write_markers(request: Request, error_code: ErrorCode, _message: str | None) -> None:
    """Refuse a WriteTxnMarkers request, with the error for each of its partitions."""
    request.respond(
        markers=[
            _marker_response(
                marker,
                {(topic.name, index): error_code for topic in marker.topics for index in topic.partition_indexes},
            )
            for marker in request.decode().markers
        ]
    )


def _marker_response(marker: Any, codes: dict[TopicPartition, ErrorCode]) -> dict[str, Any]:
    return {
        "producer_id": marker.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": codes[topic.name, index]}
                    for index in topic.partition_indexes
                ],
            }
            for topic in marker.topics
        ],
    }


def handle_describe_producers(node: Node, request: Request) -> None:
    """Serve one DescribeProducers request: the producers that partitions know, and their open transactions.

    A follower describes what it has copied, as in Kafka: find-hanging asks one broker for all its replicas. What a
    leader describes is durable when the response is sent, regardless of flush policies.
    """
    body = request.decode()
    access = node.access(request)
    seen: list[Partition] = []

    def refuse(error_code: ErrorCode) -> None:
        message = f"a partition of this request could not be synced; {Remedy.ASK_ALONE}"
        failed = {"error_code": error_code, "error_message": message, "active_producers": ()}
        request.respond(
            topics=[
                {"name": topic.name, "partitions": [{"partition_index": index, **failed} for index in indexes]}
                for topic in body.topics
                if (indexes := topic.partition_indexes)
            ]
        )

    def elements() -> Iterator[Element]:
        for topic in body.topics:
            buffer = bytearray()
            append_string(buffer, topic.name, flexible=True)
            append_count(buffer, len(topic.partition_indexes), flexible=True)
            is_allowed = access.may(AclOperation.READ, ResourceType.TOPIC, topic.name)
            for index in topic.partition_indexes:
                partition = node.partitions.hosted(topic.name, index) if is_allowed else None
                missing = node.partitions.error_of_missing(topic.name, index)
                producers = _append_described_partition(
                    buffer, topic.name, index, partition, is_allowed=is_allowed, missing=missing
                )
                if partition is not None and producers and partition is node.partitions.get(topic.name, index):
                    seen.append(partition)
                yield b"", 1 + producers
            yield bytes(buffer + NO_TAGS), 1

    def when_durable(send: Send) -> None:
        syncs = Syncs(lambda error_code: refuse(error_code) if error_code else send())
        for partition in seen:
            if partition.log.log_end_offset > partition.log.durability.synced_offset:
                node.group_commit.flush(partition, request.reply.connection)
                syncs.wait_for(partition)
        syncs.settle()

    respond_in_slices(request, NO_THROTTLE, elements(), NO_TAGS, when_built=when_durable)


def _append_described_partition(
    buffer: bytearray,
    topic: str,
    index: int,
    partition: Partition | None,
    *,
    is_allowed: bool,
    missing: ErrorCode,
) -> int:
    """Append PartitionResponse, by hand since there may be many; return the number of its producers."""
    error_code = ErrorCode.none
    message: str | None = None
    states: Sequence[ProducerState] = ()
    if not is_legal_name(topic):
        error_code, message = ErrorCode.invalid_topic_exception, "not a valid topic name"
    elif not is_allowed:
        error_code, message = ErrorCode.topic_authorization_failed, "Topic authorization failed."
    elif partition is None:
        error_code, message = missing, f"{topic} has no partition {index} here"
    elif partition.log.durability.failure is not None:
        error_code, message = ErrorCode.kafka_storage_error, str(partition.log.durability.failure)
    else:
        states = partition.log.producers.states()
    buffer += INT32.pack(index) + INT16.pack(error_code)
    append_string(buffer, message, flexible=True)
    append_count(buffer, len(states), flexible=True)
    buffer += b"".join(itertools.starmap(_PRODUCER.pack, states))
    buffer += NO_TAGS
    return len(states)


def handle_describe_transactions(node: Node, request: Request) -> None:
    """Serve one DescribeTransactions request; the response waits until the state in it is durable."""
    body = request.decode()
    access = node.access(request)

    def refuse(error_code: ErrorCode) -> None:
        request.respond(
            transaction_states=[
                _undescribed(transactional_id, error_code) for transactional_id in body.transactional_ids
            ]
        )

    def elements() -> Iterator[Element]:
        for transactional_id in body.transactional_ids:
            described = _described(node, access, transactional_id)
            partition_count = sum(len(topic["partitions"]) for topic in described["topics"])
            yield encoded(request, "transaction_states", described), WORK_PER_DESCRIBED + partition_count

    when_built = once_durable(node.transactions.when_all_synced, refuse)
    respond_in_slices(request, NO_THROTTLE, elements(), NO_TAGS, when_built=when_built)


def _described(node: Node, access: Access, transactional_id: str) -> dict[str, Any]:
    if not access.may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return _undescribed(transactional_id, ErrorCode.transactional_id_authorization_failed)
    if not transactional_id:
        return _undescribed(transactional_id, ErrorCode.invalid_request)
    shard = node.transactions.of(transactional_id)
    if shard.is_elsewhere or shard.is_loading:
        return _undescribed(transactional_id, shard.error_code)
    transaction = shard.coordinator.transactions.get(transactional_id)
    if transaction is None:
        return _undescribed(transactional_id, ErrorCode.transactional_id_not_found)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": transaction.state.value,
        "transaction_timeout": timedelta(milliseconds=transaction.timeout_ms),
        "transaction_start_time": _time(transaction.started_ms),
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "topics": [
            {"topic": topic, "partitions": sorted(partitions)}
            for topic, partitions in _by_topic(shard.unmarked(transaction)).items()
            if access.may(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        ],
    }


def _undescribed(transactional_id: str, error_code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error_code,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": timedelta(0),
        "transaction_start_time": _time(0),
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": (),
    }


def _time(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def handle_list(node: Node, request: Request) -> None:
    """Serve one ListTransactions request; the response waits until the state in it is durable."""
    body = request.decode()
    access = node.access(request)
    unknown = [name for name in body.state_filters if name not in STATES_BY_NAME]
    states = {STATES_BY_NAME[name] for name in body.state_filters if name in STATES_BY_NAME}
    duration_ms = getattr(body, "duration_filter", -1)
    now_ms = node.clock.now_ms()

    def refuse(error_code: ErrorCode) -> None:
        request.respond(error_code=error_code, unknown_state_filters=unknown, transaction_states=())

    def is_wanted(transaction: Transaction) -> bool:
        return (
            (not body.producer_id_filters or transaction.producer_id in body.producer_id_filters)
            and (not body.state_filters or transaction.state in states)
            and (duration_ms < 0 or now_ms - transaction.started_ms > duration_ms)
            and access.may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id)
        )

    def elements() -> Iterator[Element]:
        known = [shard.coordinator.transactions.values() for shard in node.transactions.here()]
        for transaction in list(itertools.chain.from_iterable(known)):
            yield (_listed(transaction) if is_wanted(transaction) else b""), WORK_PER_LISTED

    if node.transactions.is_loading:
        refuse(ErrorCode.coordinator_load_in_progress)
        return
    head = bytearray(NO_THROTTLE + INT16.pack(ErrorCode.none))
    append_count(head, len(unknown), flexible=True)
    for name in unknown:
        append_string(head, name, flexible=True)
    when_built = once_durable(node.transactions.when_all_synced, refuse)
    respond_in_slices(request, bytes(head), elements(), NO_TAGS, when_built=when_built)


def _listed(transaction: Transaction) -> bytes:
    """Encode one transaction, by hand: kio needs ten times as long, and there may be hundreds of thousands."""
    buffer = bytearray()
    append_string(buffer, transaction.transactional_id, flexible=True)
    buffer += INT64.pack(transaction.producer_id)
    append_string(buffer, transaction.state.value, flexible=True)
    return bytes(buffer + NO_TAGS)


HANDLERS = {
    apis.WRITE_TXN_MARKERS: handle_write_markers,
    apis.DESCRIBE_PRODUCERS: handle_describe_producers,
    apis.DESCRIBE_TRANSACTIONS: handle_describe_transactions,
    apis.LIST_TRANSACTIONS: handle_list,
}
REFUSALS = {
    apis.WRITE_TXN_MARKERS: refuse_write_markers,
}
