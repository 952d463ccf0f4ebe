"""Group coordinators that move: the leader of a partition of `__consumer_offsets` coordinates its groups."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from onceflow.broker.topics.internal import java_hash, partition_of
from onceflow.testing import Broker
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.conftest import Brokers, NewBroker, Tree
from tests.broker.groups.raw_group import RawGroup
from tests.broker.raw_client import connected, milliseconds

OFFSETS = "__consumer_offsets"
NONE = ErrorCode.none


class Cluster(Brokers):
    """Brokers with the same settings; broker 1 is the first controller."""

    def __init__(self, new_broker: NewBroker, directory: Path, **settings: Any) -> None:
        super().__init__(new_broker, directory)
        self._settings = settings

    def start(self, broker_id: int, **settings: Any) -> Broker:
        return super().start(broker_id, **{**self._settings, **settings})

    def coordinator(self, group: str) -> int:
        """Return the coordinator of a group, once it has one."""
        deadline = time.monotonic() + 60
        with connected(next(iter(self.running.values())).bootstrap_servers) as client:
            while True:
                response = client.ask(apis.FIND_COORDINATOR, 3, key=group, key_type=0)
                if response.error_code == 0 and response.node_id in self.running:
                    return int(response.node_id)
                assert response.error_code in (NONE, ErrorCode.coordinator_not_available)
                assert time.monotonic() < deadline
                time.sleep(0.02)


@pytest.fixture
def new_cluster(new_broker: NewBroker, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """A factory of clusters with these numbers of brokers and replicas."""
    with ExitStack() as stack:

        def make(count: int, replicas: int, **settings: Any) -> Cluster:
            opened = Cluster(new_broker, tmp_path, offsets_topic_replication_factor=replicas, **settings)
            stack.callback(lambda: [broker.stop() for broker in opened.running.values()])
            for broker_id in range(1, count + 1):
                opened.start(broker_id)
            return opened

        yield make


def state(tree: Tree, index: int) -> dict[str, Any]:
    stored: dict[str, Any] = tree.json(f"/brokers/topics/{OFFSETS}/partitions/{index}/state")
    return stored


def test_hash_is_javas() -> None:
    values = {
        "": 0,
        "a": 97,
        "visitors": 1584683461,
        "grüße": 98768023,
        "\U0001f600": 1772899,
        "polygenelubricants": -(2**31),
    }
    assert {text: java_hash(text) for text in values} == values
    assert partition_of("polygenelubricants", 50) == 0


def test_group_continues_at_another_broker(new_cluster: Callable[..., Cluster], tree: Tree) -> None:
    cluster = new_cluster(3, 3)
    cluster.create("clicks", 4)
    places = [TopicPartition("clicks", index, 7 + index) for index in range(4)]
    former = cluster.coordinator("visitors")
    index = partition_of("visitors", 4)
    assert state(tree, index)["leader"] == former
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "visitors"})
    consumer.subscribe(["clicks"])
    deadline = time.monotonic() + 60
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    consumer.commit(offsets=places, asynchronous=False)
    cluster.stop(former)
    for place in places:
        place.offset += 1
    consumer.commit(offsets=places, asynchronous=False)
    assert cluster.coordinator("visitors") != former
    with Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "visitors"}) as other:
        committed = other.committed(places, timeout=60)
        assert [place.offset for place in committed] == [8, 9, 10, 11]
    consumer.close()


def test_topic_is_created_at_the_first_request(new_cluster: Callable[..., Cluster], tree: Tree) -> None:
    """Not before that number of brokers lives, and with the configuration of a compacted topic, as in Kafka."""
    cluster = new_cluster(1, 2)
    with connected(cluster.bootstrap) as client:
        response = client.ask(apis.FIND_COORDINATOR, 3, key="visitors", key_type=0)
        assert (response.error_code, response.node_id) == (ErrorCode.coordinator_not_available, -1)
        assert client.ask(apis.LIST_GROUPS, 4).error_code == NONE
    assert not tree.exists(f"/brokers/topics/{OFFSETS}")
    cluster.start(2)
    assert cluster.coordinator("visitors") in (1, 2)
    assert sorted(tree.json(f"/brokers/topics/{OFFSETS}")["partitions"]) == ["0", "1", "2", "3"]
    assert tree.json(f"/config/topics/{OFFSETS}")["config"] == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(100 * 1024**2),
    }


def test_living_coordinator_resigns(new_cluster: Callable[..., Cluster], tree: Tree) -> None:
    """The preferred replica leads again: members that wait elsewhere ask for it, and it has all offsets."""
    cluster = new_cluster(2, 2, offsets_topic_num_partitions=1, auto_leader_rebalance_enable=False)
    cluster.create("clicks", 1)
    preferred = cluster.coordinator("visitors")
    tree.await_that(lambda: len(state(tree, 0)["isr"]) == 2)
    cluster.stop(preferred)
    (present,) = cluster.running.values()
    tree.await_that(lambda: state(tree, 0)["leader"] not in (preferred, -1))
    with RawGroup(present.bootstrap_servers, "visitors") as group:
        await_served(group)
        assert group.commit("clicks", 7) == NONE
        cluster.start(preferred)
        tree.await_that(lambda: len(state(tree, 0)["isr"]) == 2)
        assert group.commit("clicks", 8) == NONE
        member = group.enter(on="first")
        group.joined(on="first")
        group.send_join(group.join(on="second").member_id, on="second")
        elect_preferred(cluster)
        assert group.joined(on="second").error_code == ErrorCode.not_coordinator
        assert group.commit("clicks", 9) == ErrorCode.not_coordinator
        assert group.beat(1, member) == ErrorCode.not_coordinator
        assert group.describe().error_code == ErrorCode.not_coordinator
        assert group.delete() == {"visitors": ErrorCode.not_coordinator}
        assert group.client().ask(apis.LIST_GROUPS, 4).groups == ()
    with RawGroup(cluster.running[preferred].bootstrap_servers, "visitors") as group:
        await_served(group)
        assert group.offsets() == {("clicks", 0): (8, 0)}
        assert [listed.group_id for listed in group.client().ask(apis.LIST_GROUPS, 4).groups] == ["visitors"]


def await_served(group: RawGroup) -> None:
    deadline = time.monotonic() + 60
    while group.describe().error_code != NONE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def elect_preferred(cluster: Cluster) -> None:
    """Let the controller elect the preferred replica of the partition."""
    deadline = time.monotonic() + 60
    wanted = {"election_type": 0, "topic_partitions": [{"topic": OFFSETS, "partitions": [0]}]}
    while time.monotonic() < deadline:
        for broker in cluster.running.values():
            with connected(broker.bootstrap_servers) as client:
                response = client.ask(apis.ELECT_LEADERS, 1, timeout=milliseconds(30_000), **wanted)
                if response.error_code == NONE:
                    return
    raise AssertionError("no controller")
