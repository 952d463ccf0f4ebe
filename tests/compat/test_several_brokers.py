"""Onceflow's client and source on an Apache Kafka of two brokers: requests to each partition's leader, and failover."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks import kafka
from onceflow.client import ConsumerConnector, FetchRequest, KeyedMessage, Producer, SimpleConsumer
from onceflow.client.admin import Admin
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import RequestRefused, UnknownTopic
from onceflow.client.records import read_partitions
from onceflow.client.security import Security
from onceflow.client.transactional import TransactionalProducer
from onceflow.spark import connections
from onceflow.spark.reader.options import SourceOptions
from onceflow.spark.reader.stream import StreamReader
from onceflow.spark.reader.subscription import subscribed
from onceflow.wire.errors import ErrorCode
from tests.client.classic.test_connector import Reader, wait_until
from tests.compat.conftest import kafka_jars, tool

PARTITIONS = range(6)
REPLICATED = {
    "default.replication.factor": "2",
    "offsets.topic.replication.factor": "2",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True)
class Two:
    """Start two; the first is the controller as well, so that the second may die."""

    first: kafka.KafkaProcess
    second: kafka.KafkaProcess

    @property
    def bootstrap(self) -> str:
        return f"{self.first.bootstrap},{self.second.bootstrap}"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    tool("java", "apt install default-jdk-headless")
    jars = kafka_jars(kafka.VERSION)
    with kafka.KafkaProcess(tmp_path / "first", jars, REPLICATED) as first:
        second = kafka.KafkaProcess(tmp_path / "second", jars)
        voters = re.search(r"controller\.quorum\.voters=(\S+)", (tmp_path / "first" / "server.properties").read_text())
        assert voters is not None
        second.settings = REPLICATED | {
            "process.roles": "broker",
            "node.id": "2",
            "controller.quorum.voters": voters[1],
            "listeners": f"PLAINTEXT://{second.bootstrap}",
            "advertised.listeners": f"PLAINTEXT://{second.bootstrap}",
        }
        with second, Cluster(first.bootstrap) as cluster:
            wait_until(lambda: len(cluster.router.brokers()) == 2)
            yield Two(first, second)
            if second.process.poll() is None:
                second.kill()


@pytest.fixture
def run_on() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the command line on a cluster."""

    def run(bootstrap: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "onceflow", *words]
        environment = os.environ | {"ONCEFLOW_BOOTSTRAP": bootstrap}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)

    return run


def values_of(cluster: Cluster, topic: str) -> Counter[bytes | None]:
    """Return all committed records of a topic, by value."""
    begins, ends = (
        {partition: at.offset for partition, at in cluster.list_offsets(topic, dict.fromkeys(PARTITIONS, time)).items()}
        for time in (EARLIEST, LATEST)
    )
    return Counter(record.value for _, record in read_partitions(cluster, topic, begins, ends))


def send(producer: Producer, topic: str, text: str) -> Counter[bytes | None]:
    """Return 60 messages, some for each partition."""
    messages = [f"{text} {number}" for number in range(60)]
    producer.send([KeyedMessage(topic, message, key=message) for message in messages])
    return Counter(message.encode() for message in messages)


def transact(producer: TransactionalProducer, topic: str, text: str) -> Counter[bytes | None]:
    """Commit one message in each partition together."""
    producer.begin()
    for partition in PARTITIONS:
        producer.send(topic, f"{text} {partition}".encode(), partition=partition)
    producer.send_offsets(topic, topic, {0: len(text)})
    producer.commit()
    return Counter(f"{text} {partition}".encode() for partition in PARTITIONS)


def is_refused_as_not_leading(consumer: SimpleConsumer, cluster: Cluster) -> bool:
    """Return whether the broker knows the topic. A follower would serve consumers, too (KIP-392)."""
    leaders = cluster.require_topic("without-followers").partitions
    elsewhere = next(partition for partition, leader in leaders.items() if leader == 2)
    try:
        consumer.fetch(FetchRequest("without-followers", elsewhere, 0))
    except UnknownTopic:
        return False
    except RequestRefused as refused:
        return refused.error_code == ErrorCode.not_leader_or_follower
    raise AssertionError("a broker responded for a partition that it does not have")


@pytest.mark.timeout(300)
def test_streams_and_transactions_survive_a_broker(two: Two) -> None:
    """Mission C3 (a stream may span brokers) and C10 (clients rediscover a coordinator that moved)."""
    with (
        Cluster(two.bootstrap) as cluster,
        Producer({"metadata.broker.list": two.bootstrap, "serializer.class": "StringEncoder"}) as producer,
        TransactionalProducer(two.bootstrap, "job") as transactional,
    ):
        leaders = cluster.create_topic("clicks", len(PARTITIONS)).partitions
        assert set(leaders.values()) == {1, 2}
        theirs = next(partition for partition, leader in leaders.items() if leader == 2)
        cluster.create_topic("without-followers", 2, replication_factor=1)
        with SimpleConsumer(*cluster.router.brokers()[1]) as simple:
            wait_until(lambda: is_refused_as_not_leading(simple, cluster))

        sent = send(producer, "clicks", "before") + transact(transactional, "clicks", "transaction before")
        wait_until(lambda: values_of(cluster, "clicks") == sent)
        groups = [f"group-{number}" for number in range(8)]
        for group in groups:
            cluster.commit_offsets(group, "clicks", {theirs: 1})
        coordinators = {Admin(cluster).describe_group(group).coordinator.port for group in groups}
        assert coordinators == {two.first.port, two.second.port}

        config = {"metadata.broker.list": two.bootstrap, "group.id": "streams", "auto.offset.reset": "smallest"}
        with ConsumerConnector(config) as connector:
            (stream,) = connector.create_message_streams({"clicks": 1})["clicks"]
            reader = Reader(stream)
            wait_until(lambda: len(reader.messages) == sent.total())
            assert {message.partition for message in reader.messages} == set(PARTITIONS)

            two.second.kill()
            sent += send(producer, "clicks", "after")
            sent += transact(transactional, "clicks", "transaction after")
            wait_until(lambda: {message.message for message in reader.messages} == sent.keys())
            connector.commit_offsets()
        assert Counter(message.message for message in reader.messages) == sent
        assert values_of(cluster, "clicks") == sent
        for group in groups:
            assert cluster.committed_offsets(group, "clicks") == {theirs: 1}
            cluster.commit_offsets(group, "clicks", {theirs: 2})
        assert cluster.committed_offsets("clicks", "clicks") == {0: len("transaction after")}


def values_in(batches: Iterable[pyarrow.RecordBatch]) -> Counter[bytes | None]:
    return Counter(value for batch in batches for value in batch["value"].to_pylist())


@pytest.mark.timeout(300)
def test_leader_failure_after_planning(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker in the middle of it reads it, and so does a new one with the dead broker as its first address."""
    bootstrap = f"{two.second.bootstrap},{two.first.bootstrap}"
    with (
        Cluster(two.bootstrap) as cluster,
        Producer({"metadata.broker.list": two.bootstrap, "serializer.class": "StringEncoder"}) as producer,
        TransactionalProducer(two.bootstrap, "job") as transactional,
    ):
        leaders = cluster.create_topic("clicks", len(PARTITIONS)).partitions
        assert 2 in [leaders[partition] for partition in PARTITIONS[1:]]
        reader = StreamReader(SourceOptions(bootstrap, subscribed("clicks"), "earliest"))
        start = reader.initialOffset()
        assert reader.partitions(start, start) == []

        sent = send(producer, "clicks", "before") + transact(transactional, "clicks", "transaction before")
        wait_until(lambda: values_of(cluster, "clicks") == sent)
        end = reader.latestOffset(start, ReadAllAvailable())
        (task,) = reader.partitions(start, end)
        reading = reader.read(task)
        first = next(reading)
        two.second.kill()
        assert values_in([first, *reading]) == sent
        as_in_a_new_worker = dict[tuple[str, Security, int], Cluster]()
        monkeypatch.setattr(connections, "_clusters", as_in_a_new_worker)
        assert values_in(reader.read(task)) == sent

        after = send(producer, "clicks", "after") + transact(transactional, "clicks", "transaction after")
        wait_until(lambda: values_of(cluster, "clicks") == sent + after)
        (task,) = reader.partitions(end, reader.latestOffset(end, ReadAllAvailable()))
        assert values_in(reader.read(task)) == after


def test_status_shows_a_dead_broker(two: Two, run_on: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    with Cluster(two.bootstrap) as cluster:
        cluster.create_topic("strict", 2, configs={"min.insync.replicas": "2"})
        cluster.create_topic("alone", 2, replication_factor=1)
    done = run_on(two.bootstrap, "cluster", "status", "--json")
    assert (done.returncode, json.loads(done.stdout)["problems"]) == (0, [])
    two.second.kill()

    def problems() -> dict[str, list[list[str]]]:
        shown = json.loads(run_on(two.first.bootstrap, "cluster", "status", "--json").stdout)
        by_topic: dict[str, list[list[str]]] = {}
        for entry in shown["problems"]:
            by_topic.setdefault(entry["topic"], []).append(entry["problems"])
        return {topic: sorted(listed) for topic, listed in by_topic.items()}

    below = ["below-min-isr", "under-replicated"]
    expected = {"strict": [below, [*below, "not-preferred"]], "alone": [["offline", *below]]}
    wait_until(lambda: problems().items() >= expected.items())
    done = run_on(two.first.bootstrap, "cluster", "status")
    assert done.returncode == 1
    assert "not available" in done.stdout
