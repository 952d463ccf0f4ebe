"""The APIs by which somebody looks after groups from outside: DescribeGroups, ListGroups, DeleteGroups."""

from typing import Any

from onceflow.broker.groups.group import Group, Member
from onceflow.broker.groups.records import GroupRecord
from onceflow.broker.groups.states import GroupState
from onceflow.broker.node import Node
from onceflow.broker.request import Request
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

NO_AUTHORIZED_OPERATIONS = -(2**31)
"""What Kafka says where they were not asked for or nobody is authorized by name."""


def handle_describe_groups(node: Node, request: Request) -> None:
    """Serve one DescribeGroups request; a group that does not exist is dead, as in Kafka before version 6."""
    asked = request.decode()

    def answer(error_code: ErrorCode) -> None:
        request.answer(groups=[_described(node, group_id, error_code) for group_id in asked.groups])

    refusal = node.group_requests.error_code
    if refusal:
        answer(refusal)
    else:
        node.group_requests.settle_in_time(answer)


def _described(node: Node, group_id: str, error_code: ErrorCode) -> dict[str, Any]:
    group = None if error_code else node.groups.groups.get(group_id)
    found: dict[str, Any] = {
        "error_code": error_code,
        "group_id": group_id,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": NO_AUTHORIZED_OPERATIONS,
    }
    if error_code:
        return found
    if group is None:
        return {**found, "group_state": GroupState.DEAD.value}
    is_stable = group.state is GroupState.STABLE
    return {
        **found,
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
    """Serve one ListGroups request; from version 4 on it may name the states that it wants."""
    asked = request.decode()
    wanted = {state.lower() for state in getattr(asked, "states_filter", ())}

    def answer(error_code: ErrorCode) -> None:
        request.answer(
            error_code=error_code,
            groups=[
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type,
                    "group_state": group.state.value,
                }
                for group in (() if error_code else node.groups.groups.values())
                if not wanted or group.state.value.lower() in wanted
            ],
        )

    refusal = node.group_requests.error_code
    if refusal:
        answer(refusal)
    else:
        node.group_requests.settle_in_time(answer)


def handle_delete_groups(node: Node, request: Request) -> None:
    """Serve one DeleteGroups request: groups without members, and their offsets, all in one batch."""
    asked = request.decode()
    refusal = node.group_requests.error_code
    records: list[GroupRecord] = []
    error_codes: dict[str, ErrorCode] = {}
    for group_id in dict.fromkeys(asked.groups_names):
        error_codes[group_id] = refusal or node.groups.delete_error(group_id)
        if not error_codes[group_id]:
            records += node.groups.decide_delete(group_id)

    def answer(refusal: ErrorCode) -> None:
        request.answer(
            results=[
                {"group_id": group_id, "error_code": error_code or refusal}
                for group_id, error_code in error_codes.items()
            ]
        )

    if records:
        node.group_requests.record(records, answer)
    else:
        answer(ErrorCode.none)


HANDLERS = {
    apis.DESCRIBE_GROUPS: handle_describe_groups,
    apis.LIST_GROUPS: handle_list_groups,
    apis.DELETE_GROUPS: handle_delete_groups,
}
