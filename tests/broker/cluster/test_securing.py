"""Three brokers, restarted one after another from plaintext to TLS, SCRAM and an authorizer, under load."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow import services
from onceflow.broker.settings.authorization import ACL_AUTHORIZER
from tests.broker.cluster.configured_broker import ConfiguredBroker
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.test_inter_broker import PASSWORD, QUOTED, SCRAM_LOGIN, Settings, store_user
from tests.client.tls import Authority

BROKERS = (1, 2, 3)
PARTITIONS = 3
TOPIC = "visits"


class Load:
    """Numbered records, produced until the end by one client; each must be acknowledged."""

    def __init__(self, settings: dict[str, Any], first: int) -> None:
        self.next = first
        self.errors: list[object] = []
        self.acknowledged: list[int] = []
        self._producer = Producer({"enable.idempotence": True, "linger.ms": 1, **settings})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.005):
            self._produce(self.next)
            self.next += 1
            self._producer.poll(0)

    def _produce(self, number: int) -> None:
        def delivered(error: object, _message: object) -> None:
            if error is None:
                self.acknowledged.append(number)
            else:
                self.errors.append(error)

        self._producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered)

    def stop(self) -> None:
        """End after every record has its acknowledgement."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


class Cluster:
    """Three brokers with fixed ports, each with a plaintext and a secured listener."""

    def __init__(self, tree: Tree, directory: Path) -> None:
        self.tree = tree
        authority = Authority(directory)
        self.trusted = authority.trusted
        self._certificate = authority.issue("127.0.0.1")
        self._directory = directory
        self._ports = {broker_id: (services.free_port(), services.free_port()) for broker_id in BROKERS}
        self.running: dict[int, ConfiguredBroker] = {}

    def addresses(self, *, secured: bool) -> str:
        return ",".join(f"127.0.0.1:{ports[secured]}" for ports in self._ports.values())

    def settings(self, broker_id: int, *, listeners: str, **more: str) -> Settings:
        out, inside = self._ports[broker_id]
        both = {"OUT": f"OUT://127.0.0.1:{out}", "IN": f"IN://127.0.0.1:{inside}"}
        inside_security = {
            "ssl.keystore.location": str(self._certificate),
            "ssl.truststore.location": str(self.trusted),
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.in.scram-sha-512.sasl.jaas.config": SCRAM_LOGIN.format(QUOTED),
        }
        return {
            "broker.id": str(broker_id),
            "zookeeper.connect": self.tree.connect,
            "controlled.shutdown.retry.backoff.ms": "100",
            "replica.fetch.backoff.ms": "100",
            "listeners": ",".join(both[name] for name in listeners.split()),
            "listener.security.protocol.map": "OUT:PLAINTEXT,IN:SASL_SSL",
            **(inside_security if "IN" in listeners else {}),
            **{name.replace("_", "."): text for name, text in more.items()},
        }

    def start(self, broker_id: int, **settings: str) -> None:
        data = self._directory / str(broker_id)
        broker = ConfiguredBroker(data, self.settings(broker_id, **settings))
        broker.start()
        self.running[broker_id] = broker

    def restart_all(self, **settings: str) -> None:
        """Restart one broker after another, each when all replicas are in sync."""
        for broker_id in BROKERS:
            self.running.pop(broker_id).stop()
            self.start(broker_id, **settings)
            self.tree.await_that(self.is_in_sync)

    def is_in_sync(self) -> bool:
        paths = [f"/brokers/topics/{TOPIC}/partitions/{index}/state" for index in range(PARTITIONS)]
        return all(self.tree.exists(path) and sorted(self.tree.json(path)["isr"]) == [1, 2, 3] for path in paths)


@pytest.fixture
def cluster(tree: Tree, tmp_path: Path) -> Iterator[Cluster]:
    opened = Cluster(tree, tmp_path)
    try:
        for broker_id in BROKERS:
            opened.start(broker_id, listeners="OUT")
        yield opened
    finally:
        for broker in opened.running.values():
            broker.stop()


def read_all(settings: dict[str, Any]) -> list[list[int]]:
    """Return the numbers in each partition, in their order."""
    consumer = Consumer({"group.id": "g", "enable.auto.commit": False, "enable.partition.eof": False, **settings})
    try:
        numbers = []
        for index in range(PARTITIONS):
            partition = TopicPartition(TOPIC, index, 0)
            _low, high = consumer.get_watermark_offsets(partition, timeout=30)
            consumer.assign([partition])
            messages = [message for message in consumer.consume(high, timeout=60) if message.error() is None]
            numbers.append([int(message.value() or b"") for message in messages])
        return numbers
    finally:
        consumer.close()


def test_a_cluster_is_secured_under_load(cluster: Cluster) -> None:
    """Every acknowledged record is there, once and in order, and no client has an error that is not retried."""
    plain: dict[str, Any] = {"bootstrap.servers": cluster.addresses(secured=False)}
    secured: dict[str, Any] = {
        "bootstrap.servers": cluster.addresses(secured=True),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.trusted),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "broker",
        "sasl.password": PASSWORD,
    }
    admin = AdminClient(plain)
    cluster.tree.await_that(lambda: admin.list_topics(timeout=10).controller_id != -1)
    store_user(cluster.tree)
    (created,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})]).values()
    created.result(30)
    cluster.tree.await_that(cluster.is_in_sync)
    load = Load(plain, 0)
    try:
        cluster.restart_all(listeners="OUT IN")
        cluster.restart_all(listeners="OUT IN", inter_broker_listener_name="IN")
    finally:
        load.stop()
    later = Load(secured, load.next)
    try:
        security = {"authorizer_class_name": ACL_AUTHORIZER, "super_users": "User:broker"}
        cluster.restart_all(listeners="IN", inter_broker_listener_name="IN", **security)
    finally:
        later.stop()
    assert (load.errors, later.errors) == ([], [])
    assert len(load.acknowledged) > 0 < len(later.acknowledged)
    expected = [[number for number in range(later.next) if number % PARTITIONS == index] for index in range(PARTITIONS)]
    read = read_all(secured)
    missing = [sorted(set(wanted) - set(numbers)) for wanted, numbers in zip(expected, read, strict=True)]
    assert missing == [[], [], []]
    assert read == expected
