"""A contender's Spark driver: `python -m benchmarks.spark_driver DIRECTORY [CLASSPATH]`, a `child.Child`.

Both contenders have the same session (two threads, our settings for small micro-batches) and the same job except for
source and sink. Ours: `format("onceflow")`, with push-downs or raw records, and the exactly-once sinks. The peer's:
Spark's JVM connector, whose rows the driver adds in Redis with pipelined HINCRBY, at least once, because nothing
records whether a repeated batch was counted.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import sink_runs
from onceflow import services
from onceflow.clicks.measures import MeasureSettings
from onceflow.clicks.pipeline import ClickPipeline
from onceflow.spark.redis_sink import Increment, RedisSink
from onceflow.spark.session import build_session

CLICK = "uid STRING, click_count BIGINT"
COUNT = "count"
TOTAL_KEY = "total"
ONCEFLOW, JVM = "onceflow", "kafka"


def stream(spark: SparkSession, source: str, work: Mapping[str, Any], **options: str) -> DataFrame:
    """Return a stream of the topic from its start; both sources have these options."""
    known = {"kafka.bootstrap.servers": work["bootstrap"], "subscribe": work["topic"], "startingOffsets": "earliest"}
    if work.get("offsets_per_trigger_max"):
        known["maxOffsetsPerTrigger"] = str(work["offsets_per_trigger_max"])
    return spark.readStream.format(source).options(**known, **options).load()


def clicks_of(records: DataFrame) -> DataFrame:
    """Return raw records decoded by Spark's from_json."""
    return records.select(F.from_json(F.col("value").cast("string"), CLICK).alias("click")).select("click.*")


def sums_of(clicks: DataFrame) -> DataFrame:
    """Return one row per user of a micro-batch."""
    return clicks.groupBy("uid").agg(F.sum("click_count").alias("clicks"), F.count(F.lit(1)).alias("events"))


def sink_rows(sums: DataFrame) -> DataFrame:
    """Return rows for the Redis sink."""
    return sums.select(F.lit(COUNT).alias("target"), F.col("uid").cast("binary").alias("field"), "clicks").toDF(
        "target", "field", "amount"
    )


def redis_sink(work: Mapping[str, Any]) -> RedisSink:
    """Return our exactly-once sink."""
    increments = [Increment(COUNT, f"{{{work['hash_key']}}}:count")]
    return RedisSink(
        work["redis"],
        hash_key=work["hash_key"],
        increments=increments,
        checkpoint=work["checkpoint"],
        plan="benchmark",
        plan_version=1,
    )


class Pipeline(NamedTuple):
    """Input of a query, its function for micro-batches, and the function that closes its resources."""

    rows: DataFrame
    write: Callable[[DataFrame, int], None]
    close: Callable[[], None]


def pushdown(spark: SparkSession, work: Mapping[str, Any]) -> Pipeline:
    """Return our pipeline with decoding and sums in the read tasks."""
    options = {"decode": CLICK, "aggregate": "sum(click_count) AS clicks", "groupBy": "uid"}
    sink = redis_sink(work)
    sums = stream(spark, ONCEFLOW, work, **options).where("rejected IS NULL")
    return Pipeline(sink_rows(sums), sink, sink.close)


def raw(spark: SparkSession, work: Mapping[str, Any]) -> Pipeline:
    """Return our pipeline with raw records, from_json and groupBy."""
    sink = redis_sink(work)

    def write(records: DataFrame, number: int) -> None:
        sink(sink_rows(sums_of(clicks_of(records))), number)

    return Pipeline(stream(spark, ONCEFLOW, work).select("value"), write, sink.close)


def jvm(spark: SparkSession, work: Mapping[str, Any]) -> Pipeline:
    """Return the peer's pipeline."""
    client = redis.Redis.from_url(work["redis"])

    def write(records: DataFrame, _number: int) -> None:
        add(client, work["hash_key"], sums_of(clicks_of(records)))

    return Pipeline(stream(spark, JVM, work).select("value"), write, client.close)


def add(client: redis.Redis, hash_key: str, sums: DataFrame) -> None:
    """Add each sum with HINCRBY in one pipeline; the number of counted events is the last command."""
    pipeline = client.pipeline(transaction=False)
    total = 0
    for uid, clicks, events in sums.collect():
        pipeline.hincrby(f"{{{hash_key}}}:count", uid, clicks)
        total += events
    pipeline.hincrby(f"{{{hash_key}}}:{TOTAL_KEY}", "events", total)
    pipeline.execute()


def application(spark: SparkSession, work: Mapping[str, Any], measures: MeasureSettings | None = None) -> Pipeline:
    """Return the pipeline of `onceflow run`, by default the one that counts users and operating systems."""
    job = ClickPipeline(
        work["bootstrap"],
        work["topic"],
        work["checkpoint"],
        redis_url=work["redis"],
        hash_key=f"{{{work['hash_key']}}}:{COUNT}",
        measures=measures or MeasureSettings(),
    )
    sink = job.sink(spark)
    return Pipeline(job.rows(spark), sink, sink.close)


def every_measure(spark: SparkSession, work: Mapping[str, Any]) -> Pipeline:
    """Return the pipeline of `onceflow run` with minutes, hours, days, distinct users, rankings and sessions."""
    return application(spark, work, MeasureSettings(over_time=True, sessions=True))


PIPELINES = {"pushdown": pushdown, "raw": raw, "jvm": jvm, "run": application, "run, every measure": every_measure}


class Driver:
    """Runner of tasks."""

    def __init__(self, directory: Path, classpath: str | None) -> None:
        extra = {"spark.driver.memory": "2g"} | ({"spark.driver.extraClassPath": classpath} if classpath else {})
        java_home = str(services.find_java(directory / "java"))
        log = directory / "spark.log"
        self._spark = build_session("benchmark", "local[2]", java_home=java_home, log_file=log, extra_conf=extra)
        self._running: tuple[StreamingQuery, Pipeline] | None = None
        sinks = sink_runs.SinkRuns(self._spark)
        self._works: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "drain": self.drain,
            "start": self.start,
            "stop": self.stop,
            "cache": sinks.cache,
            "begin": sinks.begin,
            "write": sinks.write,
            "end": sinks.end,
        }

    def do(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Run a task and return its result."""
        return self._works[work["work"]](work)

    def _begin(self, work: Mapping[str, Any], **trigger: Any) -> tuple[StreamingQuery, Pipeline]:
        pipeline = PIPELINES[work["pipeline"]](self._spark, work)
        writer = pipeline.rows.writeStream.foreachBatch(pipeline.write)
        return writer.option("checkpointLocation", work["checkpoint"]).trigger(**trigger).start(), pipeline

    def drain(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Count the whole topic; return the seconds from the start of the query to its end."""
        begin = time.perf_counter()
        query, pipeline = self._begin(work, availableNow=True)
        query.awaitTermination()
        seconds = time.perf_counter() - begin
        pipeline.close()
        return {"seconds": seconds, "batches": sum(1 for progress in query.recentProgress if progress["numInputRows"])}

    def start(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Start a continuous query."""
        assert self._running is None
        self._running = self._begin(work, processingTime="0 seconds")
        return {}

    def stop(self, _work: Mapping[str, Any]) -> dict[str, Any]:
        """Stop the query; return the durations of its latest batches."""
        assert self._running is not None
        query, pipeline = self._running
        self._running = None
        batches = [progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]]
        query.stop()
        pipeline.close()
        return {"batches": batches}


def main(directory: str, classpath: str | None = None) -> None:
    """Run tasks until standard input ends."""
    # Output of Spark or a library must not mix with the results.
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    driver = Driver(Path(directory), classpath)
    for line in sys.stdin:
        results.write(json.dumps(driver.do(json.loads(line))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
