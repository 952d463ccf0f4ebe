"""Requests between the brokers of a cluster on ZooKeeper (kafka.server.KafkaApis).

The controller sends LeaderAndIsr, UpdateMetadata and StopReplica; the other brokers send AlterPartition,
ControlledShutdown and AllocateProducerIds to the controller.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from onceflow.broker.cluster.controller import AlteredPartition
from onceflow.broker.cluster.state import State
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.storage.partitions import Place
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import encode_response
from onceflow.wire.inter_broker import LeaderAndIsrResponse, StopReplicaResponse, UpdateMetadataResponse


def handle_control(node: Node, request: Request) -> None:
    """Serve one request of the controller; respond when it is applied."""
    assert node.cluster is not None
    header = request.header

    def respond(response: Any) -> None:
        request.reply.count_error(response.error_code)
        request.reply.send([encode_response(header.api.key, header.version, header.correlation_id, response)])

    node.cluster.member.deliver(request.decode(), respond)


def handle_alter_partition(node: Node, request: Request) -> None:
    """Serve one AlterPartition request; respond when ZooKeeper has the in-sync replicas."""
    assert node.cluster is not None
    body = request.decode()
    wishes = {
        (topic.topic_id, partition.partition_index): AlteredPartition(
            partition.leader_epoch,
            tuple(broker.broker_id for broker in partition.new_isr_with_epochs),
            partition.partition_epoch,
            partition.leader_recovery_state == 1,
        )
        for topic in body.topics
        for partition in topic.partitions
    }

    def respond(results: Mapping[tuple[UUID, int], State | ErrorCode] | ErrorCode) -> None:
        if isinstance(results, ErrorCode):
            request.respond(error_code=results, topics=())
            return
        by_topic: dict[UUID, list[dict[str, Any]]] = {}
        for (topic_id, index), result in results.items():
            by_topic.setdefault(topic_id, []).append(_altered(index, result))
        topics = [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in by_topic.items()]
        request.respond(error_code=ErrorCode.none, topics=topics)

    node.cluster.metadata.requests.alter_partitions(body.broker_id, body.broker_epoch, wishes, respond)


def _altered(index: int, result: State | ErrorCode) -> dict[str, Any]:
    if isinstance(result, ErrorCode):
        nothing = {"leader_id": 0, "leader_epoch": 0, "isr": (), "partition_epoch": 0}
        return {"partition_index": index, "error_code": result, **nothing}
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "leader_id": result.leader,
        "leader_epoch": result.leader_epoch,
        "isr": result.isr,
        "leader_recovery_state": int(result.is_recovering),
        "partition_epoch": result.version,
    }


def handle_controlled_shutdown(node: Node, request: Request) -> None:
    """Serve one ControlledShutdown request; respond with the partitions that the broker still leads."""
    assert node.cluster is not None
    body = request.decode()

    def respond(result: Sequence[Place] | ErrorCode) -> None:
        if isinstance(result, ErrorCode):
            request.respond(error_code=result, remaining_partitions=())
            return
        left = [{"topic_name": name, "partition_index": index} for name, index in result]
        request.respond(error_code=ErrorCode.none, remaining_partitions=left)

    node.cluster.metadata.requests.shut_down(body.broker_id, body.broker_epoch, respond)


def handle_allocate_producer_ids(node: Node, request: Request) -> None:
    """Serve one AllocateProducerIds request of another broker; this one reserves its own blocks without it."""
    assert node.cluster is not None
    body = request.decode()

    def respond(block: range | ErrorCode) -> None:
        if isinstance(block, ErrorCode):
            request.respond(error_code=block, producer_id_start=-1, producer_id_len=0)
        else:
            request.respond(error_code=ErrorCode.none, producer_id_start=block.start, producer_id_len=len(block))

    node.cluster.metadata.requests.allocate_producer_ids(body.broker_id, body.broker_epoch, respond)


def refuse_control(request: Request, error_code: ErrorCode, _message: str | None) -> None:
    """Refuse a request of the controller."""
    header = request.header
    match header.api.key:
        case apis.LEADER_AND_ISR:
            response: Any = LeaderAndIsrResponse(error_code=error_code, topics=())
        case apis.STOP_REPLICA:
            response = StopReplicaResponse(error_code=error_code, partition_errors=())
        case _:
            response = UpdateMetadataResponse(error_code=error_code)
    request.reply.count_error(error_code)
    request.reply.send([encode_response(header.api.key, header.version, header.correlation_id, response)])


def refuse_alter_partition(request: Request, error_code: ErrorCode, _message: str | None) -> None:
    """Refuse an AlterPartition request."""
    request.respond(error_code=error_code, topics=())


def refuse_controlled_shutdown(request: Request, error_code: ErrorCode, _message: str | None) -> None:
    """Refuse a ControlledShutdown request."""
    request.respond(error_code=error_code, remaining_partitions=())


def refuse_allocate_producer_ids(request: Request, error_code: ErrorCode, _message: str | None) -> None:
    """Refuse an AllocateProducerIds request."""
    request.respond(error_code=error_code, producer_id_start=-1, producer_id_len=0)


HANDLERS = {
    apis.LEADER_AND_ISR: handle_control,
    apis.UPDATE_METADATA: handle_control,
    apis.STOP_REPLICA: handle_control,
    apis.ALTER_PARTITION: handle_alter_partition,
    apis.CONTROLLED_SHUTDOWN: handle_controlled_shutdown,
    apis.ALLOCATE_PRODUCER_IDS: handle_allocate_producer_ids,
}
REFUSALS = {
    apis.LEADER_AND_ISR: refuse_control,
    apis.UPDATE_METADATA: refuse_control,
    apis.STOP_REPLICA: refuse_control,
    apis.ALTER_PARTITION: refuse_alter_partition,
    apis.CONTROLLED_SHUTDOWN: refuse_controlled_shutdown,
    apis.ALLOCATE_PRODUCER_IDS: refuse_allocate_producer_ids,
}
