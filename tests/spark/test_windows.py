"""Windows by time and by number of rows, over streams and over batches, in a real Spark on a real broker."""

import datetime
import decimal
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.client.cluster import Cluster
from onceflow.spark import windows
from onceflow.spark.errors import WrongOption
from onceflow.spark.windows import count_by_window, reduce_by_window, window, window_by_count
from tests.spark.slow_workers import finish

Send = Callable[..., None]
Windows = list[tuple[int, int, int, list[str]]]
"""Partition, first offset, last offset and values of each window by number of rows."""

MINUTE = datetime.timedelta(minutes=1)
NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
SHAPES = [(4, 4), (5, 2), (3, 7), (1, 1)]


def utc(moment: datetime.datetime) -> datetime.datetime:
    """Return what Spark collected, a local time without a zone, in UTC."""
    return moment.astimezone(datetime.UTC)


def windows_of(
    moment: datetime.datetime, length: datetime.timedelta, slide: datetime.timedelta
) -> Iterator[datetime.datetime]:
    """Begins of the windows that hold `moment`, by the definition: begin <= moment < begin + length."""
    begin = NOON - 100 * slide
    while begin <= moment:
        if moment < begin + length:
            yield begin
        begin += slide


@pytest.fixture
def clicks(spark: SparkSession) -> list[Row]:
    seeded = random.Random(7)
    return [
        Row(
            timestamp=NOON + seeded.randrange(3600) * datetime.timedelta(seconds=1),
            os=seeded.choice("ai"),
            clicks=number,
        )
        for number in range(200)
    ] + [Row(timestamp=None, os="a", clicks=5)]


@pytest.mark.parametrize(("length", "slide"), [(15, 15), (15, 5), (20, 15)])
def test_rows_are_in_each_of_their_windows(spark: SparkSession, clicks: list[Row], length: int, slide: int) -> None:
    rows = window(spark.createDataFrame(clicks), f"{length} minutes", f"{slide} minutes")
    expected = Counter(
        (begin, row.clicks)
        for row in clicks
        if row.timestamp is not None
        for begin in windows_of(row.timestamp, length * MINUTE, slide * MINUTE)
    )
    assert Counter((utc(row.window.start), row.clicks) for row in rows.collect()) == expected
    assert all(row.window.end - row.window.start == length * MINUTE for row in rows.collect())


def test_counts_and_sums_of_a_window(spark: SparkSession, clicks: list[Row]) -> None:
    frame = spark.createDataFrame(clicks)
    counts: Counter[tuple[datetime.datetime, str]] = Counter()
    sums: Counter[datetime.datetime] = Counter()
    for row in clicks:
        for begin in windows_of(row.timestamp, 30 * MINUTE, 10 * MINUTE) if row.timestamp else ():
            counts[begin, row.os] += 1
            sums[begin] += row.clicks
    by_os = count_by_window(frame, "30 minutes", "10 minutes", by=["os"]).collect()
    assert {(utc(row.window.start), row.os): row["count"] for row in by_os} == counts
    reduced = reduce_by_window(frame, F.sum("clicks").alias("clicks"), "30 minutes", "10 minutes").collect()
    assert {utc(row.window.start): row.clicks for row in reduced} == sums
    both = reduce_by_window(frame, [F.min("clicks"), F.max("clicks")], "1 hour").collect()
    assert [tuple(row)[1:] for row in both] == [(0, 199)]


def test_a_stream_returns_closed_windows_once(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, send: Send, checkpoint: Path
) -> None:
    cluster.create_topic(topic, 1)
    seen: list[tuple[datetime.datetime, int]] = []

    def count() -> None:
        counts = count_by_window(stream(spark, bootstrap, topic).withWatermark("timestamp", "1 minute"), "10 minutes")
        drain(counts, checkpoint, lambda rows: seen.extend((utc(row.window.start), row["count"]) for row in rows))

    for minutes in (0, 9, 8, 12, 25):
        send(["x"], timestamp=int((NOON + minutes * MINUTE).timestamp() * 1000))
    count()
    assert sorted(seen) == [(NOON, 3), (NOON + 10 * MINUTE, 1)]
    send(["x"], timestamp=int((NOON + 45 * MINUTE).timestamp() * 1000))
    count()
    assert sorted(seen) == [(NOON, 3), (NOON + 10 * MINUTE, 1), (NOON + 20 * MINUTE, 1)]


def stream(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap).options(**options)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").load()


def drain(rows: DataFrame, checkpoint: Path, keep: Callable[[list[Row]], None]) -> None:
    writer = rows.writeStream.foreachBatch(lambda frame, _: keep(frame.collect()))
    finish(writer.option("checkpointLocation", str(checkpoint)))


def plain(row: Row) -> tuple[int, int, int, list[str]]:
    return row.partition, row.first_offset, row.last_offset, [element.value.decode() for element in row.elements]


def model(values: dict[int, list[str]], size: int, slide: int) -> Windows:
    """Return the windows of each partition's values, whose offsets begin at 0 and have no gaps."""
    return sorted(
        (partition, begin, begin + size - 1, sent[begin : begin + size])
        for partition, sent in values.items()
        for begin in range(0, len(sent) - size + 1, slide)
    )


@pytest.fixture
def write(cluster: Cluster, topic: str, send: Send) -> Callable[[int], dict[int, list[str]]]:
    """A function that writes more values to three partitions, half as many to the last, and returns all so far."""
    cluster.create_topic(topic, 3)
    values: dict[int, list[str]] = defaultdict(list)

    def more(count: int) -> dict[int, list[str]]:
        for partition in range(3):
            new = [f"{partition}-{len(values[partition]) + number}" for number in range(count // (1 + partition // 2))]
            send(new, partition=partition)
            values[partition] += new
        return values

    return more


@pytest.mark.parametrize(("size", "slide"), SHAPES)
def test_windows_by_count_of_a_batch(
    spark: SparkSession, bootstrap: str, topic: str, write: Callable[[int], dict[int, list[str]]], size: int, slide: int
) -> None:
    values = write(23)
    reader = spark.read.format("onceflow").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    windows = window_by_count(reader.load(), size, slide)
    assert sorted(map(plain, windows.collect())) == model(values, size, slide)


def test_rows_of_a_batch_may_have_maps(spark: SparkSession) -> None:
    """Spark cannot compare maps, so rows are not sorted as a whole."""
    rows = spark.range(4).selectExpr("'t' AS topic", "0 AS partition", "id AS offset", "map('k', id) AS counts")
    windows = sorted(window_by_count(rows, 2).collect(), key=lambda row: row.first_offset)
    assert [[element.counts["k"] for element in row.elements] for row in windows] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("size", "slide"), [(5, 2), (3, 7)])
def test_windows_by_count_over_restarts(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    write: Callable[[int], dict[int, list[str]]],
    checkpoint: Path,
    size: int,
    slide: int,
) -> None:
    """Windows begin in one micro-batch and end in a later one, also of a query that was started again."""
    seen: Windows = []
    for count in (5, 14):
        values = write(count)
        rows = stream(spark, bootstrap, topic, maxOffsetsPerTrigger="20")
        drain(window_by_count(rows, size, slide), checkpoint, lambda windows: seen.extend(map(plain, windows)))
        assert sorted(seen) == model(values, size, slide)


def test_a_repeated_batch_has_the_same_windows(
    spark: SparkSession, bootstrap: str, topic: str, write: Callable[[int], dict[int, list[str]]], checkpoint: Path
) -> None:
    """The driver dies after the sink's write and before Spark's commit."""
    batches: list[Windows] = []
    for count in (5, 9):
        write(count)
        windows = window_by_count(stream(spark, bootstrap, topic), 4, 3)
        drain(windows, checkpoint, lambda rows: batches.append(sorted(map(plain, rows))))
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    drain(windows, checkpoint, lambda rows: batches.append(sorted(map(plain, rows))))
    assert batches[-1] == batches[-2] != []


def test_another_window_needs_a_new_checkpoint(
    spark: SparkSession, bootstrap: str, topic: str, write: Callable[[int], dict[int, list[str]]], checkpoint: Path
) -> None:
    write(5)
    rows = stream(spark, bootstrap, topic)
    drain(window_by_count(rows, 4), checkpoint, lambda _: None)
    write(5)
    for changed in (window_by_count(rows, 5, 4), window_by_count(rows.drop("key"), 4)):
        with pytest.raises(StreamingQueryException, match="the checkpoint has windows of size 4, slide 4, struct<key:"):
            drain(changed, checkpoint, lambda _: None)


def test_many_windows_come_in_pieces(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    write: Callable[[int], dict[int, list[str]]],
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limits of a piece are those of the driver's process, which makes the functions of the query."""
    monkeypatch.setattr(windows, "ROWS_AT_ONCE", 30)
    values = write(101)
    seen: Windows = []
    drain(
        window_by_count(stream(spark, bootstrap, topic), 20, 3), checkpoint, lambda rows: seen.extend(map(plain, rows))
    )
    assert sorted(seen) == model(values, 20, 3)


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[None]:
    """A session in a time zone where one hour of the year comes twice."""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.usefixtures("berlin")
def test_elements_keep_their_types(
    spark: SparkSession, bootstrap: str, topic: str, write: Callable[[int], dict[int, list[str]]], checkpoint: Path
) -> None:
    write(6)
    micros = int(datetime.datetime(2026, 10, 25, 1, 30, 0, 123_456, datetime.UTC).timestamp() * 1_000_000)
    counts = F.create_map(F.lit("k"), "offset")
    rows = stream(spark, bootstrap, topic).select(
        "topic",
        "partition",
        "offset",
        F.when(F.col("offset") % 2 == 0, F.col("offset")).alias("even"),
        F.timestamp_micros(F.lit(micros) - F.col("offset") * 3_600_000_000).alias("moment"),
        F.col("offset").cast("decimal(38,10)").alias("exact"),
        F.struct(F.array("value", F.lit(None)).alias("values"), counts.alias("counts")).alias("nested"),
    )
    moments = F.transform("elements", lambda element: F.unix_micros(element["moment"]))
    kept: list[Row] = []
    drain(window_by_count(rows, 2).withColumn("moments", moments), checkpoint, kept.extend)
    first = next(row for row in kept if (row.partition, row.first_offset) == (0, 0))
    assert first.moments == [micros, micros - 3_600_000_000]
    for offset, element in enumerate(first.elements):
        assert (element.topic, element.partition, element.offset) == (topic, 0, offset)
        assert (element.even, element.exact) == ([0, None][offset], decimal.Decimal(offset))
        assert element.nested.asDict() == {"values": [f"0-{offset}".encode(), None], "counts": {"k": offset}}


@pytest.mark.campaign
def test_a_killed_driver_returns_each_window_once(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    write: Callable[[int], dict[int, list[str]]],
    tmp_path: Path,
    java_home: str,
) -> None:
    """A driver is killed -9 while it writes windows by number of rows; the next one continues with the same windows."""
    values = write(400)
    script = Path(__file__).with_name("driver_of_windows.py")
    arguments = (bootstrap, topic, tmp_path / "checkpoint", tmp_path / "windows", tmp_path / "driver.log", java_home)
    commits = tmp_path / "checkpoint" / "commits"
    driver = subprocess.Popen([sys.executable, script, *map(str, arguments)], start_new_session=True)
    deadline = time.monotonic() + 200
    while not (commits / "3").exists():
        assert driver.poll() is None and time.monotonic() < deadline, (tmp_path / "driver.log").read_text()[-3000:]
        time.sleep(0.02)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(timeout=30)
    values = write(3)
    rows = stream(spark, bootstrap, topic)
    writer = window_by_count(rows, 10, 4).writeStream.format("parquet").option("path", str(tmp_path / "windows"))
    finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert sorted(map(plain, spark.read.parquet(str(tmp_path / "windows")).collect())) == model(values, 10, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rows: window_by_count(rows, 0), "size of a window by number of rows: 0, expected at least 1"),
        (lambda rows: window_by_count(rows, 2, 0), "slide of a window by number of rows: 0, expected at least 1"),
        (
            lambda rows: window_by_count(rows.drop("offset"), 2),
            "columns of a window: offset missing; the rows have topic, ",
        ),
        (
            lambda rows: count_by_window(rows, "1 hour", time="at"),
            "columns of a window: at missing; the rows have topic, ",
        ),
        (
            lambda rows: count_by_window(rows, "1 hour", by=["os"]),
            "columns of a window: os missing; the rows have topic, ",
        ),
    ],
)
def test_wrong_windows_are_refused(spark: SparkSession, call: Callable[[DataFrame], object], message: str) -> None:
    rows = spark.createDataFrame([], "topic string, partition int, offset long, timestamp timestamp")
    with pytest.raises(WrongOption, match=message):
        call(rows)


def test_examples_of_the_page_run(spark: SparkSession) -> None:
    page = Path(__file__).parents[2] / "docs" / "windows.md"
    rows = [
        Row(topic="t", partition=0, offset=number, timestamp=NOON, os_type="i", click_count=2) for number in range(120)
    ]
    names: dict[str, DataFrame] = {"events": spark.createDataFrame(rows)}
    for example in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(example, names)
    assert names["elements"].count() == 4 * 120
    assert [row["count"] for row in names["counts"].collect()] == [120] * 4
    assert [row.clicks for row in names["clicks"].collect()] == [240] * 4
    assert [(row.last_offset, row.clicks) for row in names["totals"].collect()] == [(99, 200), (109, 200), (119, 200)]
