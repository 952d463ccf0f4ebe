"""The broker's numbers at one scrape, gathered on the event loop in slices.

Topics and groups have series of their own up to a limit; the number of the others is reported. So a client that creates
topics or groups cannot make a scrape grow without limit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from onceflow.broker.metrics.traffic import ApiTraffic, Traffic
from onceflow.broker.network.listener import Listener, Usage
from onceflow.broker.node import Node
from onceflow.broker.storage.partitions import Partition
from onceflow.wire.errors import error_name

TOPICS_MAX = 1_000
"""Topics with series of their own: the first ones, in the order in which they were opened."""
GROUP_SERIES_MAX = 2_000
"""Pairs of group and topic with a lag of their own."""
SEGMENTS_PER_WORK = 8
WORK_PER_API = 10


class ApiTotals(NamedTuple):
    """Traffic of one API, copied."""

    name: str
    requests: int
    request_bytes: int
    response_bytes: int
    errors: dict[str, int]
    """Counts under Kafka's names of the errors."""
    buckets: tuple[int, ...]
    seconds: float


class TopicTotals(NamedTuple):
    """Log of one topic: bytes, and the sums of its partitions' start and end offsets."""

    name: str
    size_bytes: int
    start_offset: int
    end_offset: int


class GroupLag(NamedTuple):
    """Records of one topic that a group has not committed yet."""

    group: str
    topic: str
    messages: int


@dataclass(slots=True)
class Snapshot:
    """The numbers of one scrape."""

    usage: Usage
    apis: list[ApiTotals] = field(default_factory=list)
    topics: list[TopicTotals] = field(default_factory=list)
    lags: list[GroupLag] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    """Values without labels, by the name in `families.GAUGES` or `families.COUNTERS`."""


class Gathering:
    """Gathers one snapshot."""

    def __init__(self, node: Node, listener: Listener, traffic: Traffic) -> None:
        self._node = node
        self._traffic = traffic
        self.snapshot = Snapshot(listener.usage())

    def steps(self) -> Iterator[int]:
        """Gather all numbers; yield the cost of each step in units of about a microsecond."""
        for traffic in self._traffic:
            if traffic.requests:
                self.snapshot.apis.append(_copied(traffic))
                yield WORK_PER_API
        yield from self._logs()
        yield from self._groups()
        yield from self._cluster()
        self._totals()

    def _logs(self) -> Iterator[int]:
        values, topics = self.snapshot.values, self.snapshot.topics
        names = self._node.partitions.topic_names()
        values |= {"topics": len(names), "topics_left_out": max(0, len(names) - TOPICS_MAX)}
        partition_count = failed = 0
        for number, name in enumerate(names):
            size_bytes = start_offset = end_offset = 0
            for partition in self._node.partitions.of_topic(name):
                partition_count += 1
                failed += partition.log.durability.failure is not None
                if number < TOPICS_MAX:
                    size_bytes += partition.log.segments.size_bytes
                    start_offset += partition.log.log_start_offset
                    end_offset += partition.log.log_end_offset
                yield 1 + len(partition.log.segments.in_order) // SEGMENTS_PER_WORK
            if number < TOPICS_MAX:
                topics.append(TopicTotals(name, size_bytes, start_offset, end_offset))
        values |= {"partitions": partition_count, "failed_partitions": failed}

    def _cluster(self) -> Iterator[int]:
        """Count the partitions with a problem, as the controller has described them; a broker alone has none."""
        offline = under_replicated = 0
        if self._node.cluster is not None:
            view = self._node.cluster.view
            for _topic, state in list(view.states()):
                offline += state.leader not in view.brokers
                is_led_here = state.leader == self._node.node_id
                under_replicated += is_led_here and len(state.isr) < len(state.replicas)
                yield 1
        self.snapshot.values |= {"offline_partitions": offline, "under_replicated_partitions": under_replicated}

    def _groups(self) -> Iterator[int]:
        shards = self._node.group_shards
        listed = 0
        for group in list(islice(shards.groups(), GROUP_SERIES_MAX)):
            if len(self.snapshot.lags) >= GROUP_SERIES_MAX:
                break
            lags: dict[str, int] = {}
            for (topic, index), commit in list(group.offsets.items()):
                partition = self._node.partitions.get(topic, index)
                if partition is not None and commit.offset is not None:
                    lags[topic] = lags.get(topic, 0) + _lag(partition, commit.offset)
                yield 1
            left = GROUP_SERIES_MAX - len(self.snapshot.lags)
            self.snapshot.lags += [
                GroupLag(group.group_id, topic, messages) for topic, messages in islice(lags.items(), left)
            ]
            listed += len(lags) <= left
            yield 1
        self.snapshot.values |= {"groups": shards.count(), "groups_left_out": max(0, shards.count() - listed)}

    def _totals(self) -> None:
        node, usage = self._node, self.snapshot.usage
        syncs, housekeeping, cleaner = node.group_commit.totals, node.housekeeping.totals, node.housekeeping.cleaner
        self.snapshot.values |= {
            "connections": usage.connections,
            "connections_accepted": usage.accepted,
            "connections_refused": usage.refused,
            "connections_failed": usage.failed,
            "request_memory_bytes": usage.request_bytes,
            "request_memory_max_bytes": usage.request_bytes_max,
            "requests_waiting_for_memory": usage.waiting_requests,
            "response_memory_bytes": usage.response_bytes,
            "response_memory_max_bytes": usage.response_bytes_max,
            "parked_fetch_partitions": node.parked_fetches.partition_count,
            "open_transactions": node.transactions.open_count,
            "sync_rounds": syncs.rounds,
            "synced_partitions": syncs.partitions,
            "sync_failures": syncs.failures,
            "sync_seconds": syncs.seconds,
            "retention_checks": housekeeping.retention_checks,
            "deleted_segments": housekeeping.deleted_segments,
            "compactions": cleaner.compactions,
            "housekeeping_failures": housekeeping.failures + cleaner.failures,
            "disk_full": node.disk.is_full,
            "data_directory_lost": node.is_lost,
            "zookeeper_disconnected": node.metadata.is_disconnected,
            "active_controller": node.metadata.is_controller,
        }


def _copied(traffic: ApiTraffic) -> ApiTotals:
    errors = {error_name(code): count for code, count in traffic.errors.items()}
    return ApiTotals(
        traffic.name,
        traffic.requests,
        traffic.request_bytes,
        traffic.response_bytes,
        errors,
        tuple(traffic.buckets),
        traffic.seconds,
    )


def _lag(partition: Partition, offset: int) -> int:
    return max(0, partition.log.high_watermark - offset)
