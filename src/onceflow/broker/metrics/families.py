"""A snapshot as Prometheus metrics. Runs in the thread of the scrape, not on the event loop."""

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from onceflow.broker.metrics.snapshot import ApiTotals, Snapshot
from onceflow.metrics_server import cumulative

PREFIX = "onceflow_broker_"

GAUGES = {
    "connections": "Open connections.",
    "request_memory_bytes": "Memory of requests being received.",
    "request_memory_max_bytes": "Limit of that memory (queued.max.request.bytes).",
    "requests_waiting_for_memory": "Requests that wait for that memory.",
    "response_memory_bytes": "Memory of responses being sent, without records.",
    "response_memory_max_bytes": "Limit of that memory (unsent.max.bytes).",
    "parked_fetch_partitions": "Partitions of the Fetch requests that wait for records.",
    "topics": "Topics, internal ones included.",
    "topics_left_out": "Topics without series of their own.",
    "partitions": "Partitions of all topics.",
    "failed_partitions": "Partitions that accept no more writes because their disk failed.",
    "groups": "Consumer groups.",
    "groups_left_out": "Groups without a complete lag of their own.",
    "open_transactions": "Transactions that are not ended.",
    "disk_full": "1 while records are refused because the disk is full.",
    "data_directory_lost": "1 if the data directory was deleted, renamed or replaced.",
    "zookeeper_disconnected": "1 while a broker on ZooKeeper has no connection to it.",
    "active_controller": "1 on the broker that decides about topics.",
    "offline_partitions": "Partitions of the cluster without a leader.",
    "under_replicated_partitions": "Partitions led by this broker with a replica that is not in sync.",
}
"""Gauges without labels: name in the snapshot → help."""

COUNTERS = {
    "connections_accepted": "Accepted connections.",
    "connections_refused": "Connections refused at max.connections or max.connections.per.ip.",
    "connections_failed": "Connections that the broker closed for a fault, such as a malformed request.",
    "sync_rounds": "Rounds of syncs.",
    "synced_partitions": "Syncs of a partition's log.",
    "sync_failures": "Failed syncs, each final for its partition.",
    "sync_seconds": "Time of the rounds of syncs.",
    "retention_checks": "Finished checks of all logs for segments to delete.",
    "deleted_segments": "Segments deleted by retention or DeleteRecords.",
    "compactions": "Finished compactions of a log.",
    "housekeeping_failures": "Failures of retention and compaction; the broker's log has the reasons.",
}
"""Counters without labels: name in the snapshot → help."""

TIMED_APIS = {"Produce", "Fetch"}


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the metrics."""
    for name, text in GAUGES.items():
        yield GaugeMetricFamily(PREFIX + name, text, value=snapshot.values[name])
    for name, text in COUNTERS.items():
        yield CounterMetricFamily(PREFIX + name, text, value=snapshot.values[name])
    yield from _traffic(snapshot.apis)
    yield from _logs(snapshot)
    lags = GaugeMetricFamily(
        f"{PREFIX}group_lag_messages", "Records that a group has not committed yet.", labels=["group", "topic"]
    )
    for lag in snapshot.lags:
        lags.add_metric([lag.group, lag.topic], lag.messages)
    yield lags


def _traffic(apis: list[ApiTotals]) -> Iterator[Metric]:
    requests = CounterMetricFamily(f"{PREFIX}requests", "Requests by API.", labels=["api"])
    received = CounterMetricFamily(f"{PREFIX}request_bytes", "Bytes of requests by API.", labels=["api"])
    sent = CounterMetricFamily(f"{PREFIX}response_bytes", "Bytes of responses by API.", labels=["api"])
    errors = CounterMetricFamily(
        f"{PREFIX}errors", "Errors in responses by API and Kafka's name.", labels=["api", "error"]
    )
    seconds = HistogramMetricFamily(
        f"{PREFIX}request_seconds", "Time from a request to its response; Fetch waits for records.", labels=["api"]
    )
    for api in apis:
        requests.add_metric([api.name], api.requests)
        received.add_metric([api.name], api.request_bytes)
        sent.add_metric([api.name], api.response_bytes)
        for error, count in api.errors.items():
            errors.add_metric([api.name, error], count)
        if api.name in TIMED_APIS:
            seconds.add_metric([api.name], cumulative(api.buckets), api.seconds)
    yield from (requests, received, sent, errors, seconds)


def _logs(snapshot: Snapshot) -> Iterator[Metric]:
    size = GaugeMetricFamily(f"{PREFIX}log_bytes", "Size of a topic's log.", labels=["topic"])
    start = GaugeMetricFamily(
        f"{PREFIX}log_start_offset", "Sum of the start offsets of a topic's partitions.", labels=["topic"]
    )
    end = GaugeMetricFamily(
        f"{PREFIX}log_end_offset", "Sum of the end offsets of a topic's partitions.", labels=["topic"]
    )
    for topic in snapshot.topics:
        size.add_metric([topic.name], topic.size_bytes)
        start.add_metric([topic.name], topic.start_offset)
        end.add_metric([topic.name], topic.end_offset)
    yield from (size, start, end)
