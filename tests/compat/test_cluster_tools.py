"""Kafka 3.9.1's tools on three brokers with three replicas: the same lines from Apache Kafka on ZooKeeper and ours."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess, jars
from tests.compat.conftest import kafka_jars, tool
from tests.compat.kafka_tools import KafkaTools, Peers, Printed
from tests.compat.known_differences import KNOWN_DIFFERENCES
from tests.compat.replication import KAFKA, ONCEFLOW, ReplicatedCluster, replicated_cluster

VERSION = "3.9.1"
BROKER = ("--bootstrap-server", "BROKER")
ASSIGNMENT = "1:2:3,2:3:1,3:1:2"
SETTINGS = {
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.min.isr": "2",
    "auto.leader.rebalance.enable": "false",
    "zookeeper.session.timeout.ms": "30000",
}
WAIT_SECONDS = 60
TRANSACTION_MS = 900_000
"""Kafka's limit: no open transaction ends by itself during the test."""


@dataclass(frozen=True)
class Clusters:
    """Three brokers of each kind."""

    theirs: ReplicatedCluster
    ours: ReplicatedCluster
    peers: Peers

    @property
    def both(self) -> tuple[ReplicatedCluster, ReplicatedCluster]:
        return self.theirs, self.ours


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    tool("java", "apt install default-jdk-headless")
    classpath, tools = jars(), kafka_jars(VERSION)
    assert classpath is not None, "Maven found Kafka, but no ZooKeeper"
    directory = tmp_path_factory.mktemp("zookeeper")
    with ZooKeeperProcess(directory, classpath) as zookeeper, ExitStack() as stack:
        running = []
        for kind, name in ((KAFKA, "theirs"), (ONCEFLOW, "ours")):
            tree = Tree(zookeeper.address, f"/{name}")
            stack.callback(tree.close)
            place = tmp_path_factory.mktemp(name)
            running.append(stack.enter_context(replicated_cluster(tree, place, tools, [kind] * 3, SETTINGS)))
            tree.await_that(lambda tree=tree: tree.children("/brokers/ids") == ["1", "2", "3"])  # type: ignore[misc]
        theirs, ours = running
        yield Clusters(theirs, ours, Peers(KafkaTools(theirs.bootstrap, tools), KafkaTools(ours.bootstrap, tools)))


def create(clusters: Clusters, topic: str) -> None:
    """Create a topic whose partitions have the same leaders in both clusters, and which keeps records of 1970."""
    configs = ("--config", "min.insync.replicas=2", "--config", "retention.ms=-1")
    words = ("--create", "--topic", topic, "--replica-assignment", ASSIGNMENT, *configs)
    assert clusters.peers.same("TopicCommand", *BROKER, *words).code == 0


def write(bootstrap: str, topic: str, count: int) -> None:
    """Write records to partition 1."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, f"value {number}", partition=1, timestamp=1_000)
    assert producer.flush(WAIT_SECONDS) == 0


def masked(printed: Printed, *columns: int, about: str = "") -> list[str]:
    """Return the lines with `about` without the columns that are each cluster's own."""
    rows = (line.split(" ") for line in printed.lines if about in line)
    return sorted(" ".join("-" if place in columns else word for place, word in enumerate(row)) for row in rows)


def test_topics(clusters: Clusters, topic: str) -> None:
    """Replicas and leaders, a new partition, and a factor that three brokers cannot have."""
    same = clusters.peers.same
    create(clusters, topic)
    name = ("--topic", topic)
    described = same("TopicCommand", *BROKER, "--describe", *name)
    assert "PartitionCount: 3 ReplicationFactor: 3 Configs: min.insync.replicas=2" in described
    assert "Partition: 1 Leader: 2 Replicas: 2,3,1 Isr: 1,2,3" in described
    more = ("--partitions", "4", "--replica-assignment", f"{ASSIGNMENT},3:2:1")
    assert same("TopicCommand", *BROKER, "--alter", *name, *more).code == 0
    assert "Partition: 3 Leader: 3 Replicas: 3,2,1" in same("TopicCommand", *BROKER, "--describe", *name)
    four = ("--partitions", "1", "--replication-factor", "4")
    for refused in clusters.peers.ask("TopicCommand", *BROKER, "--create", "--topic", topic + "-four", *four):
        assert refused.code == 1 and any("Error while executing topic command" in line for line in refused.lines)
    for kind in ("--under-replicated-partitions", "--under-min-isr-partitions", "--unavailable-partitions"):
        assert same("TopicCommand", *BROKER, "--describe", kind).lines == []


def begun(bootstrap: str, topic: str) -> Producer:
    """Begin a transaction with one record in partition 1."""
    settings = {"transactional.id": topic, "transaction.timeout.ms": TRANSACTION_MS}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, "value", partition=1)
    assert producer.flush(WAIT_SECONDS) == 0
    return producer


def test_transactions(clusters: Clusters, topic: str) -> None:
    """An open one, listed, described at its leader and at a follower, not hanging, aborted, and its second one."""
    peers = clusters.peers
    create(clusters, topic)
    producers = [begun(cluster.bootstrap, topic) for cluster in clusters.both]
    place = ("--topic", topic, "--partition", "1")

    def ask(*words: str, own: tuple[int, ...], about: str = "") -> list[str]:
        theirs, ours = peers.ask("TransactionsCommand", *BROKER, *words)
        lines = masked(ours, *own, about=about)
        assert (lines, ours.code) == (masked(theirs, *own, about=about), theirs.code), words
        return lines

    one = ("--transactional-id", topic)
    assert ask("list", own=(1, 2), about=topic) == [f"{topic} - - Ongoing"]
    assert ask("list", "--duration-filter", "1", own=(1, 2), about=topic) == [f"{topic} - - Ongoing"]
    assert ask("list", "--duration-filter", str(TRANSACTION_MS), own=(1, 2), about=topic) == []
    described = ask("describe", *one, own=(0, 2, 6, 7), about=topic)
    assert described == [f"- {topic} - 0 Ongoing {TRANSACTION_MS} - - {topic}-1"]
    for more in ((), ("--broker-id", "2"), ("--broker-id", "3")):
        row, _head = ask("describe-producers", *place, *more, own=(0, 4))
        assert row.startswith("- 0 ") and row.endswith(" - 0"), row
    for where in (("--broker-id", "2"), ("--broker-id", "3"), place):
        (_head,) = ask("find-hanging", *where, "--max-transaction-timeout", "0", own=())
    assert ask("abort", *place, "--start-offset", "7", own=()) == []
    assert ask("abort", *place, "--start-offset", "0", own=()) == []
    row, _head = ask("describe-producers", *place, own=(0, 4))
    assert row.startswith("- 0 0 ") and row.endswith(" None"), row
    assert ask("list", own=(1, 2), about=topic) == [f"{topic} - - Ongoing"], "the coordinator was not asked"
    for producer in producers:
        producer.commit_transaction(WAIT_SECONDS)
    assert ask("list", own=(1, 2), about=topic) == [f"{topic} - - CompleteCommit"]
    shell = ("GetOffsetShell", *BROKER, "--topic", topic)
    assert f"{topic}:1:3" in peers.same(*shell), "a record, the tool's marker and the coordinator's"


def test_offsets_and_groups(clusters: Clusters, topic: str, tmp_path: Path) -> None:
    """Offsets, deleted records, the replicas' log directories, and a group with its coordinator."""
    same = clusters.peers.same
    create(clusters, topic)
    for cluster in clusters.both:
        write(cluster.bootstrap, topic, 5)
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic})
        consumer.commit(offsets=[TopicPartition(topic, 1, 3)], asynchronous=False)
        consumer.close()
    plan = tmp_path / "offsets.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 1, "offset": 2}]}))
    assert f"partition: {topic}-1 low_watermark: 2" in same(
        "DeleteRecordsCommand", *BROKER, "--offset-json-file", str(plan)
    )
    for time, offset in (("earliest", 2), ("latest", 5)):
        shown = same("GetOffsetShell", *BROKER, "--topic-partitions", f"{topic}:1", "--time", time)
        assert shown.lines == [f"{topic}:1:{offset}"]
    for brokers in ("1,2,3", "3"):
        words = ("--describe", "--topic-list", topic, "--broker-list", brokers)
        theirs, ours = (sizes(printed) for printed in clusters.peers.ask("LogDirsCommand", *BROKER, *words))
        assert ours == theirs and len(ours) == 3 * len(brokers.split(","))
    group = (*BROKER, "--describe", "--group", topic)
    assert f"{topic} {topic} 1 3 5 2 - - -" in same("ConsumerGroupCommand", *group)
    states = [masked(printed, 1, 2) for printed in clusters.peers.ask("ConsumerGroupCommand", *group, "--state")]
    assert states[0] == states[1] and f"{topic} - - Empty 0" in states[1]


def sizes(printed: Printed) -> set[tuple[int, str, int, int]]:
    """Return broker, partition, size and lag of each replica."""
    (line,) = (line for line in printed.lines if line.startswith("{"))
    return {
        (broker["broker"], replica["partition"], replica["size"], replica["offsetLag"])
        for broker in json.loads(line.replace("DIRECTORY", "null"))["brokers"]
        for directory in broker["logDirs"]
        for replica in directory["partitions"]
    }


def test_other_commands(clusters: Clusters, topic: str) -> None:
    """Each broker's APIs, the time end to end, and commands for which a broker on ZooKeeper has no API."""
    peers = clusters.peers
    create(clusters, topic)
    for printed in peers.ask("BrokerApiVersionsCommand", *BROKER):
        assert printed.code == 0 and sum("(id: " in line for line in printed.lines) == 3
    for name, *asked in (
        ("ClusterTool", "unregister", *BROKER, "--id", "9"),
        ("MetadataQuorumCommand", *BROKER, "describe", "--status"),
        ("ClientMetricsCommand", *BROKER, "--list"),
        ("DelegationTokenCommand", *BROKER, "--describe", "--command-config", "/dev/null"),
    ):
        theirs, ours = peers.ask(name, *asked)
        assert ours.code == theirs.code, (name, ours, theirs)
    assert "FeatureCommand" in KNOWN_DIFFERENCES
    assert {printed.code for printed in peers.ask("FeatureCommand", *BROKER, "describe")} == {0}
    latency = peers.ask("EndToEndLatency", "BROKER", topic, "20", "all", "100")
    assert all(printed.code == 0 and "Percentiles: 50th" in printed for printed in latency)


def test_a_stopped_broker(clusters: Clusters, topic: str) -> None:
    """The last test of this file: broker 3 leaves, and the others lead and are in sync."""
    same = clusters.peers.same
    create(clusters, topic)
    for cluster in clusters.both:
        write(cluster.bootstrap, topic, 1)
        cluster.end([3], hard=False)
    described = same("TopicCommand", *BROKER, "--describe", "--topic", topic)
    assert "Partition: 2 Leader: 1 Replicas: 3,1,2 Isr: 1,2" in described
    for kind, count in (("under-replicated", 3), ("at-min-isr", 3), ("under-min-isr", 0), ("unavailable", 0)):
        listed = same("TopicCommand", *BROKER, "--describe", "--topic", topic, f"--{kind}-partitions")
        assert len(listed.lines) == count, kind
    preferred = ("--election-type", "preferred", "--topic", topic, "--partition", "2")
    same("LeaderElectionCommand", *BROKER, *preferred)
