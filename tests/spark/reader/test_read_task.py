"""Read tasks against a real broker, without Spark: exact ranges as Arrow, and missing offsets."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow
import pytest
from confluent_kafka import Producer
from pyspark.sql.pandas.types import to_arrow_schema

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.errors import OffsetOutOfRange
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.pushdown.options import SCHEMA
from onceflow.spark.reader import read_task
from onceflow.spark.reader.data_loss import DataLost
from onceflow.spark.reader.options import SourceOptions
from onceflow.spark.reader.read_task import ReadTask, TopicReplaced
from onceflow.spark.reader.subscription import subscribed
from onceflow.spark.source import columns

Send = Callable[..., None]


@pytest.fixture
def options(bootstrap: str, topic: str) -> SourceOptions:
    return SourceOptions(bootstrap, subscribed(topic), "latest")


def rows_of(options: SourceOptions, *parts: OffsetRange) -> list[dict[str, Any]]:
    batches = list(read_task.read(options, ReadTask(parts, {})))
    return pyarrow.Table.from_batches(batches).to_pylist() if batches else []


def test_arrow_schema_matches_spark(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1)
    send(["a"])
    (batch,) = read_task.read(options, ReadTask((OffsetRange(topic, 0, 0, 1),), {}))
    assert batch.schema.equals(to_arrow_schema(SCHEMA, timezone="UTC"))


def test_headers_are_read(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1)
    send(["a"], headers=[("h", b"1"), ("h", None)])
    send(["b"])
    with_headers = replace(options, include_headers=True)
    (batch,) = read_task.read(with_headers, ReadTask((OffsetRange(topic, 0, 0, 2),), {}))
    assert batch.schema.equals(to_arrow_schema(columns(with_headers), timezone="UTC"))
    assert batch["headers"].to_pylist() == [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], []]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_range_across_batches_is_read_exactly(
    options: SourceOptions, cluster: Cluster, bootstrap: str, topic: str, codec: str
) -> None:
    cluster.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "batch.num.messages": 10})
    for number in range(100):
        producer.produce(topic, value=f"v{number}", partition=0)
    assert producer.flush(20) == 0
    for begin, end in [(0, 100), (13, 42), (99, 100), (50, 50)]:
        rows = rows_of(options, OffsetRange(topic, 0, begin, end))
        assert [row["offset"] for row in rows] == list(range(begin, end))
        assert [row["value"] for row in rows] == [f"v{number}".encode() for number in range(begin, end)]


def test_one_task_reads_several_ranges(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 2)
    send(["a", "b"], partition=0)
    send(["c", "d"], partition=1)
    rows = rows_of(options, OffsetRange(topic, 1, 0, 2), OffsetRange(topic, 0, 1, 2))
    assert [(row["partition"], row["offset"], row["value"]) for row in rows] == [
        (1, 0, b"c"),
        (1, 1, b"d"),
        (0, 1, b"b"),
    ]


def test_record_larger_than_a_fetch(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1)
    large = "x" * (read_task.FETCH_BYTES_MIN * 4)
    send(["small", large, "last"])
    rows = rows_of(options, OffsetRange(topic, 0, 1, 3))
    assert [row["value"] for row in rows] == [large.encode(), b"last"]


def test_range_after_log_end_fails_or_skips(
    options: SourceOptions, cluster: Cluster, topic: str, send: Send, bootstrap: str
) -> None:
    cluster.create_topic(topic, 1)
    send(["a", "b"])
    beyond = OffsetRange(topic, 0, 5, 9)
    with pytest.raises(
        DataLost, match=r"-0 \[5, 9\) is missing from the log: .* starts at 0 and ends at 2; .*failOnDataLoss"
    ):
        rows_of(options, beyond)
    lenient = SourceOptions(bootstrap, subscribed(topic), "latest", fail_on_data_loss=False)
    assert [row["value"] for row in rows_of(lenient, beyond, OffsetRange(topic, 0, 1, 2))] == [b"b"]


def test_trimmed_records_fail_or_are_skipped(
    options: SourceOptions, cluster: Cluster, topic: str, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic(topic, 1)
    send(["0", "1", "2", "3", "4", "5"])
    assert Admin(cluster).delete_records(topic, {0: 3}) == {0: 3}
    planned = OffsetRange(topic, 0, 1, 6)
    lost = rf"{topic}-0 \[1, 3\) is missing from the log: the partition now starts at 3 and ends at 6; "
    with pytest.raises(DataLost, match=lost + "it was deleted before the query read it: .*failOnDataLoss=false"):
        rows_of(options, planned)
    assert not caplog.records
    rows = rows_of(replace(options, fail_on_data_loss=False), planned)
    assert [(row["offset"], row["value"]) for row in rows] == [(3, b"3"), (4, b"4"), (5, b"5")]
    (message,) = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(lost + "the query continues without it", message)


@pytest.mark.parametrize(
    ("offset", "log_start", "log_end", "next_offset"),
    [(5, 7, 20, 7), (5, 15, 20, 10), (5, 0, 3, 10)],
    ids=["first deleted", "all deleted", "log truncated"],
)
def test_reading_continues_after_deleted_offsets(offset: int, log_start: int, log_end: int, next_offset: int) -> None:
    options = SourceOptions("127.0.0.1:9092", subscribed("t"), "latest", fail_on_data_loss=False)
    error = OffsetOutOfRange("t", 0, offset, log_start, log_end)
    assert read_task._skip_deleted(options, OffsetRange("t", 0, 5, 10), error) == next_offset


def test_recreated_topic_ends_the_task(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    before = str(cluster.create_topic(topic, 1).topic_id)
    cluster.delete_topic(topic)
    cluster.create_topic(topic, 1)
    send(["of the new one"])
    with pytest.raises(TopicReplaced, match="deleted and created again while it was read"):
        list(read_task.read(options, ReadTask((OffsetRange(topic, 0, 0, 1),), {topic: before})))
