"""Apache Kafka 3.9 and Onceflow's broker in one cluster: each coordinates transactions over partitions of both."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.broker.topics.internal import partition_of
from onceflow.broker.topics.topics import TRANSACTION_STATE_TOPIC
from onceflow.testing import Broker
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.raw_client import connected
from tests.broker.transactions.transactional_client import TransactionalClient, committed_values
from tests.compat.conftest import kafka_jars
from tests.compat.test_replicas_of_kafka import KafkaReplica
from tests.compat.test_zookeeper_nodes import VERSION

TRANSACTIONAL_IDS = ("ann", "anna", "annie")
"""The first two are in different partitions of two, and all in those of three."""
LEADERS = {"led-by-onceflow": 1, "led-by-kafka": 2}
STATE = {
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


class KafkaCoordinator(KafkaReplica):
    """An Apache Kafka that coordinates some of the transactional ids."""

    properties = KafkaReplica.properties + "".join(f"{name}={value}\n" for name, value in STATE.items())


@pytest.fixture
def tree(zookeeper: ZooKeeperProcess) -> Any:
    opened = Tree(zookeeper.address, "/mixed-transactions")
    yield opened
    opened.close()


def transact(producer: Producer, text: str, *, commit: bool) -> None:
    producer.begin_transaction()
    for topic in LEADERS:
        producer.produce(topic, f"{text} {commit}", partition=0)
    assert producer.flush(60) == 0
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)


def check_transactions(tree: Tree, bootstraps: Mapping[int, str]) -> None:
    """Commit and abort transactions over partitions of two brokers, with each broker as the coordinator.

    The partitions of the coordinators' topic are as many as the brokers.
    """
    admin = AdminClient({"bootstrap.servers": ",".join(bootstraps.values())})
    topics = [NewTopic(name, 1, replica_assignment=[[leader]]) for name, leader in LEADERS.items()]
    for created in admin.create_topics(topics).values():
        created.result(60)
    expected: list[bytes] = []
    coordinators: set[int] = set()
    for transactional_id in TRANSACTIONAL_IDS[: len(bootstraps)]:
        producer = Producer({"bootstrap.servers": ",".join(bootstraps.values()), "transactional.id": transactional_id})
        producer.init_transactions(60)
        index = partition_of(transactional_id, len(bootstraps))
        coordinators.add(tree.json(f"/brokers/topics/{TRANSACTION_STATE_TOPIC}/partitions/{index}/state")["leader"])
        for commit in (True, False, True):
            transact(producer, transactional_id, commit=commit)
        expected += [f"{transactional_id} True".encode()] * 2
        for topic, leader in LEADERS.items():
            condition: Callable[[], bool] = partial(are_committed, bootstraps[leader], topic, expected)
            tree.await_that(condition)
    assert coordinators == bootstraps.keys()


def are_committed(bootstrap: str, topic: str, expected: list[bytes]) -> bool:
    with connected(bootstrap) as client:
        has_open = bool(TransactionalClient(client, "").open_transactions(topic))
        return not has_open and committed_values(client, topic) == expected


def test_brokers_coordinate_for_each_other(tree: Tree, tmp_path: Path) -> None:
    """Each sends markers to the other, and confirms the transactions of the other's partitions."""
    settings: dict[str, str | int] = {"zookeeper.connect": tree.connect, **STATE}
    with (
        Broker(tmp_path / "onceflow", settings=settings) as broker,
        KafkaCoordinator(tmp_path / "kafka", kafka_jars(VERSION), tree.connect) as kafka,
    ):
        bootstraps = {1: broker.bootstrap_servers, 2: kafka.bootstrap}
        check_transactions(tree, bootstraps)
