"""Consumers that share partitions through a real ZooKeeper, as another program sees their nodes."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from onceflow.cli import onceflow
from onceflow.client.classic import ConsumerConnector, MessageAndMetadata
from onceflow.client.classic.connector import ConsumerFailed
from onceflow.client.classic.streams import MessageStream
from onceflow.remedies import Remedy
from onceflow.testing import Broker
from onceflow.zookeeper.kazoo_session import ZooKeeperUnavailable
from tests import remedies
from tests.broker.cluster.conftest import NewBroker, Tree
from tests.broker.cluster.link import Link

TOPIC = "clicks"
GROUP = "counting"
OWNERS = f"/consumers/{GROUP}/owners/{TOPIC}"
IDS = f"/consumers/{GROUP}/ids"


@pytest.fixture
def broker(new_broker: NewBroker) -> Iterator[Broker]:
    with new_broker(broker_id=1) as running:
        running.create_topic(TOPIC, 4)
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for partition in range(4):
            producer.produce(TOPIC, b"m", partition=partition)
        assert producer.flush(60) == 0
        yield running


def connector(connect: str, **more: Any) -> ConsumerConnector:
    return ConsumerConnector(
        {
            "zookeeper.connect": connect,
            "group.id": GROUP,
            "auto.offset.reset": "smallest",
            "rebalance.backoff.ms": 300,
            "rebalance.max.retries": 100,
            "zookeeper.session.timeout.ms": 20_000,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )


def read_all(stream: MessageStream, into: list[MessageAndMetadata[Any, Any]]) -> None:
    threading.Thread(target=lambda: into.extend(stream), daemon=True).start()


def test_two_members_share_the_topic(broker: Broker, tree: Tree) -> None:
    read: list[MessageAndMetadata[Any, Any]] = []
    with ExitStack() as stack:
        streams = []
        for _ in range(2):
            member = stack.enter_context(connector(tree.connect))
            streams.append(member.create_message_streams({TOPIC: 1})[TOPIC][0])
            read_all(streams[-1], read)
        tree.await_that(lambda: [len(stream.owned) for stream in streams] == [2, 2])
        first, second = tree.children(IDS)
        owners = [tree.text(f"{OWNERS}/{partition}") for partition in range(4)]
        assert owners == [f"{first}-0"] * 2 + [f"{second}-0"] * 2
        tree.await_that(lambda: len(read) >= 4)
    assert sorted(message.partition for message in read) == [0, 1, 2, 3]
    assert (tree.children(IDS), tree.children(OWNERS)) == ([], [])
    assert [tree.text(f"/consumers/{GROUP}/offsets/{TOPIC}/{partition}") for partition in range(4)] == ["1"] * 4


def test_a_session_that_ends_is_replaced(broker: Broker, tree: Tree, link: Link) -> None:
    """The member continues to read while it cannot reach ZooKeeper, then registers again."""
    with connector(f"{link.address}{tree.chroot}", zookeeper_session_timeout_ms=1_000) as member:
        (stream,) = member.create_message_streams({TOPIC: 1})[TOPIC]
        tree.await_that(lambda: len(stream.owned) == 4)
        session = tree.client.get(f"{tree.chroot}{OWNERS}/0")[1].ephemeralOwner
        link.cut()
        tree.await_that(lambda: tree.children(IDS) == [] and tree.children(OWNERS) == [])
        assert next(stream).message == b"m"
        with pytest.raises(ConsumerFailed, match="were not committed"):
            member.commit_offsets()
        link.open()
        tree.await_that(lambda: len(tree.children(OWNERS)) == 4)
        assert len(tree.children(IDS)) == 1
        assert tree.client.get(f"{tree.chroot}{OWNERS}/0")[1].ephemeralOwner != session
        tree.await_that(lambda: len(stream.owned) == 4)


def test_a_wrong_chroot_is_not_created(broker: Broker, tree: Tree) -> None:
    with connector(f"{tree.connect}-other") as member, pytest.raises(ConsumerFailed) as refused:
        member.create_message_streams({TOPIC: 1})
    remedies.find(Remedy.OTHER_CHROOT, str(refused.value))
    assert tree.client.exists(f"{tree.chroot}-other") is None


def test_no_zookeeper_is_reported() -> None:
    expected = r"zookeeper\.connect 127\.0\.0\.1:1: no session within 0\.05 s"
    with (
        connector("127.0.0.1:1", zookeeper_connection_timeout_ms=50) as member,
        pytest.raises(ZooKeeperUnavailable, match=expected),
    ):
        member.create_message_streams({TOPIC: 1})


def test_consume_is_a_member_of_the_group(broker: Broker, tree: Tree) -> None:
    """It commits what it has printed."""
    arguments = ["consume", TOPIC, "--zookeeper", tree.connect, "--group", GROUP, "--format", "%t %p %o %v %h\\n"]
    printed = CliRunner().invoke(onceflow, [*arguments, "--count", "3"])
    printed_then = CliRunner().invoke(onceflow, [*arguments, "--count", "1"])
    assert (printed.exit_code, printed_then.exit_code) == (0, 0), (printed.output, printed_then.output)
    lines = (printed.stdout + printed_then.stdout).splitlines()
    assert sorted(lines) == [f"{TOPIC} {partition} 0 m " for partition in range(4)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--zookeeper", "zk:2181"], "--zookeeper needs --group"),
        (["--group", "g"], "--group needs --zookeeper; without both, every record"),
        (["--zookeeper", "zk:2181", "--group", "g", "--partition", "1"], "have no effect with --zookeeper"),
        (["--zookeeper-config", os.devnull], "--zookeeper-config has no effect without --zookeeper"),
        (["--zookeeper", "zk:2181", "--group", "g", "--offset", "47"], "--offset is start or end with --zookeeper"),
    ],
)
def test_options_without_effect_are_refused(arguments: list[str], message: str) -> None:
    refused = CliRunner().invoke(onceflow, ["consume", TOPIC, *arguments])
    assert (refused.exit_code, message in refused.stderr) == (2, True)
