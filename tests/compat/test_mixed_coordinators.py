"""Apache Kafka 3.9 and Onceflow's broker in one cluster: each coordinates groups that the other coordinated before."""

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from onceflow.broker.topics.internal import partition_of
from onceflow.testing import Broker
from onceflow.wire import apis
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.raw_client import connected, milliseconds
from tests.compat.conftest import kafka_jars
from tests.compat.test_replicas_of_kafka import KafkaReplica
from tests.compat.test_zookeeper_nodes import VERSION

OFFSETS = "__consumer_offsets"
PARTITIONS = 2
GROUPS = {partition_of(name, PARTITIONS): name for name in ("visitors", "reporters", "c", "d")}
"""A group in each partition."""


class KafkaCoordinator(KafkaReplica):
    """The second broker. The one that is asked first creates the internal topic."""

    properties = (
        KafkaReplica.properties
        + f"offsets.topic.num.partitions={PARTITIONS}\noffsets.topic.replication.factor=2\n"
        + "group.initial.rebalance.delay.ms=0\n"
    )

    def format(self) -> None:
        if not self.directory.exists():
            super().format()


@pytest.fixture
def tree(zookeeper: ZooKeeperProcess) -> Any:
    opened = Tree(zookeeper.address, "/mixed-coordinators")
    yield opened
    opened.close()


def commit(bootstrap: str, offset: int) -> None:
    """Commit as a member of each group, which leaves."""
    for group in GROUPS.values():
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        consumer.subscribe(["clicks"])
        deadline = time.monotonic() + 60
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        consumer.commit(offsets=[TopicPartition("clicks", 0, offset)], asynchronous=False)
        consumer.close()


def committed(bootstrap: str) -> set[int]:
    offsets = set()
    for group in GROUPS.values():
        with Consumer({"bootstrap.servers": bootstrap, "group.id": group}) as consumer:
            (place,) = consumer.committed([TopicPartition("clicks", 0)], timeout=60)
            offsets.add(place.offset)
    return offsets


@pytest.mark.timeout(300)
def test_kafka_and_onceflow_coordinate_in_turn(tree: Tree, tmp_path: Path) -> None:
    def states() -> list[Any]:
        return [tree.json(f"/brokers/topics/{OFFSETS}/partitions/{index}/state") for index in range(PARTITIONS)]

    settings = {"zookeeper.connect": tree.connect, "offsets.topic.num.partitions": str(PARTITIONS)}
    settings |= {"offsets.topic.replication.factor": "2"}
    jars = kafka_jars(VERSION)
    with Broker(tmp_path / "onceflow", settings=settings) as broker:
        ours = broker.bootstrap_servers
        broker.create_topic("clicks")
        kafka = KafkaCoordinator(tmp_path / "kafka", jars, tree.connect)
        both = f"{ours},{kafka.bootstrap}"
        with kafka:
            commit(both, 1)
            assert {state["leader"] for state in states()} == {1, 2}
            assert committed(both) == {1}
        tree.await_that(lambda: {state["leader"] for state in states()} == {1})
        assert committed(ours) == {1}
        commit(ours, 2)
        with kafka:
            tree.await_that(lambda: all(len(state["isr"]) == 2 for state in states()))
            wanted = {"election_type": 0, "topic_partitions": [{"topic": OFFSETS, "partitions": [0, 1]}]}
            with connected(ours) as client:
                client.ask(apis.ELECT_LEADERS, 1, timeout=milliseconds(30_000), **wanted)
            assert {state["leader"] for state in states()} == {1, 2}
            assert committed(both) == {2}
            commit(both, 3)
            assert committed(both) == {3}
