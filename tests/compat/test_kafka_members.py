"""Apache Kafka 3.9 in a cluster with Onceflow's brokers: as a member under our controller, and as the controller."""

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.testing import Broker
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.raw_client import connected, milliseconds
from tests.compat.conftest import kafka_jars
from tests.compat.test_zookeeper_nodes import PROPERTIES, VERSION, KafkaOnZooKeeper

PARTITIONS = 4
TOPIC = "clicks"


class Member(KafkaOnZooKeeper):
    """Broker 2 of a cluster."""

    properties = PROPERTIES.replace("broker.id=1", "broker.id=2")


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return {index: partition.leader for index, partition in partitions.items()}


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (created,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values()
    created.result(30)


def check_records(*bootstraps: str) -> None:
    """Send records by one broker and read them by the other."""
    for bootstrap in bootstraps:
        await_that(lambda bootstrap=bootstrap: sorted(leaders(bootstrap, TOPIC).values()) == [1, 1, 2, 2])  # type: ignore[misc]
    values = [b"%03d" % number for number in range(40)]
    producer = Producer({"bootstrap.servers": bootstraps[0], "allow.auto.create.topics": False})
    for number, value in enumerate(values):
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": bootstraps[1], "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    read: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(read) < len(values) and time.monotonic() < deadline:
        read += [message.value() or b"" for message in consumer.consume(10, 0.2)]
    consumer.close()
    assert sorted(read) == values


def has_producer_ids(bootstrap: str) -> bool:
    """Return whether a broker has a block of producer ids from the controller."""
    with connected(bootstrap) as client:
        fields = {"transactional_id": None, "transaction_timeout": milliseconds(60_000)}
        error_code: int = client.ask(apis.INIT_PRODUCER_ID, 1, **fields).error_code
        return error_code == ErrorCode.none


def delete(bootstrap: str, tree: Tree) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_topics([TOPIC]).values()
    deleted.result(30)
    tree.await_that(lambda: not tree.exists(f"/brokers/topics/{TOPIC}"))


def test_kafka_obeys_our_controller(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    tree = Tree(zookeeper.address, "/mixed")
    try:
        with Broker(tmp_path / "ours", settings={"zookeeper.connect": tree.connect}) as ours:
            with Member(tmp_path / "kafka", kafka_jars(VERSION), tree.connect) as theirs:
                await_that(lambda: len(AdminClient({"bootstrap.servers": theirs.bootstrap}).list_topics().brokers) == 2)
                create(ours.bootstrap_servers)
                check_records(ours.bootstrap_servers, theirs.bootstrap)
                await_that(lambda: has_producer_ids(theirs.bootstrap))
                delete(ours.bootstrap_servers, tree)
                assert not list((tmp_path / "kafka").glob(f"data/{TOPIC}-?"))
                create(ours.bootstrap_servers)
                await_that(lambda: sorted(leaders(theirs.bootstrap, TOPIC).values()) == [1, 1, 2, 2])
            await_that(lambda: sorted(leaders(ours.bootstrap_servers, TOPIC).values()) == [-1, -1, 1, 1])
    finally:
        tree.close()


def test_we_obey_kafkas_controller(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    tree = Tree(zookeeper.address, "/mixed")
    try:
        with Member(tmp_path / "kafka", kafka_jars(VERSION), tree.connect) as theirs:
            tree.await_that(lambda: tree.exists("/controller"))
            with Broker(tmp_path / "ours", settings={"zookeeper.connect": tree.connect}) as ours:
                await_that(lambda: len(AdminClient({"bootstrap.servers": theirs.bootstrap}).list_topics().brokers) == 2)
                create(theirs.bootstrap)
                check_records(theirs.bootstrap, ours.bootstrap_servers)
                delete(theirs.bootstrap, tree)
                assert not list((tmp_path / "ours").glob(f"{TOPIC}-?"))
    finally:
        tree.close()
