"""Apache Kafka 3.9 and Onceflow's broker in one cluster: each follows a partition that the other leads.

Kafka has its default settings. Onceflow's broker is the controller.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.testing import Broker
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.compat.conftest import kafka_jars
from tests.compat.test_zookeeper_nodes import PROPERTIES, VERSION, KafkaOnZooKeeper

ASSIGNMENTS = {"led-by-kafka": [2, 1], "led-by-onceflow": [1, 2]}
RECORDS = 500


class KafkaReplica(KafkaOnZooKeeper):
    """An Apache Kafka that is the second broker of the cluster."""

    properties = PROPERTIES.replace("broker.id=1", "broker.id=2")


def log_of(directory: Path, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((directory / f"{topic}-0").glob("*.log")))


def are_equal(ours: Path, theirs: Path, topic: str) -> bool:
    return log_of(ours, topic) == log_of(theirs, topic)


def send(bootstrap: str, topic: str) -> None:
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(
            topic,
            b"%05d" % number,
            partition=0,
            on_delivery=lambda error, _message: failures.append(error) if error is not None else None,
        )
    assert producer.flush(60) == 0
    assert not failures


@pytest.fixture
def tree(zookeeper: ZooKeeperProcess) -> Any:
    opened = Tree(zookeeper.address, "/mixed")
    yield opened
    opened.close()


def test_brokers_follow_each_other(tree: Tree, tmp_path: Path) -> None:
    """Both logs are equal byte for byte, and Onceflow's broker leads when Kafka stops."""

    def state(topic: str) -> Any:
        return tree.json(f"/brokers/topics/{topic}/partitions/0/state")

    ours, theirs = tmp_path / "onceflow", tmp_path / "kafka"
    with Broker(ours, settings={"zookeeper.connect": tree.connect}) as broker:
        with KafkaReplica(theirs, kafka_jars(VERSION), tree.connect) as kafka:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            topics = [NewTopic(name, 1, replica_assignment=[brokers]) for name, brokers in ASSIGNMENTS.items()]
            for created in admin.create_topics(topics).values():
                created.result(60)
            for name, brokers in ASSIGNMENTS.items():
                tree.await_that(partial(tree.exists, f"/brokers/topics/{name}/partitions/0/state"))
                send(f"{broker.bootstrap_servers},{kafka.bootstrap}", name)
                assert (state(name)["leader"], sorted(state(name)["isr"])) == (brokers[0], [1, 2])
                assert len(log_of(ours, name)) > RECORDS
                tree.await_that(partial(are_equal, ours, theirs / "data", name))
        tree.await_that(lambda: state("led-by-kafka")["leader"] == 1)
        send(broker.bootstrap_servers, "led-by-kafka")
        assert log_of(ours, "led-by-kafka").startswith(log_of(theirs / "data", "led-by-kafka"))
