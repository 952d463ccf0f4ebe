"""ApiVersions and Metadata: the requests that every client sends first and repeats.

A Metadata response is joined from the cached bytes of its topics (`MetadataEntries`). A response about many topics is
built in slices, with a bounded number of topics and partitions in each turn of the loop.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from onceflow.broker.handlers.quotas import mutation_charge
from onceflow.broker.handlers.sliced_responses import Element, respond_in_slices
from onceflow.broker.network.request import Request
from onceflow.broker.network.response_cache import cache_key
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import Access, cluster_operations
from onceflow.broker.topics.operations import Created
from onceflow.broker.topics.topics import INTERNAL_TOPICS, NewTopic, Topic, is_legal_name
from onceflow.wire import apis, metadata
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.errors import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.cluster.joining import Cluster
    from onceflow.broker.cluster.view import ClusterView

ALL_TOPICS_IS_EMPTY_BEFORE = 1
BY_ID_FROM = 12
NAMED_CLIENTS_FROM = 3
_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Valid name of a client's software, or of its version (KIP-511)."""

WORK_PER_FOUND = 6
WORK_PER_LISTED = 1
ALWAYS_STRICT = 0
"""A topic beyond the quota of mutations is not created, in any version."""

_NO_REFUSAL = (ErrorCode.none, ErrorCode.topic_already_exists, ErrorCode.throttling_quota_exceeded)


def handle_api_versions(node: Node, request: Request) -> None:
    """Serve one ApiVersions request."""
    if node.response_cache.send(request):
        return
    body = request.decode()
    if request.version >= NAMED_CLIENTS_FROM and not _has_valid_name(body):
        request.respond(error_code=ErrorCode.invalid_request, api_keys=())
        return
    served = apis.served(in_cluster=node.cluster is not None, down_converts=node.config.down_converts)
    api_keys = [
        {"api_key": api.key, "min_version": api.advertised_min, "max_version": api.advertised_max}
        for api in served.values()
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
    topics cannot use them either. In a cluster it waits until the controller has named the brokers, and for a moment
    until it has named the leaders of the requested topics.
    """
    body = request.decode()
    access = node.access(request)
    allowed = node.config.auto_create_topics and getattr(body, "allow_auto_topic_creation", True)
    missing, refused = _creatable(node, access, body) if allowed else ([], {})
    topics: list[Topic | bytes] = []

    def respond() -> None:
        if node.cluster is None:
            _respond(node, request, body, topics, access)
        else:
            named = {topic.name: topic.partition_count for topic in topics if isinstance(topic, Topic)}
            described = partial(_respond, node, request, body, topics, access)
            node.cluster.view.when_described(named if body.topics else {}, described)

    def created(results: list[Created]) -> None:
        # A name that "exists already" but is not listed belongs to a topic in deletion: it is unknown.
        refused.update({result.name: result.error_code for result in results if result.error_code not in _NO_REFUSAL})
        request.in_slices(_find_topics(node, request, body, refused, topics, access), respond)

    if missing and not node.metadata.is_controller:
        assert node.cluster is not None
        node.cluster.forwarder.create(missing)
        missing = []
    if missing:
        charge = mutation_charge(node, request, ALWAYS_STRICT)
        node.topic_operations.create(missing, created, failed=request.reply.close_connection, charge=charge)
    else:
        finding = _find_topics(node, request, body, refused, topics, access)
        request.in_slices(finding, lambda: node.metadata.when_shown(respond))


def _creatable(node: Node, access: Access, body: Any) -> tuple[list[NewTopic], dict[str, ErrorCode]]:
    """Return the topics to create, and the names that the client may not create."""
    names = dict.fromkeys(topic.name for topic in body.topics or () if topic.name is not None)
    wanted = [
        name
        for name in names
        if name not in node.topics.by_name and name not in INTERNAL_TOPICS and _may_describe(access, name)
    ]
    may_create = access.may_on_cluster(AclOperation.CREATE) if wanted else False
    refused = {
        name: ErrorCode.topic_authorization_failed
        for name in wanted
        if not (may_create or access.may(AclOperation.CREATE, ResourceType.TOPIC, name))
    }
    return [NewTopic(name, -1, -1) for name in wanted if name not in refused and is_legal_name(name)], refused


def _may_describe(access: Access, name: str) -> bool:
    return access.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name)


def _find_topics(
    node: Node,
    request: Request,
    body: Any,
    refused: Mapping[str, ErrorCode],
    topics: list[Topic | bytes],
    access: Access,
) -> Iterator[int]:
    """Add the requested topics, as they are before the wait for durability, or an entry with an error.

    A list of all topics has those that the client may describe. Yield the work of each topic.
    """
    version = request.version
    if body.topics is None or (version < ALL_TOPICS_IS_EMPTY_BEFORE and not body.topics):
        for listed in list(node.topics.by_name.values()):
            if _may_describe(access, listed.name):
                topics.append(listed)
            yield WORK_PER_LISTED
        return
    entries: dict[str | UUID | None, Topic | bytes] = {}
    for name, topic_id in dict.fromkeys((topic.name, getattr(topic, "topic_id", None)) for topic in body.topics):
        topic, error_code = _find_topic(node, name, topic_id, version, access)
        code = refused.get(name or "", error_code)
        shown = None if topic_id is not None and version >= BY_ID_FROM else name
        if topic is not None:
            entries[topic.name] = topic
        else:
            request.reply.count_error(code)
            operations = _operations_on_missing(access, body, shown, code)
            entries[topic_id if shown is None else shown] = metadata.encode_topic(
                version, code, shown, topic_id, operations=operations
            )
        yield WORK_PER_FOUND
    topics.extend(entries.values())


def _operations_on_missing(access: Access, body: Any, name: str | None, code: ErrorCode) -> int:
    """Return the authorized operations on a topic that does not exist, as Kafka reports them."""
    if name is None or code is ErrorCode.topic_authorization_failed:
        return metadata.OPERATIONS_NOT_REQUESTED
    return _shown_operations(access, body, name)


def _shown_operations(access: Access, body: Any, name: str) -> int:
    is_asked = getattr(body, "include_topic_authorized_operations", False)
    return access.operations(ResourceType.TOPIC, name) if is_asked else metadata.OPERATIONS_NOT_REQUESTED


def _respond(node: Node, request: Request, body: Any, topics: Sequence[Topic | bytes], access: Access) -> None:
    version = request.version

    def entries() -> Iterator[Element]:
        for topic in topics:
            if isinstance(topic, bytes):
                yield topic, 1
            else:
                operations = _shown_operations(access, body, topic.name)
                if node.cluster is None:
                    count = node.partitions.count(topic.name)
                    yield node.metadata_entries.entry(topic, count, version, operations=operations)
                else:
                    yield _entry_in_cluster(node.cluster, request, topic, operations)

    host, port, listener = request.endpoint
    if node.cluster is None:
        alone = [(node.node_id, host, port, node.config.rack)]
        head = metadata.encode_head(version, alone, node.cluster_id, node.node_id)
    else:
        view = node.cluster.view
        brokers = [(broker_id, *address[:2], rack) for broker_id, address, rack in view.nodes(listener)]
        head = metadata.encode_head(version, brokers, node.cluster_id, view.controller_id)
    if getattr(body, "include_cluster_authorized_operations", False):
        tail = metadata.encode_tail(version, cluster_operations(access))
    else:
        tail = metadata.encode_tail(version, metadata.OPERATIONS_NOT_REQUESTED)
    respond_in_slices(request, head, entries(), tail)


def _entry_in_cluster(cluster: "Cluster", request: Request, topic: Topic, operations: int) -> Element:
    """Encode a topic with the leaders that the controller has named (ZkMetadataCache.getPartitionMetadata)."""
    reachable = {broker_id for broker_id, _address, _rack in cluster.view.nodes(request.endpoint.listener)}
    partitions = [
        _partition_in_cluster(cluster.view, topic, index, reachable) for index in range(topic.partition_count)
    ]
    entry = metadata.encode_topic_of_brokers(
        request.version,
        ErrorCode.none if partitions else ErrorCode.leader_not_available,
        topic.name,
        topic.topic_id,
        partitions,
        is_internal=topic.is_internal,
        operations=operations,
    )
    return entry, WORK_PER_FOUND * (1 + len(partitions))


def _partition_in_cluster(
    view: "ClusterView", topic: Topic, index: int, reachable: Container[int]
) -> metadata.PartitionEntry:
    state = view.state(topic.name, index)
    if state is None:
        # The topic is in ZooKeeper, but the controller has not named a leader yet.
        return metadata.PartitionEntry(ErrorCode.leader_not_available, index, -1, -1, topic.replicas[index], (), ())
    if state.leader in reachable:
        code, leader = ErrorCode.none, state.leader
    else:
        code = ErrorCode.listener_not_found if state.leader in view.brokers else ErrorCode.leader_not_available
        leader = -1
    offline = [broker for broker in state.replicas if broker not in reachable]
    return metadata.PartitionEntry(code, index, leader, state.leader_epoch, state.replicas, state.isr, offline)


def _find_topic(
    node: Node, name: str | None, topic_id: UUID | None, version: int, access: Access
) -> tuple[Topic | None, ErrorCode]:
    """Return the topic, and the error code if there is none (kafka.server.KafkaApis.handleTopicMetadataRequest).

    A topic that the client may not describe is the same for it whether it exists or not.
    """
    if topic_id is not None and version >= BY_ID_FROM:
        topic = node.topics.by_id.get(topic_id)
        if topic is not None and not _may_describe(access, topic.name):
            return None, ErrorCode.topic_authorization_failed
        return topic, ErrorCode.unknown_topic_id
    if name is None:
        return None, ErrorCode.invalid_request
    if not _may_describe(access, name):
        return None, ErrorCode.topic_authorization_failed
    code = ErrorCode.unknown_topic_or_partition if is_legal_name(name) else ErrorCode.invalid_topic_exception
    return node.topics.by_name.get(name), code


HANDLERS = {
    apis.METADATA: handle_metadata,
    apis.API_VERSIONS: handle_api_versions,
}
