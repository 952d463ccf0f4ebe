"""Brokers killed while they lead replicated partitions: no acknowledged record is lost, none is there twice."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.testing import BrokerProcess
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.processes import crash
from tests.campaigns import RecordProperty

BROKERS = (1, 2, 3)
PARTITIONS = 3
SEED = 20261126
KILLS = 30
RECORDS_BETWEEN = 300


class Load:
    """An idempotent producer with acks=all, which counts through the partitions until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.failures: list[str] = []
        self._stop = threading.Event()
        settings = {"linger.ms": 1, "message.timeout.ms": 120_000, "reconnect.backoff.max.ms": 500}
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[message.partition()].append(message.value())

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.002):
            for _ in range(PARTITIONS):
                value = b"%08d" % number
                self._producer.produce("t", value, partition=number % PARTITIONS, on_delivery=self._delivered)
                number += 1
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def await_more(self, tree: Tree) -> None:
        """Wait until `RECORDS_BETWEEN` more records are acknowledged."""
        wanted = self.count + RECORDS_BETWEEN
        tree.await_that(lambda: self.count >= wanted)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()


@contextmanager
def brokers_of(tree: Tree, directory: Path, *settings: str) -> Iterator[dict[int, BrokerProcess]]:
    options = ("--zookeeper-connect", tree.connect, "--zookeeper-session-timeout-ms", "2000", *settings)
    brokers = {
        broker_id: BrokerProcess(directory / str(broker_id), 0, *options, "--broker-id", str(broker_id))
        for broker_id in BROKERS
    }
    with ExitStack() as stack:
        for broker in brokers.values():
            stack.enter_context(broker)
        yield brokers


def read(bootstrap: str, partition: int, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", partition, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [value for message in consumer.consume(1000, 0.2) if (value := message.value()) is not None]
    consumer.close()
    return values


def logs(directory: Path, partition: int) -> set[bytes]:
    paths = [sorted((directory / str(broker_id) / f"t-{partition}").glob("*.log")) for broker_id in BROKERS]
    return {b"".join(path.read_bytes() for path in of_broker) for of_broker in paths}


def await_equal_logs(tree: Tree, directory: Path, partition: int) -> None:
    tree.await_that(lambda: len(logs(directory, partition)) == 1)


def kill_leaders(tree: Tree, directory: Path, kills: int, seed: int) -> int:
    """Kill the leader of a partition again and again; return the number of records."""
    chance = random.Random(seed)
    with brokers_of(tree, directory) as brokers:
        bootstrap = ",".join(broker.bootstrap for broker in brokers.values())
        admin = AdminClient({"bootstrap.servers": bootstrap})
        (created,) = admin.create_topics([NewTopic("t", PARTITIONS, 3)]).values()
        created.result(30)

        def state(partition: int) -> Any:
            return tree.json(f"/brokers/topics/t/partitions/{partition}/state")

        def await_replicas() -> None:
            tree.await_that(lambda: all(len(state(partition)["isr"]) == 3 for partition in range(PARTITIONS)))

        load = Load(bootstrap)
        for _ in range(kills):
            load.await_more(tree)
            victim = brokers[state(chance.randrange(PARTITIONS))["leader"]]
            crash(victim, chance)
            load.await_more(tree)
            victim.start()
            await_replicas()
        load.stop()
        assert not load.failures
        for partition, acknowledged in enumerate(load.acknowledged):
            assert read(bootstrap, partition, len(acknowledged)) == acknowledged
            await_equal_logs(tree, directory, partition)
        return load.count


def test_killed_leaders_lose_no_record(tree: Tree, tmp_path: Path) -> None:
    assert kill_leaders(tree, tmp_path, 1, SEED) >= 2 * RECORDS_BETWEEN


@pytest.mark.campaign
def test_many_killed_leaders(tree: Tree, tmp_path: Path, record_property: RecordProperty) -> None:
    """Acknowledged records of replicated partitions are there once and in order after kills of leaders and controllers;
    the logs of all replicas are equal byte for byte."""
    record_property("records", kill_leaders(tree, tmp_path, KILLS, SEED))
    record_property("kills", KILLS)
