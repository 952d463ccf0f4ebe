"""Rejected records of both push-downs become dead letters, each once, with a real Spark."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from onceflow.client.admin import Admin
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.spark.dead_letters import HEADER_PREFIX, dead_letter_sink, dead_letters
from onceflow.spark.wrong_option import WrongOption
from onceflow.wire.batch import Record

GOOD = b'{"uid":"ada","n":1}'
BAD = {1: (b"not-utf8", b"\xff\xfe"), 2: (b"missing uid", b'{"n":1}'), 3: (b"no-value", None)}
"""Offset → reason and value."""
SENT_MS = time.time_ns() // 1_000_000 - 60_000
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


def run(spark: SparkSession, frame: DataFrame, bootstrap: str, target: str, checkpoint: Path) -> None:
    sink = dead_letter_sink(bootstrap, topic=target, checkpoint=str(checkpoint))
    try:
        sink.open(spark)
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
    finally:
        sink.close()


def letters(cluster: Cluster, target: str) -> list[Record]:
    end = cluster.list_offsets(target, {0: LATEST})[0].offset
    return list(read_records(cluster, target, 0, 0, end))


def told(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, bytes | None]:
    return {name.removeprefix(HEADER_PREFIX): value for name, value in headers}


def expected(topic: str, offset: int) -> dict[str, bytes]:
    reason, _ = BAD[offset]
    where = {"topic": topic.encode(), "partition": b"0", "offset": str(offset).encode()}
    return where | {"stage": b"VALUE_CONVERTER", "exception.message": reason}


def test_the_original_record_is_kept_once_with_where_and_why(
    spark: SparkSession, bootstrap: str, cluster: Cluster, rejecting: str, checkpoint: Path
) -> None:
    target = f"{rejecting}-dead"
    stream = rows(spark.readStream, bootstrap, rejecting, columns=EVERYTHING, includeHeaders="true")
    run(spark, stream, bootstrap, target, checkpoint)
    found = letters(cluster, target)
    assert [(record.key, record.value, record.timestamp_ms) for record in found] == [
        (b"key-%d" % offset, value, SENT_MS + offset) for offset, (_, value) in BAD.items()
    ]
    assert [told(record.headers) for record in found] == [{"a": b"own"} | expected(rejecting, offset) for offset in BAD]
    assert Admin(cluster).describe_topic_configs(target)["retention.ms"].value == "-1"
    # As after a crash between the sink's commit and Spark's.
    newest = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    (checkpoint / "commits" / str(newest)).unlink()
    run(spark, stream, bootstrap, target, checkpoint)
    assert letters(cluster, target) == found


def test_rejected_records_of_an_aggregate_are_the_same_letters(
    spark: SparkSession, bootstrap: str, rejecting: str
) -> None:
    summed = rows(spark.read, bootstrap, rejecting, aggregate="sum(n) AS n", groupBy="uid")
    found = sorted(dead_letters(summed).collect(), key=lambda row: row.key)
    assert [(bytes(row.key), row.value and bytes(row.value), row.timestamp.timestamp() * 1000) for row in found] == [
        (b"key-%d" % offset, value, SENT_MS + offset) for offset, (_, value) in BAD.items()
    ]
    assert [told((name, bytes(value)) for name, value in row.headers) for row in found] == [
        expected(rejecting, offset) for offset in BAD
    ]


def test_rows_that_lack_the_record_are_refused(spark: SparkSession) -> None:
    kept = spark.createDataFrame([], "uid string, _corrupt_reason string, topic string, partition int, offset long")
    with pytest.raises(WrongOption, match=r"no key, value, so .* columns='key, value, topic, partition, offset, times"):
        dead_letters(kept)
    with pytest.raises(WrongOption, match="neither rejected nor _corrupt_reason"):
        dead_letters(spark.createDataFrame([], "value binary"))
