"""CreateAcls, DescribeAcls and DeleteAcls.

Conditions, codes and messages of errors are Kafka's (kafka.server.AclApis, org.apache.kafka.controller.
AclControlManager). Without an authorizer each is refused with SECURITY_DISABLED.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from onceflow.broker.handlers.sliced_responses import Element, once_durable, respond_in_slices, tags_of
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.security.acls import ACLS_BYTES_MAX, Acls, size_of
from onceflow.broker.topics.metadata_log import record_changes
from onceflow.broker.topics.records import AclRecord, MetadataRecord, RemoveAclRecord
from onceflow.wire import apis
from onceflow.wire.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    PatternType,
    ResourceType,
)
from onceflow.wire.errors import ErrorCode, MalformedFrame
from onceflow.wire.primitives import INT16, INT32, append_count, append_string

DELETED_MAX = 10_000
"""ACLs in the results of one DeleteAcls; Kafka's limit of records for one operation."""
WORK_PER_ACL = 3
NO_AUTHORIZER = "No Authorizer is configured."

Result = tuple[ErrorCode, str | None]
_CREATED: Result = (ErrorCode.none, "")


def handle_describe(node: Node, request: Request) -> None:
    """Serve one DescribeAcls request, once the ACLs in its response are durable."""
    body = request.decode()
    _check_known(body.resource_type_filter, body.pattern_type_filter, body.operation, body.permission_type)

    def refuse(error_code: ErrorCode, message: str | None = None) -> None:
        refuse_describe(request, error_code, message)

    if node.authorizer is None:
        refuse(ErrorCode.security_disabled, "No Authorizer is configured on the broker")
        return
    flexible = request.version >= request.header.api.flexible_from
    head = bytearray(INT32.pack(0) + INT16.pack(ErrorCode.none))
    append_string(head, "", flexible=flexible)
    respond_in_slices(
        request,
        bytes(head),
        _described(request, node.acls, _filter(body)),
        tags_of(request),
        when_built=once_durable(node.metadata.when_synced, refuse),
    )


def refuse_describe(request: Request, error_code: ErrorCode, message: str | None) -> None:
    """Refuse a DescribeAcls request."""
    request.respond(error_code=error_code, error_message=message, resources=())


def _described(request: Request, acls: Acls, wanted: AclFilter) -> Iterator[Element]:
    """Yield the matching ACLs by pattern, encoded by hand, since there may be many."""
    tags = tags_of(request)
    flexible = tags != b""
    for pattern in acls.patterns(wanted):
        bindings = _matching(acls, wanted, pattern)
        yield b"", WORK_PER_ACL
        if not bindings:
            continue
        buffer = bytearray((pattern.resource_type,))
        append_string(buffer, pattern.name, flexible=flexible)
        buffer.append(pattern.pattern_type)
        append_count(buffer, len(bindings), flexible=flexible)
        for _id, binding in bindings:
            append_string(buffer, binding.principal, flexible=flexible)
            append_string(buffer, binding.host, flexible=flexible)
            buffer += bytes((binding.operation, binding.permission)) + tags
            yield b"", WORK_PER_ACL
        yield bytes(buffer + tags), 1


def _matching(acls: Acls, wanted: AclFilter, pattern: AclPattern) -> list[tuple[uuid.UUID, AclBinding]]:
    if not wanted.matches_pattern(pattern):
        return []
    return [entry for entry in acls.by_pattern.get(pattern, {}).items() if wanted.matches_entry(entry[1])]


def _filter(entry: Any) -> AclFilter:
    return AclFilter(
        ResourceType(entry.resource_type_filter),
        entry.resource_name_filter,
        PatternType(entry.pattern_type_filter),
        entry.principal_filter,
        entry.host_filter,
        AclOperation(entry.operation),
        AclPermission(entry.permission_type),
    )


def _check_known(*codes: int) -> None:
    """Raise MalformedFrame for the code of UNKNOWN: no client may send it."""
    if 0 in codes:
        raise MalformedFrame("an ACL request contains UNKNOWN elements")


def handle_create(node: Node, request: Request) -> None:
    """Serve one CreateAcls request: all that are valid are recorded in one batch."""
    body = request.decode()
    for entry in body.creations:
        _check_known(entry.resource_type, entry.resource_pattern_type, entry.operation, entry.permission_type)
    if node.authorizer is None:
        refuse_create(request, ErrorCode.security_disabled, NO_AUTHORIZER)
        return
    created: dict[AclBinding, MetadataRecord] = {}
    results: list[Result] = []
    size_bytes = node.acls.size_bytes
    for entry in body.creations:
        binding = _binding(entry)
        refusal = _refusal(binding)
        if refusal is None and not node.metadata.can_store_acls_of(binding.pattern.name):
            refusal = ErrorCode.invalid_request, "Failed to create ACL"
        if refusal is None and binding not in node.acls and binding not in created:
            size_bytes += size_of(binding)
            if size_bytes > ACLS_BYTES_MAX:
                refusal = ErrorCode.policy_violation, f"the ACLs of this broker exceed {ACLS_BYTES_MAX} bytes"
            else:
                created[binding] = AclRecord(uuid.uuid4(), binding)
        results.append(refusal or _CREATED)
    failure = record_changes(node.metadata, list(created.values()))

    def respond(error_code: ErrorCode) -> None:
        request.respond(
            results=[
                {"error_code": code or failure or error_code, "error_message": message} for code, message in results
            ]
        )

    node.metadata.when_synced(respond)


def refuse_create(request: Request, error_code: ErrorCode, message: str | None) -> None:
    """Refuse each ACL of a CreateAcls request."""
    result = {"error_code": error_code, "error_message": message}
    request.respond(results=[result] * len(request.decode().creations))


def _binding(entry: Any) -> AclBinding:
    return AclBinding(
        AclPattern(ResourceType(entry.resource_type), entry.resource_name, PatternType(entry.resource_pattern_type)),
        entry.principal,
        entry.host,
        AclOperation(entry.operation),
        AclPermission(entry.permission_type),
    )


def _refusal(binding: AclBinding) -> Result | None:
    """Return why an ACL is invalid."""
    (resource_type, name, pattern_type), principal, _host, operation, permission = binding
    reason = None
    if resource_type == ResourceType.CLUSTER and name != CLUSTER_NAME:
        reason = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not name:
        reason = "Invalid empty resource name"
    elif resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        reason = f"Invalid resourceType {resource_type.name}"
    elif pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        reason = f"Invalid patternType {pattern_type.name}"
    elif operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        reason = f"Invalid operation {operation.name}"
    elif permission not in (AclPermission.ALLOW, AclPermission.DENY):
        reason = f"Invalid permissionType {permission.name}"
    elif ":" not in principal:
        reason = (
            f"Could not parse principal from `{principal[:100]}` (no colon is present separating the principal type"
            " from the principal name)"
        )
    return None if reason is None else (ErrorCode.invalid_request, reason)


class _Selected(NamedTuple):
    """ACLs that one filter of DeleteAcls selects, or its error."""

    acl_ids: list[uuid.UUID]
    error_code: ErrorCode = ErrorCode.none
    message: str | None = None


def handle_delete(node: Node, request: Request) -> None:
    """Serve one DeleteAcls request: all ACLs that its filters select are deleted in one batch."""
    body = request.decode()
    for entry in body.filters:
        _check_known(entry.resource_type_filter, entry.pattern_type_filter, entry.operation, entry.permission_type)
    if node.authorizer is None:
        refuse_delete(request, ErrorCode.security_disabled, NO_AUTHORIZER)
        return
    selections: list[_Selected] = []
    request.in_slices(
        _select(node.acls, map(_filter, body.filters), selections), lambda: _delete(node, request, selections)
    )


def refuse_delete(request: Request, error_code: ErrorCode, message: str | None) -> None:
    """Refuse each filter of a DeleteAcls request."""
    result = {"error_code": error_code, "error_message": message, "matching_acls": ()}
    request.respond(filter_results=[result] * len(request.decode().filters))


def _select(acls: Acls, filters: Iterable[AclFilter], selections: list[_Selected]) -> Iterator[int]:
    """Add the selection of each filter; yield the work."""
    left = DELETED_MAX
    for wanted in filters:
        if wanted.unknown_part is not None:
            selections.append(_Selected([], ErrorCode.invalid_request, f"Unknown {wanted.unknown_part}."))
            continue
        acl_ids: list[uuid.UUID] = []
        for pattern in acls.patterns(wanted):
            matching = _matching(acls, wanted, pattern)
            acl_ids += [acl_id for acl_id, _binding in matching]
            yield WORK_PER_ACL * (1 + len(matching))
        if len(acl_ids) > left:
            message = f"Cannot remove more than {DELETED_MAX} acls in a single delete operation."
            selections.append(_Selected([], ErrorCode.policy_violation, message))
        else:
            left -= len(acl_ids)
            selections.append(_Selected(acl_ids))


def _delete(node: Node, request: Request, selections: Sequence[_Selected]) -> None:
    """Delete what was selected and still exists, and respond."""
    by_id = node.acls.by_id
    results = [
        (selected, [(acl_id, by_id[acl_id]) for acl_id in selected.acl_ids if acl_id in by_id])
        for selected in selections
    ]
    acl_ids = dict.fromkeys(acl_id for _selected, deleted in results for acl_id, _binding in deleted)
    failure = record_changes(node.metadata, [RemoveAclRecord(acl_id) for acl_id in acl_ids])

    def respond(error_code: ErrorCode) -> None:
        code = failure or error_code
        request.respond(
            filter_results=[
                {
                    "error_code": selected.error_code or code,
                    "error_message": selected.message,
                    "matching_acls": [] if code else [_deleted(binding) for _id, binding in deleted],
                }
                for selected, deleted in results
            ]
        )

    node.metadata.when_synced(respond)


def _deleted(binding: AclBinding) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resource_type": binding.pattern.resource_type,
        "resource_name": binding.pattern.name,
        "pattern_type": binding.pattern.pattern_type,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation,
        "permission_type": binding.permission,
    }


HANDLERS = {
    apis.DESCRIBE_ACLS: handle_describe,
    apis.CREATE_ACLS: handle_create,
    apis.DELETE_ACLS: handle_delete,
}
REFUSALS = {
    apis.DESCRIBE_ACLS: refuse_describe,
    apis.CREATE_ACLS: refuse_create,
    apis.DELETE_ACLS: refuse_delete,
}
