"""The APIs of a group's members: requests of any version become the coordinator's values, its answers responses."""

from typing import Any

from onceflow.broker.groups.members import JoinResponse, SyncResponse
from onceflow.broker.groups.outcome import JoinRequest, Leaving, SyncRequest
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

KEY_TYPE_GROUP = 0
KEY_TYPE_TRANSACTION = 1
KNOWN_MEMBER_ID_FROM = 4
NULLABLE_PROTOCOL_FROM = 7
SKIP_ASSIGNMENT_FROM = 9
LEAVING_MEMBERS_FROM = 3
PROTOCOL_NAMED_FROM = 5
BATCHED_FROM_FIND_COORDINATOR = 4
NO_ERROR = "NONE"
"""What Kafka's FindCoordinatorResponse says where there is no error."""


def handle_find_coordinator(node: Node, request: Request) -> None:
    """Serve one FindCoordinator request: this broker is the coordinator of every group and transaction."""
    asked = request.decode()
    keys = asked.coordinator_keys if request.version >= BATCHED_FROM_FIND_COORDINATOR else (asked.key,)
    if getattr(asked, "key_type", KEY_TYPE_GROUP) in (KEY_TYPE_GROUP, KEY_TYPE_TRANSACTION):
        host, port = node.advertised_host, node.advertised_port
        found = {
            "error_code": ErrorCode.none,
            "error_message": "" if request.version >= BATCHED_FROM_FIND_COORDINATOR else NO_ERROR,
            "node_id": node.node_id,
            "host": host,
            "port": port,
        }
    else:
        message = f"key type {asked.key_type}: groups (0) and transactions (1) have a coordinator here"
        code = ErrorCode.invalid_request
        found = {"error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}
    request.respond(**found, coordinators=[{**found, "key": key} for key in keys])


def handle_join(node: Node, request: Request) -> None:
    """Serve one JoinGroup request."""
    asked = request.decode()

    def answer(joined: JoinResponse) -> None:
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

    refusal = node.group_requests.error_code
    if refusal:
        answer(JoinResponse(refusal, asked.member_id))
    else:
        node.group_requests.execute(node.groups.join(_join_request(request, asked), answer))


def _join_request(request: Request, asked: Any) -> JoinRequest:
    session_timeout_ms = _milliseconds(asked.session_timeout)
    # Version 0 has no rebalance time-out of its own: the session's stands for both.
    has_rebalance_timeout = hasattr(asked, "rebalance_timeout")
    return JoinRequest(
        asked.group_id,
        asked.member_id,
        request.client_id,
        f"/{request.peer_host}",
        session_timeout_ms,
        _milliseconds(asked.rebalance_timeout) if has_rebalance_timeout else session_timeout_ms,
        asked.protocol_type,
        tuple((each.name, each.metadata) for each in asked.protocols),
        request.version >= KNOWN_MEMBER_ID_FROM,
        instance_id_of(asked),
        request.version >= SKIP_ASSIGNMENT_FROM,
    )


def instance_id_of(asked: Any) -> str | None:
    """The group instance id of a request, if its version has one and the client is a static member (KIP-345)."""
    found: str | None = getattr(asked, "group_instance_id", None)
    return found


def _milliseconds(duration: Any) -> int:
    return round(float(duration.total_seconds()) * 1000)


def handle_sync(node: Node, request: Request) -> None:
    """Serve one SyncGroup request."""
    asked = request.decode()

    def answer(synced: SyncResponse) -> None:
        request.respond(
            error_code=synced.error_code,
            protocol_type=synced.protocol_type,
            protocol_name=synced.protocol,
            assignment=synced.assignment,
        )

    protocol_type, protocol = getattr(asked, "protocol_type", None), getattr(asked, "protocol_name", None)
    refusal = node.group_requests.error_code
    if request.version >= PROTOCOL_NAMED_FROM and None in (protocol_type, protocol):
        refusal = ErrorCode.inconsistent_group_protocol
    if refusal:
        answer(SyncResponse(refusal))
        return
    assignments = {each.member_id: each.assignment for each in asked.assignments}
    wanted = SyncRequest(
        asked.group_id,
        asked.generation_id,
        asked.member_id,
        protocol_type,
        protocol,
        assignments,
        instance_id_of(asked),
    )
    node.group_requests.execute(node.groups.sync(wanted, answer))


def handle_heartbeat(node: Node, request: Request) -> None:
    """Serve one Heartbeat request; while the groups load every member is taken to be alive, as in Kafka."""
    asked = request.decode()
    error_code = node.group_requests.error_code
    if error_code == ErrorCode.coordinator_load_in_progress:
        error_code = ErrorCode.none
    elif error_code == ErrorCode.none:
        error_code = node.groups.heartbeat(asked.group_id, asked.member_id, asked.generation_id, instance_id_of(asked))
    request.respond(error_code=error_code)


def handle_leave(node: Node, request: Request) -> None:
    """Serve one LeaveGroup request; before version 3 it is of one member and has one error."""
    asked = request.decode()
    has_members = request.version >= LEAVING_MEMBERS_FROM
    leaving = [Leaving(each.member_id, instance_id_of(each)) for each in (asked.members if has_members else (asked,))]
    refusal = node.group_requests.error_code
    if not asked.group_id:
        refusal = ErrorCode.invalid_group_id
    if refusal:
        request.respond(error_code=refusal, members=[])
        return
    error_codes, outcome = node.groups.leave(asked.group_id, leaving)

    def answer(refusal: ErrorCode = ErrorCode.none) -> None:
        request.respond(
            error_code=refusal if has_members or refusal else error_codes[0],
            members=[
                {"member_id": each.member_id, "group_instance_id": each.group_instance_id, "error_code": error_code}
                for each, error_code in zip(leaving, error_codes, strict=True)
            ],
        )

    outcome.responses.append(answer)
    outcome.refusals.append(answer)
    node.group_requests.execute(outcome)


HANDLERS = {
    apis.FIND_COORDINATOR: handle_find_coordinator,
    apis.JOIN_GROUP: handle_join,
    apis.HEARTBEAT: handle_heartbeat,
    apis.LEAVE_GROUP: handle_leave,
    apis.SYNC_GROUP: handle_sync,
}
