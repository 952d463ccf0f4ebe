"""The exactly-once Redis sink: `foreachBatch(redis_sink(...))`.

A batch's counts and the marker that says so become visible in the same script, so a batch that Spark repeats after
any crash changes nothing. `onceflow.spark.redis.marker` has the marker's format, `redis_target` the steps,
`redis/lua/` what is checked and written atomically, `docs/exactly-once.md` the protocol as a whole.

Input rows have the columns `target string, field binary, amount long`, and `value binary` where the sink sets values.
A target is the name of an Increment (add the amount to that field of its hash), of an Append or a StreamAppend (the
field is an entry of its list or stream, the amount its order) or of a SetIfNewer (set that field of its hash to the
value, the amount being its version).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import Checkpoint
from onceflow.spark.exactly_once.decision import WentBack
from onceflow.spark.exactly_once.sink_errors import MarkerRefused
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis.repair import MissingRanges
from onceflow.spark.redis.reset_command import redis_reset
from onceflow.spark.redis.scripts import (
    Append,
    DataMisfit,
    Increment,
    Keys,
    OwnerLost,
    SetIfNewer,
    StreamAppend,
)
from onceflow.spark.redis.target import Rebuild, RedisTarget, RedisUnfit, RepairFailed
from onceflow.spark.sink import ExactlyOnce, within_attempts
from onceflow.spark.wrong_option import WrongOption

__all__ = [
    "Append",
    "DataMisfit",
    "Increment",
    "MarkerRefused",
    "MissingRanges",
    "OwnerLost",
    "RedisSink",
    "RedisUnfit",
    "RepairFailed",
    "SetIfNewer",
    "StreamAppend",
    "redis_sink",
]


class RedisSink(ExactlyOnce):
    """Writes each micro-batch to Redis exactly once; pass it to `foreachBatch`.

    `checkpoint` is the query's own checkpointLocation. `plan` names what is counted (with it every option that
    changes a count), `plan_version` the code that counts it. One sink serves one start of one query: call `open`
    before `start()` so that a marker that does not fit stops the query at once, and `close` when it has ended.

    `rebuild` makes the rows of given offsets again (`onceflow.spark.read_again` reads them), so that batches which
    Redis lost are counted again instead of stopping the query. It must not be given where a row depends on more than
    its event; a stateful query is refused. `reset` is the command that a sentence names where counts and checkpoint are
    to be forgotten, by default 'onceflow sink reset redis' for this sink. `accept_data_loss` is ExactlyOnce's.

    Raises WrongOption where a target or a key is given twice, or a key is the marker's, the history's or a claims hash.
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
        checkpoint: str,
        plan: str = "",
        plan_version: int = 1,
        name: str = "",
        rebuild: Rebuild | None = None,
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
        )
        _refuse_shared(keys)
        keys = replace(keys, reset=reset or redis_reset(url, hash_key, checkpoint, keys.data))
        self.target = RedisTarget(url, keys, name=name or keys.marker, rebuild=rebuild, now_ms=now_ms)
        super().__init__(
            self.target,
            checkpoint=checkpoint,
            plan=plan,
            plan_version=plan_version,
            accept_data_loss=accept_data_loss,
        )
        # A check may come from another thread than the batches, and must not repair what a batch is writing.
        self._writing = threading.RLock()

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """Writes one micro-batch; false where the rows were not read, because it is there."""
        with self._writing:
            self.target.moment = f"in batch {batch_id}"
            return super().process(rows, batch_id)

    def check(self) -> None:
        """Checks that Redis still holds the last batch that this sink wrote, and repairs it; safe while the query runs.

        Raises MarkerRefused, SinkStopped, RedisFailed, kept in `failure`.
        """
        with self._failure_kept():
            within_attempts(f"sink {self.sink.name!r} could not be checked", self._check)

    def _batch(self, checkpoint: Checkpoint, number: int) -> Batch:
        self.target.is_stateful = checkpoint.is_stateful
        return super()._batch(checkpoint, number)

    def _check(self) -> None:
        # Taken first: the query may finish another batch while the marker is being read.
        if self._lost_since(self.target.batch_done) is None:
            return
        with self._writing:
            expected = self.target.batch_done
            lost = self._lost_since(expected)
            if lost is not None:
                assert self._checkpoint is not None
                self.target.repair(lost, self._batch(self._checkpoint, expected), self._checkpoint)

    def _lost_since(self, expected: int) -> WentBack | None:
        self.target.moment = f"after batch {expected}"
        return self.target.lost_since(expected)


def _refuse_shared(keys: Keys) -> None:
    """The scripts find a key by its target and a type by its key; of two alike one would be lost, or fail halfway."""
    for what, names in (("target", keys.targets), ("key", [keys.marker, keys.history, *keys.claims, *keys.named])):
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        if twice:
            raise WrongOption(
                f"the sink with marker {keys.marker} was given {what} {twice[0]!r} for more than one purpose: each of "
                f"its increments, appends, sets and streams needs a {what} of its own, beside marker {keys.marker} and "
                f"history {keys.history}"
            )


redis_sink = RedisSink
"""Beside `kafka_sink`: what `foreachBatch` gets to write rows to Redis."""
