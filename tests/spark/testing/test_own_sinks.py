"""The Kafka sink, the Redis sink and a two-phase sink in the conformance kit, with real servers."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

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
from onceflow.spark.testing import (
    BatchSink,
    NotExactlyOnce,
    Report,
    Rule,
    check_exactly_once,
    check_foreach_batch,
)
from tests.conftest import RedisProcess
from tests.spark.test_two_phase_sink import TwoPhaseKafkaSink

Check = Callable[..., Report]


@pytest.fixture
def kafka(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str) -> Check:
    """Return a check of a Kafka sink with its own topic."""
    cluster.create_topic(topic, 3)

    def start(checkpoint: str) -> BatchSink:
        return kafka_sink(bootstrap, topic=topic, checkpoint=checkpoint, name=topic)

    def read() -> list[str]:
        return values_in(cluster, topic)

    def check(*watch: ModuleType) -> Report:
        return check_foreach_batch(start, read, spark=spark, lines=bool(watch), watch=watch, visible_within_ms=10_000)

    return check


def values_in(cluster: Cluster, topic: str) -> list[str]:
    """Return the committed values of the topic's three partitions."""
    ends = cluster.list_offsets(topic, dict.fromkeys(range(3), LATEST))
    records = [record for at, end in ends.items() for record in read_records(cluster, topic, at, 0, end.offset)]
    return [record.value.decode() for record in records if record.value is not None]


@pytest.fixture
def two_phase(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path) -> Check:
    """Puts a two-phase sink into the kit, with a topic of its own."""
    cluster.create_topic(topic, 3)

    def check(kind: Any = TwoPhaseKafkaSink, *, lines: bool = False) -> Report:
        return check_exactly_once(
            lambda: kind(bootstrap, topic, tmp_path / "state.db"),
            lambda: values_in(cluster, topic),
            spark=spark,
            lines=lines,
            visible_within_ms=10_000,
        )

    return check


class CommitsTheFlushed(TwoPhaseKafkaSink):
    """Commits in `pre_commit`, before the state file has the transaction as pending."""

    def pre_commit(self, transaction: Any) -> Any:
        flushed = super().pre_commit(transaction)
        self.commit_transaction(flushed)
        return flushed


class ForgetsThePending(TwoPhaseKafkaSink):
    """Takes what an earlier start has left pending for committed."""

    def recover_and_commit(self, transaction: Any) -> None:
        pass


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


def test_redis_sink_passes(redis: Check) -> None:
    report = redis()
    assert len(report.points) >= 6 and report.overtaken >= 8 and report.losses >= 3, report


def test_two_phase_sink_passes(two_phase: Check) -> None:
    report = two_phase()
    assert len(report.points) >= 6 and report.overtaken >= 8 and report.losses >= 3, report


@pytest.mark.parametrize(
    ("kind", "rule", "event"),
    [
        (CommitsTheFlushed, Rule.VISIBLE, "after write"),
        pytest.param(
            ForgetsThePending,
            Rule.MARKER_FIRST,
            "(self.snapshot_state(proof)) of commit",
            marks=pytest.mark.campaign,
        ),
    ],
)
def test_wrong_two_phase_sinks_are_caught(two_phase: Check, kind: Any, rule: Rule, event: str) -> None:
    """The conformance kit names the rule that each wrong two-phase sink breaks, and the line."""
    with pytest.raises(NotExactlyOnce) as raised:
        two_phase(kind, lines=kind is ForgetsThePending)
    assert raised.value.rule == rule
    assert event in raised.value.event


@pytest.mark.campaign
@pytest.mark.timeout(3000)
def test_two_phase_sink_passes_at_every_line(two_phase: Check) -> None:
    """The two-phase sink passes the conformance kit, which stops it at every line of its class and base classes."""
    print(f"two-phase sink: {two_phase(lines=True)}")


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
