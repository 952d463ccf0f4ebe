"""`/metrics` of `onceflow run`: micro-batches, lag, and failures.

A listener of Spark's keeps the progress of each query. The lag is read from the log at a scrape, so that it grows while
a query is down or in a long micro-batch.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from onceflow.clicks.job import StreamingJob
from onceflow.client.cluster import Cluster
from onceflow.client.errors import ClientError
from onceflow.client.lag import Lag, LogEnds, lag_behind
from onceflow.client.security import PLAINTEXT, Security
from onceflow.spark.lag_listener import offsets_of

Job = TypeVar("Job", bound=StreamingJob)

PREFIX = "onceflow_run_"
ASK_TIMEOUT_MS = 5_000


@dataclass
class QueryState:
    """Numbers of one query in this run."""

    batches: int = 0
    batch: int = -1
    batch_seconds: float = 0.0
    rows_per_second: float = 0.0
    messages: int = 0
    finished_ms: int = 0
    reached: dict[str, dict[int, int]] = field(default_factory=dict)
    failures: int = 0
    failed_ms: int = 0


class RunMetrics:
    """Numbers of all queries of a run. Methods may be called in any thread."""

    def __init__(self, bootstrap: str, *, security: Security = PLAINTEXT) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._queries: dict[str, QueryState] = {}
        self._lock = threading.Lock()

    def watching(self, job: Job) -> Job:
        """Return the job so that it is measured; the listener follows all queries of the session that it starts."""
        former = job.on_session

        def on_session(spark: SparkSession) -> None:
            if former is not None:
                former(spark)
            spark.streams.addListener(_Listener(self))

        return replace(job, on_session=on_session, on_failure=self.failed)

    def failed(self, query: str) -> None:
        """Count a failure of a query, which may be restarted."""
        with self._lock:
            state = self._queries.setdefault(query, QueryState())
            state.failures += 1
            state.failed_ms = _now_ms()

    def progressed(self, progress: Any) -> None:
        """Keep the progress of a micro-batch."""
        begun, reached = _offsets(progress, "startOffset"), _offsets(progress, "endOffset")
        with self._lock:
            state = self._queries.setdefault(progress.name or str(progress.id), QueryState())
            if progress.batchId > state.batch:
                state.batches += 1
                state.messages += _advance(begun, reached)
            state.batch = progress.batchId
            state.batch_seconds = progress.batchDuration / 1_000
            state.rows_per_second = progress.inputRowsPerSecond
            state.finished_ms = _now_ms()
            state.reached = reached or state.reached

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        with self._lock:
            queries = {name: QueryState(**vars(state)) for name, state in self._queries.items()}
        lags = self._lags(queries)
        yield from _counters(queries)
        yield from _gauges(queries)
        messages, seconds = (
            _gauge("lag_messages", "Messages that are not read yet."),
            _gauge("lag_seconds", "Age of the oldest message that is not read yet."),
        )
        for name, lag in (lags or {}).items():
            messages.add_metric([name], lag.messages)
            seconds.add_metric([name], lag.seconds)
        yield from (messages, seconds)
        yield GaugeMetricFamily(f"{PREFIX}broker_up", "1 if the broker responds.", value=float(lags is not None))

    def _lags(self, queries: Mapping[str, QueryState]) -> dict[str, Lag] | None:
        """Return the lag of each query that has read; None if the broker does not respond."""
        try:
            with Cluster(self._bootstrap, timeout_ms=ASK_TIMEOUT_MS, security=self._security) as cluster:
                cluster.topics()
                ends = LogEnds(cluster)
                return {name: lag_behind(ends, state.reached) for name, state in queries.items() if state.reached}
        except ClientError:
            return None


class _Listener(StreamingQueryListener):
    def __init__(self, metrics: RunMetrics) -> None:
        self._metrics = metrics

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the query has read nothing yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Keep the progress."""
        self._metrics.progressed(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: the lag is read at a scrape."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing: the numbers stay for the next start of the query."""


def _offsets(progress: Any, end: str) -> dict[str, dict[int, int]]:
    offsets: dict[str, dict[int, int]] = {}
    for source in progress.sources:
        for topic, partitions in offsets_of(getattr(source, end)).items():
            offsets.setdefault(topic, {}).update(partitions)
    return offsets


def _advance(begun: Mapping[str, Mapping[int, int]], reached: Mapping[str, Mapping[int, int]]) -> int:
    """Return the number of offsets in between; a partition without a begin is left out, since it may begin anywhere."""
    return sum(
        end - begun[topic][partition]
        for topic, partitions in reached.items()
        for partition, end in partitions.items()
        if partition in begun.get(topic, {})
    )


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=["query"])


def _counters(queries: Mapping[str, QueryState]) -> Iterator[Metric]:
    for name, text, attribute in (
        ("batches", "Finished micro-batches of this run.", "batches"),
        ("messages", "Messages read by this run.", "messages"),
        ("failures", "Failures of the query; each is followed by a restart, or ends the run.", "failures"),
    ):
        family = CounterMetricFamily(PREFIX + name, text, labels=["query"])
        for query, state in queries.items():
            family.add_metric([query], getattr(state, attribute))
        yield family


def _gauges(queries: Mapping[str, QueryState]) -> Iterator[Metric]:
    batch_seconds = _gauge("batch_seconds", "Duration of the last micro-batch.")
    rows = _gauge("input_rows_per_second", "Input rows per second of the last micro-batch, after the push-down.")
    finished = _gauge("last_batch_timestamp_seconds", "Time of the end of the last micro-batch.")
    failed = _gauge("last_failure_timestamp_seconds", "Time of the last failure; 0 without one.")
    for query, state in queries.items():
        failed.add_metric([query], state.failed_ms / 1_000)
        if state.batches:
            batch_seconds.add_metric([query], state.batch_seconds)
            rows.add_metric([query], state.rows_per_second)
            finished.add_metric([query], state.finished_ms / 1_000)
    yield from (batch_seconds, rows, finished, failed)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
