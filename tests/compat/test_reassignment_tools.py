"""kafka-reassign-partitions.sh and kafka-leader-election.sh on two brokers of Apache Kafka 3.9, and on two of ours."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from onceflow.testing import Broker
from onceflow.wire import apis
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.raw_client import connected, milliseconds
from tests.compat.conftest import kafka_jars
from tests.compat.kafka_tools import KafkaTools, Peers
from tests.compat.test_zookeeper_nodes import PROPERTIES, VERSION, KafkaOnZooKeeper, knows_brokers

TOPIC = "clicks"


class Second(KafkaOnZooKeeper):
    """Broker 2 of a cluster."""

    properties = PROPERTIES.replace("broker.id=1", "broker.id=2")


@pytest.fixture
def peers(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Peers]:
    jars = kafka_jars(VERSION)
    with ExitStack() as stack:
        theirs, ours = (Tree(zookeeper.address, chroot) for chroot in ("/theirs", "/ours"))
        stack.callback(theirs.close)
        stack.callback(ours.close)
        first = stack.enter_context(KafkaOnZooKeeper(tmp_path / "kafka-1", jars, theirs.connect))
        stack.enter_context(Second(tmp_path / "kafka-2", jars, theirs.connect))
        settings: dict[str, Any] = {"zookeeper.connect": ours.connect, "controlled.shutdown.max.retries": 0}
        broker = stack.enter_context(Broker(settings=settings))
        stack.enter_context(Broker(settings={**settings, "broker.id": 2}))
        for tree, bootstrap in ((theirs, first.bootstrap), (ours, broker.bootstrap_servers)):
            tree.await_that(lambda bootstrap=bootstrap: knows_brokers(bootstrap, 2))  # type: ignore[misc]
        yield Peers(KafkaTools(first.bootstrap, jars), KafkaTools(broker.bootstrap_servers, jars))


def refused(bootstrap: str, partition: int, replicas: list[int] | None) -> tuple[int, str | None]:
    """Return the error of a reassignment that the tool itself would not send."""
    topics = [{"name": TOPIC, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
    with connected(bootstrap) as client:
        response = client.ask(apis.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=milliseconds(30_000), topics=topics)
        (topic,) = response.responses
        return topic.partitions[0].error_code, topic.partitions[0].error_message


def test_reassignments_and_elections(peers: Peers, tmp_path: Path) -> None:
    bootstrap = ("--bootstrap-server", "BROKER")
    plan = tmp_path / "plan.json"

    def reassign(replicas: list[int], *words: str) -> list[str]:
        partition = {"topic": TOPIC, "partition": 0, "replicas": replicas}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        arguments = ("--reassignment-json-file", str(plan))
        return peers.same("ReassignPartitionsCommand", *bootstrap, *arguments, *words).lines

    def await_end(replicas: list[int]) -> None:
        deadline = time.monotonic() + 60
        while "No partition reassignments found." not in "".join(
            peers.same("ReassignPartitionsCommand", *bootstrap, "--list").lines
        ):
            assert time.monotonic() < deadline
        assert "is completed" in "".join(reassign(replicas, "--verify"))
        peers.same("TopicCommand", *bootstrap, "--describe", "--topic", TOPIC, about="Partition: 0")

    peers.same("TopicCommand", *bootstrap, "--create", "--topic", TOPIC, "--replica-assignment", "1")
    for replicas in ([2], [2, 1]):
        assert "Successfully started" in "".join(reassign(replicas, "--execute"))
        await_end(replicas)
    reassign([2, 1], "--cancel")
    for partition, target in ((0, [9]), (0, [1, 1]), (0, []), (0, [-1]), (0, None), (7, [1]), (7, None)):
        expected, shown = (refused(tools.bootstrap, partition, target) for tools in (peers.theirs, peers.ours))
        assert shown == expected
    for kind in ("preferred", "unclean"):
        one = ("--topic", TOPIC, "--partition", "0")
        peers.same("LeaderElectionCommand", *bootstrap, "--election-type", kind, *one)
        unknown = ("--topic", "none", "--partition", "7")
        peers.same("LeaderElectionCommand", *bootstrap, "--election-type", kind, *unknown)
