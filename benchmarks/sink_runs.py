"""The Kafka sink's part of a contender's driver: the same cached rows are written repeatedly, each write timed.

The rows are clicks of the topic, cached in Spark's memory, so that only the sink is measured. A query that runs for the
whole time calls ours, exactly once with marker, transaction and synced checkpoint. The peer's is Spark's own sink, at
least once; it keeps its producers between writes.
"""

import json
import queue
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.streaming.query import StreamingQuery

from onceflow.spark.kafka_sink import KafkaSink, kafka_sink

WRITE_SECONDS_MAX = 120
TASKS = 4


class SinkRuns:
    """Writes of one cached frame to one output topic at a time."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._rows: DataFrame | None = None
        self._ours: OurQuery | None = None

    def cache(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Cache the values of `count` records, the first of each partition."""
        if self._rows is not None:
            self._rows.unpersist(blocking=True)
        ends = {str(number): work["count"] // work["partitions"] for number in range(work["partitions"])}
        records = self._read(work, work["topic"], endingOffsets=json.dumps({work["topic"]: ends}))
        # A shuffle gives both the same number of tasks.
        self._rows = records.select("value").repartition(TASKS).persist()
        return summary_of(self._rows)

    def begin(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Prepare writes to `target`."""
        assert self._ours is None
        if work["source"] == "onceflow":
            self._ours = OurQuery(self._spark, work)
        return {}

    def write(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Write the rows once."""
        assert self._rows is not None
        if self._ours is not None:
            return {"seconds": self._ours.write(self._rows)}
        begin = time.perf_counter()
        options = {"kafka.bootstrap.servers": work["bootstrap"], "kafka.compression.type": work["compression"]}
        self._rows.write.format("kafka").options(**options, topic=work["target"]).save()
        return {"seconds": time.perf_counter() - begin}

    def end(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """End the query and return a summary of the committed records."""
        if self._ours is not None:
            self._ours.stop()
            self._ours = None
        committed = {} if work["source"] == "onceflow" else {"kafka.isolation.level": "read_committed"}
        return summary_of(self._read(work, work["target"], **committed))

    def _read(self, work: Mapping[str, Any], topic: str, **options: str) -> DataFrame:
        known = {"kafka.bootstrap.servers": work["bootstrap"], "subscribe": topic, "startingOffsets": "earliest"}
        return self._spark.read.format(work["source"]).options(**known, **options).load()


def summary_of(rows: DataFrame) -> dict[str, Any]:
    """Return the number of rows, the sum of their values' CRC-32 and their bytes, to compare the work."""
    sums = rows.agg(F.count(F.lit(1)), F.sum(F.crc32("value")), F.sum(F.length("value"))).head()
    assert sums is not None
    return {"records": sums[0], "crc_sum": sums[1] or 0, "value_bytes": sums[2] or 0}


class OurQuery:
    """Query on a topic of ticks: for each tick, its sink gets the cached rows instead of the tick."""

    def __init__(self, spark: SparkSession, work: Mapping[str, Any]) -> None:
        self._sink: KafkaSink = kafka_sink(  # type: ignore[assignment]
            work["bootstrap"], topic=work["target"], checkpoint=work["checkpoint"], compression=work["compression"]
        )
        self._sink.open(spark)
        self._ticks = work["ticks"]
        self._producer = Producer({"bootstrap.servers": work["bootstrap"], "linger.ms": 0})
        self._wanted: DataFrame | None = None
        self._seconds: queue.Queue[float] = queue.Queue()
        options = {"kafka.bootstrap.servers": work["bootstrap"], "subscribe": self._ticks, "startingOffsets": "latest"}
        rows = spark.readStream.format("onceflow").options(**options).load().select("value")
        writer = rows.writeStream.foreachBatch(self._batch).option("checkpointLocation", work["checkpoint"])
        self._query: StreamingQuery = writer.trigger(processingTime="0 seconds").start()
        # Before the query has found its start, it would skip a tick as an old record.
        self._query.processAllAvailable()

    def _batch(self, rows: DataFrame, number: int) -> None:
        wanted, self._wanted = self._wanted, None
        begin = time.perf_counter()
        self._sink(rows if wanted is None else wanted, number)
        if wanted is not None:
            self._seconds.put(time.perf_counter() - begin)

    def write(self, rows: DataFrame) -> float:
        """Return the seconds from the sink's call to its return."""
        self._wanted = rows
        self._producer.produce(self._ticks, b"tick")
        assert self._producer.flush(30) == 0
        try:
            return self._seconds.get(timeout=WRITE_SECONDS_MAX)
        except queue.Empty:
            raise RuntimeError(f"the sink's query did not write: {self._query.exception() or 'no error'}") from None

    def stop(self) -> None:
        """Stop the query, then the sink."""
        self._query.stop()
        self._sink.close()
