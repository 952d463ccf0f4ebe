"""Event-time alignment of partitions, against a real broker, and its effect on Spark's watermark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.streaming.datasource import ReadAllAvailable

from onceflow.client.admin import Admin
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.transactional import TransactionalProducer
from onceflow.remedies import Remedy
from onceflow.spark.errors import WrongOption
from onceflow.spark.offsets import Offsets
from onceflow.spark.reader import alignment
from onceflow.spark.reader.alignment import Alignment
from onceflow.spark.reader.options import SourceOptions
from onceflow.spark.reader.stream import StreamReader
from onceflow.spark.reader.subscription import subscribed
from tests import remedies
from tests.spark.kafka_driver import eventually
from tests.spark.slow_workers import finish

Send = Callable[..., None]
HOUR_MS = 3_600_000
BASE_MS = 1_700_000_000_000


def write(send: Send, partition: int, times: list[int]) -> None:
    for time_ms in times:
        send([str(time_ms)], partition=partition, timestamp=BASE_MS + time_ms)


@pytest.fixture
def kept(cluster: Cluster, topic: str) -> str:
    """A topic of three partitions without a retention time."""
    cluster.create_topic(topic, 3, configs={"retention.ms": "-1"})
    return topic


def wait_for_end(cluster: Cluster, topic: str, offset: int) -> None:
    """Wait until committed records of partition 0 end at `offset`: Apache Kafka writes its markers late."""
    eventually(lambda: cluster.list_offsets(topic, {0: LATEST})[0].offset == offset)
    assert cluster.list_offsets(topic, {0: LATEST})[0].offset == offset


def batches(bootstrap: str, topic: str, skew_ms: int | None) -> list[dict[int, tuple[int, int]]]:
    """Return the non-empty ranges that each micro-batch reads, until everything is read."""
    reader = StreamReader(SourceOptions(bootstrap, subscribed(topic), "earliest", event_time_skew_ms=skew_ms))
    start = reader.initialOffset()
    reader.partitions(start, start)
    read: list[Any] = []
    for _ in range(200):
        end = reader.latestOffset(start, ReadAllAvailable())
        if end == start:
            return read
        pairs = {int(partition): (start[topic][partition], end[topic][partition]) for partition in end[topic]}
        read.append({partition: pair for partition, pair in pairs.items() if pair[0] < pair[1]})
        start = end
    raise AssertionError("the batches never end")


def test_partitions_are_read_side_by_side(bootstrap: str, kept: str, send: Send) -> None:
    write(send, 0, [0, 1000, 2000, 3000])
    write(send, 1, [1500, 2500])
    assert batches(bootstrap, kept, None) == [{0: (0, 4), 1: (0, 2)}]
    assert batches(bootstrap, kept, 1000) == [{0: (0, 2)}, {0: (2, 3), 1: (0, 2)}, {0: (3, 4)}]


def test_unordered_records_do_not_block_the_rest(bootstrap: str, kept: str, send: Send) -> None:
    write(send, 0, [9000, 0, 100, 9500, 50])
    write(send, 1, [200])
    assert batches(bootstrap, kept, 10) == [{1: (0, 1)}, {0: (0, 3)}, {0: (3, 5)}]


def test_search_skips_later_records_already_read(cluster: Cluster, kept: str, send: Send) -> None:
    """The broker searches for a time from the log's start, where such a record hides all later ones."""
    write(send, 0, [9000, 0, 30, 40, 9500])
    write(send, 1, [35, 60])
    alignment = Alignment(cluster, 10, read_committed=True)
    known = Offsets({kept: {0: 2, 1: 0, 2: 0}})
    for _ in range(2):
        limited = alignment.limit(known, Offsets({kept: {0: 5, 1: 2, 2: 0}}))
        assert limited.by_topic[kept] == {0: 4, 1: 1, 2: 0}


@given(st.lists(st.lists(st.integers(0, 50), max_size=6), min_size=3, max_size=3), st.integers(0, 20))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_ordered_records_are_never_late(
    bootstrap: str, cluster: Cluster, topic: str, times: list[list[int]], skew_ms: int
) -> None:
    name = f"{topic}-{abs(hash((str(times), skew_ms)))}"
    cluster.create_topic(name, 3, configs={"retention.ms": "-1"})
    in_order = [sorted(part) for part in times]
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for partition, part in enumerate(in_order):
        for time_ms in part:
            producer.produce(name, b"x", partition=partition, timestamp=BASE_MS + time_ms)
    assert producer.flush(20) == 0
    latest, read = -1, [0, 0, 0]
    for batch in batches(bootstrap, name, skew_ms):
        rows = [time_ms for partition, (begin, end) in batch.items() for time_ms in in_order[partition][begin:end]]
        assert all(time_ms >= latest - skew_ms for time_ms in rows), "late by a watermark with this delay"
        latest = max(latest, *rows)
        for partition, (begin, end) in batch.items():
            assert begin == read[partition]
            read[partition] = end
    assert read == [len(part) for part in times]
    cluster.delete_topic(name)


def test_later_markers_do_not_block_reading(bootstrap: str, cluster: Cluster, kept: str) -> None:
    with TransactionalProducer(bootstrap, f"of-{kept}") as producer:
        for number in range(4):
            producer.begin()
            producer.send(kept, b"x", partition=0, timestamp_ms=BASE_MS + 1000 * number)
            producer.flush()
            (producer.abort if number == 1 else producer.commit)()
    wait_for_end(cluster, kept, 8)
    read = batches(bootstrap, kept, 10)
    assert read[0][0][0] == 0
    assert read[-1][0][1] == 8


def test_open_transaction_does_not_move_end_back(bootstrap: str, cluster: Cluster, kept: str) -> None:
    """The broker then does not know the latest time; a batch must still not end before its start."""
    with (
        TransactionalProducer(bootstrap, f"of-{kept}") as done,
        TransactionalProducer(bootstrap, f"open-{kept}") as own,
    ):
        for number in range(2):
            done.begin()
            done.send(kept, b"x", partition=0, timestamp_ms=BASE_MS + 1000 * number)
            done.commit()
        own.begin()
        own.send(kept, b"open", partition=0, timestamp_ms=BASE_MS)
        own.flush()
        done.begin()
        done.send(kept, b"x", partition=0, timestamp_ms=BASE_MS + 9000)
        done.commit()
        known, ends = Offsets({kept: {0: 2}}), Offsets({kept: {0: 4}})
        end = Alignment(cluster, 10, read_committed=True).limit(known, ends).by_topic[kept][0]
        assert 2 < end <= 4
        own.abort()


def test_search_in_one_partition_delays_others(
    cluster: Cluster, bootstrap: str, kept: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "FETCHES_MAX", 1)
    monkeypatch.setattr(alignment, "FETCH_BYTES", 1)
    with TransactionalProducer(bootstrap, f"of-{kept}") as producer:
        producer.begin()
        for _ in range(3):
            producer.send(kept, b"aborted", partition=0)
            producer.flush()
        producer.abort()
    wait_for_end(cluster, kept, 4)
    write(send, 0, [0])
    write(send, 1, [HOUR_MS])
    read = batches(bootstrap, kept, 10)
    assert [batch for batch in read if 1 in batch] == [{1: (0, 1)}], "after all of partition 0"
    assert read[-1] == {1: (0, 1)}


def test_deleted_records_are_left_to_read_task(cluster: Cluster, kept: str, send: Send) -> None:
    write(send, 0, [0, 1000, 2000])
    Admin(cluster).delete_records(kept, {0: 2})
    limited = Alignment(cluster, 10, read_committed=True).limit(Offsets({kept: {0: 0}}), Offsets({kept: {0: 3}}))
    assert limited.by_topic[kept] == {0: 3}


@pytest.mark.remedy(Remedy.CREATE_TIME)
def test_log_append_time_is_refused(bootstrap: str, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1, configs={"message.timestamp.type": "LogAppendTime"})
    send(["a"])
    with pytest.raises(WrongOption, match="maxEventTimeSkew needs event times, and the timestamps of topic") as raised:
        Alignment(cluster, 10, read_committed=True).limit(Offsets({topic: {0: 0}}), Offsets({topic: {0: 1}}))
    remedies.find(Remedy.CREATE_TIME, raised.value)
    Admin(cluster).alter_topic_configs(topic, set={"message.timestamp.type": "CreateTime"})
    send(["b"])
    # The earlier record is read without the option.
    limited = Alignment(cluster, 10, read_committed=True).limit(Offsets({topic: {0: 1}}), Offsets({topic: {0: 2}}))
    assert limited.by_topic[topic] == {0: 2}


def test_slow_partition_keeps_rows_with_alignment(
    spark: SparkSession, bootstrap: str, kept: str, send: Send, tmp_path: Path
) -> None:
    """Three partitions, one idle, one an hour behind; the delay of the watermark is the skew."""
    write(send, 0, [HOUR_MS, HOUR_MS + 1000, HOUR_MS + 120_000, HOUR_MS + 121_000])
    write(send, 1, [0, 1000, 60_000, 61_000])

    def counts(name: str, **options: str) -> dict[int, int]:
        """Return the rows in each window of ten seconds, by the second at which it starts."""
        events = (
            spark.readStream.format("onceflow")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", kept)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "2")
            .options(**options)
            .load()
            .withWatermark("timestamp", "10 seconds")
        )
        windows = events.groupBy(F.window("timestamp", "10 seconds")).count()
        counted: dict[int, int] = {}

        def keep(frame: DataFrame, _: int) -> None:
            seconds = frame.select(F.col("window.start").cast("long"), "count").collect()
            counted.update({second - BASE_MS // 1000: count for second, count in seconds})

        writer = windows.writeStream.outputMode("update").foreachBatch(keep)
        finish(writer.option("checkpointLocation", str(tmp_path / name)))
        return counted

    assert counts("with", maxEventTimeSkew="10s") == {0: 2, 60: 2, 3600: 2, 3720: 2}
    assert counts("without") == {0: 2, 3600: 2, 3720: 2}, "seconds 60 and 61 were late"


def test_watermark_moved_by_punctuations_only(
    spark: SparkSession, bootstrap: str, kept: str, send: Send, tmp_path: Path
) -> None:
    """The recipe of docs/spark.md: a row earlier than a punctuation and read after it is late."""
    for value, second in [("a", 50), ("p", 20), ("b", 90), ("c", 21), ("p", 70), ("d", 95), ("e", 2), ("p", 200)]:
        send([value], timestamp=BASE_MS + second * 1000)
    settings = {
        "spark.sql.streaming.multipleWatermarkPolicy": "max",
        "spark.sql.streaming.statefulOperator.allowMultiple": "false",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        events = (
            spark.readStream.format("onceflow")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", kept)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "1")
            .load()
        )
        is_punctuation = cast(Column, F.col("value") == b"p")
        clocked = (
            events.withColumn("clock", F.when(is_punctuation, F.col("timestamp")))
            .withWatermark("clock", "0 seconds")
            .withWatermark("timestamp", "36500 days")
        )
        windows = clocked.groupBy(F.window("timestamp", "10 seconds")).agg(F.count_if(~is_punctuation).alias("count"))
        counted: dict[int, int] = {}

        def keep(frame: DataFrame, _: int) -> None:
            seconds = frame.select(F.col("window.start").cast("long"), "count").collect()
            counted.update({second - BASE_MS // 1000: count for second, count in seconds})

        writer = windows.writeStream.outputMode("append").foreachBatch(keep)
        finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert counted == {20: 1, 50: 1, 70: 0, 90: 2}, "second 2 came after the punctuation of second 70"
