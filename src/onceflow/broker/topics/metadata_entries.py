"""Cache of the topics' entries in Metadata responses: encoding one costs more than all else in a request."""

from uuid import UUID

from onceflow.broker.topics.topics import Topic
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.wire import metadata
from onceflow.wire.errors import ErrorCode

CACHE_BYTES_MAX = 32 * 1024 * 1024


class MetadataEntries:
    """Encoded entries by topic id and layout. An entry is encoded again when the number of open partitions changed."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._entries: dict[tuple[UUID, int, int], tuple[int, bytes]] = {}
        self._size_bytes = 0

    def entry(self, topic: Topic, partition_count: int, version: int, *, operations: int) -> tuple[bytes, int]:
        """Return (entry of a topic with this number of open partitions, work done for it in topics and partitions).

        `operations` are the authorized ones, as bits.
        """
        key = (topic.topic_id, metadata.LAYOUTS[version], operations)
        cached = self._entries.get(key)
        if cached is not None and cached[0] == partition_count:
            return cached[1], 1
        entry = metadata.encode_topic(
            version,
            ErrorCode.none if partition_count else ErrorCode.leader_not_available,
            topic.name,
            topic.topic_id,
            is_internal=topic.is_internal,
            partition_count=partition_count,
            broker_id=self._broker_id,
            leader_epoch=LEADER_EPOCH,
            operations=operations,
        )
        self._size_bytes += len(entry) - (len(cached[1]) if cached is not None else 0)
        if self._size_bytes > CACHE_BYTES_MAX:
            # Deleted topics leave their entries here, so the cache is emptied now and then.
            self._entries.clear()
            self._size_bytes = len(entry)
        self._entries[key] = (partition_count, entry)
        return entry, 1 + partition_count
