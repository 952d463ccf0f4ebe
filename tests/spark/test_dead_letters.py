"""Rejected records of both push-downs written as dead letters exactly once, with a real Spark."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from onceflow.client.admin import Admin
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.spark.dead_letters import HEADER_PREFIX, dead_letter_sink, dead_letters
from onceflow.spark.errors import WrongOption
from onceflow.spark.redis_sink import Increment, redis_sink
from onceflow.spark.sink import sinks
from onceflow.wire.batch import Record
from tests.conftest import RedisProcess
from tests.spark.slow_workers import finish

GOOD = b'{"uid":"ada","n":1}'
BAD = {1: (b"not-utf8", b"\xff\xfe"), 2: (b"missing uid", b'{"n":1}'), 3: (b"no-value", None)}
"""Offset → reason and value."""
SENT_MS = time.time_ns() // 1_000_000 - 60_000
ORIGINALS = [(b"key-%d" % offset, value, SENT_MS + offset) for offset, (_, value) in BAD.items()]
EVERYTHING = "key, value, topic, partition, offset, timestamp, headers"


@pytest.fixture
def rejecting(bootstrap: str, cluster: Cluster, topic: str) -> str:
    """The topic with one good record and three bad ones, of which each has a key, a header and a time."""
    cluster.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for offset, value in enumerate([GOOD, *(value for _, value in BAD.values())]):
        producer.produce(topic, value, b"key-%d" % offset, 0, timestamp=SENT_MS + offset, headers=[("a", b"own")])
    assert producer.flush(20) == 0
    return topic


def rows(reader: Any, bootstrap: str, topic: str, **options: str) -> DataFrame:
    """The topic with both push-downs' options, as a stream or a batch."""
    wanted = {"decode": "uid STRING NOT NULL, n INT", "startingOffsets": "earliest", "subscribe": topic}
    source = reader.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    frame: DataFrame = source.options(**wanted, **options).load()
    return frame


def run(spark: SparkSession, stream: DataFrame, write: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    finish(writer)


def forget_last_commit(checkpoint: Path) -> None:
    """Delete Spark's last commit, to simulate a crash after the sinks' commits."""
    commits = checkpoint / "commits"
    (commits / str(max(int(path.name) for path in commits.iterdir() if path.name.isdecimal()))).unlink()


def letters(cluster: Cluster, target: str) -> list[Record]:
    end = cluster.list_offsets(target, {0: LATEST})[0].offset
    return list(read_records(cluster, target, 0, 0, end))


def named(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, bytes | None]:
    return {name.removeprefix(HEADER_PREFIX): value for name, value in headers}


def expected(topic: str, offset: int) -> dict[str, bytes]:
    reason, _ = BAD[offset]
    where = {"topic": topic.encode(), "partition": b"0", "offset": str(offset).encode()}
    return where | {"stage": b"VALUE_CONVERTER", "exception.message": reason}


def test_dead_letter_is_the_original_record(
    spark: SparkSession, bootstrap: str, cluster: Cluster, rejecting: str, checkpoint: Path
) -> None:
    target = f"{rejecting}-dead"
    stream = rows(spark.readStream, bootstrap, rejecting, columns=EVERYTHING, includeHeaders="true")

    def keep() -> None:
        dead = dead_letter_sink(bootstrap, topic=target, checkpoint=str(checkpoint))
        try:
            dead.open(spark)
            run(spark, stream, dead, checkpoint)
        finally:
            dead.close()

    keep()
    records = letters(cluster, target)
    assert [(record.key, record.value, record.timestamp_ms) for record in records] == ORIGINALS
    assert [named(record.headers) for record in records] == [
        {"a": b"own"} | expected(rejecting, offset) for offset in BAD
    ]
    assert Admin(cluster).describe_topic_configs(target)["retention.ms"].value == "-1"
    forget_last_commit(checkpoint)
    keep()
    assert letters(cluster, target) == records


def test_two_sinks_get_their_own_rows(
    spark: SparkSession, bootstrap: str, cluster: Cluster, rejecting: str, checkpoint: Path, redis_server: RedisProcess
) -> None:
    target = f"{rejecting}-dead"
    stream = rows(spark.readStream, bootstrap, rejecting, aggregate="sum(n) AS n", groupBy="uid")

    def sums(rows: DataFrame) -> DataFrame:
        return rows.where("rejected IS NULL").selectExpr("'n' AS target", "binary(uid) AS field", "n AS amount")

    def count_and_keep() -> None:
        counts = redis_sink(
            redis_server.url,
            hash_key=rejecting,
            increments=[Increment("n", rejecting)],
            checkpoint=str(checkpoint),
        )
        dead = dead_letter_sink(bootstrap, topic=target, checkpoint=str(checkpoint))
        try:
            run(spark, stream, lambda rows, number: sinks(rows, number, (counts, sums), dead), checkpoint)
        finally:
            counts.close()
            dead.close()

    count_and_keep()
    forget_last_commit(checkpoint)
    count_and_keep()
    records = letters(cluster, target)
    assert [(record.key, record.value, record.timestamp_ms) for record in records] == ORIGINALS
    assert [named(record.headers) for record in records] == [expected(rejecting, offset) for offset in BAD]
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.hgetall(rejecting) == {b"ada": b"1"}


def test_rows_that_lack_the_record_are_refused(spark: SparkSession) -> None:
    kept = spark.createDataFrame([], "uid string, _corrupt_reason string, topic string, partition int, offset long")
    with pytest.raises(WrongOption, match=r"no key, value, which .* columns='key, value, topic, partition, offset,"):
        dead_letters(kept)
    with pytest.raises(WrongOption, match="neither rejected nor _corrupt_reason"):
        dead_letters(spark.createDataFrame([], "value binary"))


@pytest.mark.parametrize("mode", ["at-least-once", "none", "exactly-once"])
def test_mode_is_refused(mode: str) -> None:
    with pytest.raises(WrongOption, match=f"mode '{mode}': dead letters are always exactly-once; omit mode"):
        dead_letter_sink("127.0.0.1:1", topic="dead", checkpoint="/nowhere", mode=mode)
