"""The nodes in ZooKeeper after the same acts on Apache Kafka 3.9 and on Onceflow's broker, compared one by one."""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import kafka
from onceflow import services
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.testing import Broker
from onceflow.wire import apis
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.raw_client import connected, milliseconds
from tests.compat.conftest import kafka_jars

VERSION = "3.9.1"
PROPERTIES = """\
broker.id=1
listeners=PLAINTEXT://127.0.0.1:{port}
zookeeper.connect={connect}
log.dirs={directory}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
"""

Nodes = dict[str, tuple[bool, Any]]
"""Path → whether it is ephemeral, and its value."""


class KafkaOnZooKeeper(kafka.KafkaProcess):
    """An Apache Kafka that stores its topics in ZooKeeper."""

    properties = PROPERTIES

    def __init__(self, directory: Path, classpath: Path, connect: str) -> None:
        super().__init__(directory, classpath)
        self._connect = connect

    def format(self) -> None:
        self.directory.mkdir()
        text = self.properties.format(port=self.port, connect=self._connect, directory=self.directory / "data")
        self._properties.write_text(text)


def act(bootstrap: str, tree: Tree) -> None:
    """Change topics in every way."""
    with Cluster(bootstrap) as cluster, connected(bootstrap) as client:
        cluster.create_topic("visits", 2, configs={"retention.ms": "7", "cleanup.policy": "compact"})
        cluster.create_topic("plain", 1)
        cluster.create_topic("deleted", 1)
        Admin(cluster).alter_topic_configs("visits", set={"retention.ms": "8"})
        Admin(cluster).create_partitions("visits", 3)
        client.ask(apis.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout=milliseconds(60_000))
        cluster.delete_topic("deleted")
        tree.await_that(lambda: not tree.exists("/admin/delete_topics/deleted"))
        tree.await_that(lambda: tree.exists("/brokers/topics/visits/partitions/2/state"))


def nodes_of(tree: Tree, port: int) -> Nodes:
    """Return the nodes without those of internal topics; ids, times and the port are replaced by words."""
    nodes: Nodes = {}
    paths = [""]
    while paths:
        path = paths.pop()
        value, stat = tree.client.get(tree.chroot + path)
        nodes[path or "/"] = (stat.ephemeralOwner != 0, comparable((value or b"").decode(), port))
        paths += [f"{path}/{name}" for name in tree.children(path) if not name.startswith("__")]
    return nodes


def comparable(text: str, port: int) -> Any:
    for pattern, word in (
        (r'"timestamp":"\d+"', '"timestamp":"TIME"'),
        (r'"(topic_id|id)":"[\w-]{22}"', r'"\1":"ID"'),
        (rf"\b{port}\b", "1"),
    ):
        text = re.sub(pattern, word, text)
    return json.loads(text) if text.startswith("{") else text


def test_nodes_are_those_of_kafka(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    trees = [Tree(zookeeper.address, chroot) for chroot in ("/theirs", "/ours")]
    theirs, ours = trees
    try:
        with KafkaOnZooKeeper(tmp_path / "kafka", kafka_jars(VERSION), theirs.connect) as running:
            act(running.bootstrap, theirs)
            expected = nodes_of(theirs, running.port)
        with Broker(settings={"zookeeper.connect": ours.connect}, port=services.free_port()) as broker:
            act(broker.bootstrap_servers, ours)
            shown = nodes_of(ours, int(broker.bootstrap_servers.rpartition(":")[2]))
    finally:
        for tree in trees:
            tree.close()
    assert shown == expected
