"""The declared measures as SQL: what Spark makes of grouped rows, compared with sums over the single events."""

from collections import Counter

from pyspark.sql import DataFrame, SparkSession

from onceflow.clicks import measures as declared
from onceflow.clicks.measures import MeasureSettings
from onceflow.clicks.windows import WIDTHS

EVENTS = [
    ("ada", 3, "Linux", "/a", 0, 1_430_204_612_405),
    ("ada", 0, "Linux", "/b'", 0, 1_430_204_612_999),
    ("bob", 7, "iOS", "/a", 1, 1_430_204_612_000 + 40 * 60_000),
    ("bob", 1, "un:known", "ü\\n", 0, 1_430_204_612_000 + 26 * 3_600_000),
]
REJECTED_NULL = "CAST(NULL AS STRUCT<partition: INT, offset: LONG, timestamp: TIMESTAMP, reason: STRING>) AS rejected"
COLUMNS = "uid string, clicks int, os string, page string, no_time int, at_ms long"


def expected(settings: MeasureSettings) -> Counter[tuple[str, str, str | None]]:
    """Return (target, field, value) → sum of amounts, one event after the other."""
    sums: Counter[tuple[str, str, str | None]] = Counter()
    for uid, clicks, system, page, no_time, at_ms in EVENTS:
        sums["count", uid, None] += clicks
        for name, amount in (("events", 1), ("clicks", clicks), ("no-time", no_time), ("future", 0), ("bad", 0)):
            sums["totals", name, None] += amount
        values = {"os": system, "page": page}
        for name, value in values.items():
            sums[name, value, None] += clicks
        for width in WIDTHS:
            at, start = width.name, at_ms // width.ms * width.ms
            for name, amount in (("events", 1), ("clicks", clicks)):
                sums[at, f"{start}:{name}", None] += amount
                for dimension, value in values.items():
                    sums[f"{at}:{dimension}", f"{start}:{name}:{value}", None] += amount
            sums[f"{at}-users", f"{start}:", uid] += 0
            for dimension, value in values.items():
                sums[f"{at}-users", f"{start}:{dimension}={value}", uid] += 0
            if at != "minute":
                sums[f"{at}-top", f"{start}:{uid}", None] += clicks
    return sums


def grouped(spark: SparkSession, settings: MeasureSettings) -> DataFrame:
    """Return the rows that the push-down would, by Spark's own GROUPING SETS."""
    events = spark.createDataFrame(EVENTS, COLUMNS).selectExpr(
        "*", "timestamp_millis(at_ms) AS event_time", "0 AS future"
    )
    events.createOrReplaceTempView("events")
    every = declared.measures(settings)
    columns = declared.columns_of(every)
    windows = [f"named_struct('start', timestamp_millis(at_ms - at_ms % {w.ms})) AS {w.name}" for w in WIDTHS]
    spark.sql(f"SELECT *, {', '.join(windows)} FROM events").createOrReplaceTempView("timed")
    sets = ", ".join(f"({', '.join(measure.by)})" for measure in every)
    return spark.sql(
        f"SELECT {', '.join(columns)}, grouping_id({', '.join(columns)}) AS grouping_id, "
        f"{declared.aggregates(settings)} FROM timed GROUP BY {', '.join(columns)} GROUPING SETS ({sets})"
    )


def test_rows_are_the_sums_of_events(spark: SparkSession) -> None:
    settings = MeasureSettings(dimensions={"os": "os_type", "page": "url"}, over_time=True)
    rows = grouped(spark, settings).dropDuplicates()
    result = rows.selectExpr("*", REJECTED_NULL).selectExpr(declared.sink_rows(settings)).collect()
    sums: Counter[tuple[str, str, str | None]] = Counter()
    for row in result:
        value = None if row.value is None else bytes(row.value).decode()
        sums[row.target, bytes(row.field).decode(), value] += row.amount
    assert sums == expected(settings)
    assert len(result) == len(sums)
