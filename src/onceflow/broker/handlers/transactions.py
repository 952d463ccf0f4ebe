"""Transactional APIs: requests of any version become the coordinator's values, its results become responses."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from onceflow.broker.handlers.group_offsets import CheckedOffsets
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import Access
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS
from onceflow.broker.transactions.coordinator import InitRequest, ProducerRequest
from onceflow.broker.transactions.participants import Syncs
from onceflow.broker.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Event,
)
from onceflow.wire import TopicPartition, apis
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.errors import ErrorCode

WORK_PER_PARTITION = 2
VERIFYING_FROM = 4
"""First version of AddPartitionsToTxn between brokers."""
FENCED_FROM_INIT = 4
FENCED_FROM = 2
"""First versions with PRODUCER_FENCED; earlier ones get INVALID_PRODUCER_EPOCH instead."""
PartitionErrors = Sequence[tuple[str, Iterable[tuple[int, ErrorCode]]]]
"""(topic, errors by partition)."""


def handle_init_producer_id(node: Node, request: Request) -> None:
    """Serve one InitProducerId request of a transactional or an idempotent producer."""
    body = request.decode()

    def respond(error_code: ErrorCode, producer_id: int, producer_epoch: int) -> None:
        if request.version < FENCED_FROM_INIT:
            error_code = _for_old_clients(error_code)
        request.respond(error_code=error_code, producer_id=producer_id, producer_epoch=producer_epoch)

    refusal = _init_refusal(node.access(request), body.transactional_id)
    if refusal:
        respond(refusal, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        return
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


def _init_refusal(access: Access, transactional_id: str | None) -> ErrorCode:
    """Return the error without permission; an idempotent producer may write to at least one topic."""
    if transactional_id is not None:
        return _transactional_refusal(access, transactional_id)
    if access.may_on_cluster(AclOperation.IDEMPOTENT_WRITE):
        return ErrorCode.none
    is_allowed = access.may_somewhere(AclOperation.WRITE, ResourceType.TOPIC)
    return ErrorCode.none if is_allowed else ErrorCode.cluster_authorization_failed


def _transactional_refusal(access: Access, transactional_id: str) -> ErrorCode:
    is_allowed = access.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    return ErrorCode.none if is_allowed else ErrorCode.transactional_id_authorization_failed


def _group_refusal(access: Access, transactional_id: str, group_id: str) -> ErrorCode:
    """Return the error without permission for a group's offsets in a transaction."""
    refusal = _transactional_refusal(access, transactional_id)
    if refusal or access.may(AclOperation.READ, ResourceType.GROUP, group_id):
        return refusal
    return ErrorCode.group_authorization_failed


def _for_old_clients(error_code: ErrorCode) -> ErrorCode:
    return ErrorCode.invalid_producer_epoch if error_code is ErrorCode.producer_fenced else error_code


def _milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def handle_add_partitions(node: Node, request: Request) -> None:
    """Serve one AddPartitionsToTxn request: all partitions are added, or none."""
    body = request.decode()
    if request.version >= VERIFYING_FROM:
        _verify_partitions(node, request, body)
        return
    topics = body.v3_and_below_topics
    producer = ProducerRequest(
        body.v3_and_below_transactional_id, body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
    )
    access = node.access(request)
    unauthorized = _transactional_refusal(access, producer.transactional_id)
    if unauthorized:
        _respond_by_topic(request, _each(topics, unauthorized))
        return
    partitions: dict[TopicPartition, ErrorCode] = {}

    def check() -> Iterator[int]:
        for topic in topics:
            for index in topic.partitions:
                partition = (topic.name, index)
                partitions[partition] = _add_refusal(node, access, partition)
                yield WORK_PER_PARTITION

    def settled(error_code: ErrorCode) -> None:
        code = _for_old_clients(error_code) if request.version < FENCED_FROM else error_code
        _respond_by_topic(request, _each(topics, code))

    def add() -> None:
        if not any(partitions.values()):
            node.transactions.add(producer, frozenset(partitions), settled)
            return
        # Kafka joins the entries of a topic in this response only.
        by_topic: dict[str, dict[int, ErrorCode]] = {}
        for (topic, index), refusal in partitions.items():
            by_topic.setdefault(topic, {})[index] = refusal or ErrorCode.operation_not_attempted
        _respond_by_topic(request, [(topic, codes.items()) for topic, codes in by_topic.items()])

    request.prepare(check(), add)


def _each(topics: Any, code: ErrorCode) -> PartitionErrors:
    return [(topic.name, [(index, code) for index in topic.partitions]) for topic in topics]


def _respond_by_topic(request: Request, results: PartitionErrors) -> None:
    request.respond(
        results_by_topic_v3_and_below=[
            {
                "name": topic,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": code} for index, code in codes
                ],
            }
            for topic, codes in results
        ]
    )


def _add_refusal(node: Node, access: Access, partition: TopicPartition) -> ErrorCode:
    topic = partition[0]
    if topic in INTERNAL_TOPICS or not access.may(AclOperation.WRITE, ResourceType.TOPIC, topic):
        return ErrorCode.topic_authorization_failed
    return ErrorCode.none if node.has_partition(*partition) else ErrorCode.unknown_topic_or_partition


def _verify_partitions(node: Node, request: Request, body: Any) -> None:
    """Respond to another broker, which leads partitions, whether transactions include them (KIP-890).

    Clients add partitions in versions below 4.
    """
    if not node.access(request).may_on_cluster(AclOperation.CLUSTER_ACTION):
        request.respond(error_code=ErrorCode.cluster_authorization_failed, results_by_transaction=())
        return
    results: list[dict[str, Any]] = []

    def respond(_error_code: ErrorCode) -> None:
        request.respond(error_code=ErrorCode.none, results_by_transaction=results)

    syncs = Syncs(respond)
    for transaction in body.transactions:
        result: dict[str, Any] = {"transactional_id": transaction.transactional_id, "topic_results": ()}
        results.append(result)

        def verified(
            codes: Mapping[TopicPartition, ErrorCode], result: dict[str, Any] = result, transaction: Any = transaction
        ) -> None:
            result["topic_results"] = [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": index, "partition_error_code": codes[topic.name, index]}
                        for index in topic.partitions
                    ],
                }
                for topic in transaction.topics
            ]

        _verify(node, transaction, verified, syncs.expect(lambda _code: None))
    syncs.settle()


def _verify(
    node: Node,
    transaction: Any,
    verified: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    respond: Callable[[ErrorCode], None],
) -> None:
    """Report the error of each partition, then respond once what they reveal is durable."""
    partitions = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]

    def report(code: ErrorCode) -> None:
        verified(dict.fromkeys(partitions, code))
        respond(ErrorCode.none)

    producer = _producer(transaction)
    shard = node.transactions.of(producer.transactional_id)
    if error_code := shard.error_code:
        report(error_code)
    elif transaction.verify_only:
        verified({partition: shard.verify(producer, partition) for partition in partitions})
        shard.when_synced(lambda code: report(code) if code else respond(code))
    elif all(node.has_partition(*partition) for partition in partitions):
        node.transactions.add(producer, frozenset(partitions), report)
    else:
        report(ErrorCode.unknown_topic_or_partition)


def _producer(body: Any) -> ProducerRequest:
    return ProducerRequest(body.transactional_id, body.producer_id, body.producer_epoch)


def handle_add_offsets(node: Node, request: Request) -> None:
    """Serve one AddOffsetsToTxn request: add the groups' partition to the transaction."""
    body = request.decode()
    respond = _single_response(request)
    refusal = _group_refusal(node.access(request), body.transactional_id, body.group_id)
    if refusal:
        respond(refusal)
    else:
        node.transactions.add(_producer(body), frozenset({_partition_of_group(node, body.group_id)}), respond)


def _partition_of_group(node: Node, group_id: str) -> TopicPartition:
    return GROUP_OFFSETS_TOPIC, node.group_shards.partition_of(group_id)


def handle_end(node: Node, request: Request) -> None:
    """Serve one EndTxn request."""
    body = request.decode()
    respond = _single_response(request)
    refusal = _transactional_refusal(node.access(request), body.transactional_id)
    if refusal:
        respond(refusal)
    else:
        event = Event.COMMIT if body.committed else Event.ABORT
        node.transactions.end_transaction(_producer(body), event, respond)


def _single_response(request: Request) -> Callable[[ErrorCode], None]:
    def respond(error_code: ErrorCode) -> None:
        code = _for_old_clients(error_code) if request.version < FENCED_FROM else error_code
        request.respond(error_code=code)

    return respond


def handle_offset_commit(node: Node, request: Request) -> None:
    """Serve one TxnOffsetCommit request: its offsets are the group's once the transaction commits."""
    body = request.decode()
    access = node.access(request)
    unauthorized = _group_refusal(access, body.transactional_id, body.group_id)
    groups = node.group_shards.of(body.group_id)
    refusal = _offset_commit_refusal(node, body)
    offsets = CheckedOffsets(node, bytes_max=0 if refusal else groups.batch_bytes_max)

    def respond(error_code: ErrorCode) -> None:
        request.respond(
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": index, "error_code": code or error_code} for index, code in errors
                    ],
                }
                for topic, errors in offsets.results
            ]
        )

    def record(code: ErrorCode) -> None:
        # Kafka's group coordinator uses another code than a partition's leader.
        unverified = ErrorCode.coordinator_not_available if code is ErrorCode.not_enough_replicas else code
        refused = unverified or refusal or _offset_commit_refusal(node, body)
        if refused:
            # A producer that was fenced in a response must remain fenced after a crash.
            node.transactions.of(body.transactional_id).when_synced(lambda error_code: respond(error_code or refused))
        else:
            groups.record_transactional(body.producer_id, body.producer_epoch, offsets.take(), respond)

    def checked() -> None:
        if offsets.are_none_valid:
            respond(ErrorCode.none)
        else:
            _when_verified(node, body, record)

    request.prepare(offsets.check(body, access, unauthorized), checked)


def _when_verified(node: Node, body: Any, verified: Callable[[ErrorCode], None]) -> None:
    """Call `verified` with the error of the transaction's coordinator, which may be another broker, or `none`."""
    place = _partition_of_group(node, body.group_id)
    partition = node.partitions.get(*place)
    shard = node.transactions.of(body.transactional_id)
    is_here = not shard.is_elsewhere
    if is_here and body.group_id and not node.group_shards.of(body.group_id).is_elsewhere:
        verified(shard.check_produce(body.producer_id, body.producer_epoch, body.transactional_id, *place))
    elif (
        node.cluster is not None
        and partition is not None
        and node.cluster.verifications.is_needed(partition, body.producer_id, is_coordinated_here=is_here)
    ):
        claim = (body.transactional_id, body.producer_id, body.producer_epoch, *place)
        node.cluster.verifications.verify(partition, claim, verified)
    else:
        verified(ErrorCode.none)


def _offset_commit_refusal(node: Node, body: Any) -> ErrorCode:
    if not body.group_id:
        return ErrorCode.invalid_group_id
    groups = node.group_shards.of(body.group_id)
    return groups.error_code or groups.groups.transactional_commit_error(
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
