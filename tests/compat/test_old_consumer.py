"""Kafka 1.1.1's console consumer through ZooKeeper, in one group with ours, on Apache Kafka 3.9 and on our broker."""

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest
from confluent_kafka import Producer
from kazoo.exceptions import NoNodeError

from benchmarks import maven
from onceflow.client.classic import ConsumerConnector, StringDecoder
from onceflow.client.cluster import Cluster
from onceflow.testing import BrokerProcess
from onceflow.wire import TopicPartition
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.compat.conftest import kafka_jars
from tests.compat.test_zookeeper_nodes import VERSION, KafkaOnZooKeeper, knows_brokers

OLD_VERSION = "1.1.1"
"""The last release with `--zookeeper`."""
GROUP = "counting"
TOPICS = {"clicks": 5, "views": 3}
MESSAGES = 20


@pytest.fixture(scope="session")
def old_jars() -> Path:
    jars = maven.copied(f"kafka-{OLD_VERSION}", "old-kafka-pom.xml", kafka_version=OLD_VERSION)
    if jars is None:
        pytest.skip(f"no jars of Apache Kafka {OLD_VERSION}: install Maven (apt install maven)")
    return jars


@pytest.fixture
def tree(zookeeper: ZooKeeperProcess) -> Iterator[Tree]:
    opened = Tree(zookeeper.address, "/old")
    yield opened
    opened.close()


class Lines:
    """Lines of a stream, read in a thread."""

    def __init__(self, stream: IO[str]) -> None:
        self.read: list[str] = []
        threading.Thread(target=lambda: self.read.extend(line.strip() for line in stream), daemon=True).start()


@contextmanager
def console_consumer(jars: Path, connect: str, strategy: str, log: Path) -> Iterator[Lines]:
    command = ["java", "-Xmx128m", "-cp", f"{jars}/*", "kafka.tools.ConsoleConsumer", "--zookeeper", connect]
    command += ["--whitelist", ",".join(TOPICS)]
    for setting in (
        f"group.id={GROUP}",
        # With smallest, the tool refuses a group that has offsets.
        "auto.offset.reset=largest",
        "rebalance.backoff.ms=1000",
        "rebalance.max.retries=60",
        f"partition.assignment.strategy={strategy}",
    ):
        command += ["--consumer-property", setting]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            yield Lines(process.stdout)
        finally:
            process.terminate()
            process.wait(60)


def send(bootstrap: str, prefix: str) -> None:
    """Send messages with texts of their own to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic, partitions in TOPICS.items():
        for partition in range(partitions):
            for number in range(MESSAGES):
                producer.produce(topic, f"{prefix} {topic} {partition} {number}", partition=partition)
    assert producer.flush(120) == 0


def owners(tree: Tree) -> dict[TopicPartition, str]:
    by_place = {}
    for topic, partitions in TOPICS.items():
        for partition in range(partitions):
            path = f"/consumers/{GROUP}/owners/{topic}/{partition}"
            with suppress(NoNodeError):
                by_place[topic, partition] = tree.text(path).rpartition("-")[0]
    return by_place


def broker_of(name: str, directory: Path, tree: Tree) -> KafkaOnZooKeeper | BrokerProcess:
    if name == "kafka":
        return KafkaOnZooKeeper(directory, kafka_jars(VERSION), tree.connect)
    options = ("--zookeeper-connect", tree.connect, "--log-message-downconversion-enable", "true")
    return BrokerProcess(directory, 0, *options)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
@pytest.mark.parametrize("broker_name", ["kafka", "onceflow"])
def test_kafkas_old_consumer_shares_a_group(
    tree: Tree, old_jars: Path, tmp_path: Path, broker_name: str, strategy: str
) -> None:
    """Each partition has one owner, both agree on it, and each message is read once while members join and leave."""
    ours: list[str] = []

    def are_shared() -> bool:
        shares = Counter(owners(tree).values())
        return sum(shares.values()) == sum(TOPICS.values()) and len(shares) == 2

    with broker_of(broker_name, tmp_path / "broker", tree) as broker:
        tree.await_that(lambda: knows_brokers(broker.bootstrap, 1))
        with Cluster(broker.bootstrap) as cluster:
            for topic, partitions in TOPICS.items():
                cluster.create_topic(topic, partitions)
        settings: dict[str, Any] = {
            "zookeeper.connect": tree.connect,
            "group.id": GROUP,
            "auto.offset.reset": "smallest",
            "rebalance.max.retries": 60,
            "rebalance.backoff.ms": 1000,
            "partition.assignment.strategy": strategy,
        }
        with ConsumerConnector(settings) as connector:
            streams = connector.create_message_streams(dict.fromkeys(TOPICS, 1), value_decoder=StringDecoder())
            for (stream,) in streams.values():
                reader = (str(message.message) for message in stream)
                threading.Thread(target=ours.extend, args=(reader,), daemon=True).start()
            send(broker.bootstrap, "first")
            tree.await_that(lambda: len(ours) == sum(TOPICS.values()) * MESSAGES)
            # Kafka's consumer reads offsets before it owns the partitions, and would miss a commit in between.
            connector.commit_offsets()
            with console_consumer(old_jars, tree.connect, strategy, tmp_path / "console.log") as theirs:
                tree.await_that(are_shared)
                send(broker.bootstrap, "second")
                tree.await_that(lambda: len(ours) + len(theirs.read) >= 2 * sum(TOPICS.values()) * MESSAGES)
                assert are_shared()
            tree.await_that(lambda: len(owners(tree)) == sum(TOPICS.values()) and len({*owners(tree).values()}) == 1)
            send(broker.bootstrap, "third")
            tree.await_that(lambda: len(ours) + len(theirs.read) >= 3 * sum(TOPICS.values()) * MESSAGES)
        offsets = [
            tree.text(f"/consumers/{GROUP}/offsets/{topic}/{partition}")
            for topic, partitions in TOPICS.items()
            for partition in range(partitions)
        ]
    assert offsets == [str(3 * MESSAGES)] * len(offsets)
    assert Counter([*ours, *theirs.read]) == Counter(
        f"{prefix} {topic} {partition} {number}"
        for prefix in ("first", "second", "third")
        for topic, partitions in TOPICS.items()
        for partition in range(partitions)
        for number in range(MESSAGES)
    )
    assert len(theirs.read) > 0
