"""A broker's session with ZooKeeper ends when its process dies, also by kill -9, and only then."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.testing import BrokerProcess
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.link import Link
from tests.broker.cluster.processes import closer_of, is_alive

SESSION_MS = "60000"
"""Longer than any test waits: a session that ends was closed."""
FROZEN_SECONDS = 1.0


@pytest.fixture
def broker(tree: Tree, link: Link, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose connection with ZooKeeper can be cut."""
    connect = f"{link.address}{tree.chroot}"
    options = ("--zookeeper-connect", connect, "--zookeeper-session-timeout-ms", SESSION_MS)
    with BrokerProcess(tmp_path / "data", 0, *options) as started:
        yield started


def session(tree: Tree) -> int:
    """Return the session that registered the broker."""
    owner: int = tree.client.get(f"{tree.chroot}/brokers/ids/1")[1].ephemeralOwner
    return owner


def await_end(tree: Tree, closer: int) -> None:
    tree.await_that(lambda: not is_alive(closer))


def test_session_of_a_killed_broker_is_closed(broker: BrokerProcess, tree: Tree) -> None:
    for _process in range(2):
        closer = closer_of(broker.pid)
        broker.kill()
        tree.await_that(lambda: not tree.exists("/brokers/ids/1") and not tree.exists("/controller"))
        await_end(tree, closer)
        broker.start()
        assert tree.exists("/brokers/ids/1")


def test_session_after_an_expired_one_is_closed(tree: Tree, link: Link, tmp_path: Path) -> None:
    options = ("--zookeeper-connect", f"{link.address}{tree.chroot}", "--zookeeper-session-timeout-ms", "1000")
    broker = BrokerProcess(tmp_path / "data", 0, *options).start()
    closer, former = closer_of(broker.pid), session(tree)
    link.cut()
    tree.await_that(lambda: not tree.exists("/brokers/ids/1"))
    link.open()
    tree.await_that(lambda: tree.exists("/brokers/ids/1"))
    last = session(tree)
    broker.kill()
    await_end(tree, closer)
    assert last != former
    assert f"session {last:x} with ZooKeeper is closed" in broker.log_path.read_text()


def test_frozen_broker_keeps_its_session(broker: BrokerProcess, tree: Tree) -> None:
    kept, closer = session(tree), closer_of(broker.pid)
    os.kill(broker.pid, signal.SIGSTOP)
    # These are for all processes of a terminal or a service.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(closer, number)
    time.sleep(FROZEN_SECONDS)
    assert session(tree) == kept
    assert is_alive(closer)
    os.kill(broker.pid, signal.SIGCONT)
    assert broker.stop() == 0
    await_end(tree, closer)
    assert "with ZooKeeper is closed" not in broker.log_path.read_text()


def test_zookeeper_away_at_the_death(tree: Tree, link: Link, tmp_path: Path) -> None:
    settings = {"session.timeout.ms": SESSION_MS, "connection.timeout.ms": "3000"}
    options = [word for name, value in settings.items() for word in (f"--zookeeper-{name.replace('.', '-')}", value)]
    broker = BrokerProcess(tmp_path / "data", 0, "--zookeeper-connect", f"{link.address}{tree.chroot}", *options)
    broker.start()
    closer = closer_of(broker.pid)
    link.cut()
    broker.kill()
    await_end(tree, closer)
    assert tree.exists("/brokers/ids/1")
    assert "the session of a broker that died ends by its timeout" in broker.log_path.read_text()


def test_a_dead_closer_is_reported(broker: BrokerProcess, tree: Tree, link: Link) -> None:
    os.kill(closer_of(broker.pid), signal.SIGKILL)
    link.cut()
    link.open()
    tree.await_that(lambda: "the closer of the session with ZooKeeper has died" in broker.log_path.read_text())
    assert broker.stop() == 0
    assert not tree.exists("/brokers/ids/1")


def test_a_stop_without_zookeeper_is_completed(broker: BrokerProcess, tree: Tree, link: Link) -> None:
    closer = closer_of(broker.pid)
    link.cut()
    assert broker.stop() == 0
    assert tree.exists("/brokers/ids/1")
    link.open()
    tree.await_that(lambda: not tree.exists("/brokers/ids/1"))
    await_end(tree, closer)
