"""The newest records of a topic as events, for a reader who wants to see what arrives."""

import heapq
from dataclasses import dataclass

from onceflow.clicks.events import Reason
from onceflow.clicks.single_event import ArchivedFields, Event, EventReader
from onceflow.client.cluster import Cluster
from onceflow.client.lag import log_ends
from onceflow.client.records import read_partitions


@dataclass(frozen=True, slots=True)
class LatestEvent:
    """One record: a valid event, or the reason why it is not one."""

    partition: int
    offset: int
    timestamp_ms: int
    time_ms: int | None
    uid: str | None
    clicks: int | None
    os: str | None
    extra: str | None
    reason: str | None


def latest_events(cluster: Cluster, topic: str, fields: ArchivedFields, count: int) -> list[LatestEvent]:
    """Return up to `count` committed records with the newest timestamps, newest first. Raises the client's errors.

    It reads the last `count` offsets of each partition.
    """
    ranges = log_ends(cluster, topic, sorted(cluster.require_topic(topic).partitions))
    begins = {partition: max(start, end - count) for partition, (start, end) in ranges.items()}
    ends = {partition: end for partition, (_, end) in ranges.items()}
    records = read_partitions(cluster, topic, begins, ends)
    newest = heapq.nlargest(count, records, lambda one: (one[1].timestamp_ms, one[1].offset, one[0]))
    read = EventReader(fields).read
    return [
        _shown(partition, record.offset, record.timestamp_ms, read(record.value, record.timestamp_ms))
        for partition, record in newest
    ]


def _shown(partition: int, offset: int, timestamp_ms: int, event: Event | Reason) -> LatestEvent:
    place = (partition, offset, timestamp_ms)
    if isinstance(event, Reason):
        return LatestEvent(*place, None, None, None, None, None, event)
    return LatestEvent(*place, event.time_ms, event.uid, event.clicks, event.os, event.extra, None)
