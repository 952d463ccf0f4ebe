"""Commits of a query's position as a consumer group's offsets, so that Kafka's tools show its lag.

Only option `startingOffsets=committed` reads them, at a query's first start. Later starts resume from the checkpoint.
"""

import logging
import time
from collections.abc import Callable

from onceflow.client.errors import ClientError, RequestRefused
from onceflow.spark.offsets import Offsets
from onceflow.spark.reader.offset_store import OffsetStore

COMMIT_TIMEOUT_MS = 5_000
PAUSE_SECONDS = 30
"""Pause in commits after a failure, so that not every batch waits for the time-out."""

_logger = logging.getLogger(__name__)


class GroupCommits:
    """Commits of one query's position, as far as it changed."""

    def __init__(self, store: OffsetStore, group: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Use a `store` with a time-out of COMMIT_TIMEOUT_MS."""
        self._store = store
        self._group = group
        self._monotonic = monotonic
        self._committed: dict[str, dict[int, int]] = {}
        self._resumes_at = monotonic()

    def commit(self, reached: Offsets) -> None:
        """Commit the offsets of each topic that advanced. A failure is logged and retried after a pause."""
        moved = {topic: offsets for topic, offsets in reached.by_topic.items() if offsets != self._committed.get(topic)}
        if not moved or self._monotonic() < self._resumes_at:
            return
        for topic, offsets in moved.items():
            try:
                self._store.commit_offsets(self._group, topic, offsets)
            except ClientError as error:
                self._resumes_at = self._monotonic() + PAUSE_SECONDS
                _logger.warning(
                    "offsets could not be committed to group %s: %s; the query is not affected; retrying in %d s",
                    self._group,
                    error,
                    PAUSE_SECONDS,
                )
                if isinstance(error, RequestRefused):
                    continue
                return
            self._committed[topic] = dict(offsets)
