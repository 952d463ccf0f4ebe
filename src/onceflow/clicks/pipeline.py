"""The pipeline: events from any Kafka, validated and summed in Spark, added to Redis exactly once.

    format("onceflow") → mapInArrow(count_events) → foreachBatch(RedisSink)

A micro-batch's counts and their marker become visible in the same atomic step (docs/exactly-once.md). The plan defines
what is counted: the field names and the version of the rules. A checkpoint and a hash key are bound to one plan, so
that a sum never mixes two definitions.
"""

import functools
import json
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from onceflow.clicks import counting
from onceflow.clicks.events import KEY_FIELD, VALUE_FIELD, Rules
from onceflow.clicks.job import StreamingJob
from onceflow.clicks.results import DEAD_LENGTH, HASH_KEY, REDIS_URL, Keys, Results
from onceflow.spark.read_again import read_again
from onceflow.spark.redis_sink import Append, Increment, MissingRanges, RedisSink

PLAN_VERSION = 2
"""Incremented with each change of `onceflow.clicks.events` that changes the count of an event."""


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
        Rules(self.key_field, self.value_field)
        with Results(self.redis_url, self.hash_key) as results:
            results.marker()
        super().check()

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the stream of the sink's rows."""
        return self._counted(self.events(spark))

    def rows_again(self, spark: SparkSession, missing: MissingRanges) -> DataFrame:
        """Return the sink's rows of offsets whose counts Redis has lost."""
        return self._counted(read_again(spark, self._source, missing))

    def _counted(self, events: DataFrame) -> DataFrame:
        count = functools.partial(
            counting.count_events,
            key_field=self.key_field,
            value_field=self.value_field,
            dead_length=DEAD_LENGTH,
        )
        return events.select("value", "partition", "offset", "timestamp").mapInArrow(
            count, "target string, field binary, amount long"
        )

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
                Increment(counting.COUNT, keys.count, keys.top),
                Increment(counting.OS, keys.os),
                Increment(counting.TOTALS, keys.totals),
                Increment(counting.BAD, keys.bad),
            ],
            appends=[Append(counting.DEAD, keys.dead, DEAD_LENGTH)],
            checkpoint=self.checkpoint,
            plan=self.plan,
            plan_version=PLAN_VERSION,
            rebuild=functools.partial(self.rows_again, spark),
            accept_data_loss=self._stream if self.accept_data_loss else None,
        )
