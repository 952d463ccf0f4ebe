"""Two of Onceflow's brokers and one Apache Kafka 3.9 with its default settings, in one cluster.

Each of them is in turn the controller, and leads and follows partitions.
"""

from pathlib import Path

import pytest

from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.compat.mixed_cluster import KAFKA, let_control, mixed_cluster


@pytest.mark.timeout(600)
def test_each_broker_controls_the_others(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    tree = Tree(zookeeper.address, "/mixed")
    try:
        with mixed_cluster(tree, tmp_path, {}) as mixed:
            for controller in (KAFKA, 3, 1):
                let_control(mixed, controller)
    finally:
        tree.close()
