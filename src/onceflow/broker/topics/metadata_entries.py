"""The topics' entries in Metadata answers, as bytes that are kept: making one costs more than all else in a request."""

from uuid import UUID

from onceflow.broker.topics.topics import Topic
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.wire import metadata
from onceflow.wire.errors import ErrorCode

KEPT_BYTES_MAX = 32 * 1024 * 1024
TOPIC_OPERATIONS = 3576
"""All of AclOperation that are for a topic, as bits: Kafka's answer where there is no authorizer."""


class MetadataEntries:
    """The topics' entries by topic id and layout. An entry is made anew when its topic has other partitions open."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._entries: dict[tuple[UUID, int, bool], tuple[int, bytes]] = {}
        self._size_bytes = 0

    def entry(self, topic: Topic, partition_count: int, version: int, *, authorized: bool) -> tuple[bytes, int]:
        """(entry of a topic of which so many partitions are open, work done for it in topics and partitions)."""
        key = (topic.topic_id, metadata.LAYOUTS[version], authorized)
        kept = self._entries.get(key)
        if kept is not None and kept[0] == partition_count:
            return kept[1], 1
        entry = metadata.encode_topic(
            version,
            ErrorCode.none if partition_count else ErrorCode.leader_not_available,
            topic.name,
            topic.topic_id,
            is_internal=topic.is_internal,
            partition_count=partition_count,
            broker_id=self._broker_id,
            leader_epoch=LEADER_EPOCH,
            operations=TOPIC_OPERATIONS if authorized else metadata.OPERATIONS_NOT_ASKED,
        )
        self._size_bytes += len(entry) - (len(kept[1]) if kept is not None else 0)
        if self._size_bytes > KEPT_BYTES_MAX:
            # Topics that are gone leave their entries here: now and then all start anew.
            self._entries.clear()
            self._size_bytes = len(entry)
        self._entries[key] = (partition_count, entry)
        return entry, 1 + partition_count
