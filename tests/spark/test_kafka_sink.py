"""The Kafka sink with real Spark: columns to records, repeated batches, a killed driver."""

import inspect
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.client.admin import Admin
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.spark.errors import WrongOption
from onceflow.spark.exactly_once.checkpoint import CheckpointNotSynced, LocalCheckpoint
from onceflow.spark.kafka import rows as kafka_rows
from onceflow.spark.kafka import steps as kafka_steps
from onceflow.spark.kafka.rows import EncodedFrame
from onceflow.spark.kafka_sink import KafkaSink, SinkStopped, kafka_sink
from onceflow.wire.batch import Record
from onceflow.wire.murmur2 import partition_for_key
from tests.spark.conftest import RunExample
from tests.spark.kafka_driver import eventually
from tests.spark.slow_workers import finish

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/spark/kafka_to_kafka.py"
KEYS = 7


class Copy:
    """A query that copies the topic to a second one, restarted on one checkpoint."""

    def __init__(self, spark: SparkSession, bootstrap: str, source: str, checkpoint: Path) -> None:
        self.spark, self.bootstrap, self.source, self.checkpoint = spark, bootstrap, source, checkpoint
        self.target = f"{source}-out"

    def sink(self, **options: Any) -> KafkaSink:
        return kafka_sink(self.bootstrap, topic=self.target, checkpoint=self.checkpoint.as_uri(), **options)  # type: ignore[return-value]

    def rows(self, **options: str) -> DataFrame:
        stream = self.spark.readStream.format("onceflow").option("kafka.bootstrap.servers", self.bootstrap)
        return stream.options(subscribe=self.source, startingOffsets="earliest", **options).load()

    def run(self, rows: DataFrame | None = None, sink: KafkaSink | None = None, *, seconds: int = 300) -> None:
        sink = sink or self.sink()
        try:
            sink.open(self.spark)
            writer = (rows or self.rows().select("key", "value")).writeStream.foreachBatch(sink)
            finish(writer.option("checkpointLocation", str(self.checkpoint)), seconds)
        finally:
            sink.close()

    def forget_last_commit(self) -> None:
        """Delete the last commit, as after a crash between EndTxn and Spark's commit."""
        commits = self.checkpoint / "commits"
        (commits / str(max(int(path.name) for path in commits.iterdir() if path.name.isdecimal()))).unlink()

    def produce(self, begin: int, end: int) -> None:
        """Produce the numbers as values, with keys in turn."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})
        for number in range(begin, end):
            producer.produce(self.source, key=b"key-%d" % (number % KEYS), value=b"%d" % number)
        assert producer.flush(20) == 0

    def by_key(self, topic: str | None = None) -> dict[bytes, list[int]]:
        numbers: dict[bytes, list[int]] = {}
        for records in written(self.bootstrap, topic or self.target).values():
            for record in records:
                assert record.key is not None and record.value is not None
                numbers.setdefault(record.key, []).append(int(record.value))
        return numbers


def written(bootstrap: str, topic: str) -> dict[int, list[Record]]:
    """Return the records of each partition that a read_committed consumer sees."""
    with Cluster(bootstrap) as cluster:
        ends = cluster.list_offsets(topic, dict.fromkeys(cluster.require_topic(topic).partitions, LATEST))
        return {
            partition: list(read_records(cluster, topic, partition, 0, end.offset)) for partition, end in ends.items()
        }


def expected(count: int) -> dict[bytes, list[int]]:
    return {b"key-%d" % key: list(range(key, count, KEYS)) for key in range(min(KEYS, count))}


def recorded_pulls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the bytes of each pull of the driver from the executors from now on."""
    pulls: list[int] = []
    by_position = kafka_rows._by_position

    def recording(table: Any) -> dict[int, memoryview]:
        blobs = by_position(table)
        pulls.append(sum(map(len, blobs.values())))
        return blobs

    monkeypatch.setattr(kafka_rows, "_by_position", recording)
    return pulls


@pytest.fixture
def copy(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, checkpoint: Path) -> Copy:
    copy = Copy(spark, bootstrap, topic, checkpoint)
    cluster.create_topic(topic, 2)
    cluster.create_topic(copy.target, 3)
    return copy


def test_repeated_batches_are_written_once(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    copy.produce(0, 300)
    copy.run()
    copy.forget_last_commit()
    copy.produce(300, 3000)
    # The new records are more than ten times the driver's budget.
    pulls = recorded_pulls(monkeypatch)
    copy.run(sink=copy.sink(driver_bytes=4096, batch_bytes=1024))
    assert sum(pulls) > 10 * 4096 >= 10 * max(pulls)
    assert copy.by_key() == expected(3000)
    for partition, records in written(copy.bootstrap, copy.target).items():
        assert {partition_for_key(record.key or b"", 3) for record in records} == {partition}


def test_stateful_query_continues_after_skipped_batch(copy: Copy) -> None:
    def rows() -> DataFrame:
        return copy.rows().select("key", "value").dropDuplicates(["key"])

    copy.produce(0, 5)
    copy.run(rows())
    copy.forget_last_commit()
    copy.produce(0, 7)
    copy.run(rows())
    assert copy.by_key() == {b"key-%d" % key: [key] for key in range(7)}


@pytest.fixture
def in_topic(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str
) -> Callable[..., dict[int, list[Record]]]:
    """Return a function that writes rows at least once and returns the topic's records."""
    cluster.create_topic(topic, 4)

    def write(rows: DataFrame, **options: Any) -> dict[int, list[Record]]:
        sink = kafka_sink(bootstrap, **({"topic": topic, "mode": "at-least-once"} | options))
        try:
            sink(rows, 0)
        finally:
            sink.close()
        return written(bootstrap, topic)

    return write


Written = Callable[..., dict[int, list[Record]]]


def test_columns_become_records(in_topic: Written, spark: SparkSession, bootstrap: str, topic: str) -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    pairs = [("a", b"1"), ("a", None)]
    rows = [
        ("key", "value", 2, pairs, time, "other"),
        (None, "no key", None, None, None, "other"),
        ("key", None, None, [], time, "other"),
    ]
    schema = (
        "key string, value string, partition int, headers array<struct<key:string,value:binary>>, timestamp timestamp, "
        "topic string, more int"
    )
    frame = spark.createDataFrame([(*row, 1) for row in rows], schema).coalesce(1)
    records = in_topic(frame, compression="zstd")
    assert records[2][0][1:] == (1_767_323_045_678, b"key", b"value", (("a", b"1"), ("a", None)))
    (tombstone,) = [record for record in records[partition_for_key(b"key", 4)] if record.value is None]
    assert (tombstone.timestamp_ms, tombstone.headers) == (1_767_323_045_678, ())
    (keyless,) = [record for held in records.values() for record in held if record.key is None]
    assert keyless.value == b"no key" and keyless.timestamp_ms > 1_767_323_045_678
    # The topic comes from a column and the partition from an expression.
    values = frame.select(F.lit(topic).alias("topic"), "value", F.lit(5).alias("number"))
    in_topic(values, topic=None, partitioner=F.col("number") % 4, mode="none")

    def more() -> list[int]:
        again = written(bootstrap, topic)
        return [len(again[partition]) - len(records[partition]) for partition in range(4)]

    # With acks=1 the records become readable only after the leader's next sync.
    eventually(lambda: more() == [0, 3, 0, 0])
    assert more() == [0, 3, 0, 0]


def test_rows_that_cannot_be_written_are_refused(in_topic: Written, spark: SparkSession, cluster: Cluster) -> None:
    def refused(rows: DataFrame, **options: Any) -> str:
        with pytest.raises(SinkStopped) as raised:
            in_topic(rows, **options)
        return str(raised.value)

    large = spark.createDataFrame([("small", "x"), ("large", "x" * 1_100_000)], "key string, value string")
    assert "with key b'large' cannot be written: a record of 11000" in refused(large)
    assert "has partition 4, and topic" in refused(large.limit(1), partitioner="4")
    assert "drop('partition') the column" in refused(spark.sql("select 'a' as value, 4 as partition"))
    assert "column value is int and must be string or binary" in refused(spark.sql("select 1 as value"))
    assert "but not value" in refused(spark.sql("select 'a' as key"))
    assert "neither the sink nor the rows have a topic" in refused(spark.sql("select 'a' as value"), topic=None)
    assert "has no topic" in refused(spark.sql("select 'a' as value, string(null) as topic"), topic=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "brotli"}, "none, gzip, snappy, lz4, zstd"),
        ({"mode": "twice"}, "exactly-once, at-least-once, none"),
        ({}, "needs checkpoint="),
        ({"mode": "none", "checkpoint": "/x"}, "neither marker nor transaction"),
        ({"checkpoint": "/x", "name": ""}, "1 to 100 printable"),
        ({"checkpoint": "/x", "driver_bytes": 100}, "driver_bytes 100"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WrongOption, match=message):
        kafka_sink("localhost:1", topic="t", **options)


def test_example_copies_a_topic(
    copy: Copy, cluster: Cluster, run_example: RunExample, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create_topic(f"{copy.source}-copy", 2)
    for end in (20, 50):
        copy.produce({20: 0, 50: 20}[end], end)
        run_example(EXAMPLE, copy.bootstrap, copy.source)
        assert "each record once" in capsys.readouterr().out
        # The example converts values to upper case, which leaves digits unchanged.
        assert copy.by_key(f"{copy.source}-copy") == expected(end)
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, f"usage: python {EXAMPLE} HOST:PORT TOPIC\n")


def test_every_option_is_on_the_page() -> None:
    page = (ROOT / "docs" / "kafka-sink.md").read_text()
    options = page[page.index("## Options") : page.index("## How it works")]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*?) \|", options, re.MULTILINE)
    documented = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    parameters = inspect.signature(kafka_sink).parameters
    assert parameters.keys() <= documented.keys()
    for name in (
        "mode",
        "name",
        "compression",
        "batch_bytes",
        "driver_bytes",
        "transaction_timeout_ms",
        "marker_topic",
    ):
        assert documented[name] == f"`{parameters[name].default}`" or documented[name] == str(parameters[name].default)
    assert kafka_steps.table() in page


def planned(directory: Path, number: int) -> str:
    """Write a checkpoint in which Spark has planned batch `number` of one partition; return its location."""
    files = {} if (directory / "metadata").exists() else {"metadata": f'{{"id":"{uuid.uuid4()}"}}'}
    for batch in range(number + 1):
        files[f"offsets/{batch}"] = f'v1\n{{}}\n{{"in":{{"0":{10 * batch}}}}}'
        if batch:
            files[f"commits/{batch - 1}"] = "v1\n{}"
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory.as_uri()


def test_checkpoint_is_synced_before_writing(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic(topic, 1)
    rows = spark.sql("select 'x' as value")
    sink = kafka_sink(bootstrap, topic=topic, checkpoint=planned(checkpoint, 0))
    sink(spark.sql("select 'x' as value where false"), 0)
    planned(checkpoint, 1)
    with monkeypatch.context() as broken:
        broken.setattr(LocalCheckpoint, "prepare", _not_synced)
        with pytest.raises(CheckpointNotSynced):
            sink(rows, 1)
        assert isinstance(sink.failure, CheckpointNotSynced)
    assert written(bootstrap, topic) == {0: []}
    for _ in range(2):
        sink(rows, 1)
    assert [record.value for record in written(bootstrap, topic)[0]] == [b"x"]
    # With more partitions, keys would move. Apache Kafka shows the new count a moment later.
    Admin(cluster).create_partitions(topic, 3)
    eventually(lambda: len(cluster.require_topic(topic).partitions) == 3)
    planned(checkpoint, 2)
    with pytest.raises(SinkStopped, match=r"had 1 partitions .* has 3 now"):
        sink(rows, 2)
    sink.close()
    accepting = kafka_sink(bootstrap, topic=topic, checkpoint=str(checkpoint), accept_partitions={topic: 3})
    accepting(rows, 2)
    accepting.close()
    assert sum(map(len, written(bootstrap, topic).values())) == 2


def _not_synced(_checkpoint: LocalCheckpoint, number: int) -> None:
    raise CheckpointNotSynced(f"batch {number}")


def test_changed_encoded_rows_are_detected(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changed checksum stands for lost blocks whose rows were encoded again in another order."""
    cluster.create_topic(topic, 1)
    sink = kafka_sink(bootstrap, topic=topic, checkpoint=planned(checkpoint, 0), compression="lz4")
    summaries: list[list[dict[str, Any]]] = []
    read = EncodedFrame._rows

    def another(frame: EncodedFrame) -> list[dict[str, Any]]:
        summary = read(frame)
        if not any(summary is known for known in summaries):
            summaries.append(summary)
            if len(summaries) == 1:
                summary[0]["crc"] ^= 1
        return summary

    monkeypatch.setattr(EncodedFrame, "_rows", another)
    sink(spark.sql("select string(id) as value from range(10)").coalesce(1), 0)
    sink.close()
    assert len(summaries) == 2
    assert [int(record.value or b"") for record in written(bootstrap, topic)[0]] == list(range(10))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Record for each batch the bytes returned by the encoding job itself.

    -1 stands for an incomplete return, None for a batch for which it was not tried.
    """
    sizes: list[int | None] = []
    give = EncodedFrame._encoded_at_once

    def recording(frame: EncodedFrame) -> Any:
        table = give(frame)
        held = -1 if frame._held is None else sum(map(len, frame._held.values()))
        sizes.append(None if frame._share is None else held)
        return table

    monkeypatch.setattr(EncodedFrame, "_encoded_at_once", recording)
    return sizes


def test_only_large_batches_come_in_parts(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, checkpoint: Path, at_once: list[int | None]
) -> None:
    cluster.create_topic(topic, 1)
    sink = kafka_sink(bootstrap, topic=topic, checkpoint=planned(checkpoint, 0), driver_bytes=4096, batch_bytes=1024)
    # Records and tasks of each batch. A record has some ten bytes, so from two tasks 40 are far below the driver's
    # budget, 300 near it and 5,000 above it. 20 tasks are more than before, each with a header of 61 bytes.
    batches = ((40, 2), (0, 2), (40, 2), (300, 2), (300, 2), (40, 2), (5_000, 2), (40, 2), (40, 20), (40, 20), (40, 2))
    for number, (count, tasks) in enumerate(batches):
        planned(checkpoint, number)
        sink(spark.range(0, count, 1, tasks).selectExpr("string(id) AS value"), number)
    sink.close()
    tried = [None if held is None else held >= 0 for held in at_once]
    assert tried == [None, True, True, True, None, None, False, None, False, True, False]
    assert max(held or 0 for held in at_once) <= 4096
    values = [int(record.value or b"") for record in written(bootstrap, topic)[0]]
    assert values == [number for count, _ in batches for number in range(count)]


def test_next_driver_continues_after_a_kill(copy: Copy, java_home: str, tmp_path: Path) -> None:
    copy.produce(0, 500)
    die(copy, java_home, tmp_path, "before EndTxn", 3)
    assert "Python worker exited unexpectedly" in (tmp_path / "driver.log").read_text(), "each task died once"
    # Batch 0 has no rows, batch 1 is committed, and batch 2 is not visible.
    assert 90 < sum(map(len, written(copy.bootstrap, copy.target).values())) < 110
    copy.run()
    assert copy.by_key() == expected(500)


def die(copy: Copy, java_home: str, directory: Path, point: str, visit: int) -> None:
    words = (
        copy.bootstrap,
        copy.source,
        copy.target,
        copy.checkpoint,
        directory / "driver.log",
        java_home,
        point,
        visit,
    )
    command = [sys.executable, "-m", "tests.spark.driver_of_kafka_sink", *map(str, words)]
    ended = subprocess.run(command, start_new_session=True, timeout=300, check=False)
    assert ended.returncode == -9, (directory / "driver.log").read_text()[-3000:]
