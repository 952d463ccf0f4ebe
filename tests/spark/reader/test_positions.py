"""Positions against a real broker, without Spark: start and end options, and the number of requests."""

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.client.cluster import Cluster
from onceflow.client.errors import UnknownTopic
from onceflow.remedies import Remedy
from onceflow.spark.errors import WrongOption
from onceflow.spark.offsets import Offsets
from onceflow.spark.reader.data_loss import DataLost
from onceflow.spark.reader.options import SourceOptions
from onceflow.spark.reader.position_options import AtCommitted, AtTimestamp, Position
from onceflow.spark.reader.positions import TOPICS_AGE_MS_MAX, LogPositions
from onceflow.spark.reader.subscription import read_subscription, subscribed
from tests import remedies

Send = Callable[..., None]
NO_ID = "00000000-0000-0000-0000-000000000000"


class Watch:
    """Clock that only tests advance, in seconds."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def positions(cluster: Cluster, topic: str, bootstrap: str, watch: Watch) -> LogPositions:
    cluster.create_topic(topic, 2)
    return LogPositions(cluster, SourceOptions(bootstrap, subscribed(topic), "latest"), watch)


def resolved(positions: LogPositions, topic: str, position: Position) -> dict[int, int]:
    return dict(positions.resolve("startingOffsets", position).by_topic[topic])


def test_earliest_latest_and_exact_offsets(positions: LogPositions, topic: str, send: Send) -> None:
    send(["a", "b", "c"], partition=1)
    assert resolved(positions, topic, "earliest") == {0: 0, 1: 0}
    assert resolved(positions, topic, "latest") == {0: 0, 1: 3}
    assert resolved(positions, topic, Offsets({topic: {0: -2, 1: 2}})) == {0: 0, 1: 2}
    assert resolved(positions, topic, Offsets({topic: {0: 0, 1: -1}})) == {0: 0, 1: 3}


def test_latest_is_a_given_fixed_end(positions: LogPositions, topic: str, send: Send) -> None:
    fixed = positions.ends()
    send(["late"])
    assert positions.resolve("startingOffsets", "latest", fixed) == fixed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({0: 2, 1: 0}, "option startingOffsets: offset 2 of .*-0 is after its end, 1"),
        ({0: 9, 1: 0}, "option startingOffsets: offset 9 of .*-0 is after its end, 1"),
        ({0: 0}, "-1 is not given; name each partition, -2 is earliest, -1 latest"),
        ({0: 0, 1: 0, 2: 0}, "-2 does not exist; name each partition"),
    ],
)
def test_offsets_outside_the_topic_are_refused(
    positions: LogPositions, topic: str, send: Send, given: dict[int, int], message: str
) -> None:
    send(["a"])
    with pytest.raises(WrongOption, match=message):
        positions.resolve("startingOffsets", Offsets({topic: given}))


def test_offsets_of_recreated_topic_are_refused(positions: LogPositions, topic: str) -> None:
    with pytest.raises(WrongOption, match=f"with id {NO_ID}, which was deleted and recreated"):
        positions.resolve("startingOffsets", Offsets({topic: {0: 0, 1: 0}}, {topic: NO_ID}))


def test_acknowledged_records_move_ends_at_once(positions: LogPositions, topic: str, send: Send) -> None:
    before = positions.ends()
    send(["a"])
    assert positions.known_ends() is before
    assert positions.ends().by_topic[topic] == positions.known_ends().by_topic[topic] == {0: 1, 1: 0}


def test_deleted_and_new_topics_are_noticed(
    positions: LogPositions, cluster: Cluster, topic: str, watch: Watch
) -> None:
    assert topic in positions.ends().by_topic
    cluster.delete_topic(topic)
    watch.now += TOPICS_AGE_MS_MAX / 1000
    assert positions.ends().by_topic == {}
    cluster.create_topic(topic, 1)
    watch.now += TOPICS_AGE_MS_MAX / 1000
    assert positions.ends().by_topic == {topic: {0: 0}}


def test_deleted_start_follows_fail_on_data_loss(
    positions: LogPositions, cluster: Cluster, bootstrap: str, topic: str
) -> None:
    assert positions._resolve_offset("startingOffsets", topic, 0, 7, begin=7, end=9) == 7
    with pytest.raises(DataLost, match=r"-0 \[5, 7\) is missing from the log: the partition now starts at 7"):
        positions._resolve_offset("startingOffsets", topic, 0, 5, begin=7, end=9)
    lenient = LogPositions(cluster, SourceOptions(bootstrap, subscribed(topic), "latest", fail_on_data_loss=False))
    assert lenient._resolve_offset("startingOffsets", topic, 0, 5, begin=7, end=9) == 7


def test_missing_assigned_partition_is_refused(
    positions: LogPositions, cluster: Cluster, bootstrap: str, topic: str
) -> None:
    wanted = read_subscription({"assign": json.dumps({topic: [0, 5]})})
    with pytest.raises(WrongOption, match=f"option assign names {topic}-5, which does not exist"):
        LogPositions(cluster, SourceOptions(bootstrap, wanted, "latest")).resolve("startingOffsets", "latest")


@pytest.mark.remedy(Remedy.LIST_TOPICS)
def test_pattern_without_match_is_refused(cluster: Cluster, bootstrap: str, topic: str) -> None:
    wanted = read_subscription({"subscribepattern": f"{topic}-.*"})
    with pytest.raises(UnknownTopic, match=r"matches no topic at ") as raised:
        LogPositions(cluster, SourceOptions(bootstrap, wanted, "latest")).resolve("startingOffsets", "latest")
    remedies.find(Remedy.LIST_TOPICS, raised.value)
    cluster.create_topic(topic, 1)
    assert topic in CliRunner().invoke(onceflow, ["topic", "list", "--bootstrap", bootstrap]).output
    wanted = read_subscription({"subscribepattern": f"{topic}.*"})
    LogPositions(cluster, SourceOptions(bootstrap, wanted, "latest")).resolve("startingOffsets", "latest")


def test_a_pattern_finds_no_internal_topic(cluster: Cluster, bootstrap: str, topic: str) -> None:
    cluster.create_topic(topic, 1)
    cluster.commit_offsets(f"of-{topic}", topic, {0: 0})
    everything = LogPositions(
        cluster, SourceOptions(bootstrap, read_subscription({"subscribepattern": ".*"}), "latest")
    )
    topics = everything.ends().by_topic
    assert topic in topics
    assert not [name for name in topics if name.startswith("__")]


@pytest.fixture
def dated(positions: LogPositions, topic: str, send: Send) -> LogPositions:
    """Partition 0 has records of second 10, 20 and 30; partition 1 only of second 10."""
    for seconds in (10, 20, 30):
        send(["x"], timestamp=seconds * 1000)
    send(["x"], partition=1, timestamp=10_000)
    return positions


def at(topic: str, *, times: dict[int, int] | None = None, everywhere: int | None = None, fails: bool) -> AtTimestamp:
    return AtTimestamp("startingTimestamp", everywhere, {topic: times} if times else {}, fails)


def test_timestamps_resolve_to_first_later_records(dated: LogPositions, topic: str) -> None:
    assert resolved(dated, topic, at(topic, everywhere=5_000, fails=True)) == {0: 0, 1: 0}
    assert resolved(dated, topic, at(topic, times={0: 20_000, 1: 10_000}, fails=True)) == {0: 1, 1: 0}
    assert resolved(dated, topic, at(topic, everywhere=10_001, fails=False)) == {0: 1, 1: 1}, "partition 1's end"
    with pytest.raises(WrongOption, match=r"no record of .*-1 is dated 10001 ms or later; startingOffsetsByTimestampS"):
        dated.resolve("startingTimestamp", at(topic, everywhere=10_001, fails=True))
    with pytest.raises(WrongOption, match="-1 is not given; name each partition"):
        dated.resolve("startingTimestamp", at(topic, times={0: 5}, fails=False))


def test_timestamp_after_fixed_end_resolves_to_end(positions: LogPositions, topic: str, send: Send) -> None:
    send(["x"], timestamp=10_000)
    fixed = positions.ends(fresh=True)
    send(["late"], timestamp=15_000)
    send(["later"], timestamp=20_000)
    asked = at(topic, everywhere=20_000, fails=False)
    assert dict(positions.resolve("startingTimestamp", asked, fixed).by_topic[topic]) == {0: 1, 1: 0}


def test_committed_offsets_of_a_group(positions: LogPositions, cluster: Cluster, topic: str, send: Send) -> None:
    send(["a", "b", "c"], partition=0)
    send(["a", "b"], partition=1)
    group = f"of-{topic}"
    cluster.commit_offsets(group, topic, {0: 2})
    assert resolved(positions, topic, AtCommitted(group, "earliest")) == {0: 2, 1: 0}
    assert resolved(positions, topic, AtCommitted(group, "latest")) == {0: 2, 1: 2}
    with pytest.raises(WrongOption, match=f"group {group} has committed no offset of {topic}-1; set option"):
        positions.resolve("startingOffsets", AtCommitted(group, "fail"))
    cluster.commit_offsets(group, topic, {0: 4})
    with pytest.raises(WrongOption, match=f"group {group}: offset 4 of {topic}-0 is after its end, 3"):
        positions.resolve("startingOffsets", AtCommitted(group, "latest"))
