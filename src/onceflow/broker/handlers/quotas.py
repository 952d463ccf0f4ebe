"""DescribeClientQuotas and AlterClientQuotas.

Conditions, codes and messages of errors are Kafka's (org.apache.kafka.controller.ClientQuotaControlManager,
org.apache.kafka.image.ClientQuotasImage).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from onceflow.broker.handlers.sliced_responses import Element, encoded, once_durable, respond_in_slices, tags_of
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.security.acls import address_text
from onceflow.broker.security.client_quotas import (
    CLIENT_ID,
    CONTROLLER_MUTATION_RATE,
    ENTITIES_MAX,
    IP,
    USER,
    ClientQuotas,
    Entity,
    refusal_of_entity,
    refusal_of_value,
)
from onceflow.broker.topics.metadata_log import record_changes
from onceflow.broker.topics.operations import Charge
from onceflow.broker.topics.records import ClientQuotaRecord
from onceflow.errors import OnceflowError
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.wire.primitives import INT16, INT32, append_string

EXACT, DEFAULT, SPECIFIED = range(3)
"""Match types of DescribeClientQuotas."""
WORK_PER_ENTITY = 8

Result = tuple[Sequence[tuple[str, str | None]], ErrorCode, str | None]
"""(entity as in the request, error code, message)."""


class FilterRefused(OnceflowError):
    """The filter of a DescribeClientQuotas request is invalid, with Kafka's error code."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


def handle_describe(node: Node, request: Request) -> None:
    """Serve one DescribeClientQuotas request, once the quotas in its response are durable."""
    body = request.decode()
    try:
        exact, specified = _filter(body.components)
    except FilterRefused as error:
        refuse_describe(request, error.error_code, str(error))
        return

    def entries() -> Iterator[Element]:
        for entity, quotas in list(node.throttling.quotas.by_entity.items()):
            if _matches(dict(entity), exact, specified, is_strict=body.strict):
                yield encoded(request, "entries", _described(entity, quotas)), WORK_PER_ENTITY
            else:
                yield b"", 1

    head = bytearray(INT32.pack(0) + INT16.pack(ErrorCode.none))
    append_string(head, "", flexible=request.version >= request.header.api.flexible_from)
    when_built = once_durable(node.metadata.when_synced, lambda code: refuse_describe(request, code, None))
    respond_in_slices(request, bytes(head), entries(), tags_of(request), when_built=when_built)


def refuse_describe(request: Request, error_code: ErrorCode, message: str | None) -> None:
    """Refuse a DescribeClientQuotas request."""
    request.respond(error_code=error_code, error_message=message, entries=None)


def _filter(components: Any) -> tuple[dict[str, str | None], set[str]]:
    """Return the names by type that must match, and the types that must be there. Raises FilterRefused."""
    exact: dict[str, str | None] = {}
    specified: set[str] = set()
    for component in components:
        entity_type, match = component.entity_type, component.match
        if not entity_type:
            raise FilterRefused(ErrorCode.invalid_request, "Invalid empty entity type.")
        if entity_type in exact or entity_type in specified:
            message = f"Entity type {entity_type} cannot appear more than once in the filter."
            raise FilterRefused(ErrorCode.invalid_request, message)
        if entity_type not in (USER, CLIENT_ID, IP):
            raise FilterRefused(ErrorCode.unsupported_version, f"Unsupported entity type {entity_type[:100]}")
        if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise FilterRefused(ErrorCode.invalid_request, f"Unknown match type {component.match_type}")
        if (component.match_type == EXACT) != (match is not None):
            message = "A match string belongs to MATCH_TYPE_EXACT, and to no other match type."
            raise FilterRefused(ErrorCode.invalid_request, message)
        if component.match_type == SPECIFIED:
            specified.add(entity_type)
        else:
            exact[entity_type] = match
    named = exact.keys() | specified
    if IP in named and len(named) > 1:
        message = (
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId"
            " filter component."
        )
        raise FilterRefused(ErrorCode.invalid_request, message)
    return exact, specified


def _matches(
    names: dict[str, str | None], exact: dict[str, str | None], specified: set[str], *, is_strict: bool
) -> bool:
    if is_strict and len(names) != len(exact) + len(specified):
        return False
    return specified <= names.keys() and exact.items() <= names.items()


def _described(entity: Entity, quotas: dict[str, float]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": entity_type, "entity_name": name} for entity_type, name in entity],
        "values": [{"key": key, "value": value} for key, value in quotas.items()],
    }


def handle_alter(node: Node, request: Request) -> None:
    """Serve one AlterClientQuotas request: the changes of all valid entities are recorded in one batch."""
    body = request.decode()
    records: list[ClientQuotaRecord] = []
    # An entity that occurs twice has one result, as in Kafka.
    results: dict[Entity, Result] = {}
    added: set[Entity] = set()
    seen: set[Entity] = set()
    for entry in body.entries:
        types = [(part.entity_type, part.entity_name) for part in entry.entity]
        entity = frozenset((kind, address_text(name) if kind == IP and name else name) for kind, name in types)
        reason = refusal_of_entity(types) or _refusal_of_ops(entity, entry.ops)
        if reason is None and not all(node.metadata.can_store_entity(name) for _kind, name in entity if name):
            reason = "no user or client id can have this name"
        if reason is None and entity in seen:
            reason = "Ignoring duplicate entity"
        seen.add(entity)
        is_new = entity not in node.throttling.quotas.by_entity and entity not in added
        if reason is None and is_new and len(node.throttling.quotas.by_entity) + len(added) >= ENTITIES_MAX:
            results[entity] = (types, ErrorCode.policy_violation, f"at most {ENTITIES_MAX} entities can have quotas")
        elif reason is not None:
            results[entity] = (types, ErrorCode.invalid_request, reason)
        else:
            added |= {entity} if is_new else set()
            records += _changes(node.throttling.quotas, entity, entry.ops)
            results[entity] = (types, ErrorCode.none, None)
    failure = record_changes(node.metadata, records if not body.validate_only else ())

    def respond(error_code: ErrorCode) -> None:
        request.respond(entries=[_altered(result, failure or error_code) for result in results.values()])

    node.metadata.when_synced(respond)


def _refusal_of_ops(entity: Entity, ops: Any) -> str | None:
    keys = [op.key for op in ops]
    if len(set(keys)) < len(keys):
        return "Duplicate quota key"
    return next(
        (reason for op in ops if not op.remove and (reason := refusal_of_value(entity, op.key, op.value))), None
    )


def _changes(quotas: ClientQuotas, entity: Entity, ops: Any) -> Iterator[ClientQuotaRecord]:
    """Yield the records of what changes."""
    present = quotas.by_entity.get(entity, {})
    for op in ops:
        value = None if op.remove else op.value
        if present.get(op.key) != value:
            yield ClientQuotaRecord(entity, op.key, value)


def _altered(result: Result, failure: ErrorCode) -> dict[str, Any]:
    types, error_code, message = result
    return {
        "error_code": error_code or failure,
        "error_message": message,
        "entity": [{"entity_type": entity_type, "entity_name": name} for entity_type, name in types],
    }


def refuse_alter(request: Request, error_code: ErrorCode, message: str | None) -> None:
    """Refuse each entity of an AlterClientQuotas request."""
    request.respond(
        entries=[
            {
                "error_code": error_code,
                "error_message": message,
                "entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity],
            }
            for entry in request.decode().entries
        ]
    )


def mutation_charge(node: Node, request: Request, strict_since: int) -> Charge | None:
    """Return what takes created or deleted partitions from the client's quota; None without such a quota.

    Before version `strict_since` the quota only throttles; from it on operations beyond it are refused (KIP-599).
    """
    limit = request.reply.limit
    if limit is None or CONTROLLER_MUTATION_RATE not in node.throttling.quotas.counts:
        return None
    is_strict = request.version >= strict_since
    user, client_id = request.principal.name, request.client_id

    def charge(partitions: int) -> bool:
        throttle_ms = node.throttling.usage.take_mutations(user, client_id, partitions, is_strict=is_strict)
        limit.throttle_ms = max(limit.throttle_ms, throttle_ms)
        return not (is_strict and throttle_ms)

    return charge


HANDLERS = {
    apis.DESCRIBE_CLIENT_QUOTAS: handle_describe,
    apis.ALTER_CLIENT_QUOTAS: handle_alter,
}
REFUSALS = {
    apis.DESCRIBE_CLIENT_QUOTAS: refuse_describe,
    apis.ALTER_CLIENT_QUOTAS: refuse_alter,
}
