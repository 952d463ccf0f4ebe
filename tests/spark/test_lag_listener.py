"""The lag of a running query, in a real Spark and from simulated events."""

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
    sources = [SimpleNamespace(endOffset=None if end is None else json.dumps(end)) for end in offsets]
    return SimpleNamespace(progress=SimpleNamespace(id=query, name="clicks", batchId=batch, sources=sources))


def offset_in(document: str, topic: str) -> int:
    offset: int = json.loads(document)[topic]["0"]
    return offset


def test_messages_and_the_age_of_the_oldest(bootstrap: str, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 2)
    now_ms = time.time_ns() // 1_000_000
    send(["a"], timestamp=now_ms - 3_600_000)
    send(["b", "c"], timestamp=now_ms - 60_000)
    reported: list[QueryLag] = []
    listener = LagListener(bootstrap, reported.append)
    listener.onQueryProgress(progress(None, 17, {topic: {"0": 1, "1": 0}}))
    (lag,) = reported
    assert (lag.query, lag.name, lag.batch, lag.lag.messages) == ("q", "clicks", 3, 2)
    assert 60 <= lag.lag.seconds < 3_600
    send(["d"], partition=1)
    listener.onQueryIdle(SimpleNamespace(id="q"))
    assert reported[-1].lag.messages == 3
    listener.onQueryProgress(progress({topic: {"0": 3, "1": 1}}))
    assert reported[-1].lag == Lag(0, 0.0)
    listener.onQueryTerminated(SimpleNamespace(id="q"))
    listener.onQueryIdle(SimpleNamespace(id="q"))
    assert len(reported) == 3


def test_unreachable_cluster_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    LagListener("127.0.0.1:1", pytest.fail).onQueryProgress(progress({"t": {"0": 1}}))  # type: ignore[arg-type]
    assert "the lag of query q is not known: no Kafka broker responds at 127.0.0.1:1" in caplog.text


def test_lag_of_a_running_query(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, send: Send, tmp_path: Path
) -> None:
    cluster.create_topic(topic, 1)
    send(["a", "b", "c"])
    reported: list[QueryLag] = []
    listener = LagListener(bootstrap, reported.append)
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
            # Late events of the session's earlier queries arrive too.
            return [lag.lag.messages for lag in reported if lag.query == query.id]

        deadline = time.monotonic() + 60
        while lags()[-1:] != [0] and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
    assert lags() == [3, 1, 0]
    sources = [progress.sources[0] for progress in query.recentProgress]
    assert [offset_in(source.endOffset, topic) for source in sources] == [0, 2, 3]
    assert [offset_in(source.latestOffset, topic) for source in sources] == [3, 3, 3], "the log's end, as it is known"
    assert [source.metrics for source in sources] == [{}, {}, {}]
