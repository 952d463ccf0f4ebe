"""CreateTopics and DeleteTopics. A topic is visible and writable when its creation is answered, and stays."""

from collections import Counter
from typing import Any
from uuid import UUID

from onceflow.broker.node import Created, Node
from onceflow.broker.request import Request
from onceflow.broker.topics import NewTopic, Topic, TopicRefused
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

CONFIG_SOURCE_TOPIC = 1
"""DescribeConfigsResponse.ConfigSource.DYNAMIC_TOPIC_CONFIG."""

MESSAGE_CHARACTERS_MAX = 4096
"""A refusal names what the client sent, and a string of the old versions ends at 32,767 bytes."""


def handle_create(node: Node, request: Request) -> None:
    """Serve one CreateTopics request."""
    asked = request.decode()
    counts = Counter(each.name for each in asked.topics)
    wanted: list[NewTopic] = []
    refused: list[dict[str, Any]] = []
    for each in asked.topics:
        try:
            wanted.append(_wanted(node, each, counts[each.name]))
        except TopicRefused as error:
            refused.append(_refusal(each.name, error.error_code, str(error)))

    def answer(created: list[Created]) -> None:
        request.answer(topics=refused + [_created(node, each) for each in created])

    node.create_topics(wanted, answer, validate_only=asked.validate_only)


def _wanted(node: Node, asked: Any, count: int) -> NewTopic:
    """The topic that the request describes; raises TopicRefused where it contradicts itself."""
    if count > 1:
        raise TopicRefused(ErrorCode.invalid_request, f"topic {asked.name} is {count} times in the request")
    configs = {each.name: each.value for each in asked.configs}
    if not asked.assignments:
        return NewTopic(asked.name, asked.num_partitions, asked.replication_factor, configs)
    indexes = sorted(each.partition_index for each in asked.assignments)
    ours = all(tuple(each.broker_ids) == (node.node_id,) for each in asked.assignments)
    if not ours or indexes != list(range(len(indexes))):
        raise TopicRefused(
            ErrorCode.invalid_replica_assignment,
            f"topic {asked.name}: partitions must be 0, 1, … and each assigned to broker {node.node_id} alone",
        )
    return NewTopic(asked.name, len(indexes), 1, configs)


def _refusal(name: str, error_code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error_code,
        "error_message": message[:MESSAGE_CHARACTERS_MAX],
        "configs": None,
    }


def _created(node: Node, created: Created) -> dict[str, Any]:
    if created.error_code != ErrorCode.none:
        return _refusal(created.name, created.error_code, created.error_message or "")
    configs = [
        {
            "name": name,
            "value": value,
            "read_only": False,
            "config_source": CONFIG_SOURCE_TOPIC,
            "is_sensitive": False,
        }
        for name, value in created.configs.items()
    ]
    return {
        "name": created.name,
        "topic_id": created.topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": created.partition_count,
        "replication_factor": 1,
        "configs": configs,
    }


def handle_delete(node: Node, request: Request) -> None:
    """Serve one DeleteTopics request."""
    topics, results = _asked_to_delete(node, request.decode())

    def answer(deleted: list[tuple[Topic, ErrorCode, str | None]]) -> None:
        for topic, code, message in deleted:
            results.append(
                {"name": topic.name, "topic_id": topic.topic_id, "error_code": code, "error_message": message}
            )
        request.answer(responses=results)

    node.delete_topics(topics, answer)


def _asked_to_delete(node: Node, asked: Any) -> tuple[list[Topic], list[dict[str, Any]]]:
    """The topics to delete, and what is answered for the rest; a topic that is meant twice stays, as with Kafka."""
    named = Counter(_named(asked))
    topics: dict[UUID, list[Topic]] = {}
    results: list[dict[str, Any]] = []
    for (name, topic_id), count in named.items():
        topic = node.topics.by_name.get(name or "") if topic_id is None else node.topics.by_id.get(topic_id)
        error_code, message = _contradiction(name, topic_id, count)
        if error_code == ErrorCode.none and topic is None:
            error_code = ErrorCode.unknown_topic_or_partition if name is not None else ErrorCode.unknown_topic_id
        if error_code != ErrorCode.none or topic is None:
            results.append({"name": name, "topic_id": topic_id, "error_code": error_code, "error_message": message})
        else:
            topics.setdefault(topic.topic_id, []).append(topic)
    for meant in topics.values():
        if len(meant) > 1:
            message = "The provided topic name maps to an ID that was already supplied."
            results.append(_refused_deletion(meant[0].name, meant[0].topic_id, message))
    return [meant[0] for meant in topics.values() if len(meant) == 1], results


def _contradiction(name: str | None, topic_id: UUID | None, count: int) -> tuple[ErrorCode, str | None]:
    """Kafka's refusals of an entry of DeleteTopics, in its words (kafka.server.ControllerApis.deleteTopics)."""
    if name is not None and topic_id is not None:
        return ErrorCode.invalid_request, "You may not specify both topic name and topic id."
    if name is None and topic_id is None:
        return ErrorCode.invalid_request, "Neither topic name nor id were specified."
    if count > 1:
        return ErrorCode.invalid_request, f"Duplicate topic {'id' if name is None else 'name'}."
    return ErrorCode.none, None


def _refused_deletion(name: str, topic_id: UUID, message: str) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": ErrorCode.invalid_request, "error_message": message}


def _named(asked: Any) -> list[tuple[str | None, UUID | None]]:
    if hasattr(asked, "topic_names"):
        return [(name, None) for name in asked.topic_names]
    return [(each.name, each.topic_id) for each in asked.topics]


HANDLERS = {
    apis.CREATE_TOPICS: handle_create,
    apis.DELETE_TOPICS: handle_delete,
}
