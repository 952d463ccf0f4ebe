"""Settings of a partition's log; names and defaults are Kafka's topic configs with underscores."""

from dataclasses import dataclass

DAY_MS = 24 * 3600 * 1000
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one topic. Durations are in milliseconds; -1 means "no limit" where it is a default or documented."""

    segment_bytes: int = 1024**3
    """Maximum size of a segment; at most 2**31 - 1, because positions are int32."""
    segment_ms: int = 7 * DAY_MS
    """The segment is sealed when a batch's timestamp is this much later than that of the segment's first batch."""
    segment_index_bytes: int = 10 * 1024**2
    """The segment is sealed when one of its index files would exceed this size."""
    index_interval_bytes: int = 4096
    message_bytes_max: int = 1048588
    """Maximum size of a batch, header included, after compression (`max.message.bytes`)."""
    batch_unpacked_bytes_max: int = 64 * 1024**2
    """Maximum uncompressed size of a batch's records where they are read: in a compacted topic and in a search by time.
    Elsewhere records of any size stay compressed, but no compressed batch has more of them than fit."""
    message_timestamp_after_max_ms: int = 3600 * 1000
    """Maximum distance of a batch's timestamp into the future."""
    message_timestamp_before_max_ms: int = INT64_MAX
    """Maximum distance of a batch's timestamp into the past; checked only if not the default, which means no limit."""
    log_append_time: bool = False
    """`message.timestamp.type=LogAppendTime`: the broker's clock sets every batch's timestamp."""
    producer_id_expiration_ms: int = DAY_MS
    producer_id_expiration_check_ms: int = 600_000
    """Interval at which a log with new producers checks for expired ones."""
    producer_ids_max: int = 50_000
    """Maximum number of producers that a log remembers (`onceflow.log.producers`)."""
    retention_ms: int = 7 * DAY_MS
    """A segment whose newest record is older is deleted, consumed or not; -1: no limit."""
    retention_bytes: int = -1
    """The oldest segments beyond this total size are deleted, consumed or not; -1: no limit."""
    cleanup_delete: bool = True
    """Whether `cleanup.policy` contains `delete`: retention by time and size."""
    cleanup_compact: bool = False
    """Whether `cleanup.policy` contains `compact`: the last record of each key is kept."""
    delete_retention_ms: int = DAY_MS
    """How long a tombstone or a marker is kept after the first compaction that read it."""
    min_compaction_lag_ms: int = 0
    """Younger records are not compacted."""
    max_compaction_lag_ms: int = INT64_MAX
    """A log whose oldest uncompacted record is older is compacted, however low its dirty ratio."""
    min_cleanable_dirty_ratio: float = 0.5
    """A log is compacted when this fraction of its compactable bytes was appended since the last compaction."""
    min_insync_replicas: int = 1
    """Replicas that must be in sync for a record with acks=all, but at most all of the partition's."""
    unclean_leader_election: bool = False
    """Whether a replica that is not in sync may lead when no other one is alive: records may be lost."""
    file_delete_delay_ms: int = 60_000
    """How long the files of a deleted segment, renamed to `.deleted`, are kept for their readers."""
    flush_messages: int = INT64_MAX
    """The log is synced when this many records are unsynced; the default syncs before every response instead."""
    flush_ms: int = INT64_MAX
    """The log is synced when a record has been unsynced this long; the default syncs before every response instead."""

    @property
    def has_flush_policy(self) -> bool:
        """Whether responses are sent before the sync: a power cut may lose what `flush.messages` or `flush.ms`
        allow."""
        return self.flush_messages != INT64_MAX or self.flush_ms != INT64_MAX
