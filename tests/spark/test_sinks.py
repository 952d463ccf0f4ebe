"""Sinks on the public base with real Spark: the example of docs/sinks.md, and two sinks in one micro-batch."""

import contextlib
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.client.cluster import Cluster
from onceflow.redis import pool as redis_pool
from onceflow.spark import sink
from onceflow.spark.exactly_once.checkpoint_lock import CheckpointInUse
from onceflow.spark.kafka_sink import KafkaSink, kafka_sink
from onceflow.spark.redis_sink import Increment, RedisSink, redis_sink
from onceflow.spark.sink import ExactlyOnce, MarkerRefused, SinkStopped, sinks
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.kafka_driver import Killed, eventually
from tests.spark.test_kafka_sink import written

PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"
ROWS = 10


@pytest.fixture
def files(tmp_path: Path) -> SparkFiles:
    made = SparkFiles(tmp_path / "checkpoint")
    made.plan(0, {"in": {"0": 0}})
    return made


@pytest.fixture
def batch(spark: SparkSession, files: SparkFiles) -> Callable[[int], DataFrame]:
    """Return a function that plans a batch as Spark does and returns its rows: none in batch 0, ROWS in others."""

    def plan(number: int) -> DataFrame:
        files.plan(number, {"in": {"0": ROWS * number}})
        name = F.concat(F.lit("user "), F.col("id").cast("string")).alias("name")
        begin = ROWS * max(0, number - 1)
        return spark.range(begin, ROWS * number, 1, 2).select(name, F.lit(number).cast("bigint").alias("amount"))

    return plan


Batch = Callable[[int], DataFrame]


@pytest.fixture
def visits(tmp_path: Path, files: SparkFiles) -> Iterator[Callable[[], Any]]:
    """Return a function that makes the page's sink for the next start."""
    block = re.search(r"```python\n(import contextlib.*?)```", PAGE.read_text(), re.DOTALL)
    assert block
    page: dict[str, Any] = {}
    exec(block[1], page)
    made: list[ExactlyOnce] = []

    def start() -> ExactlyOnce:
        made.append(ExactlyOnce(page["SqliteSink"](str(tmp_path / "visits.db")), checkpoint=str(files.directory)))
        return made[-1]

    yield start
    for started in made:
        started.close()


def amounts(path: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT name, amount FROM visits").fetchall()
    assert len(rows) == len(dict(rows)), "no row twice"
    return dict(rows)


def expected(batches: int) -> dict[str, int]:
    return {f"user {user}": user // ROWS + 1 for user in range(ROWS * (batches - 1))}


def test_documented_sink_is_exactly_once(
    visits: Callable[[], ExactlyOnce], batch: Batch, files: SparkFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumed: list[DataFrame] = []
    monkeypatch.setattr(sink, "consume", consumed.append)
    first = visits()
    first(batch(0), 0)
    first(batch(1), 1)
    assert (amounts(tmp_path / "visits.db"), consumed) == (expected(2), [])
    # Spark was killed before its commit, so the next start gets the same batch.
    first.close()
    second = visits()
    second(batch(1), 1)
    second(batch(2), 2)
    assert (amounts(tmp_path / "visits.db"), len(consumed)) == (expected(3), 1)
    # The first start still runs, as storage without locks allows, and tries to commit.
    proof = second.sink.recover("query-1")
    assert proof is not None
    with pytest.raises(SinkStopped, match="a later start of this query writes to visits"):
        first.sink.commit(proof)
    second(batch(3), 3)
    assert amounts(tmp_path / "visits.db") == expected(4)
    second.close()
    # The checkpoint of another query is refused.
    (files.directory / "metadata").write_text('{"id":"query-2"}')
    with pytest.raises(MarkerRefused, match="belongs to query query-1 and the checkpoint to query query-2"):
        visits()(batch(4), 4)


class Pair:
    """A Kafka sink and a Redis sink of one query, over several starts."""

    def __init__(self, bootstrap: str, topic: str, url: str, files: SparkFiles) -> None:
        self.bootstrap, self.topic, self.url, self.files = bootstrap, topic, url, files
        self.made: list[KafkaSink | RedisSink] = []

    def start(self) -> tuple[KafkaSink, RedisSink]:
        self.close()
        copy: Any = kafka_sink(self.bootstrap, topic=self.topic, checkpoint=str(self.files.directory))
        counts = redis_sink(
            self.url, hash_key="counts", increments=[Increment("n", "counts")], checkpoint=str(self.files.directory)
        )
        self.made += [copy, counts]
        return copy, counts

    def close(self) -> None:
        for made in self.made:
            made.close()
        self.made.clear()

    def assert_written(self, batches: int) -> None:
        def values() -> dict[str, int]:
            partitions = written(self.bootstrap, self.topic).values()
            records = [(record.key, record.value) for held in partitions for record in held]
            assert len(records) == len(dict(records))
            return {(key or b"").decode(): int(value or b"") for key, value in records}

        eventually(lambda: len(values()) >= ROWS * (batches - 1))
        assert values() == expected(batches)
        counted: Any = redis_pool.client(self.url, "counts").hgetall("counts")
        assert {name.decode(): int(count) for name, count in counted.items()} == expected(batches)


@pytest.fixture
def pair(
    bootstrap: str, cluster: Cluster, topic: str, new_redis: Callable[..., Any], files: SparkFiles
) -> Iterator[Pair]:
    cluster.create_topic(topic, 2)
    (files.directory / "metadata").write_text(f'{{"id":"{uuid.uuid4()}"}}')
    made = Pair(bootstrap, topic, new_redis().url, files)
    yield made
    made.close()


def to_records(rows: DataFrame) -> DataFrame:
    return rows.select(F.col("name").alias("key"), F.col("amount").cast("string").alias("value"))


def to_counts(rows: DataFrame) -> DataFrame:
    return rows.select(F.lit("n").alias("target"), F.col("name").cast("binary").alias("field"), "amount")


def test_driver_killed_between_two_sinks(pair: Pair, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    consumed: list[DataFrame] = []
    monkeypatch.setattr(sink, "consume", consumed.append)

    def write(number: int, *, dies_at: object = None, turned: bool = False) -> None:
        copy, counts = pair.start()
        parts = [(copy, to_records), (counts, to_counts)]
        for part, _ in parts:
            if part is dies_at or type(part) is dies_at:
                monkeypatch.setattr(part.sink, "recover", die)
        sinks(batch(number), number, *(parts[::-1] if turned else parts))

    def die(_query: str) -> None:
        raise Killed

    write(0)
    write(1)
    # The driver is killed after one sink has written the batch and before the other; then in the other order.
    for number, second in ((2, RedisSink), (3, KafkaSink)):
        # `open` calls `recover`: a driver killed there has given the second sink nothing of the batch.
        with pytest.raises(Killed):
            write(number, dies_at=second, turned=second is KafkaSink)
        assert not consumed
        write(number)
        pair.assert_written(number + 1)
    assert not consumed, "each time, one of the sinks read the rows"
    write(3)
    pair.assert_written(4)
    assert len(consumed) == 1, "both sinks skipped, so the rows were read once more"


def test_sink_name_is_unique(pair: Pair, batch: Batch, cluster: Cluster) -> None:
    copy, counts = pair.start()
    sinks(batch(0), 0, (copy, to_records), (counts, to_counts))
    again: Any = kafka_sink(pair.bootstrap, topic=pair.topic, checkpoint=str(pair.files.directory))
    pair.made.append(again)
    with pytest.raises(CheckpointInUse, match="another sink of this process with the name 'kafka'"):
        sinks(batch(1), 1, (again, to_records))
    other: Any = kafka_sink(
        pair.bootstrap, topic=f"{pair.topic}-none", checkpoint=str(pair.files.directory), name="kafka 2"
    )
    pair.made.append(other)
    cluster.create_topic(f"{pair.topic}-none", 1)
    with pytest.raises(MarkerRefused, match=r"there is no marker .*kafka 2"):
        sinks(batch(1), 1, (other, to_records))
