"""The offsets of a consumer group follow a query, so that the field's tools show its lag.

Nothing is read back from there but by option `startingOffsets=committed` at a query's first start: the checkpoint alone
says where it goes on.
"""

import logging
import time
from collections.abc import Callable

from onceflow.client.cluster import Cluster
from onceflow.client.errors import ClientError, RequestRefused
from onceflow.spark.offsets import Offsets

COMMIT_TIMEOUT_MS = 5_000
PAUSE_SECONDS = 30
"""How long nothing is committed after a failure, which must not hold up each batch for the time-out."""

_logger = logging.getLogger(__name__)


class GroupCommits:
    """Commits where a query stands, as far as that changed."""

    def __init__(self, cluster: Cluster, group: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`cluster` is best one with a time-out of COMMIT_TIMEOUT_MS."""
        self._cluster = cluster
        self._group = group
        self._monotonic = monotonic
        self._committed: dict[str, dict[int, int]] = {}
        self._resumes_at = monotonic()

    def commit(self, reached: Offsets) -> None:
        """Commits the offsets of each topic that moved. A failure is a warning, and tried again after a pause."""
        moved = {topic: offsets for topic, offsets in reached.by_topic.items() if offsets != self._committed.get(topic)}
        if not moved or self._monotonic() < self._resumes_at:
            return
        for topic, offsets in moved.items():
            try:
                self._cluster.commit_offsets(self._group, topic, offsets)
            except ClientError as error:
                self._resumes_at = self._monotonic() + PAUSE_SECONDS
                _logger.warning(
                    "group %s does not show where the query stands, which itself is not concerned: %s; tried again in "
                    "%d s",
                    self._group,
                    error,
                    PAUSE_SECONDS,
                )
                if isinstance(error, RequestRefused):
                    continue
                return
            self._committed[topic] = dict(offsets)
