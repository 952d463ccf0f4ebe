"""The pipeline: events from any Kafka, validated and summed in the read tasks, added to Redis exactly once.

    format("onceflow") with ClickDecoder and GROUPING SETS → sink_rows → foreachBatch(RedisSink)

A micro-batch's counts and their marker become visible in the same atomic step (docs/exactly-once.md). The plan defines
what is counted: the field names, the measures and the version of the rules. A checkpoint and a hash key are bound to
one plan, so that a sum never mixes two definitions.
"""

import functools
from dataclasses import dataclass, field
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onceflow.clicks.beside import write_beside
from onceflow.clicks.columns import EventFields
from onceflow.clicks.event_ids import IdSettings
from onceflow.clicks.events import KEY_FIELD, TIME_FIELD, VALUE_FIELD
from onceflow.clicks.job import StreamingJob
from onceflow.clicks.measures import DEAD, MeasureSettings, aggregates, grouping_sets, sink_rows
from onceflow.clicks.plan import Plan
from onceflow.clicks.results import DEAD_LENGTH, HASH_KEY, PLAN, REDIS_URL, TOPIC, Keys, Results
from onceflow.clicks.targets import buckets, increments, redis_ids
from onceflow.spark.read_again import read_again, read_ranges
from onceflow.spark.redis_sink import Append, MissingRanges, RedisSink
from onceflow.spark.sink import ExactlyOnce

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
    time_field: str = TIME_FIELD
    measures: MeasureSettings = field(default_factory=MeasureSettings)
    event_ids_ms: int | None = None
    """Window in which an event's id counts once; None counts every record."""

    @property
    def plan(self) -> Plan:
        """The definition of the counts."""
        return Plan(self.hash_key, self.key_field, self.value_field, self.time_field, self.measures, self.event_ids_ms)

    def check(self) -> None:
        """Check field names, Redis, the broker and the topic, which would otherwise fail minutes later in Spark."""
        self._fields.check()
        with Results(self.redis_url, self.hash_key) as results:
            results.marker()
        super().check()

    def announce(self) -> None:
        """Write plan and topic beside the counts, for readers while there is no marker. Raises NotRecorded."""
        keys = Keys(self.hash_key)
        write_beside(self.redis_url, keys, keys.announced, {PLAN: self.plan.text, TOPIC: self.topic})

    def _start(self, spark: SparkSession, sink: ExactlyOnce) -> StreamingQuery:
        self.announce()  # The sink has accepted Redis and checkpoint.
        return super()._start(spark, sink)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the stream of the sink's rows."""
        return self.events(spark).selectExpr(self._rows_sql)

    def rows_again(self, spark: SparkSession, missing: MissingRanges) -> DataFrame:
        """Return the sink's rows of offsets whose counts Redis has lost."""
        return read_again(spark, self._source, missing).selectExpr(self._rows_sql)

    def id_records(self, spark: SparkSession, ranges: MissingRanges) -> DataFrame:
        """Return id and place of each record in these offsets."""
        assert self._ids is not None
        options = {**super()._source, **self._ids.claiming_options()}
        records = read_ranges(spark, options, ranges, fail_on_data_loss=not self.accept_data_loss)
        return records.selectExpr("unhex(id) AS id", "partition", "offset", "timestamp")

    @property
    def _ids(self) -> IdSettings | None:
        if self.event_ids_ms is None:
            return None
        ids = redis_ids(Keys(self.hash_key), self.event_ids_ms)
        return IdSettings(self._fields, self.redis_url, ids)

    @property
    def _fields(self) -> EventFields:
        time_field = self.time_field if self.measures.is_timed else None
        return EventFields(self.key_field, self.value_field, time_field, self.measures.dimensions)

    @property
    def _source(self) -> dict[str, str]:
        return {
            **super()._source,
            **(self._fields.source_options() if self._ids is None else self._ids.counting_options()),
            "columns": "",
            "aggregate": aggregates(self.measures),
            "groupBy": grouping_sets(self.measures),
        }

    @property
    def _rows_sql(self) -> str:
        return sink_rows(self.measures)

    def batch_done(self, sink: RedisSink) -> int:
        return sink.target.batch_done

    def check_sink(self, sink: RedisSink) -> None:
        sink.check()

    def sink(self, spark: SparkSession | None) -> RedisSink:
        """Return a sink for one start of the query; without a session, only for its keys."""
        keys, ids = Keys(self.hash_key), self._ids
        return RedisSink(
            self.redis_url,
            hash_key=self.hash_key,
            increments=increments(self.measures, keys),
            appends=[Append(DEAD, keys.dead, DEAD_LENGTH)],
            buckets=buckets(self.measures, keys),
            checkpoint=self.checkpoint,
            plan=self.plan.text,
            plan_version=PLAN_VERSION,
            rebuild=None if spark is None else functools.partial(self.rows_again, spark),
            ids=None if ids is None else ids.ids,
            id_records=None if ids is None else functools.partial(self.id_records, cast(SparkSession, spark)),
            accept_data_loss=self._stream if self.accept_data_loss else None,
        )
