"""The push-downs in a real Spark, stream and batch: equal to the same SQL over the raw records."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from onceflow.client.cluster import Cluster
from onceflow.spark.failure import describe
from tests.spark.conftest import Send
from tests.spark.slow_workers import finish

SCHEMA = "uid STRING, n BIGINT, price DECIMAL(9, 2), at TIMESTAMP"
RECORDS = 2000


@pytest.fixture
def values(cluster: Cluster, topic: str, send: Send) -> list[str | None]:
    """Records in two partitions, some of them bad."""
    cluster.create_topic(topic, partitions=2)
    chance = random.Random(topic)
    sent = [some_record(chance) for _ in range(RECORDS)]
    send(sent[: RECORDS // 2], partition=0)
    send(sent[RECORDS // 2 :], partition=1)
    return sent


def some_record(chance: random.Random) -> str | None:
    if chance.random() < 0.05:
        return chance.choice([None, "not json", "[]", '{"n":"six"}', '{"n":9223372036854775808}'])
    fields = {
        "uid": f'"user {chance.randrange(20)}"',
        "n": str(chance.randint(-(2**40), 2**40)),
        "price": f'"{chance.randint(-(10**9), 10**9) / 100:.2f}"',
        "at": f'"2015-04-28T07:{chance.randrange(10):02}:{chance.randrange(60):02}Z"',
    }
    return "{" + ",".join(f'"{name}":{text}' for name, text in fields.items() if chance.random() < 0.95) + "}"


def source(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def finished(partial: DataFrame) -> DataFrame:
    """The partial sums of all tasks, added up."""
    by_key = partial.where("rejected IS NULL").groupBy("uid", "slot")
    return by_key.agg(
        F.sum("total").alias("total"),
        F.sum("cost").alias("cost"),
        F.min("least").alias("least"),
        F.max("most").alias("most"),
        F.sum("events").alias("events"),
    )


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.selectExpr("uid", "slot", "total", "cost", "least", "most", "events").collect()))


def test_results_equal_sql_over_from_json(
    spark: SparkSession, bootstrap: str, topic: str, values: list[str | None], checkpoint: Path
) -> None:
    aggregate = {
        "decode": SCHEMA,
        "aggregate": "sum(n) AS total, sum(price) AS cost, min(n) AS least, max(at) AS most, count(*) AS events",
        "groupBy": "uid, window(at, '1 minute') AS slot",
    }
    text = F.col("value").cast("string")
    parsed = F.from_json(text, SCHEMA + ", _corrupt_record STRING")
    raw = source(spark, bootstrap, topic).select("*", parsed.alias("j")).persist()
    wanted = (
        raw.where("value IS NOT NULL AND j._corrupt_record IS NULL")
        .groupBy(F.col("j.uid").alias("uid"), F.window("j.at", "1 minute").alias("slot"))
        .agg(
            F.sum("j.n").alias("total"),
            F.sum("j.price").alias("cost"),
            F.min("j.n").alias("least"),
            F.max("j.at").alias("most"),
            F.count("*").alias("events"),
        )
    )
    want = rows(wanted)
    assert len(want) > 100

    decoded = source(spark, bootstrap, topic, decode=SCHEMA).alias("d")
    fields = ["uid", "n", "price", "at", "_corrupt_record"]
    assert sorted(map(str, decoded.select("partition", "offset", *fields).collect())) == sorted(
        map(str, raw.select("partition", "offset", *(F.col(f"j.{name}").alias(name) for name in fields)).collect())
    )

    partial = source(spark, bootstrap, topic, **aggregate).persist()
    assert rows(finished(partial)) == want
    refused = partial.where("rejected IS NOT NULL").select("rejected.*")
    assert all(row.reason for row in refused.collect())
    bad = raw.where("value IS NULL OR j._corrupt_record IS NOT NULL OR j.at IS NULL")
    same = ["topic", "partition", "offset", "timestamp", "key", "value"]
    assert sorted(map(str, refused.select(same).collect())) == sorted(map(str, bad.select(same).collect()))
    raw.unpersist()
    partial.unpersist()

    seen: list[str] = []

    def keep(frame: DataFrame, batch_id: int) -> None:
        seen.extend(rows(finished(frame)))

    reader = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    stream = reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**aggregate).load()
    finish(stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint)))
    assert sorted(seen) == want


def test_grouping_sets_equal_sql(spark: SparkSession, bootstrap: str, topic: str, values: list[str | None]) -> None:
    """Windows are computed below the grouping, because Spark's SQL refuses several in one query."""
    records = source(spark, bootstrap, topic, decode=SCHEMA).where("_corrupt_reason IS NULL AND at IS NOT NULL")
    with_windows = records.withColumn("minute", F.window("at", "1 minute")).withColumn("hour", F.window("at", "1 hour"))
    with_windows.createOrReplaceTempView("with_windows")
    wanted = spark.sql(
        "SELECT uid, minute, price, hour, grouping_id() AS grouping_id, sum(n) AS total, count(*) AS events "
        "FROM with_windows GROUP BY GROUPING SETS ((uid, minute), (price), (hour, uid), (hour), ())"
    )
    minute, hour = "window(at, '1 minute') AS minute", "window(at, '1 hour') AS hour"
    partial = source(
        spark,
        bootstrap,
        topic,
        decode=SCHEMA,
        aggregate="sum(n) AS total, count(*) AS events",
        groupBy=f"GROUPING SETS ((uid, {minute}), price, ({hour}, uid), ({hour}), ())",
        minPartitions="4",
    ).where("rejected IS NULL")
    whole = partial.groupBy("uid", "minute", "price", "hour", "grouping_id").agg(
        F.sum("total").alias("total"), F.sum("events").alias("events")
    )
    assert whole.schema["grouping_id"].dataType == wanted.schema["grouping_id"].dataType
    want = sorted(map(str, wanted.collect()))
    assert len(want) > 1000
    assert sorted(map(str, whole.collect())) == want


def test_sessions_equal_sql(spark: SparkSession, bootstrap: str, topic: str, values: list[str | None]) -> None:
    """The page's query merges the parts of all tasks; some records are exactly the gap apart."""
    records = source(spark, bootstrap, topic, decode=SCHEMA).where("_corrupt_reason IS NULL AND at IS NOT NULL")
    wanted = records.groupBy("uid", F.session_window("at", "7 seconds").alias("session")).agg(
        F.sum("n").alias("clicks"), F.count("*").alias("events")
    )
    parts = source(
        spark,
        bootstrap,
        topic,
        decode=SCHEMA,
        aggregate="sum(n) AS clicks, count(*) AS events",
        groupBy="uid, session_window(at, '7 seconds') AS session",
        minPartitions="4",
    ).where("rejected IS NULL")
    page = (Path(__file__).parents[3] / "docs" / "pushdown.md").read_text()
    names: dict[str, Any] = {"parts": parts}
    exec(page.split("### Sessions")[1].split("```python\n")[1].split("```")[0], names)
    want = sorted(map(str, wanted.collect()))
    assert 100 < len(want) < parts.count()
    assert sorted(map(str, names["sessions"].collect())) == want


def test_own_decoder(spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, partitions=1)
    send(["a;3", "b;4", "a;1", "bad"])
    rows = source(
        spark,
        bootstrap,
        topic,
        decoder="tests.spark.pushdown.own_decoders:CsvDecoder",
        decoderOptions=";",
        aggregate="sum(clicks) AS clicks",
        groupBy="uid",
    ).selectExpr("uid", "clicks", "rejected.reason")
    assert sorted(map(str, rows.collect())) == [
        "Row(uid='a', clicks=4, reason=None)",
        "Row(uid='b', clicks=4, reason=None)",
        "Row(uid=None, clicks=None, reason='no-number')",
    ]


def test_sum_overflow_stops_the_query(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, send: Send
) -> None:
    cluster.create_topic(topic, partitions=1)
    send(['{"n":9223372036854775807}', '{"n":1}'])
    with pytest.raises(PySparkException) as raised:
        source(spark, bootstrap, topic, decode="n BIGINT", aggregate="sum(n)").collect()
    assert "is 9223372036854775808, which does not fit BIGINT" in describe(raised.value)


def test_example_of_the_page(spark: SparkSession, bootstrap: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "pushdown.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"spark": spark}
    exec(code.replace("127.0.0.1:9092", bootstrap), names)
    assert names["sums"].columns == ["uid", "minute", "sum(clicks)", "sum(events)"]


def test_wrong_options_fail_at_load(spark: SparkSession, bootstrap: str, topic: str) -> None:
    with pytest.raises(PySparkException) as raised:
        source(spark, bootstrap, topic, decode="uid STRING, n INT", aggregate="sum(m)")
    assert "there is no column 'm'" in describe(raised.value)
