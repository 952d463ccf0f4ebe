"""The lag of running queries, told after each micro-batch: `spark.streams.addListener(LagListener(…))`.

Spark shows a query's offsets and the log's in its progress, and no time; how old the oldest unread record is must be
asked from the log. `progress.sources[].endOffset` and `latestOffset` are there as for every source.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from onceflow.client.errors import ClientError
from onceflow.client.lag import Lag, lag_behind
from onceflow.client.security import PLAINTEXT, Security
from onceflow.spark.connections import connect
from onceflow.spark.offsets import MalformedOffsets, parse

ASK_TIMEOUT_MS = 5_000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueryLag:
    """What one query has still to read, after a micro-batch of it."""

    query: str
    """The query's id, the same at every start from one checkpoint."""
    name: str | None
    batch: int
    lag: Lag


class LagListener(StreamingQueryListener):
    """Tells the lag of every query of the session that reads from one cluster, with this source or Spark's own.

    `tell` is called after each micro-batch and, while a query is idle, every ten seconds or so, in a thread of Spark's;
    it must not block for long. Without it the lag is a line of this module's log, level INFO. A cluster that does not
    answer is a warning.
    """

    def __init__(
        self, bootstrap: str, tell: Callable[[QueryLag], None] | None = None, *, security: Security = PLAINTEXT
    ) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._tell = _log if tell is None else tell
        self._reached: dict[str, tuple[str | None, int, dict[str, dict[int, int]]]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing has been read yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """After a micro-batch."""
        progress = event.progress
        reached: dict[str, dict[int, int]] = {}
        for source in progress.sources:
            for topic, partitions in _offsets_of(source.endOffset).items():
                reached.setdefault(topic, {}).update(partitions)
        self._reached[str(progress.id)] = progress.name, progress.batchId, reached
        self._tell_lag(str(progress.id))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """While there is no micro-batch."""
        self._tell_lag(str(event.id))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """The last micro-batch has told it."""
        self._reached.pop(str(event.id), None)

    def _tell_lag(self, query: str) -> None:
        name, batch, reached = self._reached.get(query, (None, 0, {}))
        if not reached:
            return
        try:
            cluster = connect(self._bootstrap, self._security, timeout_ms=ASK_TIMEOUT_MS)
            lag = lag_behind(cluster, reached)
        except ClientError as error:
            _logger.warning("the lag of query %s is not known: %s", query, error)
            return
        self._tell(QueryLag(query, name, batch, lag))


def _offsets_of(document: str | None) -> dict[str, dict[int, int]]:
    """The offsets in a source's line of progress; none where it is no Kafka's."""
    try:
        offsets = parse(document or "")
    except MalformedOffsets:
        return {}
    return {topic: dict(partitions) for topic, partitions in offsets.by_topic.items()}


def _log(told: QueryLag) -> None:
    _logger.info(
        "query %s (%s), batch %d: %d messages, %.1f s behind",
        told.query,
        told.name,
        told.batch,
        told.lag.messages,
        told.lag.seconds,
    )
