"""ApiVersions and Metadata: the answers that every client asks for first and repeats; kept as bytes."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from onceflow.broker.answer_cache import cache_key
from onceflow.broker.node import Node
from onceflow.broker.request import Request
from onceflow.broker.topics import NewTopic, Topic, TopicRefused, check_name
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.wire import apis
from onceflow.wire.apis import APIS
from onceflow.wire.errors import ErrorCode

ALL_TOPICS_IS_EMPTY_BEFORE = 1
ZERO_UUID = UUID(int=0)


def handle_api_versions(node: Node, request: Request) -> None:
    """Serve one ApiVersions request."""
    if node.answer_cache.send(request):
        return
    request.decode()
    api_keys = [
        {"api_key": api.key, "min_version": api.advertised_min, "max_version": api.version_max} for api in APIS.values()
    ]
    key = cache_key(request)
    node.answer_cache.keep(key, request.answer(error_code=ErrorCode.none, api_keys=api_keys))


def handle_metadata(node: Node, request: Request) -> None:
    """Serve one Metadata request; creates topics that are asked for, where request and configuration allow it."""
    if node.answer_cache.send(request):
        return
    asked = request.decode()
    key = cache_key(request)
    allowed = node.config.auto_create_topics and getattr(asked, "allow_auto_topic_creation", True)
    missing = _creatable(node, asked) if allowed else []

    def answer(_results: object = None) -> None:
        topics = list(_described(node, asked, request.version))
        response = request.answer(
            brokers=[{"node_id": node.node_id, "host": node.advertised_host, "port": node.advertised_port}],
            cluster_id=node.cluster_id,
            controller_id=node.node_id,
            topics=topics,
        )
        # A topic that is missing or not open yet may be there next time, and the cache would not hear of it.
        if all(each["error_code"] == ErrorCode.none for each in topics):
            node.answer_cache.keep(key, response)

    if missing:
        node.create_topics(missing, answer)
    else:
        answer()


def _creatable(node: Node, asked: Any) -> list[NewTopic]:
    names = [each.name for each in asked.topics or () if each.name is not None]
    return [NewTopic(name, -1) for name in names if name not in node.topics.by_name and _is_legal(name)]


def _is_legal(name: str) -> bool:
    try:
        check_name(name)
    except TopicRefused:
        return False
    return True


def _described(node: Node, asked: Any, version: int) -> Iterable[dict[str, Any]]:
    if asked.topics is None or (version < ALL_TOPICS_IS_EMPTY_BEFORE and not asked.topics):
        return [_topic(node, topic) for topic in node.topics.by_name.values()]
    return [_asked_topic(node, each) for each in asked.topics]


def _asked_topic(node: Node, asked: Any) -> dict[str, Any]:
    if asked.name is None:
        topic = node.topics.by_id.get(asked.topic_id)
        unknown = {"name": None, "topic_id": asked.topic_id, "error_code": ErrorCode.unknown_topic_id}
    else:
        topic = node.topics.by_name.get(asked.name)
        code = ErrorCode.unknown_topic_or_partition if _is_legal(asked.name) else ErrorCode.invalid_topic_exception
        unknown = {"name": asked.name, "topic_id": ZERO_UUID, "error_code": code}
    return _topic(node, topic) if topic is not None else {**unknown, "partitions": ()}


def _topic(node: Node, topic: Topic) -> dict[str, Any]:
    is_open = node.partitions.has_topic(topic.name)
    return {
        "error_code": ErrorCode.none if is_open else ErrorCode.leader_not_available,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [_partition(node, index) for index in range(topic.partition_count if is_open else 0)],
    }


def _partition(node: Node, index: int) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "partition_index": index,
        "leader_id": node.node_id,
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": [node.node_id],
        "isr_nodes": [node.node_id],
        "offline_replicas": (),
    }


HANDLERS = {
    apis.METADATA: handle_metadata,
    apis.API_VERSIONS: handle_api_versions,
}
