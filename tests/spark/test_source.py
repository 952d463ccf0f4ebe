"""The source in a real Spark against a real broker: each record is read exactly once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from onceflow.client.cluster import Cluster
from onceflow.spark.failure import describe
from tests.spark.slow_workers import finish

Batches = dict[int, list[str]]
"""Values of each micro-batch, sorted."""
Drain = Callable[..., Batches]
Send = Callable[..., None]


@pytest.fixture
def read(spark: SparkSession, bootstrap: str, topic: str) -> Callable[..., DataFrame]:
    def load(**options: str) -> DataFrame:
        reader = spark.read.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    return load


@pytest.fixture
def drain(spark: SparkSession, bootstrap: str, topic: str, checkpoint: Path) -> Drain:
    """Run the query on the test's checkpoint until it has read everything; return the values of each micro-batch."""

    def run(**options: str) -> Batches:
        seen: Batches = {}

        def keep(frame: DataFrame, batch_id: int) -> None:
            seen[batch_id] = sorted(row.value.decode() for row in frame.select("value").collect())

        reader = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
        frame = reader.option("subscribe", topic).options(**options).load()
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        finish(writer)
        return seen

    return run


def offsets_of(checkpoint: Path, batch_id: int) -> Mapping[str, Mapping[str, int]]:
    return json.loads((checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1])


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    """Simulate a crash at the end of a batch: its offsets are written, its commit is not."""
    (checkpoint / "commits" / str(batch_id)).unlink()


def test_batch_read_has_sparks_columns(
    read: Callable[..., DataFrame], cluster: Cluster, topic: str, send: Send
) -> None:
    cluster.create_topic(topic, 2)
    send(["a", None], partition=0, key="k")
    send(["b"], partition=1)
    rows = read().orderBy("partition", "offset").collect()
    assert [row.asDict() | {"timestamp": None} for row in rows] == [
        Row(
            key=key, value=value, topic=topic, partition=partition, offset=offset, timestamp=None, timestampType=0
        ).asDict()
        for key, value, partition, offset in [(b"k", b"a", 0, 0), (b"k", None, 0, 1), (None, b"b", 1, 0)]
    ]
    assert all(row.timestamp is not None for row in rows)


def test_batch_read_is_exact(read: Callable[..., DataFrame], cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 2)
    send([f"v{number}" for number in range(100)], partition=0)
    send(["other"], partition=1)
    frame = read(
        startingOffsets=json.dumps({topic: {"0": 13, "1": -2}}), endingOffsets=json.dumps({topic: {"0": 42, "1": 0}})
    )
    assert sorted(row.offset for row in frame.collect()) == list(range(13, 42))


def test_batch_read_by_timestamps_and_group(
    read: Callable[..., DataFrame], cluster: Cluster, topic: str, send: Send
) -> None:
    cluster.create_topic(topic, 2)
    base_ms = time.time_ns() // 1_000_000
    for number in range(5):
        send([f"v{number}"], timestamp=base_ms + 1000 * number)
    send(["early"], partition=1, timestamp=base_ms + 500)
    group = f"of-{topic}"
    cluster.commit_offsets(group, topic, {0: 3, 1: 1})

    def values(**options: str) -> list[str]:
        return sorted(row.value.decode() for row in read(**options).collect())

    def at(*moments: int) -> str:
        """Return times for each partition; -1 is its latest offset."""
        given = {str(number): ms if ms < 0 else base_ms + ms for number, ms in enumerate(moments)}
        return json.dumps({topic: given})

    # The first record at or after the time is the first one left out; without one, all are read.
    assert values(endingTimestamp=str(base_ms + 2000)) == ["early", "v0", "v1"]
    assert values(endingTimestamp=str(base_ms + 1)) == ["v0"]
    assert values(endingOffsetsByTimestamp=at(3500, 500)) == ["v0", "v1", "v2", "v3"]
    assert values(endingOffsetsByTimestamp=at(1000, 501)) == ["early", "v0"]
    between = {"startingTimestamp": str(base_ms + 400), "endingTimestamp": str(base_ms + 3000)}
    assert values(**between) == ["early", "v1", "v2"]
    late = {"startingOffsetsByTimestamp": at(1500, 501), "startingOffsetsByTimestampStrategy": "latest"}
    assert values(**late) == ["v2", "v3", "v4"]
    assert values(groupId=group) == values(groupId=group, startingOffsets="committed") == ["v3", "v4"]
    assert values(groupId=group, endingTimestamp=str(base_ms + 4000)) == ["v3"]


def test_batch_read_of_empty_topic(read: Callable[..., DataFrame], cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    assert read().collect() == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("startingOffset", "latest", "unknown option startingOffset of source onceflow; did you mean startingOffsets?"),
        ("subscribe", "nowhere", "topic 'nowhere' does not exist"),
    ],
)
def test_batch_read_error_is_one_line(read: Callable[..., DataFrame], name: str, value: str, expected: str) -> None:
    with pytest.raises(PySparkException) as caught:
        read(**{name: value}).collect()
    assert expected in describe(caught.value)
    assert "\n" not in describe(caught.value)


def test_stream_option_error_is_one_line(drain: Drain, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    with pytest.raises(PySparkException) as caught:
        drain(endingOffsets="latest")
    assert describe(caught.value) == "option endingOffsets has no effect in a stream read; remove it"
    assert "UnboundLocalError" not in str(caught.value)


def test_write_error_names_the_sinks(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, checkpoint: Path
) -> None:
    cluster.create_topic(topic, 1)
    with pytest.raises(PySparkException) as caught:
        spark.sql("SELECT 'a' AS value").write.format("onceflow").mode("append").save()
    assert re.search(r"is read-only; .*kafka_sink\(…\)", describe(caught.value))
    reader = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    writer = reader.option("subscribe", topic).load().writeStream.format("onceflow")
    with pytest.raises(PySparkException) as caught:
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination(60)
    assert re.search(r"is read-only; .*kafka_sink\(…\).*redis_sink\(…\)", describe(caught.value))


def test_batches_read_the_offsets_in_checkpoint(
    drain: Drain, cluster: Cluster, topic: str, send: Send, checkpoint: Path
) -> None:
    cluster.create_topic(topic, 2)
    send(["a", "b", "c"], partition=0)
    send(["d"], partition=1)
    assert drain(startingOffsets="earliest", maxOffsetsPerTrigger="2") == {
        0: [],
        1: ["a", "d"],
        2: ["b", "c"],
    }
    topic_id = str(cluster.require_topic(topic).topic_id)
    assert offsets_of(checkpoint, 0) == {topic: {"0": 0, "1": 0}, "@ids": {topic: topic_id}}
    assert offsets_of(checkpoint, 2) == {topic: {"0": 3, "1": 1}, "@ids": {topic: topic_id}}


def test_process_all_available_waits_for_acknowledged_records(
    spark: SparkSession, bootstrap: str, cluster: Cluster, topic: str, checkpoint: Path, send: Send
) -> None:
    """Spark's contract: what was acknowledged before processAllAvailable is counted when it returns."""
    cluster.create_topic(topic, 1)
    seen: list[str] = []

    def keep(frame: DataFrame, _batch_id: int) -> None:
        seen.extend(row.value.decode() for row in frame.select("value").collect())

    reader = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    frame = reader.options(subscribe=topic, startingOffsets="earliest").load()
    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint)).start()
    try:
        for number in range(5):
            send([f"v{number}"])
            query.processAllAvailable()
            assert seen == [f"v{sent}" for sent in range(number + 1)]
    finally:
        query.stop()


def test_restarted_available_now_reads_new_records(
    drain: Drain, cluster: Cluster, topic: str, send: Send, checkpoint: Path
) -> None:
    cluster.create_topic(topic, 1)
    send(["a"])
    assert drain(startingOffsets="earliest") == {0: [], 1: ["a"]}
    send(["b", "c"])
    assert drain(startingOffsets="earliest") == {2: ["b", "c"]}
    forget_commit(checkpoint, 2)
    send(["d"])
    assert drain(startingOffsets="latest") == {2: ["b", "c"], 3: ["d"]}, "the checkpoint overrides the option"


def test_restart_continues_at_next_offset(
    drain: Drain, cluster: Cluster, topic: str, send: Send, checkpoint: Path
) -> None:
    """The article's case (mission B1): a restart has only the checkpoint."""
    cluster.create_topic(topic, 1)
    group = f"of-{topic}"
    send(["0", "1", "2", "3"])
    assert drain(groupId=group, startingOffsets="earliest") == {0: [], 1: ["0", "1", "2", "3"]}
    assert offsets_of(checkpoint, 1)[topic] == {"0": 4}
    assert cluster.committed_offsets(group, topic) == {0: 4}
    send(["4", "5"])
    cluster.commit_offsets(group, topic, {0: 2})
    assert drain(groupId=group) == {2: ["4", "5"]}
    assert offsets_of(checkpoint, 2)[topic] == {"0": 6}
    assert cluster.committed_offsets(group, topic) == {0: 6}


MODES: dict[str, tuple[dict[str, str], list[str]]] = {
    "earliest": ({"startingOffsets": "earliest"}, ["0", "1", "2", "3"]),
    "latest": ({}, []),
    "committed": ({"groupId": "GROUP"}, ["2", "3"]),
    "timestamp": ({"startingTimestamp": "TIME_2"}, ["2", "3"]),
    "timestamp of each": ({"startingOffsetsByTimestamp": '{"TOPIC": {"0": TIME_3}}'}, ["3"]),
    "offsets": ({"startingOffsets": '{"TOPIC": {"0": 1}}'}, ["1", "2", "3"]),
}


def everything(batches: Batches) -> list[str]:
    return [value for values in batches.values() for value in values]


@pytest.mark.parametrize("mode", MODES)
def test_checkpoint_overrides_start_mode(mode: str, drain: Drain, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1)
    base_ms = time.time_ns() // 1_000_000
    for number in range(4):
        send([str(number)], timestamp=base_ms + number)
    cluster.commit_offsets(f"of-{topic}", topic, {0: 2})
    given, first = MODES[mode]
    words = {"TOPIC": topic, "GROUP": f"of-{topic}", "TIME_2": str(base_ms + 2), "TIME_3": str(base_ms + 3)}
    pattern = re.compile("|".join(words))
    options = {name: pattern.sub(lambda word: words[word[0]], value) for name, value in given.items()}
    assert everything(drain(**options)) == first
    send(["new"], timestamp=base_ms + 4)
    # The options have changed since: the group was reset, the time or offset differs.
    cluster.commit_offsets(f"of-{topic}", topic, {0: 0})
    assert everything(drain(**{"startingOffsets": "earliest"} if mode == "latest" else options)) == ["new"]
    committed = cluster.committed_offsets(f"of-{topic}", topic)
    assert committed == ({0: 5} if mode == "committed" else {0: 0}), "the last batch of available-now too"


def test_driver_killed_in_batch_0(
    drain: Drain, cluster: Cluster, bootstrap: str, topic: str, send: Send, checkpoint: Path, java_home: str
) -> None:
    cluster.create_topic(topic, 1)
    send(["before"])
    script = Path(__file__).with_name("driver_that_dies_in_batch_0.py")
    log_file = checkpoint.with_name("driver.log")
    command = [sys.executable, *map(str, (script, bootstrap, topic, checkpoint, log_file, java_home))]
    driver = subprocess.run(command, start_new_session=True, capture_output=True, timeout=150, check=False)
    assert driver.returncode == -signal.SIGKILL, log_file.read_text()
    assert driver.stdout + driver.stderr == b"", "Spark's output belongs in the log file"
    assert not os.listdir(checkpoint / "commits")
    send(["after"])
    assert drain() == {0: [], 1: ["after"]}, "though latest is later by now"
