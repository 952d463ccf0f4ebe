"""The lag of running queries, reported after each micro-batch: `spark.streams.addListener(LagListener(…))`.

Spark's progress shows the query's offsets and the log's (`progress.sources[].endOffset` and `latestOffset`), but no
time. The listener asks the log for the age of the oldest unread record.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from onceflow.client.errors import ClientError
from onceflow.client.lag import Lag, LogEnds, lag_behind
from onceflow.client.security import PLAINTEXT, Security
from onceflow.spark.connections import connect
from onceflow.spark.offsets import MalformedOffsets, parse

ASK_TIMEOUT_MS = 5_000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueryLag:
    """Lag of one query after a micro-batch."""

    query: str
    """The query's id, the same for every start from one checkpoint."""
    name: str | None
    batch: int
    lag: Lag


class LagListener(StreamingQueryListener):
    """Listener that reports the lag of every query reading from one cluster, with this source or Spark's own.

    `report` is called after each micro-batch and, while a query is idle, about every ten seconds, in a thread of
    Spark's; it must not block for long. Without it the lag is logged by this module at level INFO. An unreachable
    cluster is logged as a warning.
    """

    def __init__(
        self, bootstrap: str, report: Callable[[QueryLag], None] | None = None, *, security: Security = PLAINTEXT
    ) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._report = _log if report is None else report
        self._reached: dict[str, tuple[str | None, int, dict[str, dict[int, int]]]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the query has read nothing yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Report the lag after a micro-batch."""
        progress = event.progress
        reached: dict[str, dict[int, int]] = {}
        for source in progress.sources:
            for topic, partitions in offsets_of(source.endOffset).items():
                reached.setdefault(topic, {}).update(partitions)
        self._reached[str(progress.id)] = progress.name, progress.batchId, reached
        self._report_lag(str(progress.id))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Report the lag while there is no micro-batch."""
        self._report_lag(str(event.id))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Forget the query; its last lag was reported after its last micro-batch."""
        self._reached.pop(str(event.id), None)

    def _report_lag(self, query: str) -> None:
        name, batch, reached = self._reached.get(query, (None, 0, {}))
        if not reached:
            return
        try:
            cluster = connect(self._bootstrap, self._security, timeout_ms=ASK_TIMEOUT_MS)
            lag = lag_behind(LogEnds(cluster), reached)
        except ClientError as error:
            _logger.warning("the lag of query %s is not known: %s", query, error)
            return
        self._report(QueryLag(query, name, batch, lag))


def offsets_of(document: str | None) -> dict[str, dict[int, int]]:
    """Return the offsets in a source's progress; none if it is not a Kafka source."""
    try:
        offsets = parse(document or "")
    except MalformedOffsets:
        return {}
    return {topic: dict(partitions) for topic, partitions in offsets.by_topic.items()}


def _log(lag: QueryLag) -> None:
    _logger.info(
        "query %s (%s), batch %d: %d messages, %.1f s behind",
        lag.query,
        lag.name,
        lag.batch,
        lag.lag.messages,
        lag.lag.seconds,
    )
