"""The exactly-once Redis sink: `foreachBatch(redis_sink(...))`.

One script makes a batch's counts and its marker visible, so a batch that Spark repeats after any crash changes nothing.
`onceflow.spark.redis.marker` has the marker's format, `redis.target` the steps, `redis/lua/` the atomic checks and
writes, `docs/exactly-once.md` the protocol as a whole.

Input rows have the columns `target string, field binary, amount long`, and `value binary` where a target needs it.
A target is the name of an Increment (add the amount to that field of its hash), of an Append or a StreamAppend (the
field is an entry of its list or stream, the amount its order) or of a SetIfNewer (set that field of its hash to the
value, the amount being its version). BucketIncrement, BucketRanking, BucketDistinct and Intervals count by time, with a
key for each bucket or user.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from onceflow.spark.errors import IncompatibleData, MarkerRefused, WrongOption
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import Checkpoint
from onceflow.spark.exactly_once.decision import TargetRolledBack
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis.marker import redis_reset
from onceflow.spark.redis.repair import MissingRanges
from onceflow.spark.redis.scripts import Keys, OwnerLost
from onceflow.spark.redis.target import Rebuild, RedisTarget, RepairFailed, UnsuitableRedis
from onceflow.spark.redis.targets import (
    Append,
    BucketDistinct,
    BucketIncrement,
    BucketRanking,
    BucketTarget,
    Ids,
    Increment,
    IntervalBuckets,
    Intervals,
    SetIfNewer,
    StreamAppend,
)
from onceflow.spark.sink import ExactlyOnce, within_attempts

__all__ = [
    "Append",
    "BucketDistinct",
    "BucketIncrement",
    "BucketRanking",
    "Ids",
    "IncompatibleData",
    "Increment",
    "IntervalBuckets",
    "Intervals",
    "MarkerRefused",
    "MissingRanges",
    "OwnerLost",
    "RedisSink",
    "UnsuitableRedis",
    "RepairFailed",
    "SetIfNewer",
    "StreamAppend",
    "redis_sink",
]


class RedisSink(ExactlyOnce):
    """Writes each micro-batch to Redis exactly once; pass it to `foreachBatch`.

    `checkpoint` is the query's own checkpointLocation. `plan` names what is counted, with every option that changes a
    count; `plan_version` is the version of the code that counts it. One sink serves one start of one query: call `open`
    before `start()`, so that a mismatch stops the query at once, and `close` when it has ended.

    `rebuild` computes the rows of given offsets again (`onceflow.spark.read_again` reads them), so that batches which
    Redis lost are counted again instead of stopping the query. Omit it if a row depends on more than its event; a
    stateful query is refused. `reset` is the command that messages name for deleting counts and checkpoint, by default
    'onceflow sink reset redis' for this sink. `accept_data_loss` is ExactlyOnce's.

    With `ids`, records with one id count once. `id_records` returns the records of given offsets with the columns of
    `onceflow.spark.redis.ids`, each partition in one task; the rows omit what its function `duplicates` returns.

    Raises WrongOption if a target or a key is given twice, or a key is the marker, the history, a claims hash or named
    like a bucket.
    """

    def __init__(
        self,
        url: str,
        *,
        hash_key: str,
        increments: Sequence[Increment] = (),
        appends: Sequence[Append] = (),
        sets: Sequence[SetIfNewer] = (),
        streams: Sequence[StreamAppend] = (),
        buckets: Sequence[BucketTarget] = (),
        checkpoint: str,
        plan: str = "",
        plan_version: int = 1,
        name: str = "",
        rebuild: Rebuild | None = None,
        ids: Ids | None = None,
        id_records: Rebuild | None = None,
        reset: str = "",
        accept_data_loss: Mapping[str, str] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        keys = Keys(
            marker=markers.same_slot(hash_key, "onceflow"),
            history=markers.same_slot(hash_key, "history"),
            increments=tuple(increments),
            appends=tuple(appends),
            sets=tuple(sets),
            streams=tuple(streams),
            buckets=tuple(buckets),
            ids=ids,
        )
        if (ids is None) != (id_records is None):
            raise WrongOption(f"the sink with marker {keys.marker} needs both ids and id_records, or neither")
        _validate_buckets(keys)
        _refuse_shared(keys)
        keys = replace(keys, reset=reset or redis_reset(url, hash_key, checkpoint, keys.data))
        self.target = RedisTarget(
            url, keys, name=name or keys.marker, rebuild=rebuild, records=id_records, now_ms=now_ms
        )
        super().__init__(
            self.target,
            checkpoint=checkpoint,
            plan=plan,
            plan_version=plan_version,
            accept_data_loss=accept_data_loss,
        )
        # A check may run in another thread than the batches, and must not repair what a batch is writing.
        self._writing = threading.RLock()

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """Write one micro-batch; return false if the rows were not read, because it is already written."""
        with self._writing:
            self.target.moment = f"in batch {batch_id}"
            return super().process(rows, batch_id)

    def check(self) -> None:
        """Check that Redis still holds the last batch that this sink wrote, and repair it; safe while the query runs.

        Raises MarkerRefused, SinkStopped, RedisFailed, kept in `failure`.
        """
        with self._record_failure():
            within_attempts(f"sink {self.sink.name!r} could not be checked", self._check)

    def _batch(self, checkpoint: Checkpoint, number: int) -> Batch:
        self.target.is_stateful = checkpoint.is_stateful
        return super()._batch(checkpoint, number)

    def _check(self) -> None:
        # Read first: the query may finish another batch while the marker is being read.
        if self._lost_since(self.target.batch_done) is None:
            return
        with self._writing:
            expected = self.target.batch_done
            lost = self._lost_since(expected)
            if lost is not None:
                assert self._checkpoint is not None
                self.target.repair(lost, self._batch(self._checkpoint, expected), self._checkpoint)

    def _lost_since(self, expected: int) -> TargetRolledBack | None:
        self.target.moment = f"after batch {expected}"
        return self.target.lost_since(expected)


def _refuse_shared(keys: Keys) -> None:
    """Raise WrongOption for a duplicate: scripts find keys by target and types by key, so one of two would be lost."""
    for what, names in (("target", keys.targets), ("key", [keys.marker, keys.history, *keys.claims, *keys.named])):
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        if twice:
            raise WrongOption(
                f"the sink with marker {keys.marker} was given {what} {twice[0]!r} for more than one purpose: each of "
                f"its increments, appends, sets, streams and buckets needs a {what} of its own, beside marker "
                f"{keys.marker} and history {keys.history}"
            )


def _validate_buckets(keys: Keys) -> None:
    """Raise WrongOption for a name that a bucket may also have, and for an unsuitable `late_key`."""
    plain = {increment.key for increment in keys.increments if increment.ranking_key is None}
    for index in keys.indexes:
        if markers.hash_tag(index.key) == index.key:
            raise WrongOption(
                f"key {index.key!r} of a bucket target has no hash tag in braces, so its buckets would be in other "
                f"slots: name it {markers.same_slot(keys.marker, 'NAME')!r}"
            )
        like_buckets = [key for key in [*keys.own, *keys.claims] if index.may_name(key.encode())]
        if like_buckets:
            raise WrongOption(
                f"key {like_buckets[0]!r} is named like a bucket of {index.key!r}: name one of them differently"
            )
        if index.kind != "ids" and index.late_key is not None and index.late_key not in plain:
            raise WrongOption(
                f"late_key {index.late_key!r} of {index.key!r}: must be the key of one of the increments, without "
                f"ranking_key"
            )


redis_sink = RedisSink
"""The counterpart of `kafka_sink`: a sink for `foreachBatch` that writes rows to Redis."""
