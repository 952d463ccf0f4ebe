"""The pipeline: events from any Kafka, validated and summed in the read tasks, added to Redis exactly once.

    format("onceflow") with ClickDecoder and GROUPING SETS → _sink_rows → foreachBatch(RedisSink)

A micro-batch's counts and their marker become visible in the same atomic step (docs/exactly-once.md). The plan defines
what is counted: the field names and the version of the rules. A checkpoint and a hash key are bound to one plan, so
that a sum never mixes two definitions.
"""

import functools
import json
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from onceflow.clicks.columns import EventFields
from onceflow.clicks.events import KEY_FIELD, VALUE_FIELD
from onceflow.clicks.job import StreamingJob
from onceflow.clicks.results import DEAD_LENGTH, HASH_KEY, REDIS_URL, Keys, Results
from onceflow.spark.read_again import read_again
from onceflow.spark.redis_sink import Append, Increment, MissingRanges, RedisSink

PLAN_VERSION = 2
"""Incremented with each change of `onceflow.clicks.events` that changes the count of an event."""

COUNT, OS, TOTALS, BAD, DEAD = "count", "os", "totals", "bad", "dead"
"""Targets: uid → clicks, os_type → clicks, events and clicks and bad → number, reason → number, pointers."""
_SUMS = {
    "columns": "",
    "aggregate": "sum(clicks) AS clicks, count(*) AS events",
    "groupBy": "GROUPING SETS ((uid), (os), ())",
}
_ROWS = {
    "rejected IS NOT NULL": (
        (TOTALS, "'events'", "1"),
        (TOTALS, "'clicks'", "0"),
        (TOTALS, "'bad'", "1"),
        (BAD, "rejected.reason", "1"),
        (
            DEAD,
            "concat_ws(':', rejected.partition, rejected.offset, rejected.reason)",
            "unix_micros(rejected.timestamp)",
        ),
    ),
    "grouping_id = 1": ((COUNT, "uid", "clicks"),),
    "grouping_id = 2": ((OS, "os", "clicks"),),
    "grouping_id = 3": ((TOTALS, "'events'", "events"), (TOTALS, "'clicks'", "clicks"), (TOTALS, "'bad'", "0")),
}
"""Kind of the source's row → its rows for the sink: target, and SQL of field and amount.

Spark's grouping_id has a bit for each of uid and os that the row's grouping set lacks.
"""


def _sink_rows() -> str:
    """Return SQL that converts the source's rows to the sink's."""
    struct = "named_struct('target', '{}', 'field', CAST({} AS BINARY), 'amount', CAST({} AS BIGINT))"
    arrays = {kind: ", ".join(struct.format(*row) for row in rows) for kind, rows in _ROWS.items()}
    return f"inline(CASE {' '.join(f'WHEN {kind} THEN array({rows})' for kind, rows in arrays.items())} END)"


@dataclass(frozen=True)
class ClickPipeline(StreamingJob):
    """Settings of a run that counts."""

    name = "onceflow clicks"

    redis_url: str = REDIS_URL
    hash_key: str = HASH_KEY
    key_field: str = KEY_FIELD
    value_field: str | None = VALUE_FIELD

    @property
    def plan(self) -> str:
        """The plan, in the form stored in the marker."""
        return json.dumps(
            {
                "counts": "clicks",
                # `h` and `{h}` share a marker and are two hashes.
                "hash_key": self.hash_key,
                "key_field": self.key_field,
                "value_field": self.value_field,
            }
        )

    def check(self) -> None:
        """Check field names, Redis, the broker and the topic, which would otherwise fail minutes later in Spark."""
        self._fields.check()
        with Results(self.redis_url, self.hash_key) as results:
            results.marker()
        super().check()

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the stream of the sink's rows."""
        return self.events(spark).selectExpr(_sink_rows())

    def rows_again(self, spark: SparkSession, missing: MissingRanges) -> DataFrame:
        """Return the sink's rows of offsets whose counts Redis has lost."""
        return read_again(spark, self._source, missing).selectExpr(_sink_rows())

    @property
    def _fields(self) -> EventFields:
        return EventFields(self.key_field, self.value_field, time=None)

    @property
    def _source(self) -> dict[str, str]:
        return {**super()._source, **self._fields.source_options(), **_SUMS}

    def batch_done(self, sink: RedisSink) -> int:
        return sink.target.batch_done

    def check_sink(self, sink: RedisSink) -> None:
        sink.check()

    def sink(self, spark: SparkSession) -> RedisSink:
        keys = Keys(self.hash_key)
        return RedisSink(
            self.redis_url,
            hash_key=self.hash_key,
            increments=[
                Increment(COUNT, keys.count, keys.top),
                Increment(OS, keys.os),
                Increment(TOTALS, keys.totals),
                Increment(BAD, keys.bad),
            ],
            appends=[Append(DEAD, keys.dead, DEAD_LENGTH)],
            checkpoint=self.checkpoint,
            plan=self.plan,
            plan_version=PLAN_VERSION,
            rebuild=functools.partial(self.rows_again, spark),
            accept_data_loss=self._stream if self.accept_data_loss else None,
        )
