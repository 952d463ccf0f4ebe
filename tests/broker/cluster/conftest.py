"""One ZooKeeper for all tests here; each test has a chroot of its own."""

import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from onceflow.testing import Broker
from tests.broker.cluster.zookeeper_process import Link, ZooKeeperProcess, jars

_chroots = itertools.count()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    if shutil.which("java") is None:
        pytest.skip("no Java for ZooKeeper: apt install default-jre-headless")
    classpath = jars()
    if classpath is None:
        pytest.skip("no jars of ZooKeeper: install Maven (apt install maven) and let it reach Maven Central")
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"), classpath) as running:
        yield running


class Tree:
    """The nodes below the chroot of a test, for a client of its own."""

    def __init__(self, address: str, chroot: str) -> None:
        self.connect = f"{address}{chroot}"
        self.chroot = chroot
        self.client: Any = KazooClient(address, timeout=60)
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

    def delete(self, path: str) -> None:
        self.client.delete(self.chroot + path, recursive=True)

    def exists(self, path: str) -> bool:
        return self.client.exists(self.chroot + path) is not None

    def children(self, path: str) -> list[str]:
        return sorted(self.client.get_children(self.chroot + path))

    def await_that(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
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
def new_broker(tree: Tree) -> Callable[..., Broker]:
    """A factory of brokers on the test's chroot; settings with underscores.

    A broker that stops does not wait for a controller that has stopped before.
    """

    def make(path: Any = None, **settings: Any) -> Broker:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        defaults: dict[str, Any] = {"zookeeper.connect": tree.connect, "controlled.shutdown.max.retries": 0}
        return Broker(path, settings={**defaults, **named})

    return make
