"""CreateTopics, CreatePartitions and DeleteTopics.

A topic and its partitions are visible, writable and durable when the response to their creation is sent. Conditions,
codes and messages of errors are Kafka's (kafka.server.ControllerApis, org.apache.kafka.controller.
ReplicationControlManager).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from onceflow.broker.handlers.config_entries import topic_entries
from onceflow.broker.handlers.quotas import mutation_charge
from onceflow.broker.handlers.sliced_responses import Element, encoded, respond_in_slices, tags_of
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import Access
from onceflow.broker.topics.configs import log_config
from onceflow.broker.topics.operations import Changed, Created
from onceflow.broker.topics.topics import INTERNAL_TOPICS, MorePartitions, NewTopic, Topic
from onceflow.wire import apis
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.errors import ErrorCode
from onceflow.wire.primitives import INT16, INT32

CONFIG_ERROR_FROM = 5
_CONFIG_ERROR_TAG = b"\x01\x00\x02"
"""Tagged fields of a created topic: one, number 0, of two bytes."""
_UNAUTHORIZED = (ErrorCode.topic_authorization_failed, "Authorization failed.")
MESSAGE_CHARACTERS_MAX = 4096
"""Limit of an error message: it quotes the request, and a string of the old versions ends at 32,767 bytes."""
DELETION_DISABLED_VERSION = 3
STRICT_QUOTA_FROM = {apis.CREATE_TOPICS: 6, apis.CREATE_PARTITIONS: 3, apis.DELETE_TOPICS: 5}

CREATED_ENTRY = ("name", "value", "read_only", "config_source", "is_sensitive")
"""Fields of a configuration in CreateTopics."""
DUPLICATE_NAME = "Duplicate topic name."
WORK_PER_WANTED = 3
WORK_PER_TOPIC = 10
WORK_PER_CONFIG = 10
_NO_THROTTLE = INT32.pack(0)


def handle_create(node: Node, request: Request) -> None:
    """Serve one CreateTopics request."""
    body = request.decode()
    once, refused = _named_once(body.topics)
    access = node.access(request)
    may_create_all = access.may_on_cluster(AclOperation.CREATE)
    wanted: list[NewTopic] = []
    results = [_refusal(name, ErrorCode.invalid_request, DUPLICATE_NAME) for name in refused]

    def sort() -> Iterator[int]:
        for topic in once:
            if topic.name in INTERNAL_TOPICS and topic.name not in node.topics.by_name and node.cluster is None:
                message = f"Creation of internal topic {topic.name} is prohibited."
                results.append(_refusal(topic.name, ErrorCode.invalid_request, message))
            elif not (may_create_all or access.may(AclOperation.CREATE, ResourceType.TOPIC, topic.name)):
                results.append(_refusal(topic.name, *_UNAUTHORIZED))
            else:
                wanted.append(_wanted(topic))
            yield WORK_PER_WANTED

    def respond(created: list[Created]) -> None:
        def elements() -> Iterator[Element]:
            for refusal in results:
                yield encoded(request, "topics", refusal), WORK_PER_TOPIC
            for result in created:
                if access.may(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name):
                    shown = _created(node, result)
                    work = WORK_PER_TOPIC + WORK_PER_CONFIG * len(shown["configs"])
                    yield encoded(request, "topics", shown), work
                else:
                    yield _created_without_configs(request, result), WORK_PER_TOPIC

        _respond(request, elements())

    failed = request.reply.close_connection
    charge = mutation_charge(node, request, STRICT_QUOTA_FROM[apis.CREATE_TOPICS])
    request.in_slices(
        sort(),
        lambda: node.topic_operations.create(
            wanted, respond, failed=failed, validate_only=body.validate_only, charge=charge
        ),
    )


def _respond(request: Request, elements: Iterator[Element]) -> None:
    """Respond with a throttle time and one array, which may be long."""
    respond_in_slices(request, _NO_THROTTLE, elements, tags_of(request))


def _named_once(topics: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """Return the entries with a unique name, and the names that occur more than once."""
    counts = Counter(topic.name for topic in topics)
    once = [topic for topic in topics if counts[topic.name] == 1]
    return once, [name for name, count in counts.items() if count > 1]


def _wanted(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {config.name: config.value for config in topic.configs},
        [(assignment.partition_index, tuple(assignment.broker_ids)) for assignment in topic.assignments],
    )


def _refusal(name: str, error_code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error_code,
        "error_message": message[:MESSAGE_CHARACTERS_MAX] if message is not None else None,
        "configs": (),
    }


def _created(node: Node, created: Created) -> dict[str, Any]:
    if created.error_code != ErrorCode.none:
        return _refusal(created.name, created.error_code, created.error_message)
    assert created.topic_id is not None
    topic = Topic(created.name, created.topic_id, created.partition_count, dict(created.configs))
    config = log_config(node.config.log, created.configs)
    return {
        "name": created.name,
        "topic_id": created.topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": created.partition_count,
        "replication_factor": created.replication_factor,
        "configs": [
            {name: entry[name] for name in CREATED_ENTRY} for entry in topic_entries(topic, config, node.config.log)
        ],
    }


def _created_without_configs(request: Request, created: Created) -> bytes:
    """Encode the result for a client that may create the topic, but not describe its configs.

    The reason is a tagged field, the last of the entry, in the versions that have it.
    """
    if created.error_code != ErrorCode.none:
        return encoded(request, "topics", _refusal(created.name, created.error_code, created.error_message))
    shown = {"name": created.name, "topic_id": created.topic_id, "error_code": ErrorCode.none, "error_message": None}
    entry = encoded(request, "topics", {**shown, "num_partitions": -1, "replication_factor": -1, "configs": ()})
    if request.version < CONFIG_ERROR_FROM:
        return entry
    return entry[:-1] + _CONFIG_ERROR_TAG + INT16.pack(ErrorCode.topic_authorization_failed)


def handle_create_partitions(node: Node, request: Request) -> None:
    """Serve one CreatePartitions request."""
    body = request.decode()
    once, refused = _named_once(body.topics)
    access = node.access(request)
    results = [Changed(name, ErrorCode.invalid_request, DUPLICATE_NAME) for name in refused]
    allowed = [topic for topic in once if access.may(AclOperation.ALTER, ResourceType.TOPIC, topic.name)]
    if len(allowed) < len(once):
        names = {topic.name for topic in allowed}
        results += [Changed(topic.name, *_UNAUTHORIZED) for topic in once if topic.name not in names]

    def respond(changed: list[Changed]) -> None:
        _respond(
            request, ((encoded(request, "results", _changed(result)), WORK_PER_TOPIC) for result in results + changed)
        )

    wanted = [_more_partitions(topic) for topic in allowed]
    failed = request.reply.close_connection
    charge = mutation_charge(node, request, STRICT_QUOTA_FROM[apis.CREATE_PARTITIONS])
    node.topic_operations.add_partitions(
        wanted, respond, failed=failed, validate_only=body.validate_only, charge=charge
    )


def _changed(changed: Changed) -> dict[str, Any]:
    message = changed.error_message[:MESSAGE_CHARACTERS_MAX] if changed.error_message else None
    return {"name": changed.name, "error_code": changed.error_code, "error_message": message}


def _more_partitions(topic: Any) -> MorePartitions:
    assignments = topic.assignments
    brokers = None if assignments is None else [tuple(assignment.broker_ids) for assignment in assignments]
    return MorePartitions(topic.name, topic.count, brokers)


def handle_delete(node: Node, request: Request) -> None:
    """Serve one DeleteTopics request."""
    body = request.decode()
    if not node.config.delete_topics:
        _refuse_deletion(request, body)
        return
    results: list[dict[str, Any]] = []

    access = node.access(request)

    def find() -> list[Topic]:
        topics, refused = _topics_to_delete(node, access, body)
        results.extend(refused)
        return topics

    def respond(deleted: list[tuple[Topic, ErrorCode, str | None]]) -> None:
        for topic, code, message in deleted:
            results.append(
                {"name": topic.name, "topic_id": topic.topic_id, "error_code": code, "error_message": message}
            )
        _respond(request, ((encoded(request, "responses", result), WORK_PER_TOPIC) for result in results))

    charge = mutation_charge(node, request, STRICT_QUOTA_FROM[apis.DELETE_TOPICS])
    node.topic_operations.delete(find, respond, failed=request.reply.close_connection, charge=charge)


def _refuse_deletion(request: Request, body: Any) -> None:
    """Refuse because of `delete.topic.enable=false`; before version 3 this had no error code of its own."""
    is_old = request.version < DELETION_DISABLED_VERSION
    code = ErrorCode.invalid_request if is_old else ErrorCode.topic_deletion_disabled
    request.respond(
        responses=[
            {"name": name, "topic_id": topic_id, "error_code": code, "error_message": "Topic deletion is disabled."}
            for name, topic_id in _named(body)
        ]
    )


def _topics_to_delete(node: Node, access: Access, body: Any) -> tuple[list[Topic], list[dict[str, Any]]]:
    """Return the topics to delete, and the results of the rest; a topic given twice is not deleted, as in Kafka."""
    named = Counter(_named(body))
    may_delete_all = access.may_on_cluster(AclOperation.DELETE)
    topics: dict[UUID, list[Topic]] = {}
    results: list[dict[str, Any]] = []
    for (name, topic_id), count in named.items():
        topic = node.topics.by_name.get(name or "") if topic_id is None else node.topics.by_id.get(topic_id)
        error_code, message = _contradiction(name, topic_id, count)
        if error_code == ErrorCode.none and not may_delete_all:
            name, error_code, message = _deletion_refusal(access, name, topic)
        if error_code == ErrorCode.none and topic is None:
            error_code, message = _UNKNOWN_NAME if topic_id is None else _UNKNOWN_ID
        if error_code != ErrorCode.none or topic is None:
            results.append({"name": name, "topic_id": topic_id, "error_code": error_code, "error_message": message})
        else:
            topics.setdefault(topic.topic_id, []).append(topic)
    for meant in topics.values():
        if len(meant) > 1:
            message = "The provided topic name maps to an ID that was already supplied."
            results.append(_refused_deletion(meant[0].name, meant[0].topic_id, message))
    return [meant[0] for meant in topics.values() if len(meant) == 1], results


_UNKNOWN_NAME = (ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
_UNKNOWN_ID = (ErrorCode.unknown_topic_id, "This server does not host this topic ID.")


def _deletion_refusal(
    access: Access, name: str | None, topic: Topic | None
) -> tuple[str | None, ErrorCode, str | None]:
    """Return the name to show, and the error of a client without permission.

    Without Describe it learns neither whether a name exists nor the name of a topic that it gave by its id.
    """
    asked = topic.name if topic is not None else name
    if asked is None:
        return name, ErrorCode.none, None
    may_describe = access.may(AclOperation.DESCRIBE, ResourceType.TOPIC, asked)
    may_delete = topic is None or access.may(AclOperation.DELETE, ResourceType.TOPIC, asked)
    if may_delete and (may_describe or name is None):
        return name, ErrorCode.none, None
    return asked if may_describe else name, *_UNAUTHORIZED


def _contradiction(name: str | None, topic_id: UUID | None, count: int) -> tuple[ErrorCode, str | None]:
    """Return Kafka's error for an entry of DeleteTopics (kafka.server.ControllerApis.deleteTopics)."""
    if name is not None and topic_id is not None:
        return ErrorCode.invalid_request, "You may not specify both topic name and topic id."
    if name is None and topic_id is None:
        return ErrorCode.invalid_request, "Neither topic name nor id were specified."
    if count > 1:
        return ErrorCode.invalid_request, f"Duplicate topic {'id' if name is None else 'name'}."
    return ErrorCode.none, None


def _refused_deletion(name: str, topic_id: UUID, message: str) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": ErrorCode.invalid_request, "error_message": message}


def _named(body: Any) -> list[tuple[str | None, UUID | None]]:
    if hasattr(body, "topic_names"):
        return [(name, None) for name in body.topic_names]
    return [(topic.name, topic.topic_id) for topic in body.topics]


HANDLERS = {
    apis.CREATE_TOPICS: handle_create,
    apis.CREATE_PARTITIONS: handle_create_partitions,
    apis.DELETE_TOPICS: handle_delete,
}
