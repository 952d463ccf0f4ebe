"""Administrative group APIs: DescribeGroups, ListGroups, DeleteGroups."""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any

from onceflow.broker.groups.coordinator import GroupCoordinator
from onceflow.broker.groups.group import Group
from onceflow.broker.groups.members import Member
from onceflow.broker.groups.records import GroupRecord
from onceflow.broker.groups.requests import GroupRequests
from onceflow.broker.groups.states import GroupState
from onceflow.broker.handlers.groups import group_refusal
from onceflow.broker.handlers.sliced_responses import Element, encoded, once_durable, respond_in_slices, tags_of
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.wire import apis
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.errors import ErrorCode
from onceflow.wire.primitives import INT16, INT32, append_string

OPERATIONS_NOT_REQUESTED = -(2**31)
ABSENCE_REPORTED_FROM = 6
"""First version with an error for a nonexistent group (KIP-1043)."""
STATE_LISTED_FROM = 4
TYPE_LISTED_FROM = 5
TYPE = "classic"
"""Type of every group here: KIP-848's groups are not supported."""
WORK_PER_GROUP = 8
WORK_PER_LISTED_GROUP = 3
WORK_PER_DELETED_GROUP = 4


def handle_describe_groups(node: Node, request: Request) -> None:
    """Serve one DescribeGroups request; a nonexistent group is dead, and an error from version 6 on."""
    body = request.decode()
    access = node.access(request)
    shows_operations = getattr(body, "include_authorized_operations", False)
    is_absence_an_error = request.version >= ABSENCE_REPORTED_FROM

    shards: set[GroupRequests] = set()

    def refuse(error_code: ErrorCode) -> None:
        request.respond(groups=[_undescribed(group_id, error_code) for group_id in body.groups])

    def groups() -> Iterator[Element]:
        for group_id in body.groups:
            refusal = group_refusal(node, request, group_id, AclOperation.DESCRIBE)
            if refusal:
                described = _undescribed(group_id, refusal)
            else:
                shard = node.group_shards.of(group_id)
                shards.add(shard)
                described = _described(shard.groups, group_id, is_absence_an_error=is_absence_an_error)
            if shows_operations and not described["error_code"]:
                described["authorized_operations"] = access.operations(ResourceType.GROUP, group_id)
            yield encoded(request, "groups", described), WORK_PER_GROUP * (1 + len(described["members"]))

    head = INT32.pack(0) if request.version >= 1 else b""
    when_built = once_durable(partial(node.group_shards.settle_in_time, shards), refuse)
    respond_in_slices(request, head, groups(), tags_of(request), when_built=when_built)


def _undescribed(group_id: str, error_code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error_code,
        "error_message": None,
        "group_id": group_id,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": OPERATIONS_NOT_REQUESTED,
    }


def _described(groups: GroupCoordinator, group_id: str, *, is_absence_an_error: bool) -> dict[str, Any]:
    description = _undescribed(group_id, ErrorCode.none)
    group = groups.groups.get(group_id)
    if group is None:
        description["group_state"] = GroupState.DEAD.value
        if is_absence_an_error:
            description |= {"error_code": ErrorCode.group_id_not_found, "error_message": f"Group {group_id} not found."}
        return description
    is_stable = group.state is GroupState.STABLE
    return {
        **description,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol or "" if is_stable else "",
        "members": [_described_member(group, member, is_stable=is_stable) for member in group.members.values()],
    }


def _described_member(group: Group, member: Member, *, is_stable: bool) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata_for(group.protocol) if is_stable else b"",
        "member_assignment": member.assignment,
    }


def handle_list_groups(node: Node, request: Request) -> None:
    """Serve one ListGroups request; it may filter by state from version 4 on, by type from 5 on."""
    body = request.decode()
    wanted = {state.lower() for state in getattr(body, "states_filter", ())}
    types = {group_type.lower() for group_type in getattr(body, "types_filter", ())}
    is_type_wanted = not types or TYPE in types
    access = node.access(request)
    sees_all = access.may_on_cluster(AclOperation.DESCRIBE)

    shards = node.group_shards.here()

    def refuse(error_code: ErrorCode) -> None:
        # A coordinator that moves meanwhile is found by the next request.
        is_moving = error_code is ErrorCode.not_coordinator
        request.respond(error_code=ErrorCode.coordinator_not_available if is_moving else error_code, groups=())

    def groups() -> Iterator[Element]:
        for group in list(node.group_shards.groups()):
            is_there = is_type_wanted and group.state is not GroupState.DEAD
            is_wanted = is_there and (not wanted or group.state.value.lower() in wanted)
            if is_wanted and not sees_all:
                is_wanted = access.may(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id)
            yield (_listed(request, group) if is_wanted else b""), WORK_PER_LISTED_GROUP

    refusal = next((shard.error_code for shard in shards if shard.error_code), None)
    if refusal is not None:
        refuse(refusal)
        return
    head = (INT32.pack(0) if request.version >= 1 else b"") + INT16.pack(ErrorCode.none)
    when_built = once_durable(partial(node.group_shards.settle_in_time, shards), refuse)
    respond_in_slices(request, head, groups(), tags_of(request), when_built=when_built)


def _listed(request: Request, group: Group) -> bytes:
    """Encode one group, by hand: kio needs ten times as long, and there may be many groups."""
    tags = tags_of(request)
    flexible = tags != b""
    buffer = bytearray()
    append_string(buffer, group.group_id, flexible=flexible)
    append_string(buffer, group.protocol_type, flexible=flexible)
    if request.version >= STATE_LISTED_FROM:
        append_string(buffer, group.state.value, flexible=flexible)
    if request.version >= TYPE_LISTED_FROM:
        append_string(buffer, TYPE, flexible=flexible)
    return bytes(buffer + tags)


def handle_delete_groups(node: Node, request: Request) -> None:
    """Serve one DeleteGroups request: groups without members, and their offsets, in one batch for each coordinator."""
    body = request.decode()
    error_codes: dict[str, ErrorCode] = {}
    served: dict[GroupRequests, list[str]] = {}

    def check() -> Iterator[int]:
        for group_id in dict.fromkeys(body.groups_names):
            shard = node.group_shards.of(group_id)
            refusal = group_refusal(node, request, group_id, AclOperation.DELETE)
            error_codes[group_id] = refusal or shard.groups.delete_error(group_id)
            if not refusal:
                served.setdefault(shard, []).append(group_id)
            yield WORK_PER_DELETED_GROUP

    def delete() -> None:
        left = len(served) + 1

        def end(group_ids: Sequence[str], error_code: ErrorCode) -> None:
            nonlocal left
            left -= 1
            for group_id in group_ids:
                error_codes[group_id] = error_code or error_codes[group_id]
            if not left:
                results = [{"group_id": group_id, "error_code": code} for group_id, code in error_codes.items()]
                request.respond(results=results)

        # The response waits until the absence of a group is durable, as with every other result.
        for shard, group_ids in served.items():
            shard.record(_delete(shard.groups, group_ids, error_codes), partial(end, group_ids))
        end((), ErrorCode.none)

    request.prepare(check(), delete)


def _delete(
    groups: GroupCoordinator, group_ids: Iterable[str], error_codes: MutableMapping[str, ErrorCode]
) -> list[GroupRecord]:
    """Return the records that delete the groups without an error. One that got a member since its check has one now."""
    records: list[GroupRecord] = []
    for group_id in group_ids:
        if not error_codes[group_id]:
            error_codes[group_id] = groups.delete_error(group_id)
            records += () if error_codes[group_id] else groups.decide_delete(group_id)
    return records


HANDLERS = {
    apis.DESCRIBE_GROUPS: handle_describe_groups,
    apis.LIST_GROUPS: handle_list_groups,
    apis.DELETE_GROUPS: handle_delete_groups,
}
