"""Accepted data loss: the offsets that a sink skipped without their records, measured and kept in its marker.

A stream skips deleted records only with `failOnDataLoss=false`, and a sink accepts that only with `accept_data_loss=`.
Each batch is then compared with the log before and after it is written. Missing offsets become part of the proof, in
the same atomic step as the batch.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from onceflow.client.cluster import Cluster
from onceflow.spark import offsets
from onceflow.spark.errors import WrongOption
from onceflow.spark.exactly_once.batch import AcceptedLoss, Batch
from onceflow.spark.offsets import Loss, LossKind, OffsetRange, Offsets
from onceflow.spark.reader.options import FAIL_ON_DATA_LOSS, read_options
from onceflow.spark.reader.positions import ByPartition, LogPositions

OPTION = "accept_data_loss"


class AcceptDataLoss:
    """Callable that adds to a batch the offsets that the log lacks; `source` are the stream's options.

    Raises WrongOption if the stream itself stops at a loss.
    """

    def __init__(
        self, source: Mapping[str, str], *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._options = read_options(source, "stream")
        self._at_ms = now_ms()
        if self._options.fail_on_data_loss:
            raise WrongOption(
                f"{OPTION} takes the options of a stream with {FAIL_ON_DATA_LOSS}=false; give both, or neither"
            )

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with all losses that the checkpoint and the log show now."""
        losses = (*batch.restarts, *self._missing(batch))
        return replace(batch, accepted=tuple(self._accepted(loss, batch.number) for loss in losses))

    def _accepted(self, loss: Loss, number: int) -> AcceptedLoss:
        assert loss.partition is not None and loss.begin is not None
        return AcceptedLoss(
            loss.kind, loss.topic, loss.partition, loss.begin, loss.end, batch=number, at_ms=self._at_ms, option=OPTION
        )

    def _missing(self, batch: Batch) -> list[Loss]:
        parts = [part for part in batch.ranges if part.size]
        if not parts:
            return []
        # Not a shared connection: those belong to one thread, and batches may come from any.
        with Cluster(self._options.bootstrap, client_id="onceflow-spark", security=self._options.security) as cluster:
            log = LogPositions(cluster, self._options)
            ends = log.ends(fresh=True)
            topics = {part.topic for part in parts} & ends.by_topic.keys()
            begins = log.begins({topic: ends.by_topic[topic] for topic in topics})
        return list(_losses(parts, batch.topic_ids, begins, ends))


def _losses(
    parts: list[OffsetRange], topic_ids: Mapping[str, str], begins: ByPartition, ends: Offsets
) -> Iterator[Loss]:
    planned = Offsets({part.topic: {} for part in parts}, topic_ids)
    for part in parts:
        whole = (part.topic, part.partition, part.begin, part.end)
        if part.partition not in ends.by_topic.get(part.topic, {}):
            yield Loss(LossKind.MISSING, *whole)
        elif not ends.same_topic(planned, part.topic):
            yield Loss(LossKind.RECREATED, *whole)
        else:
            log = OffsetRange(
                part.topic,
                part.partition,
                begins[part.topic][part.partition],
                ends.by_topic[part.topic][part.partition],
            )
            yield from offsets.losses_of_range(part, log)
