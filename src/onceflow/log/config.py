"""What can be set for a partition's log; names and defaults are Kafka's topic configs with underscores."""

from dataclasses import dataclass

DAY_MS = 24 * 3600 * 1000
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One topic's settings. Durations are milliseconds; -1 means "no limit" where it is a default or said so."""

    segment_bytes: int = 1024**3
    """A segment that a batch would make larger is sealed first; at most 2**31 - 1, positions being int32."""
    segment_ms: int = 7 * DAY_MS
    """A segment is sealed when a batch is dated this much later than the segment's first one."""
    segment_index_bytes: int = 10 * 1024**2
    """A segment is sealed when one of its index files would grow beyond this."""
    index_interval_bytes: int = 4096
    message_bytes_max: int = 1048588
    """The largest batch taken, header included, after compression (`max.message.bytes`)."""
    batch_unpacked_bytes_max: int = 64 * 1024**2
    """What the records of one batch may take unpacked where somebody has to look at them: a compacted topic, a search
    by time. Elsewhere they stay packed, however large they are, but no compressed batch has more of them than fit."""
    message_timestamp_after_max_ms: int = 3600 * 1000
    """How far in the future a batch may be dated."""
    message_timestamp_before_max_ms: int = INT64_MAX
    """How far in the past a batch may be dated; looked at only where it is not the default, which means any."""
    log_append_time: bool = False
    """`message.timestamp.type=LogAppendTime`: the broker's clock dates every batch."""
    producer_id_expiration_ms: int = DAY_MS
    producer_id_expiration_check_ms: int = 600_000
    """How often a log that hears of new producers looks for silent ones."""
    producer_ids_max: int = 50_000
    """How many producers a log remembers (`onceflow.log.producers`)."""
    retention_ms: int = 7 * DAY_MS
    """A segment whose newest record is older is deleted, consumed or not; -1: never."""
    retention_bytes: int = -1
    """The oldest segments beyond this many bytes are deleted, consumed or not; -1: never."""
    cleanup_delete: bool = True
    """`cleanup.policy` names `delete`: retention by time and bytes."""
    cleanup_compact: bool = False
    """`cleanup.policy` names `compact`: of each key the last record stays."""
    delete_retention_ms: int = DAY_MS
    """How long a tombstone or a marker stays after the first compaction that met it."""
    min_compaction_lag_ms: int = 0
    """Records younger than this are not compacted."""
    max_compaction_lag_ms: int = INT64_MAX
    """A log whose oldest uncompacted record is older is compacted however little of it is dirty."""
    min_cleanable_dirty_ratio: float = 0.5
    """A log is compacted when this part of its compactable bytes is new since the last compaction."""
    file_delete_delay_ms: int = 60_000
    """How long the files of a deleted segment stay, renamed to `.deleted`, for who still reads them."""
    flush_messages: int = INT64_MAX
    """The log is synced when this many records wait for it; the default syncs before every answer instead."""
    flush_ms: int = INT64_MAX
    """The log is synced when a record has waited this long for it; the default syncs before every answer instead."""

    @property
    def has_flush_policy(self) -> bool:
        """Whether answers come from the page cache and a power cut may take what `flush.messages` or `.ms` allow."""
        return self.flush_messages != INT64_MAX or self.flush_ms != INT64_MAX
