"""Sinks on the public base with real Spark: the page's own example, and two sinks in one micro-batch."""

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
    """Plans a batch as Spark does and makes its rows: none in batch 0, ROWS in every other."""

    def plan(number: int) -> DataFrame:
        files.plan(number, {"in": {"0": ROWS * number}})
        name = F.concat(F.lit("user "), F.col("id").cast("string")).alias("name")
        begin = ROWS * max(0, number - 1)
        return spark.range(begin, ROWS * number, 1, 2).select(name, F.lit(number).cast("bigint").alias("amount"))

    return plan


Batch = Callable[[int], DataFrame]


@pytest.fixture
def visits(tmp_path: Path, files: SparkFiles) -> Iterator[Callable[[], Any]]:
    """Makes the page's sink, as successive starts do."""
    found = re.search(r"```python\n(import contextlib.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    page: dict[str, Any] = {}
    exec(found[1], page)
    made: list[ExactlyOnce] = []

    def start() -> ExactlyOnce:
        made.append(ExactlyOnce(page["SqliteSink"](str(tmp_path / "visits.db")), checkpoint=str(files.directory)))
        return made[-1]

    yield start
    for each in made:
        each.close()


def amounts(path: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT name, amount FROM visits").fetchall()
    assert len(found) == len(dict(found)), "nothing twice"
    return dict(found)


def expected(batches: int) -> dict[str, int]:
    return {f"user {user}": user // ROWS + 1 for user in range(ROWS * (batches - 1))}


def test_the_pages_sink_is_exactly_once(
    visits: Callable[[], ExactlyOnce], batch: Batch, files: SparkFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumed: list[DataFrame] = []
    monkeypatch.setattr(sink, "consume", consumed.append)
    first = visits()
    first(batch(0), 0)
    first(batch(1), 1)
    assert (amounts(tmp_path / "visits.db"), consumed) == (expected(2), [])
    # Spark was killed before its commit: the same batch comes again, to another start.
    first.close()
    second = visits()
    second(batch(1), 1)
    second(batch(2), 2)
    assert (amounts(tmp_path / "visits.db"), len(consumed)) == (expected(3), 1)
    # The first start was not dead, on storage without locks, and goes on where it stood.
    proof = second.sink.recover("query-1")
    assert proof is not None
    with pytest.raises(SinkStopped, match="a later start of this query writes to visits"):
        first.sink.commit(proof)
    second(batch(3), 3)
    assert amounts(tmp_path / "visits.db") == expected(4)
    second.close()
    # The checkpoint of another query, and one that is older than the data.
    (files.directory / "metadata").write_text('{"id":"query-2"}')
    with pytest.raises(MarkerRefused, match="belongs to query query-1 and the checkpoint to query query-2"):
        visits()(batch(4), 4)


class Pair:
    """A Kafka sink and a Redis sink of one query, started again and again."""

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
        for each in self.made:
            each.close()
        self.made.clear()

    def assert_written(self, batches: int) -> None:
        def values() -> dict[str, int]:
            partitions = written(self.bootstrap, self.topic).values()
            found = [(record.key, record.value) for held in partitions for record in held]
            assert len(found) == len(dict(found))
            return {(key or b"").decode(): int(value or b"") for key, value in found}

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
        for each, _ in parts:
            if each is dies_at or type(each) is dies_at:
                monkeypatch.setattr(each.sink, "recover", die)
        sinks(batch(number), number, *(parts[::-1] if turned else parts))

    def die(_query: str) -> None:
        raise Killed

    write(0)
    write(1)
    # Killed when the first had written batch 2 and the second had not; then the other way round.
    for number, second in ((2, RedisSink), (3, KafkaSink)):
        # `open` recovers too: killed there, the second sink has seen nothing of the batch.
        with pytest.raises(Killed):
            write(number, dies_at=second, turned=second is KafkaSink)
        assert not consumed
        write(number)
        pair.assert_written(number + 1)
    assert not consumed, "one of the two has read the rows each time"
    write(3)
    pair.assert_written(4)
    assert len(consumed) == 1, "read once, where both have skipped"


def test_a_name_is_given_once(pair: Pair, batch: Batch, cluster: Cluster) -> None:
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
