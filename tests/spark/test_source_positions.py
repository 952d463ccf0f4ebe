"""Positions against a real broker, without Spark: what start and end options mean, how often the broker is asked."""

from collections.abc import Callable

import pytest

from onceflow.client.cluster import Cluster
from onceflow.spark.data_loss import DataLost
from onceflow.spark.offsets import Offsets
from onceflow.spark.options import Position, SourceOptions, WrongOption
from onceflow.spark.positions import ENDS_AGE_MS_MAX, TOPICS_AGE_MS_MAX, LogPositions

Send = Callable[..., None]
NO_ID = "00000000-0000-0000-0000-000000000000"


class Watch:
    """Seconds that pass only when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def positions(cluster: Cluster, topic: str, bootstrap: str, watch: Watch) -> LogPositions:
    cluster.create_topic(topic, 2)
    return LogPositions(cluster, SourceOptions(bootstrap, (topic,), "latest"), watch)


def resolved(positions: LogPositions, topic: str, position: Position) -> dict[int, int]:
    return dict(positions.resolve("startingOffsets", position).by_topic[topic])


def test_earliest_latest_and_exact_offsets(positions: LogPositions, topic: str, send: Send) -> None:
    send(["a", "b", "c"], partition=1)
    assert resolved(positions, topic, "earliest") == {0: 0, 1: 0}
    assert resolved(positions, topic, "latest") == {0: 0, 1: 3}
    assert resolved(positions, topic, Offsets({topic: {0: -2, 1: 2}})) == {0: 0, 1: 2}
    assert resolved(positions, topic, Offsets({topic: {0: 0, 1: -1}})) == {0: 0, 1: 3}


def test_an_end_fixed_earlier_is_what_latest_means(positions: LogPositions, topic: str, send: Send) -> None:
    fixed = positions.ends()
    send(["late"])
    assert positions.resolve("startingOffsets", "latest", fixed) == fixed


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({0: 9, 1: 0}, "option startingOffsets: offset 9 of .*-0 lies beyond its end, 1"),
        ({0: 0}, "-1 is not given; name each partition, -2 is earliest, -1 latest"),
        ({0: 0, 1: 0, 2: 0}, "-2 does not exist; name each partition"),
    ],
)
def test_offsets_that_the_topic_does_not_have_are_refused(
    positions: LogPositions, topic: str, send: Send, given: dict[int, int], sentence: str
) -> None:
    send(["a"])
    with pytest.raises(WrongOption, match=sentence):
        positions.resolve("startingOffsets", Offsets({topic: given}))


def test_offsets_of_another_topic_of_that_name_are_refused(positions: LogPositions, topic: str) -> None:
    with pytest.raises(WrongOption, match=f"with id {NO_ID}, which was deleted and made again"):
        positions.resolve("startingOffsets", Offsets({topic: {0: 0, 1: 0}}, {topic: NO_ID}))


def test_an_idle_query_asks_the_broker_seldom(positions: LogPositions, topic: str, send: Send, watch: Watch) -> None:
    before = positions.ends()
    send(["a"])
    assert positions.ends() is before
    watch.now += ENDS_AGE_MS_MAX / 1000
    assert positions.ends().by_topic[topic] == {0: 1, 1: 0}
    send(["b"])
    assert positions.ends(fresh=True).by_topic[topic] == {0: 2, 1: 0}


def test_a_topic_that_goes_or_comes_is_seen_after_a_while(
    positions: LogPositions, cluster: Cluster, topic: str, watch: Watch
) -> None:
    assert topic in positions.ends().by_topic
    cluster.delete_topic(topic)
    watch.now += TOPICS_AGE_MS_MAX / 1000
    assert positions.ends().by_topic == {}
    cluster.create_topic(topic, 1)
    watch.now += TOPICS_AGE_MS_MAX / 1000
    assert positions.ends().by_topic == {topic: {0: 0}}


def test_a_start_that_is_gone_from_the_log_follows_fail_on_data_loss(
    positions: LogPositions, cluster: Cluster, bootstrap: str, topic: str
) -> None:
    assert positions._resolve_offset("startingOffsets", topic, 0, 7, begin=7, end=9) == 7
    with pytest.raises(DataLost, match=r"-0 \[5, 7\) is gone from the log: the partition now begins at 7"):
        positions._resolve_offset("startingOffsets", topic, 0, 5, begin=7, end=9)
    lenient = LogPositions(cluster, SourceOptions(bootstrap, (topic,), "latest", fail_on_data_loss=False))
    assert lenient._resolve_offset("startingOffsets", topic, 0, 5, begin=7, end=9) == 7
