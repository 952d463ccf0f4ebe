"""The requests that the client sends, each built for whichever version was negotiated, and their answers' shapes.

Every builder returns `build(schema, version)`, where `schema` is kio's module of that version: fields and nested
classes differ between versions, and that difference is known here alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

METADATA_VERSION_MIN = 4
"""Before version 4 asking for a topic created it."""
LIST_OFFSETS_VERSION_MIN = 2
"""Before version 2 there was no isolation level, so "latest" could not mean the last stable offset."""
MAX_TIMESTAMP_VERSION_MIN = 7
CREATE_TOPICS_VERSION_MIN = 4
"""Before version 4 a broker had no default replication factor to ask for."""
FIND_COORDINATOR_VERSION_MIN = 1
TIERED_STORAGE_TIMEOUT = timedelta(seconds=5)
"""How long ListOffsets 10 may look into tiered storage, well within what the client waits for an answer."""
GROUP = 0
TRANSACTION = 1
"""What a coordinator is asked for: FindCoordinatorRequest's key type."""
OFFSET_FETCH_VERSION_MIN = 2
"""Before version 2 an answer had no error code of the group's own."""

Build = Callable[[Any, int], Any]


def metadata(names: Sequence[str] | None) -> Build:
    """Metadata of these topics, of all for None; never creates one."""

    def build(schema: Any, version: int) -> Any:
        # A topic id goes along from version 10 on; null means "by name".
        by_name = {"topic_id": None} if version >= 10 else {}
        fields: dict[str, Any] = {"include_topic_authorized_operations": False} if version >= 8 else {}
        if 8 <= version <= 10:
            fields["include_cluster_authorized_operations"] = False
        topics = (
            tuple(schema.MetadataRequestTopic(name=name, **by_name) for name in names) if names is not None else None
        )
        return schema.MetadataRequest(topics=topics, allow_auto_topic_creation=False, **fields)

    return build


def list_offsets(topic: str, timestamp_by_partition: Mapping[int, int], isolation_level: int) -> Build:
    """Offsets of one topic's partitions at these timestamps."""

    def build(schema: Any, version: int) -> Any:
        partitions = tuple(
            schema.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
            for partition, timestamp in timestamp_by_partition.items()
        )
        return schema.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=(schema.ListOffsetsTopic(name=topic, partitions=partitions),),
            **({"timeout": TIERED_STORAGE_TIMEOUT} if version >= 10 else {}),
        )

    return build


def offsets_before(topic: str, partition: int, timestamp_ms: int, count_max: int) -> Build:
    """Up to `count_max` offsets where segments begin, before a time; version 0 alone has this."""

    def build(schema: Any, version: int) -> Any:
        asked = schema.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp_ms, max_num_offsets=count_max
        )
        topics = (schema.ListOffsetsTopic(name=topic, partitions=(asked,)),)
        return schema.ListOffsetsRequest(replica_id=-1, topics=topics)

    return build


def create_topic(
    name: str, partitions: int, replication_factor: int, configs: Mapping[str, str], timeout_ms: int
) -> Build:
    """One new topic, its replicas placed by the cluster."""

    def build(schema: Any, version: int) -> Any:
        topic = schema.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=(),
            configs=tuple(schema.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
        )
        return schema.CreateTopicsRequest(topics=(topic,), timeout=timedelta(milliseconds=timeout_ms))

    return build


def delete_topic(name: str, timeout_ms: int) -> Build:
    """The end of one topic, by name."""

    def build(schema: Any, version: int) -> Any:
        timeout = timedelta(milliseconds=timeout_ms)
        if version >= 6:
            topic = schema.DeleteTopicState(name=name, topic_id=None)
            return schema.DeleteTopicsRequest(topics=(topic,), timeout=timeout)
        return schema.DeleteTopicsRequest(topic_names=(name,), timeout=timeout)

    return build


def find_coordinator(key: str, key_type: int = GROUP) -> Build:
    """Which broker keeps a group's offsets, or the transactions of a transactional id."""

    def build(schema: Any, version: int) -> Any:
        if version >= 4:
            return schema.FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
        return schema.FindCoordinatorRequest(key=key, key_type=key_type)

    return build


def coordinator(answer: Any) -> Any:
    """The one coordinator (node_id, host, port, error_code) in an answer to `find_coordinator`."""
    return answer.coordinators[0] if hasattr(answer, "coordinators") else answer


def offset_fetch(group: str, topic: str, partitions: Iterable[int]) -> Build:
    """A group's committed offsets of one topic's partitions, waiting out open transactions where possible."""
    indexes = tuple(partitions)

    def build(schema: Any, version: int) -> Any:
        stable = {"require_stable": True} if version >= 7 else {}
        if version >= 8:
            topics = (schema.OffsetFetchRequestTopics(name=topic, partition_indexes=indexes),)
            groups = (schema.OffsetFetchRequestGroup(group_id=group, topics=topics),)
            return schema.OffsetFetchRequest(groups=groups, **stable)
        topics = (schema.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes),)
        return schema.OffsetFetchRequest(group_id=group, topics=topics, **stable)

    return build


def fetched_group(answer: Any) -> Any:
    """The one group (error_code, topics) in an answer to `offset_fetch`."""
    return answer.groups[0] if hasattr(answer, "groups") else answer


def offset_commit(group: str, topic: str, offsets: Mapping[int, int]) -> Build:
    """Offsets committed from outside the group's membership, as a reader of its own partitions does."""

    def build(schema: Any, version: int) -> Any:
        partitions = tuple(
            schema.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            for partition, offset in offsets.items()
        )
        return schema.OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=(schema.OffsetCommitRequestTopic(name=topic, partitions=partitions),),
        )

    return build
