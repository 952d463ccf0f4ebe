"""A batch's rows with real Spark: small batches are collected at once, others are measured first."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from onceflow.spark.errors import IncompatibleData
from onceflow.spark.redis import chunks as redis_chunks
from onceflow.spark.redis import rows as redis_rows
from onceflow.spark.redis.batch import BatchWriter
from onceflow.spark.redis.rows import Collected
from onceflow.spark.redis.scripts import Keys
from onceflow.spark.redis.targets import Append, BucketDistinct, Increment, Intervals, SetIfNewer, StreamAppend
from onceflow.spark.redis_sink import RedisSink
from tests.spark.redis_steps import recording_rows
from tests.spark.test_redis_sink import Sinks, assert_counted, files, marker_of, redis_client, sinks

__all__ = ["files", "redis_client", "sinks"]

COUNTS = Keys(marker="m", history="h", increments=(Increment("count", "counts"),), appends=(Append("dead", "d", 3),))
PROFILES = Keys(
    marker="m",
    history="h",
    increments=(Increment("count", "counts"),),
    appends=(),
    streams=(StreamAppend("visit", "s", 3),),
    sets=(SetIfNewer("name", "names", "versions"),),
)
VISITS = Keys(
    marker="m",
    history="h",
    increments=(),
    appends=(Append("dead", "d", 3),),
    buckets=(Intervals("sessions", "s", 10), BucketDistinct("users", "u", 10)),
)
LONG = redis_rows.FIELD_BYTES_MAX + 1
GOOD = "('count', binary('a'), 1L)"


def reduced(rows: DataFrame, keys: Keys) -> DataFrame:
    return redis_chunks.reduced(redis_rows.with_value(rows, keys), keys)


def in_order(batch: Collected) -> Collected:
    return batch._replace(entries={target: sorted(entries) for target, entries in batch.entries.items()})


def test_collected_rows_are_summed(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT * FROM VALUES ('count', binary('a'), 1L, NULL), ('count', binary('b'), 2L, binary('ignored')), "
        "('count', binary('a'), 3L, NULL), ('visit', binary('v2'), 2L, NULL), ('visit', binary('v1'), 1L, NULL), "
        "('name', binary('a'), 7L, binary('old')), ('name', binary('a'), 8L, binary('new')) "
        "AS t(target, field, amount, value)"
    ).repartition(3)
    batch = redis_rows.collected_unmeasured(rows, PROFILES)
    assert batch is not None
    assert in_order(batch) == Collected(
        7,
        {("count", b"a"): 4, ("count", b"b"): 2},
        {("name", b"a"): (8, b"new")},
        {"visit": [(1, b"v1"), (2, b"v2")]},
    )
    assert in_order(redis_rows.collected(reduced(rows, PROFILES), PROFILES, 1)) == in_order(batch)._replace(rows_read=5)


def test_equal_entries_and_intervals_are_kept(spark: SparkSession) -> None:
    """Two tasks may return the same interval, each for other events."""
    rows = spark.sql(
        "SELECT target, binary(field) AS field, amount, binary(value) AS value FROM VALUES "
        "('dead', '0:7:not JSON', 5L, NULL), ('dead', '0:7:not JSON', 5L, NULL), ('dead', '0:8:not JSON', 5L, NULL), "
        "('sessions', 'ada', 0L, '1,2,3,4'), ('sessions', 'ada', 0L, '1,2,3,4'), ('sessions', 'ada', 0L, '1,2,3,5'), "
        "('users', '0:', 0L, 'ada'), ('users', '0:', 0L, 'ada') AS t(target, field, amount, value)"
    ).repartition(3)
    sums = reduced(rows, VISITS)
    assert redis_rows.measured(sums, VISITS, 1) == redis_rows.Measured(
        rows_read=8, rows_written=4, size_bytes=35, entries=3, entries_bytes=36
    )
    batch = redis_rows.collected(sums, VISITS, 1)
    assert sorted(batch.entries["dead"]) == [(5, b"0:7:not JSON"), (5, b"0:7:not JSON"), (5, b"0:8:not JSON")]
    assert sorted(batch.intervals) == [("sessions", b"ada", b"1,2,3,%d" % last) for last in (4, 4, 5)]
    assert batch.members == {("users", b"0:", b"ada")}
    writer: Any = BatchWriter
    append = VISITS.appends[0]
    newest = [(5, b"0:8:not JSON"), (5, b"0:7:not JSON"), (5, b"0:7:not JSON")]
    assert writer._newest(None, sums, append) == newest
    assert writer._newest(None, sums, dataclasses.replace(append, length_max=2)) == newest[:2]


SUMS = {
    b"in between": [9 * 10**18, 9 * 10**18, -9 * 10**18, -9 * 10**18, 5],
    b"most": [2**63 - 1, 0],
    b"above": [2**63 - 1, 1],
    b"least": [-(2**63) + 1, -1],
    b"below": [-(2**63), -1],
    b"halves": [2**32 - 1, 2**32 - 1, -(2**31), -1],
    b"zero": [-(2**63), 2**63 - 1, 1],
}


def test_sums_are_exact_in_any_order(spark: SparkSession) -> None:
    """A partial sum may exceed 64 bits; the reader may return rows in another order after a restart."""
    random = Random(7)
    sums = SUMS | {
        b"random %d" % number: [random.randint(-(2**63), 2**63 - 1) for _ in range(random.randint(1, 6))]
        for number in range(100)
    }
    rows = [("count", field, amount) for field, amounts in sums.items() for amount in amounts]
    expected = {field: sum(amounts) for field, amounts in sums.items()}
    for _ in range(3):
        random.shuffle(rows)
        frame = spark.createDataFrame(rows, "target string, field binary, amount bigint")
        by_field = {bytes(row.field): row.amount for row in reduced(frame, COUNTS).collect()}
        assert by_field == {field: total if -(2**63) <= total < 2**63 else None for field, total in expected.items()}


def test_small_batch_above_64_bits_is_refused(spark: SparkSession) -> None:
    rows = spark.sql(
        f"SELECT * FROM VALUES {GOOD}, ('count', binary('b'), {2**63 - 1}L), ('count', binary('b'), 1L) "
        "AS t(target, field, amount)"
    )
    with pytest.raises(IncompatibleData, match="field 'b' of target 'count' in batch 7 exceed 64 bits"):
        redis_rows.collected(reduced(rows, COUNTS), COUNTS, 7)


def test_few_tasks_have_the_reduced_rows(spark: SparkSession) -> None:
    """Each of the later jobs has a task for each partition: with Spark's default there were 200."""
    name = "spark.sql.shuffle.partitions"
    before = str(spark.conf.get(name))
    spark.conf.set(name, 200)
    try:
        rows = spark.sql(f"SELECT * FROM VALUES {GOOD} AS t(target, field, amount)")
        assert reduced(rows, COUNTS).rdd.getNumPartitions() <= spark.sparkContext.defaultParallelism
    finally:
        spark.conf.set(name, before)


def test_no_rows(spark: SparkSession) -> None:
    none = spark.sql(f"SELECT * FROM VALUES {GOOD} AS t(target, field, amount)").where("amount > 1")
    assert redis_rows.collected_unmeasured(none, COUNTS) == Collected(0, {}, {}, {"dead": []})


@pytest.mark.parametrize(("rows", "is_collected"), [(20, True), (21, False)])
def test_too_many_rows_are_measured(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rows: int, is_collected: bool
) -> None:
    monkeypatch.setattr(redis_rows, "WHOLE_ROWS_MAX", 5)
    monkeypatch.setattr(redis_rows, "COLLECTED_PER_WRITTEN", 4)
    numbered = spark.range(0, rows, 1, 2).selectExpr("'count' AS target", "binary(string(id)) AS field", "id AS amount")
    batch = redis_rows.collected_unmeasured(numbered, COUNTS)
    assert (batch is not None) == is_collected
    assert batch is None or batch.counts == {("count", b"%d" % number): number for number in range(rows)}


@pytest.mark.parametrize(
    ("offsets", "rows_before", "is_tried"),
    [(10_000, 5_000, True), (10_001, 1, False), (1, 5_001, False), (0, 1, False), (1, None, False)],
)
def test_few_offsets_after_few_rows_are_tried(offsets: int, rows_before: int | None, is_tried: bool) -> None:
    assert redis_rows.is_worth_a_try(offsets, rows_before) == is_tried


def test_rows_above_one_script_are_measured(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spark.range(0, 10, 1, 1).selectExpr("'count' AS target", "binary(repeat('x', 100)) AS field", "id AS amount")
    monkeypatch.setattr(redis_rows, "WHOLE_BYTES_MAX", 1_000)
    assert redis_rows.collected_unmeasured(rows, COUNTS) is not None
    monkeypatch.setattr(redis_rows, "WHOLE_BYTES_MAX", 999)
    assert redis_rows.collected_unmeasured(rows, COUNTS) is None


@pytest.mark.parametrize(
    "row",
    [
        f"('count', binary(repeat('x', {LONG})), 1L)",
        f"(repeat('x', {LONG}), binary('a'), 1L)",
        "('other', binary('a'), 1L)",
        "(NULL, binary('a'), 1L)",
        "('count', NULL, 1L)",
        "('count', binary('a'), NULL)",
    ],
)
def test_invalid_rows_are_measured(spark: SparkSession, row: str) -> None:
    rows = spark.sql(f"SELECT * FROM VALUES {GOOD}, {row} AS t(target, field, amount)")
    assert redis_rows.collected_unmeasured(rows, COUNTS) is None
    assert redis_rows.collected_unmeasured(rows.limit(1), COUNTS) is not None


@pytest.mark.parametrize("value", ["CAST(NULL AS BINARY)", f"binary(repeat('x', {LONG}))"])
def test_invalid_values_are_measured(spark: SparkSession, value: str) -> None:
    rows = spark.sql(f"SELECT * FROM VALUES ('name', binary('a'), 1L, {value}) AS t(target, field, amount, value)")
    assert redis_rows.collected_unmeasured(rows, PROFILES) is None


# The sink


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the numbers of the measured batches."""
    numbers: list[int] = []
    measure: Callable[..., Any] = redis_rows.measured

    def recording(rows: DataFrame, keys: Keys, batch: int) -> Any:
        numbers.append(batch)
        return measure(rows, keys, batch)

    monkeypatch.setattr(redis_rows, "measured", recording)
    return numbers


@pytest.mark.usefixtures("spark")
def test_small_batches_are_measured_once(sinks: Sinks, redis_client: Any, measured: list[int]) -> None:
    sinks.run(sinks.start(), 0, 1, 2)
    sinks.run(sinks.start(), 3, 4)
    assert measured == [0, 1, 3], "batch 0 has no rows"
    assert_counted(redis_client, 5)


@pytest.mark.usefixtures("spark")
def test_stateful_query_is_always_measured(sinks: Sinks, redis_client: Any, measured: list[int]) -> None:
    """A closing window produces rows from much earlier offsets."""
    sink = sinks.start()
    sinks.run(sink, 0, 1, 2)
    (sinks.files.directory / "state" / "0").mkdir(parents=True)
    sinks.run(sink, 3)
    assert measured == [0, 1, 3]
    assert_counted(redis_client, 4)


@pytest.mark.usefixtures("spark")
def test_failed_batch_is_measured_again(
    sinks: Sinks, redis_client: Any, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch fails, for example, above spark.driver.maxResultSize; the query may restart with the same sink."""
    sink = sinks.start()
    sinks.run(sink, 0, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(redis_rows, "collected_unmeasured", lambda *_arguments: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            sinks.run(sink, 3)
    sinks.run(sink, 3, 4)
    assert measured == [0, 1, 3], "batch 4 follows one that was small"
    assert_counted(redis_client, 5)


@pytest.mark.parametrize(
    ("chunks", "parallelism", "tasks"),
    [(1, 2, 1), (5, 2, 2), (320, 2, 2), (321, 2, 3), (399, 2, 3), (400, 2, 10), (5, 8, 5), (1_300, 8, 33)],
)
def test_tasks_write_several_chunks(chunks: int, parallelism: int, tasks: int) -> None:
    assert redis_chunks.task_count(chunks, parallelism) == tasks


@pytest.mark.parametrize(
    ("rows", "kibibytes", "chunks"),
    [
        (0, 0, 1),
        (250, 256, 1),
        (251, 0, 2),
        (0, 257, 2),
        (100_000, 0, 400),
        (100_001, 0, 400),
        (0, 400 * 1024, 400),
        (400_001, 0, 401),
        (0, 401 * 1024, 401),
    ],
)
def test_chunks_are_short_up_to_a_number(rows: int, kibibytes: int, chunks: int) -> None:
    assert redis_chunks.chunks_for(rows, kibibytes * 1024) == chunks


@pytest.mark.usefixtures("spark")
def test_large_batch_after_small_ones_has_chunks(
    sinks: Sinks, redis_client: Any, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch 0 has no rows; each later one has 63, which are 43 sums from two tasks."""
    monkeypatch.setattr(redis_rows, "WHOLE_ROWS_MAX", 42)
    monkeypatch.setattr(redis_chunks, "ROWS_PER_CHUNK", 11)
    sinks.run(sinks.start(), 0, 1, 2)
    assert measured == [0, 1, 2], "batch 2 follows one that was large"
    assert_counted(redis_client, 3)
    assert int(marker_of(redis_client)["chunks"]) > 1


@pytest.mark.usefixtures("spark")
def test_invalid_row_after_a_small_batch(sinks: Sinks, redis_client: Any, measured: list[int]) -> None:
    sink = sinks.start()
    sinks.run(sink, 0, 1)
    with pytest.raises(
        IncompatibleData, match="batch 2: 1 of 2 rows lack a field or an amount or have a target other than"
    ):
        sinks.batch(sink, 2, [("count", b"a", 1), ("count", None, 1)])
    assert measured == [0, 1, 2]
    assert_counted(redis_client, 2)


def test_small_batches_are_read_once(sinks: Sinks, redis_client: Any, tmp_path: Path, spark: SparkSession) -> None:
    sink: RedisSink = sinks.start()
    sinks.run(sink, 0, 1)
    read = tmp_path / "read"

    rows = spark.sql(f"SELECT * FROM VALUES {GOOD} AS t(target, field, amount)")
    sinks.files.plan(2, {"clicks": {"0": 20}})
    sink(rows.mapInArrow(recording_rows(read), rows.schema), 2)
    assert read.read_text() == "1\n"
    assert redis_client.hget("counts", "a") == b"1"
