"""The pipeline: events from any Kafka, validated and summed in Spark, added to Redis exactly once.

    format("onceflow") → mapInArrow(count_events) → foreachBatch(RedisSink)

A micro-batch's counts and their marker become visible in the same atomic step (docs/exactly-once.md). The plan defines
what is counted: the field names and the version of the rules. A checkpoint and a hash key are bound to one plan, so
that a sum never mixes two definitions.
"""

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onceflow.clicks import counting
from onceflow.clicks.events import KEY_FIELD, VALUE_FIELD, Rules
from onceflow.clicks.restarts import QueryFailed, RestartLimits, Restarts
from onceflow.clicks.results import DEAD_LENGTH, HASH_KEY, REDIS_URL, Keys, Results
from onceflow.clicks.stopping import stop_on_signals
from onceflow.client.cluster import Cluster
from onceflow.client.security import read_security
from onceflow.errors import OnceflowError
from onceflow.spark.failure import describe_stop, own_message
from onceflow.spark.read_again import read_again
from onceflow.spark.reader.options import FAIL_ON_DATA_LOSS, KAFKA
from onceflow.spark.redis_sink import Append, Increment, MissingRanges, RedisSink
from onceflow.spark.session import build_session, is_jvm_lost
from onceflow.spark.source import register

PLAN_VERSION = 2
"""Incremented with each change of `onceflow.clicks.events` that changes the count of an event."""

EVENTS_PER_BATCH_MAX = 2_000_000
"""A long backlog is counted in steps of this number of offsets, so that results advance and a repeat is short."""

POLL_S = 1
CHECK_S = 30
"""Interval at which an idle query checks that Redis still holds the acknowledged counts."""

AVAILABLE_NOW = "available-now"


@dataclass(frozen=True)
class ClickPipeline:
    """Settings of a run; without a `master` the session configured by spark-submit is used."""

    bootstrap: str
    topic: str
    checkpoint: str
    redis_url: str = REDIS_URL
    hash_key: str = HASH_KEY
    key_field: str = KEY_FIELD
    value_field: str | None = VALUE_FIELD
    master: str | None = "local[2]"
    trigger: str = "5 seconds"
    java_home: str | None = None
    log_file: Path | None = None
    ui_port: int | None = None
    """Port of Spark's own pages on 127.0.0.1; 0 for any free one, None for no pages."""
    on_session: Callable[[SparkSession], None] | None = None
    """Called with each session that the run starts: a second one after the JVM ended."""
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """TLS and SASL by Kafka's names."""
    accept_data_loss: bool = False
    """Whether this run continues where the log lacks records."""
    restarts: RestartLimits = field(default_factory=RestartLimits)

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

    def run(self) -> None:
        """Count until SIGINT or SIGTERM, or until everything available is counted. Main thread only; `check` first.

        Restart the query after a failure that a restart fixes. Raises `QueryFailed` or the error of the source or the
        sink that stopped the query.
        """
        restarts, is_over = Restarts(self.restarts), False
        try:
            while not is_over:
                # Spark installs its own handler for SIGINT when its context starts, so ours is installed later.
                with self._session() as spark, stop_on_signals() as stop:
                    is_over = self.count_with_restarts(spark, stop, restarts)
        except (PySparkException, Py4JError, OSError) as error:
            raise QueryFailed(describe_stop(error)) from error

    def check(self) -> None:
        """Check field names, Redis, the broker and the topic, which would otherwise fail minutes later in Spark."""
        Rules(self.key_field, self.value_field)
        with Results(self.redis_url, self.hash_key) as results:
            results.marker()
        with Cluster(self.bootstrap, security=read_security(self.kafka)) as cluster:
            cluster.require_topic(self.topic)

    def count(self, spark: SparkSession, stop: threading.Event) -> None:
        """Count in an existing session until `stop` is set or everything available is counted."""
        self._count_into(self._sink(spark), spark, stop)

    def count_with_restarts(self, spark: SparkSession, stop: threading.Event, restarts: Restarts) -> bool:
        """Return True when the run is over, False when it needs a new session because the JVM ended."""
        while not stop.is_set():
            sink = self._sink(spark)
            try:
                self._count_into(sink, spark, stop)
                return True
            except (OnceflowError, PySparkException, Py4JError, OSError) as error:
                restarts.wait(error, sink.target.batch_done, stop)
            if is_jvm_lost():
                return stop.is_set()
        return True

    def _count_into(self, sink: RedisSink, spark: SparkSession, stop: threading.Event) -> None:
        try:
            sink.open(spark, sleep=functools.partial(_sleep, stop))
            self._wait(self._start(spark, sink), sink, stop)
        except _Stopped:
            return
        finally:
            sink.close()

    @contextlib.contextmanager
    def _session(self) -> Iterator[SparkSession]:
        if self.master is None:
            spark = SparkSession.builder.appName("onceflow clicks").getOrCreate()
            if "spark.sql.shuffle.partitions" not in dict(spark.sparkContext.getConf().getAll()):
                # Spark's default is 200, and each costs a task in every micro-batch.
                spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
        else:
            spark = build_session(
                "onceflow clicks",
                self.master,
                java_home=self.java_home,
                log_file=self.log_file,
                ui_port=self.ui_port,
            )
        try:
            register(spark)
            if self.on_session is not None:
                self.on_session(spark)
            yield spark
        finally:
            with contextlib.suppress(Py4JError, ConnectionError):  # The JVM may have ended.
                spark.stop()

    def _start(self, spark: SparkSession, sink: RedisSink) -> StreamingQuery:
        writer = (
            self.rows(spark)
            .writeStream.queryName("onceflow clicks")
            .option("checkpointLocation", self.checkpoint)
            .foreachBatch(sink)
        )
        if self.trigger == AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=self.trigger).start()

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the stream of the sink's rows."""
        events = (
            spark.readStream.format("onceflow")
            .options(**self._stream)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(EVENTS_PER_BATCH_MAX))
            .load()
        )
        return self._counted(events)

    def rows_again(self, spark: SparkSession, missing: MissingRanges) -> DataFrame:
        """Return the sink's rows of offsets whose counts Redis has lost."""
        return self._counted(read_again(spark, self._source, missing))

    @property
    def _source(self) -> dict[str, str]:
        secured = {f"{KAFKA}{name}": value for name, value in self.kafka.items()}
        return {"kafka.bootstrap.servers": self.bootstrap, **secured}

    @property
    def _stream(self) -> dict[str, str]:
        lossy = {FAIL_ON_DATA_LOSS: "false"} if self.accept_data_loss else {}
        return {**self._source, "subscribe": self.topic, **lossy}

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

    def _sink(self, spark: SparkSession) -> RedisSink:
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

    def _wait(self, query: StreamingQuery, sink: RedisSink, stop: threading.Event) -> None:
        """Wait for the query's end or for `stop`, then stop it. Raises its failure, also one during the stop."""
        failure: Exception | None = None
        try:
            _watch(query, sink, stop)
            failure = query.exception()
        except (StreamingQueryException, Py4JError, ConnectionError) as error:
            failure = error
        finally:
            failed_in_sink = sink.failure
            with contextlib.suppress(PySparkException, Py4JError, ConnectionError):
                query.stop()
        if failed_in_sink is not None:
            raise failed_in_sink from failure
        # The JVM's end is part of a stop; an error of ours is a failure all the same.
        if failure is not None and (not stop.is_set() or own_message(failure)):
            raise QueryFailed(describe_stop(failure)) from failure


class _Stopped(Exception):
    """A stop during the wait for another driver's end."""


def _sleep(stop: threading.Event, seconds: float) -> None:
    if stop.wait(seconds):
        raise _Stopped


def _watch(query: StreamingQuery, sink: RedisSink, stop: threading.Event) -> None:
    unchecked_s = 0
    while not stop.is_set() and not query.awaitTermination(POLL_S):
        unchecked_s += POLL_S
        if unchecked_s >= CHECK_S:
            sink.check()
            unchecked_s = 0
    if not stop.is_set():
        sink.check()
