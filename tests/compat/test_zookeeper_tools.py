"""Kafka 2.8's tools with `--zookeeper`, the last that write topics to ZooKeeper themselves."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from onceflow.testing import Broker
from onceflow.wire import apis
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.raw_client import batch_of, connected
from tests.compat.conftest import kafka_jars
from tests.compat.java_programs import environment

VERSION = "2.8.2"

RunTool = Callable[..., str]


@pytest.fixture
def tree(zookeeper: ZooKeeperProcess) -> Iterator[Tree]:
    """The nodes below a chroot."""
    opened = Tree(zookeeper.address, "/kafka")
    yield opened
    opened.close()


@pytest.fixture
def run_tool(tree: Tree) -> RunTool:
    """Return a function that runs a class of `kafka.admin` and returns its output."""
    classpath = f"{kafka_jars(VERSION)}/*"

    def run(name: str, *words: str) -> str:
        command = ["java", "-cp", classpath, f"kafka.admin.{name}", "--zookeeper", tree.connect, *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_tools_with_zookeeper(tree: Tree, run_tool: RunTool) -> None:
    with Broker(settings={"zookeeper.connect": tree.connect}) as broker:
        wanted = ["--topic", "visits", "--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=7"]
        assert "Created topic visits." in run_tool("TopicCommand", "--create", *wanted)
        with connected(broker.bootstrap_servers) as client:
            tree.await_that(lambda: client.produce("visits", 1, batch_of(b"ann")).error_code == 0)
            run_tool("TopicCommand", "--alter", "--topic", "visits", "--partitions", "3")
            tree.await_that(lambda: client.produce("visits", 2, batch_of(b"ben")).error_code == 0)
            described = run_tool("TopicCommand", "--describe", "--topic", "visits")
            assert "PartitionCount: 3" in described
            assert "Partition: 2\tLeader: 1\tReplicas: 1\tIsr: 1" in described
            assert "Configs: retention.ms=7" in described

            def retention() -> str:
                resources = [{"resource_type": 2, "resource_name": "visits", "configuration_keys": ["retention.ms"]}]
                asked = {"resources": resources, "include_synonyms": False}
                return str(client.ask(apis.DESCRIBE_CONFIGS, 1, **asked).results[0].configs[0].value)

            entity = ["--alter", "--entity-type", "topics", "--entity-name", "visits"]
            run_tool("ConfigCommand", *entity, "--add-config", "retention.ms=8")
            tree.await_that(lambda: retention() == "8")
            assert run_tool("TopicCommand", "--list").split() == ["__consumer_offsets", "__transaction_state", "visits"]
            run_tool("TopicCommand", "--delete", "--topic", "visits")
            tree.await_that(lambda: not tree.exists("/brokers/topics/visits"))
            assert "visits" not in run_tool("TopicCommand", "--list")
            run_tool("TopicCommand", "--create", "--topic", "visits", "--partitions", "1", "--replication-factor", "1")
            tree.await_that(lambda: client.produce("visits", 0, batch_of(b"cat")).base_offset == 0)
