"""What can be set for a partition's log; names and defaults are Kafka's topic configs with underscores."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One topic's settings."""

    segment_bytes: int = 1024**3
    """A segment that a batch would make larger is sealed first; at most 2**31 - 1, positions being int32."""
    segment_ms: int = 7 * 24 * 3600 * 1000
    """A segment is sealed when a batch is dated this much later than the segment's first one."""
    segment_index_bytes: int = 10 * 1024**2
    """A segment is sealed when one of its index files would grow beyond this."""
    index_interval_bytes: int = 4096
    message_bytes_max: int = 1048588
    """The largest batch taken, header included, after compression."""
    message_timestamp_after_max_ms: int = 3600 * 1000
    """How far in the future a batch may be dated."""
    producer_id_expiration_ms: int = 24 * 3600 * 1000
