"""ApiVersions and Metadata: the requests that every client sends first and repeats.

A Metadata response is joined from the cached bytes of its topics (`MetadataEntries`). A response about many topics is
built in slices, with a bounded number of topics and partitions in each turn of the loop.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from onceflow.broker.handlers.sliced_responses import Element, respond_in_slices
from onceflow.broker.network.request import Request
from onceflow.broker.network.response_cache import cache_key
from onceflow.broker.node import Node
from onceflow.broker.topics.operations import Created
from onceflow.broker.topics.topics import INTERNAL_TOPICS, NewTopic, Topic, is_legal_name
from onceflow.wire import apis, metadata
from onceflow.wire.apis import APIS
from onceflow.wire.errors import ErrorCode

ALL_TOPICS_IS_EMPTY_BEFORE = 1
BY_ID_FROM = 12
NAMED_CLIENTS_FROM = 3
_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Valid name of a client's software, or of its version (KIP-511)."""

WORK_PER_FOUND = 6

CLUSTER_OPERATIONS = 8096
"""All AclOperation values for a cluster, as bits: Kafka's response without an authorizer."""


_NO_REFUSAL = (ErrorCode.none, ErrorCode.topic_already_exists)


def handle_api_versions(node: Node, request: Request) -> None:
    """Serve one ApiVersions request."""
    if node.response_cache.send(request):
        return
    body = request.decode()
    if request.version >= NAMED_CLIENTS_FROM and not _has_valid_name(body):
        request.respond(error_code=ErrorCode.invalid_request, api_keys=())
        return
    api_keys = [
        {"api_key": api.key, "min_version": api.advertised_min, "max_version": api.version_max} for api in APIS.values()
    ]
    response = request.encoded(error_code=ErrorCode.none, api_keys=api_keys)
    node.response_cache.keep(cache_key(request), response)
    request.reply.send([response])


def _has_valid_name(body: Any) -> bool:
    names = (body.client_software_name, body.client_software_version)
    return all(_SOFTWARE_NAME.fullmatch(name) for name in names)


def handle_metadata(node: Node, request: Request) -> None:
    """Serve one Metadata request; create missing topics if the request and the configuration allow it.

    The response waits until the topics in it are durable. It is sent even if that failed: a client that cannot see the
    topics cannot use them either.
    """
    body = request.decode()
    allowed = node.config.auto_create_topics and getattr(body, "allow_auto_topic_creation", True)
    missing = _creatable(node, body) if allowed else []
    topics: list[Topic | bytes] = []

    def respond() -> None:
        _respond(node, request, body, topics)

    def created(results: list[Created]) -> None:
        # A name that "exists already" but is not listed belongs to a topic in deletion: it is unknown.
        refused = {result.name: result.error_code for result in results if result.error_code not in _NO_REFUSAL}
        request.in_slices(_find_topics(node, request, body, refused, topics), respond)

    if missing:
        node.topic_operations.create(missing, created, failed=request.reply.close_connection)
    else:
        finding = _find_topics(node, request, body, {}, topics)
        request.in_slices(finding, lambda: node.metadata.when_shown(respond))


def _creatable(node: Node, body: Any) -> list[NewTopic]:
    names = dict.fromkeys(topic.name for topic in body.topics or () if topic.name is not None)
    wanted = [name for name in names if name not in node.topics.by_name and name not in INTERNAL_TOPICS]
    return [NewTopic(name, -1) for name in wanted if is_legal_name(name)]


def _find_topics(
    node: Node, request: Request, body: Any, refused: Mapping[str, ErrorCode], topics: list[Topic | bytes]
) -> Iterator[int]:
    """Add the requested topics, as they are before the wait for durability, or an entry with an error.

    Yield the work of each topic.
    """
    version = request.version
    if body.topics is None or (version < ALL_TOPICS_IS_EMPTY_BEFORE and not body.topics):
        topics.extend(node.topics.by_name.values())
        return
    entries: dict[str | UUID | None, Topic | bytes] = {}
    for name, topic_id in dict.fromkeys((topic.name, getattr(topic, "topic_id", None)) for topic in body.topics):
        topic, error_code = _find_topic(node, name, topic_id, version)
        code = refused.get(name or "", error_code)
        shown = None if topic_id is not None and version >= BY_ID_FROM else name
        if topic is not None:
            entries[topic.name] = topic
        else:
            request.reply.count_error(code)
            entries[topic_id if shown is None else shown] = metadata.encode_topic(version, code, shown, topic_id)
        yield WORK_PER_FOUND
    topics.extend(entries.values())


def _respond(node: Node, request: Request, body: Any, topics: Sequence[Topic | bytes]) -> None:
    version = request.version
    authorized = getattr(body, "include_topic_authorized_operations", False)

    def entries() -> Iterator[Element]:
        for topic in topics:
            if isinstance(topic, bytes):
                yield topic, 1
            else:
                yield node.metadata_entries.entry(
                    topic, node.partitions.count(topic.name), version, authorized=authorized
                )

    host, port, _ = request.endpoint
    head = metadata.encode_head(version, node.node_id, host, port, node.cluster_id)
    cluster_operations = getattr(body, "include_cluster_authorized_operations", False)
    tail = metadata.encode_tail(
        version, CLUSTER_OPERATIONS if cluster_operations else metadata.OPERATIONS_NOT_REQUESTED
    )
    respond_in_slices(request, head, entries(), tail)


def _find_topic(node: Node, name: str | None, topic_id: UUID | None, version: int) -> tuple[Topic | None, ErrorCode]:
    """Return the topic, and the error code if there is none (kafka.server.KafkaApis.handleTopicMetadataRequest)."""
    if topic_id is not None and version >= BY_ID_FROM:
        return node.topics.by_id.get(topic_id), ErrorCode.unknown_topic_id
    if name is None:
        return None, ErrorCode.invalid_request
    code = ErrorCode.unknown_topic_or_partition if is_legal_name(name) else ErrorCode.invalid_topic_exception
    return node.topics.by_name.get(name), code


HANDLERS = {
    apis.METADATA: handle_metadata,
    apis.API_VERSIONS: handle_api_versions,
}
