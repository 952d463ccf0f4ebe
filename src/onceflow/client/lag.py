"""Lag of a reader, in messages and in seconds."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from onceflow.client.admin_responses import CommittedOffset
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import OffsetOutOfRange
from onceflow.client.metadata import NO_LEADER, TopicMetadata
from onceflow.client.records import committed_records
from onceflow.wire import TopicPartition

FIRST_RECORD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Lag:
    """Unread part of a log: messages, and the age in seconds of the oldest one (0.0 if none)."""

    messages: int
    seconds: float


Offsets = Mapping[str, Mapping[int, int]]
"""Topic → partition → the next offset that a reader reads."""


class LogEnds:
    """Start and end of logs for read_committed, requested once per topic for as long as this object is used."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[str, dict[int, tuple[int, int]]] = {}

    def of(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return partition → (start of the log, its end)."""
        known = self._known.setdefault(topic, {})
        numbers = list(partitions)
        known |= log_ends(self.cluster, topic, [number for number in numbers if number not in known])
        return {number: known[number] for number in numbers}

    def unread(self, reached: Offsets) -> Iterator[tuple[str, int, int, int]]:
        """Yield (topic, partition, first offset, end) where records are left; deleted records are not."""
        for topic, partitions in reached.items():
            for partition, (start, end) in self.of(topic, partitions).items():
                first = max(partitions[partition], start)
                if first < end:
                    yield topic, partition, first, end


def lag_behind(ends: LogEnds, reached: Offsets, *, now_ms: int | None = None) -> Lag:
    """Return the lag of a reader of committed records.

    Requests both ends of every partition that `ends` does not know and, where records are left, one of them. Raises the
    client's errors.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    messages = 0
    oldest_ms = now
    for topic, partition, first, end in ends.unread(reached):
        messages += end - first
        oldest_ms = min(oldest_ms, _timestamp_ms(ends.cluster, topic, partition, first, now))
    return Lag(messages, max(0.0, (now - oldest_ms) / 1000))


def reached_by(
    committed: Mapping[TopicPartition, CommittedOffset], topics: Mapping[str, TopicMetadata]
) -> dict[str, dict[int, int]]:
    """Return a group's committed offsets by topic, without those of deleted topics."""
    reached: dict[str, dict[int, int]] = {}
    for (topic, partition), commit in committed.items():
        if topic in topics and partition in topics[topic].partitions:
            reached.setdefault(topic, {})[partition] = commit.offset
    return reached


def without_leader(
    partitions: Mapping[str, Iterable[int]], topics: Mapping[str, TopicMetadata]
) -> list[TopicPartition]:
    """Return which of the partitions of existing topics have no leader; a request for their ends waits for one."""
    return [
        (topic, partition)
        for topic, numbers in partitions.items()
        for partition in numbers
        if topics[topic].partitions[partition] == NO_LEADER
    ]


def log_ends(cluster: Cluster, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return partition → (start of the log, its end), both for read_committed."""
    numbers = list(partitions)
    starts = cluster.list_offsets(topic, dict.fromkeys(numbers, EARLIEST)) if numbers else {}
    ends = cluster.list_offsets(topic, dict.fromkeys(numbers, LATEST)) if numbers else {}
    return {partition: (starts[partition].offset, ends[partition].offset) for partition in numbers}


def _timestamp_ms(cluster: Cluster, topic: str, partition: int, begin: int, default_ms: int) -> int:
    """Return the timestamp of the first record at `begin` or later, from one small fetch.

    Records may be deleted meanwhile: then it is the first one that is left.
    """
    try:
        fetched = cluster.fetch(topic, partition, begin, size_bytes_max=FIRST_RECORD_BYTES, wait_ms=0)
    except OffsetOutOfRange:
        begin = cluster.list_offsets(topic, {partition: EARLIEST})[partition].offset
        fetched = cluster.fetch(topic, partition, begin, size_bytes_max=FIRST_RECORD_BYTES, wait_ms=0)
    for record in committed_records(fetched, begin, begin + 2**31):
        return record.timestamp_ms
    return default_ms
