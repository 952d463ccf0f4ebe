"""The Kafka sink and the Redis sink in the conformance kit, with real servers."""

from collections.abc import Callable
from types import ModuleType

import pytest
from pyspark.sql import DataFrame, SparkSession

from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.redis import pool as redis_pool
from onceflow.spark.kafka import transaction as kafka_transaction
from onceflow.spark.kafka_sink import kafka_sink
from onceflow.spark.redis import batch as redis_batch
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis_sink import Increment, RedisSink
from onceflow.spark.testing import BatchSink, Report, check_foreach_batch
from tests.conftest import RedisProcess

Check = Callable[..., Report]


@pytest.fixture
def kafka(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str) -> Check:
    """Return a check of a Kafka sink with its own topic."""
    cluster.create_topic(topic, 3)

    def start(checkpoint: str) -> BatchSink:
        return kafka_sink(bootstrap, topic=topic, checkpoint=checkpoint, name=topic)

    def read() -> list[str]:
        ends = cluster.list_offsets(topic, dict.fromkeys(range(3), LATEST))
        records = [record for at, end in ends.items() for record in read_records(cluster, topic, at, 0, end.offset)]
        return [record.value.decode() for record in records if record.value is not None]

    def check(*watch: ModuleType) -> Report:
        return check_foreach_batch(start, read, spark=spark, lines=bool(watch), watch=watch, visible_within_ms=10_000)

    return check


@pytest.fixture
def redis(spark: SparkSession, redis_server: RedisProcess, topic: str) -> Check:
    """Return a check of a Redis sink with its own keys; each value is a field that counts its rows."""
    counts = f"{{{topic}}}:counts"

    def start(checkpoint: str) -> BatchSink:
        increments = [Increment("count", counts, f"{{{topic}}}:top")]
        return RedisSink(
            redis_server.url,
            hash_key=counts,
            increments=increments,
            checkpoint=checkpoint,
            plan="kit",
            plan_version=1,
        )

    def read() -> list[str]:
        fields = redis_pool.client(redis_server.url).hgetall(counts)
        return [field.decode() for field, count in fields.items() for _ in range(int(count))]  # type: ignore[union-attr]

    def columns(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("'count' AS target", "binary(value) AS field", "1L AS amount")

    def check(*watch: ModuleType) -> Report:
        return check_foreach_batch(start, read, spark=spark, columns=columns, lines=bool(watch), watch=watch)

    return check


def test_kafka_sink_passes(kafka: Check) -> None:
    report = kafka()
    assert len(report.points) >= 6 and report.overtaken >= 8 and report.losses >= 3, report


def test_redis_sink_passes(redis: Check) -> None:
    report = redis()
    assert len(report.points) >= 6 and report.overtaken >= 8 and report.losses >= 3, report


@pytest.mark.campaign
@pytest.mark.timeout(3000)
def test_kafka_sink_passes_at_every_line(kafka: Check) -> None:
    """The Kafka sink passes the conformance kit, which stops it at every line of its transaction."""
    print(f"Kafka sink: {kafka(kafka_transaction)}")


@pytest.mark.campaign
@pytest.mark.timeout(3000)
def test_redis_sink_passes_at_every_line(redis: Check) -> None:
    """The Redis sink passes the conformance kit, which stops it at every line that writes."""
    print(f"Redis sink: {redis(redis_batch, redis_scripts)}")
