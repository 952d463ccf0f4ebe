"""Requests that the client sends, built for the negotiated version, and the form of their responses.

Every builder names the fields of all versions; `build(version)` uses those that the version has.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from onceflow.wire import TopicPartition, apis
from onceflow.wire.acls import AclFilter
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import request_class
from onceflow.wire.messages import message_of

METADATA_VERSION_MIN = 4
"""A request before version 4 created the topic."""
LIST_OFFSETS_VERSION_MIN = 2
"""Version 2 added the isolation level; before, "latest" could not mean the last stable offset."""
MAX_TIMESTAMP_VERSION_MIN = 7
CREATE_TOPICS_VERSION_MIN = 4
"""Version 4 allows to use the broker's default replication factor."""
FIND_COORDINATOR_VERSION_MIN = 1
TIERED_STORAGE_TIMEOUT = timedelta(seconds=5)
"""Maximum time of ListOffsets 10 in tiered storage, well within the client's timeout."""
GROUP = 0
TRANSACTION = 1
"""Key types of FindCoordinatorRequest."""
OFFSET_FETCH_VERSION_MIN = 2
"""Version 2 added an error code for the whole group."""
REQUIRED_VERSIONS = {
    apis.METADATA: METADATA_VERSION_MIN,
    apis.FETCH: 0,
    apis.PRODUCE: 0,
    apis.LIST_OFFSETS: LIST_OFFSETS_VERSION_MIN,
    apis.FIND_COORDINATOR: FIND_COORDINATOR_VERSION_MIN,
    apis.OFFSET_FETCH: OFFSET_FETCH_VERSION_MIN,
}
"""API → lowest version that reading, writing and consumer groups need."""

Build = Callable[[int], Any]


def message(api_key: int, **values: Any) -> Build:
    """Build a request from the fields of all versions."""
    return lambda version: message_of(request_class(api_key, version), values, of_any_version=True)


def acl_filter(wanted: AclFilter) -> dict[str, Any]:
    """Return the fields of a DescribeAcls request, or of a filter of DeleteAcls."""
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def metadata(names: Sequence[str] | None) -> Build:
    """Request the metadata of these topics, of all for None; never creates one."""
    return message(
        apis.METADATA,
        # From version 10 a topic has an id; null means "by name".
        topics=None if names is None else [{"name": name, "topic_id": None} for name in names],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def list_offsets(topic: str, timestamp_by_partition: Mapping[int, int], isolation_level: int) -> Build:
    """Request offsets of one topic's partitions at these timestamps."""
    partitions = [{"partition_index": index, "timestamp": at} for index, at in timestamp_by_partition.items()]
    return message(
        apis.LIST_OFFSETS,
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[{"name": topic, "partitions": partitions}],
        timeout=TIERED_STORAGE_TIMEOUT,
    )


def offsets_before(topic: str, partition: int, timestamp_ms: int, count_max: int) -> Build:
    """Request up to `count_max` offsets where segments start, before a time; only version 0 supports this."""
    wanted = {"partition_index": partition, "timestamp": timestamp_ms, "max_num_offsets": count_max}
    return message(apis.LIST_OFFSETS, replica_id=-1, topics=[{"name": topic, "partitions": [wanted]}])


def create_topic(
    name: str, partitions: int, replication_factor: int, configs: Mapping[str, str], timeout_ms: int
) -> Build:
    """Create one topic, its replicas placed by the cluster."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": (),
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    return message(apis.CREATE_TOPICS, topics=[topic], timeout=timedelta(milliseconds=timeout_ms))


def delete_topic(name: str, timeout_ms: int) -> Build:
    """Delete one topic by name."""
    return message(
        apis.DELETE_TOPICS,
        topics=[{"name": name, "topic_id": None}],
        topic_names=[name],
        timeout=timedelta(milliseconds=timeout_ms),
    )


def find_coordinator(key: str, key_type: int = GROUP) -> Build:
    """Request the coordinator of a group or of a transactional id."""
    return message(apis.FIND_COORDINATOR, key=key, key_type=key_type, coordinator_keys=[key])


def coordinator(response: Any) -> Any:
    """Return the one coordinator (node_id, host, port, error_code) in a response to `find_coordinator`."""
    return response.coordinators[0] if hasattr(response, "coordinators") else response


def offset_fetch(group: str, topic: str, partitions: Iterable[int]) -> Build:
    """Request a group's committed offsets of one topic's partitions; waits for open transactions if possible."""
    return _offset_fetch(group, [{"name": topic, "partition_indexes": tuple(partitions)}])


def all_offsets(group: str) -> Build:
    """Request all committed offsets of a group; waits for open transactions if possible."""
    return _offset_fetch(group, None)


def _offset_fetch(group: str, topics: list[dict[str, Any]] | None) -> Build:
    wanted = {"group_id": group, "topics": topics}
    return message(apis.OFFSET_FETCH, **wanted, groups=[wanted], require_stable=True)


def fetched_group(response: Any) -> Any:
    """Return the one group (error_code, topics) in a response to `offset_fetch`."""
    return response.groups[0] if hasattr(response, "groups") else response


def offset_commit(group: str, topic: str, offsets: Mapping[int, int]) -> Build:
    """Commit offsets without being a member of the group, like a reader with its own partitions."""
    return message(apis.OFFSET_COMMIT, group_id=group, member_id="", topics=_committed(topic, offsets))


def _committed(topic: str, offsets: Mapping[int, int], metadata: str = "") -> list[dict[str, Any]]:
    partitions = [
        {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        for partition, offset in offsets.items()
    ]
    return [{"name": topic, "partitions": partitions}]


def offset_codes(response: Any) -> list[ErrorCode]:
    """Return the error codes in a response about offsets by topic."""
    return [entry.error_code for topic in response.topics for entry in topic.partitions]


# Transactions


class ProducerIdentity(NamedTuple):
    """Producer id and epoch, -1 while it has none; without a transactional id each batch is visible at once."""

    transactional_id: str | None
    producer_id: int = -1
    epoch: int = -1


def init_producer_id(producer: ProducerIdentity, transaction_timeout_ms: int = 0) -> Build:
    """Request a producer id, or the next epoch of one."""
    timeout = timedelta(milliseconds=transaction_timeout_ms)
    return message(apis.INIT_PRODUCER_ID, **_identity(producer), transaction_timeout=timeout)


def add_partitions_to_txn(producer: ProducerIdentity, partitions: Iterable[TopicPartition]) -> Build:
    """Add partitions to a producer's transaction, before version 4."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    topics = [{"name": topic, "partitions": numbers} for topic, numbers in by_topic.items()]
    identity = {f"v3_and_below_{name}": value for name, value in _identity(producer).items()}
    return message(apis.ADD_PARTITIONS_TO_TXN, **identity, v3_and_below_topics=topics)


def added_codes(response: Any) -> list[ErrorCode]:
    """Return the error codes in a response to `add_partitions_to_txn`."""
    topics = response.results_by_topic_v3_and_below
    return [entry.partition_error_code for topic in topics for entry in topic.results_by_partition]


def add_offsets_to_txn(producer: ProducerIdentity, group: str) -> Build:
    """Add a group's offsets to a producer's transaction."""
    return message(apis.ADD_OFFSETS_TO_TXN, **_identity(producer), group_id=group)


def txn_offset_commit(
    producer: ProducerIdentity,
    group: str,
    topic: str,
    offsets: Mapping[int, int],
    metadata: str = "",
    *,
    generation: int = -1,
    member_id: str = "",
    group_instance_id: str | None = None,
) -> Build:
    """Commit a group's offsets with a producer's transaction."""
    return message(
        apis.TXN_OFFSET_COMMIT,
        **_identity(producer),
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=group_instance_id,
        topics=_committed(topic, offsets, metadata),
    )


def end_txn(producer: ProducerIdentity, *, commit: bool) -> Build:
    """Commit or abort a producer's transaction."""
    return message(apis.END_TXN, **_identity(producer), committed=commit)


def _identity(producer: ProducerIdentity) -> dict[str, Any]:
    return {
        "transactional_id": producer.transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
    }
