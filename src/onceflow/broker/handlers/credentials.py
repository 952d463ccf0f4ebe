"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.security.credentials import CredentialKey, Upsertion
from onceflow.broker.topics.metadata_log import record_changes
from onceflow.broker.topics.records import MetadataRecord, RemoveUserScramRecord, UserScramRecord
from onceflow.broker.topics.topics import TopicRefused
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

WORK_PER_USER = 4


def handle_describe(node: Node, request: Request) -> None:
    """Serve one DescribeUserScramCredentials request: mechanisms and iterations, no keys."""
    body = request.decode()
    credentials = node.credentials
    if body.users:
        counts = Counter(user.name for user in body.users)
    else:
        counts = Counter(dict.fromkeys((key.user for key in credentials.by_key), 1))
    results: list[dict[str, Any]] = []

    def describe() -> Iterator[int]:
        for name, count in counts.items():
            results.append(_described(node, name, is_duplicate=count > 1))
            yield WORK_PER_USER

    def respond(error_code: ErrorCode) -> None:
        if error_code:
            request.respond(error_code=error_code, error_message=None, results=())
        else:
            request.respond(error_code=ErrorCode.none, error_message="", results=results)

    request.in_slices(describe(), lambda: node.metadata.when_synced(respond))


def _described(node: Node, user: str, *, is_duplicate: bool) -> dict[str, Any]:
    code, message = ErrorCode.none, ""
    infos = [
        {"mechanism": mechanism, "iterations": credential.iterations}
        for mechanism, credential in node.credentials.of_user(user).items()
    ]
    if is_duplicate:
        code, infos = ErrorCode.duplicate_resource, []
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    elif not infos:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {user}"
    return {"user": user, "error_code": code, "error_message": message, "credential_infos": infos}


def handle_alter(node: Node, request: Request) -> None:
    """Serve one AlterUserScramCredentials request: its changes are recorded in one batch, and respond when durable."""
    body = request.decode()
    deletions = [CredentialKey(entry.name, entry.mechanism) for entry in body.deletions]
    upsertions = [
        Upsertion(entry.name, entry.mechanism, entry.iterations, entry.salt, entry.salted_password)
        for entry in body.upsertions
    ]
    try:
        node.metadata.require_controller()
    except TopicRefused as refused:
        refuse_alter(request, refused.error_code, str(refused))
        return
    changes, outcomes = node.credentials.decide(deletions, upsertions, node.metadata.can_store_entity)
    records: list[MetadataRecord] = [
        RemoveUserScramRecord(key) if credential is None else UserScramRecord(key, credential)
        for key, credential in changes.items()
    ]
    failure = record_changes(node.metadata, records)

    def respond(error_code: ErrorCode) -> None:
        request.respond(
            results=[
                {
                    "user": outcome.user,
                    "error_code": outcome.error_code or failure or error_code,
                    "error_message": outcome.error_message,
                }
                for outcome in outcomes
            ]
        )

    node.metadata.when_synced(respond)


def refuse_describe(request: Request, error_code: ErrorCode, message: str | None) -> None:
    """Refuse a DescribeUserScramCredentials request."""
    result = {"user": "", "error_code": error_code, "error_message": message, "credential_infos": ()}
    results = [result] * len(request.decode().users or ())
    request.respond(error_code=error_code, error_message=message, results=results)


def refuse_alter(request: Request, error_code: ErrorCode, message: str | None) -> None:
    """Refuse each user of an AlterUserScramCredentials request."""
    body = request.decode()
    users = sorted({entry.name for entry in (*body.deletions, *body.upsertions)})
    request.respond(results=[{"user": user, "error_code": error_code, "error_message": message} for user in users])


HANDLERS = {
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: handle_describe,
    apis.ALTER_USER_SCRAM_CREDENTIALS: handle_alter,
}
REFUSALS = {
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: refuse_describe,
    apis.ALTER_USER_SCRAM_CREDENTIALS: refuse_alter,
}
