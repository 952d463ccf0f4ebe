"""One ZooKeeper for all tests here; each test has a chroot of its own."""

import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from onceflow.testing import Broker
from onceflow.wire import apis
from tests.broker.cluster.link import Link
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess, jars
from tests.broker.raw_client import connected, milliseconds

NewBroker = Callable[..., Broker]
SESSION_MS = 20_000
"""Brokers that stop end their sessions themselves."""

_chroots = itertools.count()


@pytest.fixture(scope="session")
def zookeeper_classpath() -> Path:
    if shutil.which("java") is None:
        pytest.skip("no Java for ZooKeeper: apt install default-jre-headless")
    classpath = jars()
    if classpath is None:
        pytest.skip("no jars of ZooKeeper: install Maven (apt install maven) and let it reach Maven Central")
    return classpath


@pytest.fixture(scope="session")
def zookeeper(zookeeper_classpath: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"), zookeeper_classpath) as running:
        yield running


class Tree:
    """The nodes below the chroot of a test, for a client of its own."""

    def __init__(self, address: str, chroot: str, **settings: Any) -> None:
        """Connect with further settings of KazooClient."""
        self.connect = f"{address}{chroot}"
        self.chroot = chroot
        self.client: Any = KazooClient(address, timeout=60, **settings)
        self.client.start()

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def text(self, path: str) -> str:
        value: bytes = self.client.get(self.chroot + path)[0]
        return value.decode()

    def json(self, path: str) -> Any:
        return json.loads(self.text(path))

    def write(self, path: str, value: str, *, ephemeral: bool = False) -> None:
        if self.exists(path):
            self.client.set(self.chroot + path, value.encode())
        else:
            self.client.create(self.chroot + path, value.encode(), ephemeral=ephemeral, makepath=True)

    def write_json(self, path: str, value: Any) -> None:
        self.write(path, json.dumps(value))

    def delete(self, path: str) -> None:
        self.client.delete(self.chroot + path, recursive=True)

    def exists(self, path: str) -> bool:
        return self.client.exists(self.chroot + path) is not None

    def controller(self) -> int | None:
        """Return the controller's id; its node may go between two requests."""
        try:
            return int(self.json("/controller")["brokerid"])
        except NoNodeError:
            return None

    def children(self, path: str) -> list[str]:
        return sorted(self.client.get_children(self.chroot + path))

    def await_that(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def tree(zookeeper: ZooKeeperProcess) -> Iterator[Tree]:
    opened = Tree(zookeeper.address, f"/cluster-{next(_chroots)}/kafka")
    yield opened
    opened.close()


@pytest.fixture
def link(zookeeper: ZooKeeperProcess) -> Iterator[Link]:
    """The network between a broker and ZooKeeper."""
    with Link(zookeeper.port) as opened:
        yield opened


@pytest.fixture
def new_broker(tree: Tree) -> NewBroker:
    """A factory of brokers on the test's chroot; settings with underscores.

    A broker that stops does not wait for a controller that has stopped before.
    """

    def make(path: Any = None, **settings: Any) -> Broker:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        defaults: dict[str, Any] = {
            "zookeeper.connect": tree.connect,
            "controlled.shutdown.max.retries": 0,
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 6,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
        }
        return Broker(path, settings={**defaults, **named})

    return make


class Brokers:
    """Brokers of a cluster, in this process."""

    def __init__(self, new_broker: NewBroker, directory: Path) -> None:
        self._new_broker = new_broker
        self.directory = directory
        self.running: dict[int, Broker] = {}

    def start(self, broker_id: int, **settings: Any) -> Broker:
        self.running[broker_id] = self._new_broker(
            self.directory / str(broker_id),
            broker_id=broker_id,
            **{"zookeeper_session_timeout_ms": SESSION_MS, **settings},
        ).start()
        return self.running[broker_id]

    def stop(self, broker_id: int) -> None:
        self.running.pop(broker_id).stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.running.values())

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create(self, topic: str, partitions: int = 1, replication_factor: int = 1, configs: Any = None) -> None:
        for broker_id in self.running:
            self.await_controller(broker_id)
        admin = self.admin()
        (created,) = admin.create_topics(
            [NewTopic(topic, partitions, replication_factor, config=configs or {})]
        ).values()
        created.result(30)
        for broker_id in self.running:
            self.await_leaders(topic, broker_id)

    def configure(self, topic: str, name: str, value: str) -> None:
        change = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
        with connected(self.bootstrap.split(",")[0]) as client:
            response = client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
            assert response.responses[0].error_code == 0

    def controller(self, from_broker: int) -> int:
        """Return the controller, as one broker names it."""
        with connected(self.running[from_broker].bootstrap_servers) as client:
            response = client.ask(apis.METADATA, 4, topics=[], allow_auto_topic_creation=False)
            controller_id: int = response.controller_id
            return controller_id

    def await_brokers(self, from_broker: int) -> None:
        """Wait until a broker has heard of all that run."""
        deadline = time.monotonic() + 60
        with connected(self.running[from_broker].bootstrap_servers) as client:
            while True:
                response = client.ask(apis.METADATA, 4, topics=[], allow_auto_topic_creation=False)
                if {broker.node_id for broker in response.brokers} == self.running.keys():
                    return
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def await_controller(self, from_broker: int) -> None:
        """Wait until a broker has heard of the controller: librdkafka asks again for it after a long pause."""
        deadline = time.monotonic() + 60
        while self.controller(from_broker) == -1:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def await_leaders(self, topic: str, from_broker: int) -> None:
        """Wait until a broker has heard of the leader of every partition."""
        deadline = time.monotonic() + 60
        while -1 in self.leaders(topic, from_broker).values():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def delete(self, topic: str) -> None:
        admin = self.admin()
        (deleted,) = admin.delete_topics([topic]).values()
        deleted.result(30)

    def leaders(self, topic: str, from_broker: int) -> dict[int, int]:
        """Return the leader of each partition, as one broker describes them; -1 if there is none."""
        admin = AdminClient({"bootstrap.servers": self.running[from_broker].bootstrap_servers})
        partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
        return {index: partition.leader for index, partition in partitions.items()} or {0: -1}


def create_on(brokers: Brokers, topic: str, replicas: list[int]) -> None:
    """Create a topic with one partition on these brokers."""
    brokers.await_brokers(from_broker=1)
    wanted = {"name": topic, "num_partitions": -1, "replication_factor": -1, "configs": []}
    assignments = [{"partition_index": 0, "broker_ids": replicas}]
    with connected(brokers.running[1].bootstrap_servers) as client:
        response = client.ask(
            apis.CREATE_TOPICS,
            4,
            topics=[{**wanted, "assignments": assignments}],
            timeout=milliseconds(30_000),
            validate_only=False,
        )
        assert response.topics[0].error_code == 0
    for broker_id in brokers.running:
        brokers.await_leaders(topic, broker_id)


@pytest.fixture
def brokers(new_broker: NewBroker, tmp_path: Path) -> Iterator[Brokers]:
    """Three brokers; broker 1 is the first controller."""
    opened = Brokers(new_broker, tmp_path)
    with ExitStack() as stack:
        stack.callback(lambda: [broker.stop() for broker in opened.running.values()])
        for broker_id in (1, 2, 3):
            opened.start(broker_id)
        yield opened
