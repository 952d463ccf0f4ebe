"""Lag of a reader, in messages and in seconds."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.records import committed_records

FIRST_RECORD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Lag:
    """Unread part of a log: messages, and the age in seconds of the oldest one (0.0 if none)."""

    messages: int
    seconds: float


def lag_behind(cluster: Cluster, reached: Mapping[str, Mapping[int, int]], *, now_ms: int | None = None) -> Lag:
    """Return the lag of a reader of committed records; `reached` is topic → partition → the next offset it reads.

    Requests both ends of every partition and, where records are left, one of them. Records that were deleted unread are
    not counted. Raises the client's errors.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    messages = 0
    oldest_ms = now
    for topic, partitions in reached.items():
        for partition, (begin, end) in log_ends(cluster, topic, partitions).items():
            first = max(partitions[partition], begin)
            if first < end:
                messages += end - first
                oldest_ms = min(oldest_ms, _timestamp_ms(cluster, topic, partition, first, now))
    return Lag(messages, max(0.0, (now - oldest_ms) / 1000))


def log_ends(cluster: Cluster, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return partition → (start of the log, its end), both for read_committed."""
    numbers = list(partitions)
    starts = cluster.list_offsets(topic, dict.fromkeys(numbers, EARLIEST)) if numbers else {}
    ends = cluster.list_offsets(topic, dict.fromkeys(numbers, LATEST)) if numbers else {}
    return {partition: (starts[partition].offset, ends[partition].offset) for partition in numbers}


def _timestamp_ms(cluster: Cluster, topic: str, partition: int, begin: int, default_ms: int) -> int:
    """Return the timestamp of the first record at `begin` or later, from one small fetch."""
    fetched = cluster.fetch(topic, partition, begin, size_bytes_max=FIRST_RECORD_BYTES, wait_ms=0)
    for record in committed_records(fetched, begin, begin + 2**31):
        return record.timestamp_ms
    return default_ms
