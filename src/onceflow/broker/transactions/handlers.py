"""The transactional APIs: requests of any version become the coordinator's values, its answers become responses."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from onceflow.broker.groups.records import OffsetCommit
from onceflow.broker.node import Node
from onceflow.broker.request import Request
from onceflow.broker.topics import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS
from onceflow.broker.transactions.coordinator import InitRequest, ProducerRequest
from onceflow.broker.transactions.requests import MarkerRequest, Syncs
from onceflow.broker.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Event,
    TopicPartition,
    Transaction,
    TransactionState,
)
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

FENCED_FROM_INIT = 4
FENCED_FROM = 2
"""From these versions on clients know PRODUCER_FENCED; before, INVALID_PRODUCER_EPOCH says the same."""
GROUP_OFFSETS = (GROUP_OFFSETS_TOPIC, 0)
STATES_BY_NAME = {state.value: state for state in TransactionState}


def handle_init_producer_id(node: Node, request: Request) -> None:
    """Serve one InitProducerId request, of a transactional producer or an idempotent one."""
    asked = request.decode()

    def answer(error_code: ErrorCode, producer_id: int, producer_epoch: int) -> None:
        if request.version < FENCED_FROM_INIT:
            error_code = _for_old_clients(error_code)
        request.answer(error_code=error_code, producer_id=producer_id, producer_epoch=producer_epoch)

    if asked.transactional_id is None:
        node.next_producer_id(lambda code, producer_id: answer(code, producer_id, NO_PRODUCER_EPOCH if code else 0))
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
        request.answer(
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
    node.transactions.add(_producer(asked), frozenset({GROUP_OFFSETS}), _single_answer(request))


def handle_end(node: Node, request: Request) -> None:
    """Serve one EndTxn request."""
    asked = request.decode()
    event = Event.COMMIT if asked.committed else Event.ABORT
    node.transactions.end(_producer(asked), event, _single_answer(request))


def _single_answer(request: Request) -> Callable[[ErrorCode], None]:
    def answer(error_code: ErrorCode) -> None:
        code = _for_old_clients(error_code) if request.version < FENCED_FROM else error_code
        request.answer(error_code=code)

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
        request.answer(
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


# For who looks after transactions


def handle_write_markers(node: Node, request: Request) -> None:
    """Serve one WriteTxnMarkers request: an admin aborts a transaction in one of its partitions.

    Kafka writes the marker there and leaves the rest of the transaction open. Here the coordinator knows every open
    transaction, so the whole of it is aborted: never half. Where none is open the marker is written, as in Kafka.
    """
    asked = request.decode()
    results = [
        (marker, {(topic.name, index): ErrorCode.none for topic in marker.topics for index in topic.partition_indexes})
        for marker in asked.markers
    ]

    def answer(_error_code: ErrorCode) -> None:
        request.answer(markers=[_marker_answer(marker, codes) for marker, codes in results])

    syncs = Syncs(answer)
    for marker, codes in results:
        producer = MarkerRequest(
            marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch
        )
        for at in codes:
            node.transactions.write_marker(producer, at, syncs.expect(partial(codes.__setitem__, at)))
    syncs.settle()


def _marker_answer(marker: Any, codes: dict[TopicPartition, ErrorCode]) -> dict[str, Any]:
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

    It waits until what it reveals is durable.
    """
    asked = request.decode()
    places = [(topic.name, index) for topic in asked.topics for index in topic.partition_indexes]
    described = {each: _described_partition(node, *each) for each in places}

    def answer(_error_code: ErrorCode) -> None:
        request.answer(
            topics=[
                {"name": topic.name, "partitions": [described[topic.name, index] for index in topic.partition_indexes]}
                for topic in asked.topics
            ]
        )

    def synced(at: TopicPartition, error_code: ErrorCode) -> None:
        if error_code:
            described[at] = _undescribed_partition(at, error_code)

    syncs = Syncs(answer)
    for at in described:
        partition = node.partitions.get(*at)
        if partition is not None:
            node.group_commit.flush(partition)
            syncs.wait_for(partition, partial(synced, at))
    syncs.settle()


def _undescribed_partition(at: TopicPartition, error_code: ErrorCode) -> dict[str, Any]:
    message = f"partition {at[1]} of {at[0]} is not here, or its disk failed"
    return {"partition_index": at[1], "error_code": error_code, "error_message": message, "active_producers": ()}


def _described_partition(node: Node, topic: str, index: int) -> dict[str, Any]:
    partition = node.partitions.get(topic, index)
    if partition is None:
        return _undescribed_partition((topic, index), ErrorCode.unknown_topic_or_partition)
    producers = [
        {
            "producer_id": state.producer_id,
            "producer_epoch": state.producer_epoch,
            "last_sequence": state.last_sequence,
            "last_timestamp": state.last_timestamp_ms,
            "coordinator_epoch": state.coordinator_epoch,
            "current_txn_start_offset": state.current_transaction_first_offset,
        }
        for state in partition.log.producer_states()
    ]
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": producers,
    }


def handle_describe_transactions(node: Node, request: Request) -> None:
    """Serve one DescribeTransactions request; it waits until what it reveals is durable."""
    asked = request.decode()
    states = [_described(node, transactional_id) for transactional_id in asked.transactional_ids]

    def answer(error_code: ErrorCode) -> None:
        failed = [_undescribed(each["transactional_id"], error_code) for each in states] if error_code else states
        request.answer(transaction_states=failed)

    node.transactions.when_synced(answer)


def _described(node: Node, transactional_id: str) -> dict[str, Any]:
    transaction = node.transactions.coordinator.transactions.get(transactional_id)
    if not transactional_id:
        return _undescribed(transactional_id, ErrorCode.invalid_request)
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
            for topic, partitions in _by_topic(node.transactions.unmarked(transaction)).items()
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
    """Serve one ListTransactions request; it waits until what it reveals is durable."""
    asked = request.decode()
    unknown = [name for name in asked.state_filters if name not in STATES_BY_NAME]
    states = {STATES_BY_NAME[name] for name in asked.state_filters if name in STATES_BY_NAME}
    duration_ms = getattr(asked, "duration_filter", -1)
    now_ms = node.clock.now_ms()

    def is_wanted(transaction: Transaction) -> bool:
        return (
            (not asked.producer_id_filters or transaction.producer_id in asked.producer_id_filters)
            and (not asked.state_filters or transaction.state in states)
            and (duration_ms < 0 or now_ms - transaction.started_ms > duration_ms)
        )

    found = [
        {
            "transactional_id": transaction.transactional_id,
            "producer_id": transaction.producer_id,
            "transaction_state": transaction.state.value,
        }
        for transaction in node.transactions.coordinator.transactions.values()
        if is_wanted(transaction)
    ]

    def answer(error_code: ErrorCode) -> None:
        states = () if error_code else found
        request.answer(error_code=error_code, unknown_state_filters=unknown, transaction_states=states)

    node.transactions.when_synced(answer)


HANDLERS = {
    apis.INIT_PRODUCER_ID: handle_init_producer_id,
    apis.ADD_PARTITIONS_TO_TXN: handle_add_partitions,
    apis.ADD_OFFSETS_TO_TXN: handle_add_offsets,
    apis.END_TXN: handle_end,
    apis.TXN_OFFSET_COMMIT: handle_offset_commit,
    apis.WRITE_TXN_MARKERS: handle_write_markers,
    apis.DESCRIBE_PRODUCERS: handle_describe_producers,
    apis.DESCRIBE_TRANSACTIONS: handle_describe_transactions,
    apis.LIST_TRANSACTIONS: handle_list,
}
