"""Source, Spark and Redis sink together: batches repeated after a crash are counted once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.client.cluster import Cluster
from onceflow.redis import pool as redis_pool
from onceflow.spark.errors import MarkerRefused
from onceflow.spark.read_again import read_again
from onceflow.spark.redis import rows as redis_rows
from onceflow.spark.redis_sink import Increment, RedisSink
from tests.spark.slow_workers import finish

Send = Any


def to_rows(events: DataFrame) -> DataFrame:
    """Return rows that count each value."""
    one = F.lit(1).cast("bigint").alias("amount")
    return events.select(F.lit("count").alias("target"), F.col("value").alias("field"), one)


class Job:
    """A query on one topic, restarted on one checkpoint."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, url: str, checkpoint: Path) -> None:
        self.spark, self.bootstrap, self.topic, self.url, self.checkpoint = spark, bootstrap, topic, url, checkpoint

    def events(self) -> DataFrame:
        reader = self.spark.readStream.format("onceflow").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", self.topic).option("startingOffsets", "earliest").load()

    def counted(self) -> DataFrame:
        return to_rows(self.events())

    def stateful(self) -> DataFrame:
        """Count each distinct value once, by Spark's state."""
        return to_rows(self.events().dropDuplicates(["value"]))

    def sink(self, checkpoint: Path | None = None, **options: Any) -> RedisSink:
        return RedisSink(
            self.url,
            hash_key=self.topic,
            increments=[Increment("count", self.topic)],
            checkpoint=(checkpoint or self.checkpoint).as_uri(),
            plan="values",
            plan_version=1,
            **options,
        )

    def run(self, rows: DataFrame, sink: RedisSink | None = None) -> None:
        """Count the records that are in the topic, and end."""
        sink = sink or self.sink()
        try:
            sink.open(self.spark)
            writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(self.checkpoint))
            finish(writer)
            sink.check()
        finally:
            sink.close()

    def forget_last_commit(self) -> None:
        """Delete the last commit, as after a crash between the sink's write and Spark's commit."""
        commits = self.checkpoint / "commits"
        (commits / str(max(int(path.name) for path in commits.iterdir() if path.name.isdecimal()))).unlink()

    def counts(self) -> dict[bytes, int]:
        counts: Any = redis_pool.client(self.url).hgetall(self.topic)
        return {field: int(value) for field, value in counts.items()}


@pytest.fixture
def job(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, redis_server: Any, checkpoint: Path
) -> Iterator[Job]:
    cluster.create_topic(topic, 2)
    yield Job(spark, bootstrap, topic, redis_server.url, checkpoint)
    redis_pool.close()


def test_repeated_batches_are_counted_once(job: Job, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    send(["a", "b", "a"])
    job.run(job.counted())
    assert job.counts() == {b"a": 2, b"b": 1}
    job.forget_last_commit()
    send(["a", "c"], partition=1)
    monkeypatch.setattr(redis_rows, "WHOLE_ROWS_MAX", 1)  # New rows are written in chunks.
    job.run(job.counted())
    assert job.counts() == {b"a": 3, b"b": 1, b"c": 1}


def test_stateful_query_continues_after_skipped_batch(job: Job, send: Send) -> None:
    send(["a", "b", "a"])
    job.run(job.stateful())
    job.forget_last_commit()
    send(["a", "c"])
    job.run(job.stateful())
    assert job.counts() == {b"a": 1, b"b": 1, b"c": 1}


def test_checkpoint_of_another_query_is_refused(job: Job, send: Send, tmp_path: Path) -> None:
    send(["a"])
    job.run(job.counted())
    other = Job(job.spark, job.bootstrap, job.topic, job.url, tmp_path / "other")
    sink = other.sink(job.checkpoint)
    with pytest.raises(StreamingQueryException, match=r"give the query .*checkpointLocation.* the sink the same path"):
        other.run(other.counted(), sink)
    assert isinstance(sink.failure, MarkerRefused)
    assert job.counts() == {b"a": 1}


def test_stateful_query_with_lost_counts_stops(job: Job, send: Send) -> None:
    send(["a"])
    job.run(job.stateful())
    client: Any = redis_pool.client(job.url)
    saved = {key: client.dump(key) for key in client.scan_iter(f"*{job.topic}*")}
    send(["b"])
    job.run(job.stateful())
    client = redis_pool.client(job.url)
    for key, value in saved.items():
        client.restore(key, 0, value, replace=True)
    sink = job.sink(rebuild=lambda missing: to_rows(read_again(job.spark, {}, missing)))
    with pytest.raises(MarkerRefused, match="lost batches of a stateful query"):
        job.run(job.stateful(), sink)
    assert job.counts() == {b"a": 1}
