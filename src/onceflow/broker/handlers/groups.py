"""APIs of group members: requests of any version become the coordinator's values, its results become responses."""

from collections.abc import Callable
from typing import Any

from onceflow.broker.config import Endpoint
from onceflow.broker.groups.members import JoinResponse, SyncResponse
from onceflow.broker.groups.outcome import JoinRequest, Leaving, SyncRequest
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.topics.internal import partition_count_of, partition_of
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from onceflow.wire import apis
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.errors import ErrorCode

KEY_TYPE_GROUP = 0
KEY_TYPE_TRANSACTION = 1
KEY_RESOURCES = {
    KEY_TYPE_GROUP: (ResourceType.GROUP, ErrorCode.group_authorization_failed),
    KEY_TYPE_TRANSACTION: (ResourceType.TRANSACTIONAL_ID, ErrorCode.transactional_id_authorization_failed),
}
"""Key type of FindCoordinator → type of the resource, and its error without permission."""
COORDINATORS_TOPICS = {KEY_TYPE_GROUP: GROUP_OFFSETS_TOPIC, KEY_TYPE_TRANSACTION: TRANSACTION_STATE_TOPIC}
"""Key type → topic in a cluster whose leaders are the coordinators."""
KNOWN_MEMBER_ID_FROM = 4
NULLABLE_PROTOCOL_FROM = 7
SKIP_ASSIGNMENT_FROM = 9
LEAVING_MEMBERS_FROM = 3
PROTOCOL_NAMED_FROM = 5
BATCHED_FROM_FIND_COORDINATOR = 4
NAMED_GROUPS = (apis.JOIN_GROUP, apis.SYNC_GROUP, apis.HEARTBEAT, apis.LEAVE_GROUP, apis.OFFSET_DELETE)
"""APIs for which the group id may not be empty."""
NO_ERROR = "NONE"
"""Message of Kafka's FindCoordinatorResponse without an error."""


def handle_find_coordinator(node: Node, request: Request) -> None:
    """Serve one FindCoordinator request: without a cluster this broker coordinates all."""
    body = request.decode()
    is_batched = request.version >= BATCHED_FROM_FIND_COORDINATOR
    keys = body.coordinator_keys if is_batched else (body.key,)
    key_type = getattr(body, "key_type", KEY_TYPE_GROUP)
    message = "" if is_batched else NO_ERROR
    if key_type in KEY_RESOURCES:
        resource_type, refusal = KEY_RESOURCES[key_type]
        access = node.access(request)
        nowhere = _no_coordinator(refusal, "" if is_batched else f"{resource_type.spelled} authorization failed.")
        allowed = {key for key in keys if access.may(AclOperation.DESCRIBE, resource_type, key)}
        find = _coordinators(node, request, key_type, message) if allowed else None
        coordinators = [find(key) if find is not None and key in allowed else nowhere for key in keys]
    else:
        message = f"key type {key_type} is not supported: only groups (0) and transactions (1) have a coordinator"
        coordinators = [_no_coordinator(ErrorCode.invalid_request, message)] * len(keys)
    request.respond(
        **(_here(node, request, message) if is_batched else coordinators[0]),
        coordinators=[{**coordinator, "key": key} for key, coordinator in zip(keys, coordinators, strict=True)],
    )


def _coordinators(node: Node, request: Request, key_type: int, message: str) -> Callable[[str], dict[str, Any]]:
    """Return a function of a key to its coordinator: this broker, or in a cluster the leader of the key's partition.

    The topic is created if it does not exist yet (KafkaApis.getCoordinator).
    """
    if node.cluster is None:
        here = _here(node, request, message)
        return lambda _key: here
    view, topic = node.cluster.view, COORDINATORS_TOPICS[key_type]
    unavailable = _no_coordinator(ErrorCode.coordinator_not_available, "The coordinator is not available.")
    if not view.has_topic(topic):
        node.create_state_topic(topic)
        return lambda _key: unavailable
    partition_count = partition_count_of(topic, node.topics, node.config)

    def find(key: str) -> dict[str, Any]:
        leader = view.leader(topic, partition_of(key, partition_count))
        address = None if leader is None else leader.address(request.endpoint.listener)
        if leader is None or address is None:
            return unavailable
        return _found(leader.broker_id, address, message)

    return find


def _here(node: Node, request: Request, message: str) -> dict[str, Any]:
    return _found(node.node_id, request.endpoint, message)


def _found(broker_id: int, address: Endpoint, message: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "error_message": message,
        "node_id": broker_id,
        "host": address.host,
        "port": address.port,
    }


def _no_coordinator(error_code: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": error_code, "error_message": message, "node_id": -1, "host": "", "port": -1}


def group_refusal(
    node: Node, request: Request, group_id: str, operation: AclOperation = AclOperation.READ
) -> ErrorCode:
    """Return the error of a request for a group without permission, or that its coordinator cannot serve now."""
    if not node.access(request).may(operation, ResourceType.GROUP, group_id):
        return ErrorCode.group_authorization_failed
    if not group_id and request.header.api.key in NAMED_GROUPS:
        # Kafka's validateGroupStatus checks the name first.
        return ErrorCode.invalid_group_id
    return node.group_shards.of(group_id).error_code


def handle_join(node: Node, request: Request) -> None:
    """Serve one JoinGroup request."""
    body = request.decode()

    def respond(joined: JoinResponse) -> None:
        is_nullable = request.version >= NULLABLE_PROTOCOL_FROM
        request.respond(
            error_code=joined.error_code,
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol if is_nullable else joined.protocol or "",
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=[
                {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
                for member_id, instance_id, metadata in joined.members
            ],
        )

    refusal = group_refusal(node, request, body.group_id)
    if refusal:
        is_unauthorized = refusal == ErrorCode.group_authorization_failed
        respond(JoinResponse(refusal, "" if is_unauthorized else body.member_id))
    else:
        groups = node.group_shards.of(body.group_id)
        groups.execute(groups.groups.join(_join_request(request, body), respond))


def _join_request(request: Request, body: Any) -> JoinRequest:
    session_timeout_ms = _milliseconds(body.session_timeout)
    # Version 0 has no rebalance timeout of its own: the session timeout is used for both.
    has_rebalance_timeout = hasattr(body, "rebalance_timeout")
    return JoinRequest(
        body.group_id,
        body.member_id,
        request.client_id,
        f"/{request.peer_host}",
        session_timeout_ms,
        _milliseconds(body.rebalance_timeout) if has_rebalance_timeout else session_timeout_ms,
        body.protocol_type,
        tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
        request.version >= KNOWN_MEMBER_ID_FROM,
        instance_id_of(body),
        request.version >= SKIP_ASSIGNMENT_FROM,
    )


def instance_id_of(entry: Any) -> str | None:
    """Return the group instance id, if the version has one and the client is a static member (KIP-345)."""
    instance_id: str | None = getattr(entry, "group_instance_id", None)
    return instance_id


def _milliseconds(duration: Any) -> int:
    return round(float(duration.total_seconds()) * 1000)


def handle_sync(node: Node, request: Request) -> None:
    """Serve one SyncGroup request."""
    body = request.decode()

    def respond(synced: SyncResponse) -> None:
        request.respond(
            error_code=synced.error_code,
            protocol_type=synced.protocol_type,
            protocol_name=synced.protocol,
            assignment=synced.assignment,
        )

    protocol_type, protocol = getattr(body, "protocol_type", None), getattr(body, "protocol_name", None)
    refusal = group_refusal(node, request, body.group_id)
    if request.version >= PROTOCOL_NAMED_FROM and None in (protocol_type, protocol):
        refusal = ErrorCode.inconsistent_group_protocol
    if refusal:
        respond(SyncResponse(refusal))
        return
    assignments = {assignment.member_id: assignment.assignment for assignment in body.assignments}
    wanted = SyncRequest(
        body.group_id,
        body.generation_id,
        body.member_id,
        protocol_type,
        protocol,
        assignments,
        instance_id_of(body),
    )
    groups = node.group_shards.of(body.group_id)
    groups.execute(groups.groups.sync(wanted, respond))


def handle_heartbeat(node: Node, request: Request) -> None:
    """Serve one Heartbeat request; while the groups load, every member counts as alive, as in Kafka."""
    body = request.decode()
    error_code = group_refusal(node, request, body.group_id)
    if error_code == ErrorCode.coordinator_load_in_progress:
        error_code = ErrorCode.none
    elif error_code == ErrorCode.none:
        groups = node.group_shards.of(body.group_id).groups
        error_code = groups.heartbeat(body.group_id, body.member_id, body.generation_id, instance_id_of(body))
    request.respond(error_code=error_code)


def handle_leave(node: Node, request: Request) -> None:
    """Serve one LeaveGroup request; before version 3 it has one member and one error."""
    body = request.decode()
    has_members = request.version >= LEAVING_MEMBERS_FROM
    leaving = [
        Leaving(member.member_id, instance_id_of(member)) for member in (body.members if has_members else (body,))
    ]
    refusal = group_refusal(node, request, body.group_id)
    if refusal:
        request.respond(error_code=refusal, members=[])
        return
    groups = node.group_shards.of(body.group_id)
    error_codes, outcome = groups.groups.leave(body.group_id, leaving)

    def respond(refusal: ErrorCode = ErrorCode.none) -> None:
        request.respond(
            error_code=refusal if has_members or refusal else error_codes[0],
            members=[
                {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "error_code": error_code}
                for member, error_code in zip(leaving, error_codes, strict=True)
            ],
        )

    outcome.responses.append(respond)
    outcome.refusals.append(respond)
    groups.execute(outcome)


HANDLERS = {
    apis.FIND_COORDINATOR: handle_find_coordinator,
    apis.JOIN_GROUP: handle_join,
    apis.HEARTBEAT: handle_heartbeat,
    apis.LEAVE_GROUP: handle_leave,
    apis.SYNC_GROUP: handle_sync,
}
