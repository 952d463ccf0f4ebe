"""Planning of a stream: the offsets that the next micro-batch covers. One reader per query, in its own process.

Batch 0 is special. Spark calls `initialOffset` twice in a first run, and again when it repeats batch 0 after a crash.
"latest" may differ each time, and records between the two results would be lost. The order of calls:

    fresh query          initialOffset, latestOffset, initialOffset, partitions
    batch 0 repeated     initialOffset, partitions, latestOffset
    any other restart    partitions or latestOffset, never initialOffset

So `initialOffset` arms the reader and `partitions` disarms it. While it is armed, `latestOffset` returns `start`:
batch 0 has no rows and only writes the start into the checkpoint, from which the query then continues.
"""

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark import offsets
from onceflow.spark.connections import connect
from onceflow.spark.offsets import Loss, Offsets
from onceflow.spark.reader import data_loss, read_task
from onceflow.spark.reader.alignment import Alignment
from onceflow.spark.reader.group_commits import COMMIT_TIMEOUT_MS, GroupCommits
from onceflow.spark.reader.offset_store import zookeeper_store
from onceflow.spark.reader.options import SourceOptions
from onceflow.spark.reader.position_options import STARTING_OFFSETS
from onceflow.spark.reader.positions import LogPositions

if TYPE_CHECKING:
    import pyarrow

_logger = logging.getLogger(__name__)

LOSS_PAUSES_MS = (100, 200, 400, 800, 1600)
"""Pauses between the checks for a missing topic or partition of a planned batch, before it counts as lost."""


class TopicNotSubscribed(OnceflowError):
    """Partition in the checkpoint that the options no longer select."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of one query; it keeps no state that a restart would need."""

    def __init__(
        self,
        options: SourceOptions,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._monotonic = monotonic
        self._sleep = sleep
        self._positions: LogPositions | None = None
        self._commits: GroupCommits | None = None
        self._alignment: Alignment | None = None
        self._armed = False
        self._is_start_settled = False
        """Whether the query is fresh, or the warning about its ignored starting offsets was logged."""
        self._batch_due_at = monotonic()
        self._target: Offsets | None = None
        self._reported: set[Loss] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a fresh query starts."""
        self._armed = True
        starting = self._log.resolve(STARTING_OFFSETS, self._options.starting, ends=self._target)
        return starting.as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return options maxOffsetsPerTrigger and minOffsetsPerTrigger in Spark's form."""
        least, most = self._options.offsets_per_trigger_min, self._options.offsets_per_trigger_max
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the current ends of the log as the end of this run."""
        self._target = self._log.ends(fresh=True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the batch after `start` ends: `start` itself if there are no new records, or too few."""
        if self._armed:
            # A repeated batch 0 is already planned: Spark calls `partitions` first.
            self._is_start_settled = True
            return start
        self._warn_of_ignored_start()
        known = offsets.parse(start)
        self._require_subscribed(known)
        self._commit(known)
        ends = self._ends_for(known)
        begins = self._log.begins(offsets.entering(known, ends))
        batch_end = offsets.following(known, ends, begins)
        if self._is_held_back(sum(part.size for part in offsets.ranges(known, batch_end))):
            return start
        batch_end = self._aligned(known, batch_end)
        if isinstance(limit, ReadMaxRows):
            batch_end = offsets.limit(known, batch_end, limit.max_rows)
        return batch_end.as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the log, which Spark puts into each progress report, right after `latestOffset`."""
        return self._log.known_ends().as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[read_task.ReadTask]:
        """Return the read tasks of a batch, new or repeated; none if it has no rows."""
        self._warn_of_ignored_start()
        if self._armed:
            # Batch 0, whose start Spark requested twice: a group may have committed other offsets in between.
            self._armed = False
            return []
        batch_end = offsets.parse(end)
        parts = [part for part in offsets.ranges(offsets.parse(start), batch_end) if part.size]
        if not parts:
            return []
        now = self._ends_with(batch_end)
        self._report(offsets.losses(batch_end, now))
        present = [part for part in parts if part.topic in now.by_topic and now.same_topic(batch_end, part.topic)]
        return read_task.plan(present, batch_end.topic_ids, self._options)

    def read(self, partition: Any) -> "Iterator[pyarrow.RecordBatch]":
        """Read one task's records; runs in Spark's workers, on a copy of this reader."""
        return read_task.read(self._options, partition)

    @property
    def _log(self) -> LogPositions:
        if self._positions is None:
            cluster = connect(self._options.bootstrap, self._options.security)
            self._positions = LogPositions(cluster, self._options, store=zookeeper_store(self._options))
        return self._positions

    def _ends_for(self, known: Offsets) -> Offsets:
        """Return the ends that a batch after `known` may reach. Losses that they show are reported first."""
        ends = self._target or self._log.ends()
        if self._target is None and set(offsets.losses(known, ends)) - self._reported:
            ends = self._ends_with(known)
        self._report(offsets.losses(known, ends))
        return ends

    def _ends_with(self, planned: Offsets) -> Offsets:
        """Return the log's ends. Request them again for some seconds while they lack a planned partition.

        A broker that has just started may for a moment not know an existing topic, and failOnDataLoss=false would drop
        its rows.
        """
        ends = self._log.ends(fresh=True)
        for pause_ms in LOSS_PAUSES_MS:
            if not offsets.lacking(planned, ends):
                break
            self._sleep(pause_ms / 1000)
            ends = self._log.ends(fresh=True)
        return ends

    def _report(self, lost: list[Loss]) -> None:
        """Report each loss once: an idle query would repeat it every 12 ms."""
        data_loss.report([loss for loss in lost if loss not in self._reported], fail=self._options.fail_on_data_loss)
        self._reported.update(lost)

    def _require_subscribed(self, known: Offsets) -> None:
        subscription = self._options.subscription
        for topic, partitions in known.by_topic.items():
            for partition in partitions:
                if not subscription.covers(topic, partition):
                    raise TopicNotSubscribed(
                        f"the checkpoint reads {topic}-{partition}, which option {subscription.option} does not name; "
                        f"{Remedy.NAME_TOPIC}, or {Remedy.NEW_CHECKPOINT}"
                    )

    def _commit(self, reached: Offsets) -> None:
        """Commit `reached` to the group: Spark asks for the next batch only when the one before is complete."""
        group = self._options.commits_to
        if group is None:
            return
        if self._commits is None:
            store = zookeeper_store(self._options) or connect(
                self._options.bootstrap, self._options.security, timeout_ms=COMMIT_TIMEOUT_MS
            )
            self._commits = GroupCommits(store, group, self._monotonic)
        self._commits.commit(reached)

    def _aligned(self, known: Offsets, batch_end: Offsets) -> Offsets:
        skew_ms = self._options.event_time_skew_ms
        if skew_ms is None:
            return batch_end
        if self._alignment is None:
            cluster = connect(self._options.bootstrap, self._options.security)
            self._alignment = Alignment(cluster, skew_ms, read_committed=self._options.read_committed)
        return self._alignment.limit(known, batch_end)

    def _is_held_back(self, waiting: int) -> bool:
        """Return whether `waiting` offsets are too few for a batch and not yet overdue (Spark's delayBatch)."""
        least = self._options.offsets_per_trigger_min
        if least is None or self._target is not None or not waiting:
            return False
        if waiting < least and self._monotonic() < self._batch_due_at:
            return True
        self._batch_due_at = self._monotonic() + self._options.trigger_delay_max_ms / 1000
        return False

    def _warn_of_ignored_start(self) -> None:
        if not self._is_start_settled and self._options.start_given:
            _logger.warning("starting offsets in the options are ignored: the query resumes from its checkpoint")
        self._is_start_settled = True
