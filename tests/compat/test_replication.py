"""Kafka's replication test on three of Onceflow's brokers, and on two of them with an Apache Kafka 3.9."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.compat.conftest import kafka_jars
from tests.compat.replication import CELLS, KAFKA, ONCEFLOW, TOOL_VERSION, Cell, replicated_cluster, run
from tests.compat.test_zookeeper_nodes import VERSION

SMALL_CELL = Cell(True, 1, "both", records=3000)
MIXED = (ONCEFLOW, KAFKA, ONCEFLOW)


@pytest.fixture
def tree(zookeeper: ZooKeeperProcess) -> Iterator[Tree]:
    opened = Tree(zookeeper.address, "/replication")
    yield opened
    opened.close()


def test_one_bounce_loses_no_record(tree: Tree, tmp_path: Path) -> None:
    with replicated_cluster(tree, tmp_path) as cluster:
        print(run(cluster, SMALL_CELL, kafka_jars(TOOL_VERSION), tmp_path))


@pytest.mark.campaign
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_kafkas_replication_test(cell: Cell, tree: Tree, tmp_path: Path) -> None:
    """Acknowledged records are consumed once and in order while brokers are stopped or killed; the replicas are equal.

    Victims are the leader, the controller or both, once or five times. The replicas' logs are compared, and Kafka's
    ReplicaVerificationTool reports no lag.
    """
    with replicated_cluster(tree, tmp_path) as cluster:
        print(run(cluster, cell, kafka_jars(TOOL_VERSION), tmp_path))


@pytest.mark.campaign
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_replication_test_on_a_mixed_cluster(cell: Cell, tree: Tree, tmp_path: Path) -> None:
    with replicated_cluster(tree, tmp_path, kafka_jars(VERSION), MIXED) as cluster:
        print(run(cluster, cell, kafka_jars(TOOL_VERSION), tmp_path))
