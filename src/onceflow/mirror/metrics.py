"""Metrics of a mirror for Prometheus."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from onceflow.mirror.progress import Progress

PREFIX = "onceflow_mirror_"


def collector(progress: Progress) -> Callable[[], Iterator[Metric]]:
    """Return a function that yields the metrics; it may be called in another thread."""
    return lambda: _families(progress)


def _families(progress: Progress) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        f"{PREFIX}lag_messages", "Offsets of a source partition that are not mirrored.", labels=["topic", "partition"]
    )
    for (topic, partition), messages in progress.lag.items():
        lag.add_metric([topic, str(partition)], messages)
    yield lag
    yield CounterMetricFamily(f"{PREFIX}records", "Mirrored records.", value=progress.records)
    yield CounterMetricFamily(f"{PREFIX}bytes", "Bytes of mirrored batches.", value=progress.size_bytes)
    yield CounterMetricFamily(f"{PREFIX}transactions", "Committed transactions.", value=progress.transactions)
    yield CounterMetricFamily(
        f"{PREFIX}restarts", "Starts from the stored positions after an error.", value=progress.restarts
    )
