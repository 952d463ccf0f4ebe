"""The streaming reader's planning half: which offsets the next micro-batch covers. One per query, in its own process.

Batch 0 is the trap. Spark asks `initialOffset` twice in a first run, and again when it repeats batch 0 after a
crash, and each time "latest" is somewhere else; records between the two answers would be lost. Its order of calls:

    fresh query          initialOffset, latestOffset, initialOffset, partitions
    batch 0 repeated     initialOffset, partitions, latestOffset
    any other restart    partitions or latestOffset, never initialOffset

So `initialOffset` arms the reader and `partitions` disarms it, and while it is armed `latestOffset` gives back
`start` itself: batch 0 has no rows and does nothing but write the start into the checkpoint, which alone counts from
then on.
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
from onceflow.spark.reader.options import SourceOptions
from onceflow.spark.reader.position_options import STARTING_OFFSETS
from onceflow.spark.reader.positions import LogPositions

if TYPE_CHECKING:
    import pyarrow

_logger = logging.getLogger(__name__)

LOSS_PAUSES_MS = (100, 200, 400, 800, 1600)
"""Before a topic or partition of a planned batch is believed to be gone it is looked for again, after each of these."""


class TopicNotSubscribed(OnceflowError):
    """The checkpoint reads a partition that the options no longer name."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets in, offsets out; nothing is remembered that a restart would need."""

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
        """Whether the query is a fresh one, or it was told that its checkpoint says where it goes on."""
        self._batch_due_at = monotonic()
        self._target: Offsets | None = None
        self._told: set[Loss] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a fresh query begins."""
        self._armed = True
        starting = self._log.resolve(STARTING_OFFSETS, self._options.starting, ends=self._target)
        return starting.as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Options maxOffsetsPerTrigger and minOffsetsPerTrigger, as Spark asks for them."""
        least, most = self._options.offsets_per_trigger_min, self._options.offsets_per_trigger_max
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The ends of this moment are all that this run reads to."""
        self._target = self._log.ends(fresh=True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the batch after `start` ends; `start` itself when there is nothing, or too little."""
        if self._armed:
            # Batch 0 repeated is planned already: it gets to `partitions` first.
            self._is_start_settled = True
            return start
        self._tell_that_the_checkpoint_wins()
        known = offsets.parse(start)
        self._require_subscribed(known)
        self._commit(known)
        ends = self._ends_for(known)
        begins = self._log.begins(offsets.entering(known, ends))
        found = offsets.following(known, ends, begins)
        if self._is_held_back(sum(part.size for part in offsets.ranges(known, found))):
            return start
        found = self._aligned(known, found)
        if isinstance(limit, ReadMaxRows):
            found = offsets.limit(known, found, limit.max_rows)
        return found.as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends of the log, which Spark puts beside its own position in each progress report."""
        return self._log.ends().as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[read_task.ReadTask]:
        """The read tasks of a batch, new or repeated; none where it has no rows."""
        self._tell_that_the_checkpoint_wins()
        if self._armed:
            # Batch 0, whose start was asked for twice: a group may have committed something else between.
            self._armed = False
            return []
        batch_end = offsets.parse(end)
        parts = [part for part in offsets.ranges(offsets.parse(start), batch_end) if part.size]
        if not parts:
            return []
        now = self._ends_with(batch_end)
        self._report(offsets.losses(batch_end, now))
        there = [part for part in parts if part.topic in now.by_topic and now.same_topic(batch_end, part.topic)]
        return read_task.plan(there, batch_end.topic_ids, self._options)

    def read(self, partition: Any) -> "Iterator[pyarrow.RecordBatch]":
        """Runs in Spark's workers, on a copy of this reader."""
        return read_task.read(self._options, partition)

    @property
    def _log(self) -> LogPositions:
        if self._positions is None:
            self._positions = LogPositions(connect(self._options.bootstrap, self._options.security), self._options)
        return self._positions

    def _ends_for(self, known: Offsets) -> Offsets:
        """The ends that a batch after `known` may reach, after a loss that they show has been reported."""
        ends = self._target or self._log.ends()
        if self._target is None and set(offsets.losses(known, ends)) - self._told:
            ends = self._ends_with(known)
        self._report(offsets.losses(known, ends))
        return ends

    def _ends_with(self, planned: Offsets) -> Offsets:
        """The ends of the log, asked for again while they lack what was planned, some seconds in all.

        A broker that has just started may for a moment not know a topic that is there; with failOnDataLoss=false its
        rows would be dropped for that.
        """
        ends = self._log.ends(fresh=True)
        for pause_ms in LOSS_PAUSES_MS:
            if not offsets.lacking(planned, ends):
                break
            self._sleep(pause_ms / 1000)
            ends = self._log.ends(fresh=True)
        return ends

    def _report(self, lost: list[Loss]) -> None:
        """Each loss once: an idle query would tell it every 12 ms."""
        data_loss.report([loss for loss in lost if loss not in self._told], fail=self._options.fail_on_data_loss)
        self._told.update(lost)

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
        """Spark asks what follows `reached` only when the batch that ends there is complete, the last one too."""
        group = self._options.commits_to
        if group is None:
            return
        if self._commits is None:
            cluster = connect(self._options.bootstrap, self._options.security, timeout_ms=COMMIT_TIMEOUT_MS)
            self._commits = GroupCommits(cluster, group, self._monotonic)
        self._commits.commit(reached)

    def _aligned(self, known: Offsets, found: Offsets) -> Offsets:
        skew_ms = self._options.event_time_skew_ms
        if skew_ms is None:
            return found
        if self._alignment is None:
            cluster = connect(self._options.bootstrap, self._options.security)
            self._alignment = Alignment(cluster, skew_ms, read_committed=self._options.read_committed)
        return self._alignment.limit(known, found)

    def _is_held_back(self, waiting: int) -> bool:
        """Whether `waiting` offsets are too few for a batch, and not yet overdue (Spark's delayBatch)."""
        least = self._options.offsets_per_trigger_min
        if least is None or self._target is not None or not waiting:
            return False
        if waiting < least and self._monotonic() < self._batch_due_at:
            return True
        self._batch_due_at = self._monotonic() + self._options.trigger_delay_max_ms / 1000
        return False

    def _tell_that_the_checkpoint_wins(self) -> None:
        if not self._is_start_settled and self._options.start_given:
            _logger.warning(
                "the query goes on where its checkpoint says; what the options say is where a fresh one begins"
            )
        self._is_start_settled = True
