"""ApiVersions and Metadata: the answers that every client asks for first and repeats.

A Metadata answer is joined from the bytes of its topics, which are kept (`MetadataEntries`); an answer about many
topics is made in slices, a bounded number of topics and partitions in each turn of the loop.
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
"""What a client and its version may be called (KIP-511)."""

WORK_PER_FOUND = 6

CLUSTER_OPERATIONS = 8096
"""All of AclOperation that are for a cluster, as bits: Kafka's answer where there is no authorizer."""


_NO_REFUSAL = (ErrorCode.none, ErrorCode.topic_already_exists)


def handle_api_versions(node: Node, request: Request) -> None:
    """Serve one ApiVersions request."""
    if node.response_cache.send(request):
        return
    asked = request.decode()
    if request.version >= NAMED_CLIENTS_FROM and not _is_named(asked):
        request.respond(error_code=ErrorCode.invalid_request, api_keys=())
        return
    api_keys = [
        {"api_key": api.key, "min_version": api.advertised_min, "max_version": api.version_max} for api in APIS.values()
    ]
    response = request.encoded(error_code=ErrorCode.none, api_keys=api_keys)
    node.response_cache.keep(cache_key(request), response)
    request.reply.send([response])


def _is_named(asked: Any) -> bool:
    names = (asked.client_software_name, asked.client_software_version)
    return all(_SOFTWARE_NAME.fullmatch(each) for each in names)


def handle_metadata(node: Node, request: Request) -> None:
    """Serve one Metadata request; creates topics that are asked for, where request and configuration allow it.

    It waits until what the topics are is durable, since it tells of them. If that failed, it is answered all the same:
    who cannot see the topics that are served cannot work with them either.
    """
    asked = request.decode()
    allowed = node.config.auto_create_topics and getattr(asked, "allow_auto_topic_creation", True)
    missing = _creatable(node, asked) if allowed else []
    found: list[Topic | bytes] = []

    def answer() -> None:
        _answer(node, request, asked, found)

    def created(results: list[Created]) -> None:
        # A name that "exists already" and is not there belongs to a topic that is being deleted: it is unknown.
        refused = {each.name: each.error_code for each in results if each.error_code not in _NO_REFUSAL}
        request.in_slices(_find_topics(node, asked, request.version, refused, found), answer)

    if missing:
        node.topic_operations.create(missing, created, failed=request.reply.close_connection)
    else:
        finding = _find_topics(node, asked, request.version, {}, found)
        request.in_slices(finding, lambda: node.metadata.when_synced(lambda _error_code: answer()))


def _creatable(node: Node, asked: Any) -> list[NewTopic]:
    names = dict.fromkeys(each.name for each in asked.topics or () if each.name is not None)
    wanted = [name for name in names if name not in node.topics.by_name and name not in INTERNAL_TOPICS]
    return [NewTopic(name, -1) for name in wanted if is_legal_name(name)]


def _find_topics(
    node: Node, asked: Any, version: int, refused: Mapping[str, ErrorCode], topics: list[Topic | bytes]
) -> Iterator[int]:
    """Adds the topics that are asked for, as they are before the wait for their durability; or an entry with an error.

    Yields the work of each.
    """
    if asked.topics is None or (version < ALL_TOPICS_IS_EMPTY_BEFORE and not asked.topics):
        topics.extend(node.topics.by_name.values())
        return
    found: dict[str | UUID | None, Topic | bytes] = {}
    for name, topic_id in dict.fromkeys((each.name, getattr(each, "topic_id", None)) for each in asked.topics):
        topic, error_code = _found(node, name, topic_id, version)
        code = refused.get(name or "", error_code)
        shown = None if topic_id is not None and version >= BY_ID_FROM else name
        if topic is not None:
            found[topic.name] = topic
        else:
            found[topic_id if shown is None else shown] = metadata.encode_topic(version, code, shown, topic_id)
        yield WORK_PER_FOUND
    topics.extend(found.values())


def _answer(node: Node, request: Request, asked: Any, found: Sequence[Topic | bytes]) -> None:
    version = request.version
    authorized = getattr(asked, "include_topic_authorized_operations", False)

    def entries() -> Iterator[Element]:
        for each in found:
            if isinstance(each, bytes):
                yield each, 1
            else:
                yield node.metadata_entries.entry(
                    each, node.partitions.count(each.name), version, authorized=authorized
                )

    head = metadata.encode_head(version, node.node_id, node.advertised_host, node.advertised_port, node.cluster_id)
    cluster_operations = getattr(asked, "include_cluster_authorized_operations", False)
    tail = metadata.encode_tail(version, CLUSTER_OPERATIONS if cluster_operations else metadata.OPERATIONS_NOT_ASKED)
    respond_in_slices(request, head, entries(), tail)


def _found(node: Node, name: str | None, topic_id: UUID | None, version: int) -> tuple[Topic | None, ErrorCode]:
    """The topic, or the code that says why there is none (kafka.server.KafkaApis.handleTopicMetadataRequest)."""
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
