"""Requests, bytes, results and response times of `onceflow serve`, and their metrics."""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from onceflow.clicks.ingest.endpoint import Endpoint, Traffic
from onceflow.clicks.ingest.limits import Memory
from onceflow.metrics_server import cumulative

PREFIX = "onceflow_serve_"


def collector(endpoint: Endpoint) -> Callable[[], Iterator[Metric]]:
    """Return a function that yields the metrics; it may be called in another thread."""
    return lambda: _families(endpoint.counts, endpoint.traffic, endpoint.memory)


def _families(results: Counter[str], traffic: Traffic, memory: Memory) -> Iterator[Metric]:
    by_result = CounterMetricFamily(
        f"{PREFIX}results", "Events by result, and refused requests by reason.", labels=["result"]
    )
    for result, count in dict(results).items():
        by_result.add_metric([result], count)
    by_status = CounterMetricFamily(f"{PREFIX}requests", "Requests to /events by status.", labels=["status"])
    for status, count in dict(traffic.requests).items():
        by_status.add_metric([str(status)], count)
    seconds = HistogramMetricFamily(
        f"{PREFIX}request_seconds", "Time from a request to its response, writing included."
    )
    seconds.add_metric([], cumulative(traffic.buckets), traffic.seconds)
    yield from (by_result, by_status, seconds)
    yield CounterMetricFamily(
        f"{PREFIX}received_bytes", "Bytes of bodies, as they were sent.", value=traffic.body_bytes
    )
    yield GaugeMetricFamily(f"{PREFIX}memory_bytes", "Memory of requests in progress.", value=memory.used)
    yield GaugeMetricFamily(f"{PREFIX}memory_max_bytes", "Limit of that memory (--memory-mib).", value=memory.bytes_max)
