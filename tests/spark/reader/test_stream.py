"""Planning against a real broker, with calls in Spark's order, without Spark."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.registry.settings import SessionSettings
from onceflow.remedies import Remedy
from onceflow.spark.offsets import IDS_KEY, OffsetRange
from onceflow.spark.reader import offset_store, positions, read_task, stream
from onceflow.spark.reader.data_loss import DataLost
from onceflow.spark.reader.options import SourceOptions, read_options
from onceflow.spark.reader.position_options import AtCommitted
from onceflow.spark.reader.stream import StreamReader, TopicNotSubscribed
from onceflow.spark.reader.subscription import read_subscription, subscribed
from onceflow.testing.registry import MemoryRegistry
from onceflow.zookeeper.session import Put
from tests import remedies

Send = Callable[..., None]
Start = dict[str, Any]
EVERYTHING = ReadAllAvailable()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LOSS_PAUSES_MS", (1, 1, 1))


@pytest.fixture
def options(bootstrap: str, topic: str) -> SourceOptions:
    return SourceOptions(bootstrap, subscribed(topic), "earliest")


def begin(options: SourceOptions) -> tuple[StreamReader, Start]:
    """Return the reader of a query after batch 0, and its offsets."""
    reader = StreamReader(options)
    start = reader.initialOffset()
    assert reader.partitions(start, start) == []
    return reader, start


def batch(reader: StreamReader, start: Start) -> tuple[Start, list[bytes]]:
    """Return the end of the next batch, and its values."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    return end, [value for task in tasks for rows in reader.read(task) for value in rows["value"].to_pylist()]


def test_call_order_of_batch_0(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1)
    options = replace(options, starting="latest")
    fresh = StreamReader(options)
    start = fresh.initialOffset()
    send(["between"])
    assert fresh.latestOffset(start, EVERYTHING) == start
    assert fresh.initialOffset() != start
    assert fresh.partitions(fresh.initialOffset(), start) == []

    repeated = StreamReader(options)
    later = repeated.initialOffset()
    assert later != start
    assert repeated.partitions(later, start) == []
    following = repeated.latestOffset(start, EVERYTHING)
    (task,) = repeated.partitions(start, following)
    assert task.ranges == (OffsetRange(topic, 0, 0, 1),)


def test_batch_0_is_empty_despite_group_commit(
    options: SourceOptions, cluster: Cluster, topic: str, send: Send
) -> None:
    cluster.create_topic(topic, 1)
    send(["a", "b", "c"])
    group = f"of-{topic}"
    reader = StreamReader(replace(options, starting=AtCommitted(group, "latest")))
    start = reader.initialOffset()
    assert reader.latestOffset(start, EVERYTHING) == start
    cluster.commit_offsets(group, topic, {0: 1})
    earlier = reader.initialOffset()
    assert earlier[topic] == {"0": 1}
    assert reader.partitions(earlier, start) == []


STARTS = {
    "earliest": {"startingOffsets": "earliest"},
    "latest": {"startingOffsets": "latest"},
    "committed": {"startingOffsets": "committed", "groupId": "of-TOPIC"},
    "a group": {"groupId": "of-TOPIC"},
    "timestamp": {"startingTimestamp": "1"},
    "timestamp of each": {"startingOffsetsByTimestamp": '{"TOPIC": {"0": 1}}'},
    "offsets": {"startingOffsets": '{"TOPIC": {"0": 1}}'},
}


def given_options(bootstrap: str, topic: str, given: dict[str, str]) -> SourceOptions:
    where = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    return read_options(where | {name: value.replace("TOPIC", topic) for name, value in given.items()}, "stream")


def logged_by_reader(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == stream.__name__]


@pytest.mark.parametrize(
    ("given", "lines"), [*((given, 1) for given in STARTS.values()), ({}, 0)], ids=[*STARTS, "no start option"]
)
def test_ignored_start_option_is_logged_once(
    bootstrap: str,
    cluster: Cluster,
    topic: str,
    send: Send,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, str],
    lines: int,
) -> None:
    cluster.create_topic(topic, 1)
    send(["a", "b"])
    options = given_options(bootstrap, topic, given)
    fresh = StreamReader(options)
    start = fresh.initialOffset()
    assert fresh.latestOffset(start, EVERYTHING) == start
    assert fresh.partitions(fresh.initialOffset(), start) == []
    send(["c"])
    end, _ = batch(fresh, start)
    assert logged_by_reader(caplog) == []

    begun = StreamReader(options)
    begun.partitions(start, end)
    assert batch(begun, end) == (end, [])
    assert len(logged_by_reader(caplog)) == lines
    idle = StreamReader(options)
    assert batch(idle, end) == (end, [])
    assert len(logged_by_reader(caplog)) == 2 * lines
    batch_0_repeated = StreamReader(options)
    assert batch_0_repeated.partitions(batch_0_repeated.initialOffset(), start) == []
    assert batch(batch_0_repeated, end) == (end, [])
    messages = logged_by_reader(caplog)
    assert messages == ["starting offsets in the options are ignored: the query resumes from its checkpoint"] * (
        3 * lines
    )


def test_no_new_records_plan_no_tasks(options: SourceOptions, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 12)
    reader = StreamReader(options)
    start = reader.initialOffset()
    reader.partitions(start, start)
    following = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert json.dumps(following) == json.dumps(start)
    assert reader.partitions(start, following) == []


def test_default_read_limit(options: SourceOptions, bootstrap: str) -> None:
    assert StreamReader(options).getDefaultReadLimit() == ReadAllAvailable()
    limited = SourceOptions(bootstrap, subscribed("t"), "latest", offsets_per_trigger_max=7)
    assert StreamReader(limited).getDefaultReadLimit() == ReadMaxRows(7)


def test_new_partition_is_read_from_start(
    options: SourceOptions, cluster: Cluster, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "TOPICS_AGE_MS_MAX", 0)
    cluster.create_topic(topic, 1)
    reader, start = begin(replace(options, starting="latest"))
    Admin(cluster).create_partitions(topic, 2)
    send(["a"], partition=0)
    send(["new", "newer"], partition=1)
    end, values = batch(reader, start)
    assert (end[topic], values) == ({"0": 1, "1": 0}, [b"a"])
    end, values = batch(reader, end)
    assert (end[topic], values) == ({"0": 1, "1": 2}, [b"new", b"newer"])


def test_recreated_topic_is_another_topic(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1)
    send(["a"])
    start, values = batch(*begin(options))
    assert values == [b"a"]
    cluster.delete_topic(topic)
    new_id = str(cluster.create_topic(topic, 1).topic_id)
    send(["first", "second"])
    with pytest.raises(DataLost, match=f"topic {topic} is missing from the log: it was deleted and created again"):
        StreamReader(options).latestOffset(start, EVERYTHING)

    lenient = StreamReader(replace(options, fail_on_data_loss=False))
    end, values = batch(lenient, start)
    assert (end, values) == ({topic: {"0": 0}, IDS_KEY: {topic: new_id}}, [])
    assert batch(lenient, end)[1] == [b"first", b"second"]


def test_planned_batch_skips_recreated_topic(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1)
    send(["a"])
    reader, start = begin(options)
    end = reader.latestOffset(start, EVERYTHING)
    cluster.delete_topic(topic)
    cluster.create_topic(topic, 1)
    send(["of the new one"])
    with pytest.raises(DataLost, match="deleted and created again"):
        StreamReader(options).partitions(start, end)
    assert StreamReader(replace(options, fail_on_data_loss=False)).partitions(start, end) == []


def test_deleted_topic_fails_or_keeps_offsets(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1)
    send(["a"])
    start, _ = batch(*begin(options))
    cluster.delete_topic(topic)
    with pytest.raises(DataLost, match=f"topic {topic} is missing from the log: the topic does not exist"):
        StreamReader(options).latestOffset(start, EVERYTHING)
    assert StreamReader(replace(options, fail_on_data_loss=False)).latestOffset(start, EVERYTHING) == start


@pytest.mark.parametrize("fails", [True, False])
def test_topic_missing_once_is_requested_again(
    options: SourceOptions, cluster: Cluster, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A broker that has just started may lack a topic; failOnDataLoss=false would drop its records."""
    cluster.create_topic(topic, 1)
    monkeypatch.setattr(positions, "TOPICS_AGE_MS_MAX", 0)
    reader, start = begin(replace(options, fail_on_data_loss=fails))
    send(["a"])
    topics = Cluster.topics
    lacking: list[int] = []

    def without(asked: Cluster, *names: str) -> dict[str, Any]:
        return {} if lacking and lacking.pop() else topics(asked, *names)

    monkeypatch.setattr(Cluster, "topics", without)
    lacking += [1, 1]
    end = reader.latestOffset(start, EVERYTHING)
    assert end[topic] == {"0": 1} and not lacking
    lacking += [1, 1, 1]
    (task,) = reader.partitions(start, end)
    assert [value for rows in reader.read(task) for value in rows["value"].to_pylist()] == [b"a"] and not lacking


@pytest.mark.parametrize(("before", "left"), [(3, [b"3", b"4", b"5"]), (-1, [])], ids=["next deleted", "all deleted"])
def test_records_trimmed_before_read(
    options: SourceOptions, cluster: Cluster, topic: str, send: Send, before: int, left: list[bytes]
) -> None:
    """A query paused until its records expire plans them, and its read task finds them deleted."""
    cluster.create_topic(topic, 1)
    send(["0", "1", "2", "3", "4", "5"])
    reader, start = begin(options)
    start = reader.latestOffset(start, ReadMaxRows(1))
    (log_start,) = Admin(cluster).delete_records(topic, {0: before}).values()
    strict = StreamReader(options)
    end = strict.latestOffset(start, EVERYTHING)
    (task,) = strict.partitions(start, end)
    assert task.ranges == (OffsetRange(topic, 0, 1, 6),)
    with pytest.raises(
        DataLost, match=rf"{topic}-0 \[1, {log_start}\) is missing from the log: .*failOnDataLoss=false"
    ):
        list(strict.read(task))

    lenient = StreamReader(replace(options, fail_on_data_loss=False))
    assert batch(lenient, start) == (end, left)
    assert batch(lenient, end) == (end, [])


def test_loss_is_logged_once(
    options: SourceOptions, cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic(topic, 1)
    reader, start = begin(replace(options, fail_on_data_loss=False))
    start[topic]["0"] = 7
    for _ in range(3):
        start = reader.latestOffset(start, EVERYTHING) | {topic: {"0": 7}}
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(
        f"{topic}-0 [0, 7) is missing from the log: the partition now ends at 0, before the next offset to read, 7"
    )


@pytest.mark.remedy(Remedy.NAME_TOPIC, Remedy.NEW_CHECKPOINT)
def test_unsubscribed_topic_stops_the_query(options: SourceOptions, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    _, start = begin(options)
    reader = StreamReader(replace(options, subscription=subscribed("other")))
    with pytest.raises(TopicNotSubscribed, match=f"reads {topic}-0, which option subscribe does not name") as raised:
        reader.latestOffset(start, EVERYTHING)
    remedies.find(Remedy.NAME_TOPIC, raised.value)
    assert StreamReader(options).latestOffset(start, EVERYTHING) == start
    remedies.find(Remedy.NEW_CHECKPOINT, raised.value)
    cluster.create_topic(f"{topic}-other", 1)
    reader = StreamReader(replace(options, subscription=subscribed(f"{topic}-other")))
    fresh = reader.initialOffset()
    assert reader.latestOffset(fresh, EVERYTHING) == fresh


def test_available_now_reads_to_initial_ends(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1)
    send(["a", "b"])
    reader = StreamReader(options)
    reader.prepareForTriggerAvailableNow()
    send(["late"])
    start = reader.initialOffset()
    assert reader.latestOffset(start, EVERYTHING) == start
    reader.partitions(start, start)
    end, values = batch(reader, start)
    assert values == [b"a", b"b"]
    assert batch(reader, end) == (end, [])


def test_number_of_tasks_follows_data_size(options: SourceOptions) -> None:
    little = [OffsetRange("t", number, 0, 100) for number in range(4)]
    much = [OffsetRange("t", number, 0, 100_000) for number in range(4)]
    assert [len(task.ranges) for task in read_task.plan(little, {"t": "id"}, options)] == [4]
    assert [task.ranges for task in read_task.plan(much, {"t": "id"}, options)] == [(part,) for part in much]
    assert read_task.plan(little, {"t": "id", "u": "other"}, options)[0].topic_ids == {"t": "id"}
    three = replace(options, tasks_min=3)
    assert [task.ranges for task in read_task.plan([OffsetRange("t", 0, 0, 9)], {}, three)] == [
        (OffsetRange("t", 0, begin, begin + 3),) for begin in (0, 3, 6)
    ]
    small = replace(options, offsets_per_task_max=100)
    assert [sum(part.size for part in task.ranges) for task in read_task.plan(little, {}, small)] == [100] * 4


def test_pattern_matches_topics_created_later(
    bootstrap: str, cluster: Cluster, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "TOPICS_AGE_MS_MAX", 0)
    cluster.create_topic(topic, 1)
    wanted = read_subscription({"subscribepattern": f"{topic}(-later)?"})
    reader, start = begin(SourceOptions(bootstrap, wanted, "latest"))
    assert set(start) == {topic, IDS_KEY}
    cluster.create_topic(f"{topic}-later", 1)
    cluster.create_topic(f"{topic}-other", 1)
    send(["first"], topic=f"{topic}-later")
    end, values = batch(reader, start)
    assert (end[f"{topic}-later"], values) == ({"0": 0}, [])
    end, values = batch(reader, end)
    assert (set(end), values) == ({topic, f"{topic}-later", IDS_KEY}, [b"first"])


def test_only_assigned_partitions_are_read(bootstrap: str, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 3)
    for partition in range(3):
        send([f"of {partition}"], partition=partition)
    both = read_subscription({"assign": json.dumps({topic: [0, 2]})})
    reader, start = begin(SourceOptions(bootstrap, both, "earliest"))
    end, values = batch(reader, start)
    assert (end[topic], sorted(values)) == ({"0": 1, "2": 1}, [b"of 0", b"of 2"])
    fewer = read_subscription({"assign": json.dumps({topic: [0]})})
    with pytest.raises(TopicNotSubscribed, match=f"reads {topic}-2, which option assign does not name"):
        StreamReader(SourceOptions(bootstrap, fewer, "earliest")).latestOffset(end, EVERYTHING)


def test_batch_waits_for_min_offsets(options: SourceOptions, cluster: Cluster, topic: str, send: Send) -> None:
    cluster.create_topic(topic, 1)
    now = [100.0]
    patient = replace(options, offsets_per_trigger_min=3, trigger_delay_max_ms=60_000)
    reader = StreamReader(patient, lambda: now[0])
    start = reader.initialOffset()
    reader.partitions(start, start)
    assert reader.getDefaultReadLimit() == ReadMinRows(3)
    assert batch(reader, start) == (start, [])
    send(["a"])
    end, values = batch(reader, start)
    assert values == [b"a"], "the first batch does not wait, as in Spark's own source"
    send(["b", "c"])
    assert batch(reader, end) == (end, [])
    send(["d"])
    end, values = batch(reader, end)
    assert values == [b"b", b"c", b"d"]
    send(["e"])
    assert batch(reader, end) == (end, [])
    now[0] += 60
    end, values = batch(reader, end)
    assert values == [b"e"]
    send(["f"])
    reader.prepareForTriggerAvailableNow()
    assert batch(reader, end)[1] == [b"f"], "an available-now run does not wait"


def test_group_commits_follow_complete_batches(
    options: SourceOptions, cluster: Cluster, topic: str, send: Send
) -> None:
    """Commits are the end of the last complete batch, never the current position (mission B2)."""
    cluster.create_topic(topic, 1)
    send(["0", "1", "2", "3"])
    group = f"of-{topic}"
    committing = replace(options, commits_to=group)
    reader, start = begin(committing)
    end, values = batch(reader, start)
    assert values == [b"0", b"1", b"2", b"3"]
    assert cluster.committed_offsets(group, topic) == {0: 0}, "the batch is planned and not complete"
    send(["4"])
    following = reader.latestOffset(end, EVERYTHING)
    assert cluster.committed_offsets(group, topic) == {0: 4}
    restarted = StreamReader(committing)
    assert restarted.partitions(end, following)[0].ranges == (OffsetRange(topic, 0, 4, 5),)
    assert restarted.latestOffset(following, EVERYTHING) == following
    assert cluster.committed_offsets(group, topic) == {0: 5}
    silent, _ = begin(replace(options, commits_to=None))
    silent.latestOffset(start, EVERYTHING)
    assert cluster.committed_offsets(group, topic) == {0: 5}


def test_group_offsets_are_in_zookeeper_if_wanted(
    options: SourceOptions, cluster: Cluster, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh query starts at them; the end of each complete batch is written there, and not to Kafka."""
    registry = MemoryRegistry()
    session = registry.session()
    session.open()
    monkeypatch.setattr(offset_store, "connect_zookeeper", lambda _settings: session)
    cluster.create_topic(topic, 1)
    send(["0", "1", "2", "3"])
    group = f"of-{topic}"
    path = f"/consumers/{group}/offsets/{topic}/0"
    session.ensure(path.rpartition("/")[0])
    session.commit([Put(path, b"2")])
    reader, start = begin(
        replace(
            options, starting=AtCommitted(group, "fail"), commits_to=group, zookeeper=SessionSettings("zk:2181/kafka")
        )
    )
    end, values = batch(reader, start)
    assert values == [b"2", b"3"]
    assert registry.value(path) == b"2", "the batch is planned and not complete"
    send(["4"])
    following, values = batch(reader, end)
    assert (values, registry.value(path)) == ([b"4"], b"4")
    session.disconnect()
    assert reader.latestOffset(following, EVERYTHING) == following, "without ZooKeeper the query continues"
    assert cluster.committed_offsets(group, topic) == {}


def test_failed_commit_is_logged_once(
    options: SourceOptions, cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic(topic, 1)
    now = [100.0]
    # Brokers refuse a group name of this length.
    reader = StreamReader(replace(options, commits_to="g" * 40_000), lambda: now[0])
    start = reader.initialOffset()
    reader.partitions(start, start)
    for _ in range(3):
        assert reader.latestOffset(start, EVERYTHING) == start
    warnings = [
        record.getMessage()
        for record in caplog.records
        if "offsets could not be committed to group" in record.getMessage()
    ]
    assert len(warnings) == 1
