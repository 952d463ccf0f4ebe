"""DescribeCluster, DescribeLogDirs, reassignments of partitions, and ElectLeaders.

Error codes and messages are Kafka's (kafka.server.KafkaApis, org.apache.kafka.controller.ReplicationControlManager).
"""

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceflow.broker.config import Endpoint
from onceflow.broker.handlers.sliced_responses import Element, respond_in_slices
from onceflow.broker.loop.background import reporting_failure, run_in_thread
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import cluster_operations
from onceflow.broker.storage.partitions import Partition, Place
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.wire.primitives import INT16, INT32, INT64, append_count, append_string

if TYPE_CHECKING:
    from onceflow.broker.cluster.joining import Cluster
    from onceflow.broker.cluster.state import Replicas

BROKER_ENDPOINT = 1
CONTROLLER_ENDPOINT = 2
OPERATIONS_NOT_REQUESTED = -(2**31)
NO_TAGS = b"\x00"
WORK_PER_PARTITION = 2
PREFERRED, UNCLEAN = 0, 1
ELECTION_TYPES = (PREFERRED, UNCLEAN)
ELECTION_MESSAGES = {
    ErrorCode.election_not_needed: "Leader election not needed for topic partition.",
    ErrorCode.unknown_topic_or_partition: "The partition does not exist.",
    ErrorCode.invalid_topic_exception: "The topic is being deleted",
}
STRATEGIES = {
    ErrorCode.preferred_leader_not_available: "PreferredReplicaPartitionLeaderElectionStrategy",
    ErrorCode.eligible_leaders_not_available: "OfflinePartitionLeaderElectionStrategy(true)",
}
"""Kafka's names of the elections that fail with these errors."""

NOT_CONTROLLER = "This is not the correct controller for this cluster."

_LOG_DIR_PARTITION = struct.Struct(">iqq?")
"""Index, size, offset lag, whether the replica is moving to another directory."""


def handle_describe_cluster(node: Node, request: Request) -> None:
    """Serve one DescribeCluster request; clients talk to the broker, there is no separate controller."""
    body = request.decode()
    endpoint = getattr(body, "endpoint_type", BROKER_ENDPOINT)
    if endpoint != BROKER_ENDPOINT:
        _refuse_endpoint(request, endpoint)
        return
    operations = OPERATIONS_NOT_REQUESTED
    if body.include_cluster_authorized_operations:
        operations = cluster_operations(node.access(request))

    def respond() -> None:
        request.respond(
            error_code=ErrorCode.none,
            error_message=None,
            cluster_id=node.cluster_id,
            controller_id=node.node_id if node.cluster is None else node.cluster.view.controller_id,
            brokers=_brokers(node, request.endpoint),
            cluster_authorized_operations=operations,
        )

    if node.cluster is None:
        respond()
    else:
        node.cluster.view.when_described({}, respond)


def _brokers(node: Node, endpoint: Endpoint) -> list[dict[str, Any]]:
    """Return the live brokers, with their addresses for clients of this listener."""
    alone = [(node.node_id, endpoint, node.config.rack)]
    brokers = alone if node.cluster is None else node.cluster.view.nodes(endpoint.listener)
    return [
        {"broker_id": broker_id, "host": address.host, "port": address.port, "rack": rack, "is_fenced": False}
        for broker_id, address, rack in brokers
    ]


def _refuse_endpoint(request: Request, endpoint: int) -> None:
    if endpoint == CONTROLLER_ENDPOINT:
        code = ErrorCode.mismatched_endpoint_type
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
    else:
        code, message = ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint}"
    request.respond(error_code=code, error_message=message, cluster_id="", brokers=())


def handle_describe_log_dirs(node: Node, request: Request) -> None:
    """Serve one DescribeLogDirs request. Sizes are those of the logs' segments, known without disk access."""
    body = request.decode()
    directory = node.directory.path
    flexible = request.version >= request.header.api.flexible_from

    def measured(volume: os.statvfs_result) -> None:
        head, tail = _around_log_dir(request, str(directory.absolute()), volume)
        respond_in_slices(request, head, topics(), tail)

    def topics() -> Iterator[Element]:
        for name, partitions in _requested_partitions(node, body.topics).items():
            yield _log_dir_topic(name, partitions, flexible=flexible), WORK_PER_PARTITION * (1 + len(partitions))

    failed = request.reply.close_connection
    run_in_thread(node.housekeeping_thread, lambda: os.statvfs(directory), reporting_failure(failed, measured), failed)


def refuse_describe_log_dirs(request: Request, error_code: ErrorCode, _message: str | None) -> None:
    """Refuse a DescribeLogDirs request; before version 3 its response has no error of its own."""
    request.respond(error_code=error_code, results=())


def _around_log_dir(request: Request, path: str, volume: os.statvfs_result) -> tuple[bytes, bytes]:
    """Return the bytes before and after the topics of the one directory (DescribeLogDirsResponse.json)."""
    version = request.version
    flexible = version >= request.header.api.flexible_from
    head = bytearray(INT32.pack(0))
    if version >= 3:
        head += INT16.pack(ErrorCode.none)
    append_count(head, 1, flexible=flexible)
    head += INT16.pack(ErrorCode.none)
    append_string(head, path, flexible=flexible)
    tail = bytearray()
    if version >= 4:
        tail += INT64.pack(volume.f_blocks * volume.f_frsize) + INT64.pack(volume.f_bavail * volume.f_frsize)
    if flexible:
        tail += NO_TAGS + NO_TAGS
    return bytes(head), bytes(tail)


def _requested_partitions(node: Node, topics: Iterable[Any] | None) -> Mapping[str, Sequence[Partition]]:
    """Return the open partitions of a request by topic; nonexistent ones are left out, as in Kafka."""
    if topics is None:
        names = node.topics.by_name
        return {name: partitions for name in names if (partitions := node.partitions.of_topic(name))}
    partitions_by_topic: dict[str, dict[int, Partition]] = {}
    for topic in topics:
        for index in topic.partitions:
            partition = node.partitions.hosted(topic.topic, index)
            if partition is not None:
                partitions_by_topic.setdefault(topic.topic, {})[index] = partition
    return {name: list(partitions.values()) for name, partitions in partitions_by_topic.items()}


def _log_dir_topic(name: str, partitions: Sequence[Partition], *, flexible: bool) -> bytes:
    """Encode one topic, by hand: kio needs ten times as long for a topic of ten thousand partitions."""
    buffer = bytearray()
    append_string(buffer, name, flexible=flexible)
    append_count(buffer, len(partitions), flexible=flexible)
    tags = NO_TAGS if flexible else b""
    for partition in partitions:
        buffer += _LOG_DIR_PARTITION.pack(partition.index, partition.log.segments.size_bytes, 0, False) + tags
    return bytes(buffer + tags)


def handle_list_reassignments(node: Node, request: Request) -> None:
    """Serve one ListPartitionReassignments request: a single broker has no reassignments."""
    body = request.decode()
    listed: Mapping[Place, Replicas] | ErrorCode = {}
    if node.cluster is not None:
        places = None
        if body.topics is not None:
            places = {(topic.name, index) for topic in body.topics for index in topic.partition_indexes}
        listed = node.cluster.metadata.requests.reassignments(places)
    if isinstance(listed, ErrorCode):
        request.respond(error_code=listed, error_message=NOT_CONTROLLER, topics=())
        return
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for (name, index), (replicas, adding, removing) in listed.items():
        by_topic.setdefault(name, []).append(
            {
                "partition_index": index,
                "replicas": replicas,
                "adding_replicas": adding,
                "removing_replicas": removing,
            }
        )
    topics = [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]
    request.respond(error_code=ErrorCode.none, error_message=None, topics=topics)


def handle_alter_reassignments(node: Node, request: Request) -> None:
    """Serve one AlterPartitionReassignments request; respond when ZooKeeper has the new replicas."""
    assert node.cluster is not None
    body = request.decode()
    targets = {
        (topic.name, partition.partition_index): partition.replicas
        for topic in body.topics
        for partition in topic.partitions
    }

    def respond(refusals: Mapping[Place, tuple[ErrorCode, str | None]] | ErrorCode) -> None:
        if isinstance(refusals, ErrorCode):
            request.respond(error_code=refusals, error_message=NOT_CONTROLLER, responses=())
            return
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for place in targets:
            code, message = refusals.get(place, (ErrorCode.none, None))
            entry = {"partition_index": place[1], "error_code": code, "error_message": message}
            by_topic.setdefault(place[0], []).append(entry)
        responses = [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]
        request.respond(error_code=ErrorCode.none, error_message=None, responses=responses)

    node.cluster.metadata.requests.reassign(targets, respond)


def refuse_alter_reassignments(request: Request, error_code: ErrorCode, message: str | None) -> None:
    """Refuse an AlterPartitionReassignments request, with the error for each of its partitions."""
    refused = {"error_code": error_code, "error_message": message}
    request.respond(
        error_code=error_code,
        error_message=message,
        responses=[
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": partition.partition_index, **refused} for partition in topic.partitions
                ],
            }
            for topic in request.decode().topics
        ],
    )


def refuse_list_reassignments(request: Request, error_code: ErrorCode, message: str | None) -> None:
    """Refuse a ListPartitionReassignments request, with an empty entry for each of its partitions."""
    nothing = {"replicas": (), "adding_replicas": (), "removing_replicas": ()}
    request.respond(
        error_code=error_code,
        error_message=message,
        topics=[
            {
                "name": topic.name,
                "partitions": [{"partition_index": index, **nothing} for index in topic.partition_indexes],
            }
            for topic in request.decode().topics or ()
        ],
    )


def handle_elect_leaders(node: Node, request: Request) -> None:
    """Serve one ElectLeaders request; without a cluster the one replica of every partition is its leader already."""
    body = request.decode()
    election_type = getattr(body, "election_type", 0)
    is_known = election_type in ELECTION_TYPES
    if node.cluster is not None and is_known:
        _elect_in_cluster(node, node.cluster, request, body, unclean=election_type == UNCLEAN)
        return
    if body.topic_partitions is None:
        # Kafka lists the topics and leaves out the partitions that need no election.
        results: list[tuple[str, list[dict[str, Any]]]] = [(name, []) for name in node.topics.by_name]
    else:
        results = [
            (topic.topic, [_elected(node, topic.topic, index, election_type) for index in topic.partitions])
            for topic in body.topic_partitions
        ]
    request.respond(
        error_code=ErrorCode.none if is_known else ErrorCode.invalid_request,
        replica_election_results=[
            {"topic": name, "partition_result": partition_results} for name, partition_results in results
        ],
    )


def _elect_in_cluster(node: Node, cluster: "Cluster", request: Request, body: Any, *, unclean: bool) -> None:
    """Let the controller elect; a request for all partitions leaves out those that need no election."""
    is_for_all = body.topic_partitions is None
    places = [(topic.topic, index) for topic in body.topic_partitions or () for index in topic.partitions]
    if is_for_all:
        places = [
            (name, index) for name, topic in node.topics.by_name.items() for index in range(topic.partition_count)
        ]

    def respond(results: Mapping[Place, ErrorCode] | ErrorCode) -> None:
        if isinstance(results, ErrorCode):
            results = dict.fromkeys(places, results)
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for (name, index), code in results.items():
            if not (is_for_all and code is ErrorCode.election_not_needed):
                message = ELECTION_MESSAGES.get(code)
                if code in STRATEGIES:
                    message = f"Failed to elect leader for partition {name}-{index} under strategy {STRATEGIES[code]}"
                by_topic.setdefault(name, []).append(
                    {"partition_id": index, "error_code": code, "error_message": message}
                )
        request.respond(
            error_code=ErrorCode.none,
            replica_election_results=[
                {"topic": name, "partition_result": partitions} for name, partitions in by_topic.items()
            ],
        )

    cluster.metadata.requests.elect_leaders(places, unclean=unclean, respond=respond)


def refuse_elect_leaders(request: Request, error_code: ErrorCode, message: str | None) -> None:
    """Refuse an ElectLeaders request, with the error for each of its partitions."""
    refused = {"error_code": error_code, "error_message": message}
    request.respond(
        error_code=error_code,
        replica_election_results=[
            {
                "topic": topic.topic,
                "partition_result": [{"partition_id": index, **refused} for index in topic.partitions],
            }
            for topic in request.decode().topic_partitions or ()
        ],
    )


def _elected(node: Node, topic: str, index: int, election_type: int) -> dict[str, Any]:
    if election_type not in ELECTION_TYPES:
        code, message = ErrorCode.invalid_request, f"Unknown election type {election_type}"
    elif topic not in node.topics.by_name:
        code, message = ErrorCode.unknown_topic_or_partition, f"No such topic as {topic[:249]}"
    elif node.partitions.get(topic, index) is None:
        code, message = ErrorCode.unknown_topic_or_partition, f"No such partition as {topic[:249]}-{index}"
    else:
        code, message = ErrorCode.election_not_needed, "Leader election not needed for topic partition."
    return {"partition_id": index, "error_code": code, "error_message": message}


HANDLERS = {
    apis.DESCRIBE_CLUSTER: handle_describe_cluster,
    apis.DESCRIBE_LOG_DIRS: handle_describe_log_dirs,
    apis.LIST_PARTITION_REASSIGNMENTS: handle_list_reassignments,
    apis.ELECT_LEADERS: handle_elect_leaders,
}
CLUSTER_HANDLERS = {apis.ALTER_PARTITION_REASSIGNMENTS: handle_alter_reassignments}
"""Handlers of a broker on ZooKeeper."""
REFUSALS = {
    apis.DESCRIBE_LOG_DIRS: refuse_describe_log_dirs,
    apis.ALTER_PARTITION_REASSIGNMENTS: refuse_alter_reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS: refuse_list_reassignments,
    apis.ELECT_LEADERS: refuse_elect_leaders,
}
