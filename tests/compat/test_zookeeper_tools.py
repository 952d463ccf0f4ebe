"""Kafka's tools: those of 2.8 with `--zookeeper`, the last that write to ZooKeeper themselves, and those of 3.9."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.broker.settings.authorization import ACL_AUTHORIZER
from onceflow.testing import Broker
from onceflow.wire import apis
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.raw_client import batch_of, connected
from tests.compat.conftest import kafka_jars
from tests.compat.java_programs import environment
from tests.compat.kafka_tools import KafkaTools

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

    def run(name: str, *words: str, zookeeper: bool = True) -> str:
        where = ["--zookeeper", tree.connect] if zookeeper else []
        command = ["java", "-cp", classpath, f"kafka.admin.{name}", *where, *words]
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
            assert "visits" in run_tool("TopicCommand", "--list").split()
            run_tool("TopicCommand", "--delete", "--topic", "visits")
            tree.await_that(lambda: not tree.exists("/brokers/topics/visits"))
            assert "visits" not in run_tool("TopicCommand", "--list")
            run_tool("TopicCommand", "--create", "--topic", "visits", "--partitions", "1", "--replication-factor", "1")
            tree.await_that(lambda: client.produce("visits", 0, batch_of(b"cat")).base_offset == 0)


def test_security_tools(tree: Tree, run_tool: RunTool) -> None:
    """ACLs, users and quotas by the tools of 2.8 in ZooKeeper, and by those of 3.9 at the broker."""
    settings = {
        "zookeeper.connect": tree.connect,
        "authorizer.class.name": ACL_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }
    with Broker(settings=settings) as broker:
        later = KafkaTools(broker.bootstrap_servers, kafka_jars("3.9.1"))
        acls = ("--bootstrap-server", "BROKER", "--list")
        authorizer = ["--authorizer-properties", f"zookeeper.connect={tree.connect}"]
        add = ["--add", "--allow-principal", "User:ada", "--operation", "Read", "--topic", "visits"]
        run_tool("AclCommand", *authorizer, *add, zookeeper=False)
        for line in (
            "Current ACLs for resource `ResourcePattern(resourceType=TOPIC, name=visits, patternType=LITERAL)`:",
            "(principal=User:ada, host=*, operation=READ, permissionType=ALLOW)",
        ):
            assert line in later.run("AclCommand", *acls)
        more = ("--add", "--deny-principal", "User:ben", "--group", "app-", "--resource-pattern-type", "prefixed")
        assert later.run("AclCommand", "--bootstrap-server", "BROKER", *more, "--operation", "Read").code == 0
        listed = run_tool("AclCommand", *authorizer, "--list", zookeeper=False)
        assert "resourceType=GROUP, name=app-, patternType=PREFIXED" in listed and "User:ben" in listed

        user = ["--alter", "--entity-type", "users", "--entity-name", "a da"]
        run_tool("ConfigCommand", *user, "--add-config", "SCRAM-SHA-256=[password=secret],producer_byte_rate=1000")
        shown = later.run("ConfigCommand", "--bootstrap-server", "BROKER", "--describe", "--entity-type", "users")
        assert "Quota configs for user-principal 'a da' are producer_byte_rate=1000.0" in shown
        assert "SCRAM credential configs for user-principal 'a da' are SCRAM-SHA-256=iterations=4096" in shown
        for change in ("SCRAM-SHA-512=[password=secret]", "consumer_byte_rate=7"):
            wanted = ("--bootstrap-server", "BROKER", *user, "--add-config", change)
            assert later.run("ConfigCommand", *wanted).code == 0
        described = run_tool("ConfigCommand", "--describe", "--entity-type", "users", "--entity-name", "a da")
        assert "producer_byte_rate=1000" in described and "consumer_byte_rate=7" in described
        assert "SCRAM-SHA-256=salt=" in described and "SCRAM-SHA-512=salt=" in described


def test_reassignments_with_zookeeper(tree: Tree, run_tool: RunTool, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    partition = {"topic": "visits", "partition": 0}
    plan.write_text(json.dumps({"version": 1, "partitions": [{**partition, "replicas": [2, 1]}]}))
    elections = tmp_path / "elections.json"
    elections.write_text(json.dumps({"partitions": [partition]}))
    settings: dict[str, str | int] = {"zookeeper.connect": tree.connect}
    with Broker(settings=settings), Broker(settings={**settings, "broker.id": 2}):
        tree.await_that(lambda: tree.children("/brokers/ids") == ["1", "2"])
        run_tool("TopicCommand", "--create", "--topic", "visits", "--replica-assignment", "1")
        state = "/brokers/topics/visits/partitions/0/state"
        tree.await_that(lambda: tree.exists(state))
        words = ["--reassignment-json-file", str(plan)]
        assert "Successfully started" in run_tool("ReassignPartitionsCommand", *words, "--execute")
        tree.await_that(lambda: not tree.exists("/admin/reassign_partitions"))
        assert tree.json("/brokers/topics/visits")["partitions"] == {"0": [2, 1]}
        assert "is complete" in run_tool("ReassignPartitionsCommand", *words, "--verify")
        run_tool("PreferredReplicaLeaderElectionCommand", "--path-to-json-file", str(elections))
        tree.await_that(lambda: not tree.exists("/admin/preferred_replica_election"))
        assert tree.json(state)["leader"] == 2
