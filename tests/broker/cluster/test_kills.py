"""Brokers on ZooKeeper that are killed: no acknowledged change or record is lost, and no change is half done."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from onceflow.client.cluster import Cluster
from onceflow.client.errors import ClientError
from onceflow.testing import BrokerProcess
from tests.broker.cluster.conftest import Tree
from tests.broker.raw_client import batch_of, connected
from tests.campaigns import RecordProperty

SEED = 20261126
KILLS = 40


class Changes:
    """Topics that a thread creates and deletes until the broker is killed."""

    def __init__(self, bootstrap: str, round_number: int, seed: int) -> None:
        self.created: set[str] = set()
        self.unknown: set[str] = set()
        """Topics of the change without a response."""
        self._bootstrap = bootstrap
        self._names = f"round-{round_number}"
        self._random = random.Random(seed)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def await_created(self, tree: Tree, count: int) -> None:
        tree.await_that(lambda: len(self.created) >= count)

    def join(self) -> None:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        with Cluster(self._bootstrap, timeout_ms=2_000) as cluster:
            while True:
                number += 1
                is_deletion = bool(self.created) and self._random.random() < 0.4
                name = self._random.choice(sorted(self.created)) if is_deletion else f"{self._names}-{number}"
                self.unknown = {name}
                try:
                    if is_deletion:
                        self.created.discard(name)
                        cluster.delete_topic(name)
                    else:
                        cluster.create_topic(name, self._random.randint(1, 3))
                        self.created.add(name)
                except (ClientError, OSError):
                    return
                self.unknown = set()


def kill_in_rounds(tree: Tree, data: Path, rounds: int, seed: int) -> int:
    """Kill the broker in each round after some changes; return the number of topics that are left."""
    chance = random.Random(seed)
    options = ("--zookeeper-connect", tree.connect, "--zookeeper-session-timeout-ms", "400")
    broker = BrokerProcess(data, 0, *options)
    expected: set[str] = set()
    for round_number in range(rounds):
        broker.start()
        changes = Changes(broker.bootstrap, round_number, chance.randrange(2**32))
        changes.await_created(tree, chance.randint(1, 6))
        broker.kill()
        changes.join()
        expected |= changes.created
        with broker:
            check(tree, broker, expected, changes.unknown)
            expected |= changes.unknown & topics_of(tree)
    return len(expected)


def topics_of(tree: Tree) -> set[str]:
    return {name for name in tree.children("/brokers/topics") if not name.startswith("__")}


def check(tree: Tree, broker: BrokerProcess, expected: set[str], unknown: set[str]) -> None:
    """Check that ZooKeeper, the broker and its disk have the same topics, all of them whole."""
    tree.await_that(lambda: not tree.children("/admin/delete_topics"))
    stored = topics_of(tree)
    assert stored - unknown == expected - unknown
    assert stored == {name for name in tree.children("/config/topics") if not name.startswith("__")}
    with Cluster(broker.bootstrap) as cluster:
        served = {name: topic for name, topic in cluster.topics().items() if not topic.internal}
    assert served.keys() == stored
    partitions = {f"{name}-{index}" for name, topic in served.items() for index in topic.partitions}
    assert {path.name for path in broker.data.glob("round-*")} == partitions
    with connected(broker.bootstrap) as client:
        for name, topic in served.items():
            node = tree.json(f"/brokers/topics/{name}")
            assert node["partitions"] == {str(index): [1] for index in topic.partitions}
            for index in topic.partitions:
                assert tree.json(f"/brokers/topics/{name}/partitions/{index}/state")["leader"] == 1
                assert client.produce(name, index, batch_of(b"ann")).error_code == 0


def test_kills_leave_whole_topics(tree: Tree, tmp_path: Path) -> None:
    kill_in_rounds(tree, tmp_path / "data", 2, SEED)


@pytest.mark.campaign
def test_many_kills_leave_whole_topics(tree: Tree, tmp_path: Path, record_property: RecordProperty) -> None:
    """Topics are created and deleted while the broker is killed; ZooKeeper, broker and disk agree afterwards."""
    record_property("topics", kill_in_rounds(tree, tmp_path / "data", KILLS, SEED))
    record_property("kills", KILLS)


PARTITIONS = 6
ROUNDS = 10


def kill_brokers_in_turn(tree: Tree, directory: Path, rounds: int) -> int:
    """Kill a broker of three in each round, every second time the controller; return the number of records."""
    options = ("--zookeeper-connect", tree.connect, "--zookeeper-session-timeout-ms", "1000")
    brokers = {
        broker_id: BrokerProcess(directory / str(broker_id), 0, *options, "--broker-id", str(broker_id))
        for broker_id in (1, 2, 3)
    }
    sent: list[bytes] = []
    try:
        for broker in brokers.values():
            broker.start()
        with Cluster(brokers[1].bootstrap) as cluster:
            cluster.create_topic("clicks", PARTITIONS)
        for number in range(rounds):
            controller: int = tree.json("/controller")["brokerid"]
            killed = (
                controller if number % 2 == 0 else next(broker_id for broker_id in brokers if broker_id != controller)
            )
            sent += send_some(brokers, number)
            epoch = tree.text("/controller_epoch")
            brokers[killed].kill()
            tree.await_that(lambda killed=killed: not tree.exists(f"/brokers/ids/{killed}"))  # type: ignore[misc]
            tree.await_that(lambda: tree.exists("/controller"))
            assert (tree.text("/controller_epoch") != epoch) == (killed == controller)
            brokers[killed].start()
        assert sorted(read_all(brokers, len(sent))) == sorted(sent)
    finally:
        for broker in brokers.values():
            broker.kill()
    return len(sent)


def send_some(brokers: dict[int, BrokerProcess], number: int) -> list[bytes]:
    """Send records to every partition; return those that were acknowledged."""
    acknowledged: list[bytes] = []

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append(message.value())

    bootstrap = ",".join(broker.bootstrap for broker in brokers.values())
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for index in range(PARTITIONS):
        producer.produce("clicks", b"%d-%d" % (number, index), partition=index, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert len(acknowledged) == PARTITIONS
    return acknowledged


def read_all(brokers: dict[int, BrokerProcess], count: int) -> list[bytes]:
    bootstrap = ",".join(broker.bootstrap for broker in brokers.values())
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition("clicks", index, 0) for index in range(PARTITIONS)])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value() or b"" for message in consumer.consume(count, 0.2)]
    consumer.close()
    return values


@pytest.mark.campaign
def test_killed_brokers_return(tree: Tree, tmp_path: Path, record_property: RecordProperty) -> None:
    """Three brokers with one replica of each partition; one is killed in turn, often the controller, and returns."""
    record_property("records", kill_brokers_in_turn(tree, tmp_path, ROUNDS))
    record_property("kills", ROUNDS)
