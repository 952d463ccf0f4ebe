"""`/metrics` of the page: the counts, their lag, and whether Redis and the broker respond.

Each scrape reads both itself, at most one at a time, so that the numbers are those of now although no page is open. Few
may wait, so that slow sources let neither memory nor threads grow.
"""

import time
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from onceflow.clicks.results import MarkerView, Snapshot
from onceflow.dashboard.api.workers import Busy, TimedOut, Workers
from onceflow.dashboard.sources import Addresses, Backlog, CountsSource, LogSource
from onceflow.errors import OnceflowError
from onceflow.metrics_server import exposition, registry_of

PREFIX = "onceflow_dashboard_"
WAITING_MAX = 7
"""Scrapes that may wait for another one."""
SCRAPE_S = 60.0
REASONS_MAX = 50
"""Reasons of bad events with a series of their own; the rules of docs/events.md have fewer."""


class PageMetrics:
    """Reads the numbers of a scrape, in a thread."""

    def __init__(self, addresses: Addresses, open_pages: Callable[[], int]) -> None:
        self._counts = CountsSource(addresses)
        self._log = LogSource(addresses)
        self._open_pages = open_pages
        self._registry = registry_of(self._collect)
        self._scrapes = Workers("metrics", threads=1, waiting_max=WAITING_MAX, seconds_max=SCRAPE_S)

    async def respond(self, request: Request) -> Response:
        """Respond to a scrape."""
        accept = request.headers.get("accept", "")
        try:
            content, content_type = await self._scrapes.run(lambda _: exposition(self._registry, accept))
        except (Busy, TimedOut) as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse(content, headers={"Content-Type": content_type})

    def _collect(self) -> Iterator[Metric]:
        now_ms = time.time_ns() // 1_000_000
        counts = self._read_counts()
        marker = counts.marker if counts is not None else None
        backlog = self._read_backlog(marker, now_ms)
        yield _gauge("redis_up", "1 if Redis responds with these counts.", float(counts is not None))
        yield _gauge("broker_up", "1 if the broker responds.", float(backlog is not None))
        yield _gauge("open_pages", "Open pages.", self._open_pages())
        if counts is not None:
            yield from _counted(counts, now_ms)
        if backlog is not None and counts is not None:
            yield from _lag(backlog, now_ms)

    def _read_counts(self) -> Snapshot | None:
        try:
            return self._counts.read()
        except OnceflowError:
            return None

    def _read_backlog(self, marker: MarkerView | None, now_ms: int) -> Backlog | None:
        try:
            return self._log.read(marker, now_ms)
        except OnceflowError:
            return None

    def close(self) -> None:
        """Wait for a running scrape, and close the connections."""
        self._scrapes.shutdown()
        self._counts.close()
        self._log.close()


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counted(counts: Snapshot, now_ms: int) -> Iterator[Metric]:
    yield CounterMetricFamily(f"{PREFIX}events", "Counted events.", value=counts.events)
    yield CounterMetricFamily(f"{PREFIX}clicks", "Counted clicks.", value=counts.clicks)
    yield _gauge("users", "Users with counted events.", counts.users)
    bad = CounterMetricFamily(f"{PREFIX}bad_events", "Events that could not be counted.", labels=["reason"])
    for reason, count in sorted(counts.bad_by_reason.items())[:REASONS_MAX]:
        bad.add_metric([reason], count)
    yield bad
    marker = counts.marker
    if marker is not None:
        since_ms = max(marker.started_ms, marker.finished_ms)
        yield _gauge("batch", "Number of the last micro-batch.", marker.batch)
        yield _gauge("marker_age_seconds", "Time since the marker changed.", max(0, now_ms - since_ms) / 1_000)
        if marker.duration_ms is not None:
            yield _gauge("batch_seconds", "Duration of the last complete micro-batch.", marker.duration_ms / 1_000)


def _lag(backlog: Backlog, now_ms: int) -> Iterator[Metric]:
    seconds = 0.0 if backlog.oldest_ms is None else max(0, now_ms - backlog.oldest_ms) / 1_000
    yield _gauge("lag_messages", "Messages that are not counted yet.", backlog.messages)
    yield _gauge("lag_seconds", "Age of the oldest message that is not counted yet.", seconds)
