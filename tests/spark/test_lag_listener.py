"""The lag of a running query, in a real Spark and by events of the shape that Spark sends."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from onceflow.client.cluster import Cluster
from onceflow.client.lag import Lag
from onceflow.spark.lag_listener import LagListener, QueryLag
from tests.spark.slow_workers import finish

Send = Callable[..., None]


def progress(*offsets: Any, query: str = "q", batch: int = 3) -> SimpleNamespace:
    sources = [SimpleNamespace(endOffset=None if each is None else json.dumps(each)) for each in offsets]
    return SimpleNamespace(progress=SimpleNamespace(id=query, name="clicks", batchId=batch, sources=sources))


def offset_in(document: str, topic: str) -> int:
    offset: int = json.loads(document)[topic]["0"]
    return offset


def test_messages_and_the_age_of_the_oldest(bootstrap: str, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 2)
    now_ms = time.time_ns() // 1_000_000
    send(["a"], timestamp=now_ms - 3_600_000)
    send(["b", "c"], timestamp=now_ms - 60_000)
    told: list[QueryLag] = []
    listener = LagListener(bootstrap, told.append)
    listener.onQueryProgress(progress(None, 17, {topic: {"0": 1, "1": 0}}))
    (found,) = told
    assert (found.query, found.name, found.batch, found.lag.messages) == ("q", "clicks", 3, 2)
    assert 60 <= found.lag.seconds < 3_600
    send(["d"], partition=1)
    listener.onQueryIdle(SimpleNamespace(id="q"))
    assert told[-1].lag.messages == 3
    listener.onQueryProgress(progress({topic: {"0": 3, "1": 1}}))
    assert told[-1].lag == Lag(0, 0.0)
    listener.onQueryTerminated(SimpleNamespace(id="q"))
    listener.onQueryIdle(SimpleNamespace(id="q"))
    assert len(told) == 3


def test_a_cluster_that_does_not_answer_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    LagListener("127.0.0.1:1", pytest.fail).onQueryProgress(progress({"t": {"0": 1}}))
    assert "the lag of query q is not known: no Kafka broker answers at 127.0.0.1:1" in caplog.text


def test_a_running_query_tells_its_lag(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, send: Send, tmp_path: Path
) -> None:
    cluster.create_topic(topic, 1)
    send(["a", "b", "c"])
    told: list[QueryLag] = []
    listener = LagListener(bootstrap, told.append)
    spark.streams.addListener(listener)
    try:
        events = (
            spark.readStream.format("onceflow")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "2")
            .load()
        )
        writer = events.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = finish(writer)

        def lags() -> list[int]:
            # What Spark has still to tell of the session's earlier queries comes too.
            return [each.lag.messages for each in told if each.query == query.id]

        deadline = time.monotonic() + 60
        while lags()[-1:] != [0] and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
    assert lags() == [3, 1, 0]
    sources = [each.sources[0] for each in query.recentProgress]
    assert [offset_in(each.endOffset, topic) for each in sources] == [0, 2, 3]
    assert [offset_in(each.latestOffset, topic) for each in sources] == [3, 3, 3], "the log's end, as it is known"
    assert [each.metrics for each in sources] == [{}, {}, {}]
