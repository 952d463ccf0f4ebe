"""Kafka's replication test: brokers of a cluster are stopped or killed while idempotent producers send.

Rules: tests/kafkatest/tests/core/replication_test.py of Apache Kafka 3.9. Added here: both victims at once, the order
within each producer and partition, a comparison of the replicas' logs, and Kafka's ReplicaVerificationTool. Each
broker is Onceflow's or an Apache Kafka 3.9. The client is librdkafka.
"""

import re
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.testing import BrokerProcess
from tests.broker.cluster.conftest import Tree
from tests.compat.copiers import JavaTool
from tests.compat.test_zookeeper_nodes import KafkaOnZooKeeper

TOPIC = "test-topic"
PARTITIONS = 3
PRODUCERS = 2
BOUNCES = 5
RECORDS_PER_SECOND = 1_500
"""Rate of each producer. Kafka's test has no limit; here the load lasts as long as the bounces."""
WITHIN_SECONDS = 120
SETTINGS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "9000",
    "offsets.topic.num.partitions": "3",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
}
"""Settings of each broker; the topic has those of Kafka's test."""
TOOL_VERSION = "3.9.1"
ONCEFLOW, KAFKA = "Onceflow", "Apache Kafka"
REPORT = re.compile(rb"max lag is (-?\d+) for partition \S+ at offset (\d+) among (\d+) partitions")

Sent = dict[tuple[int, int], list[int]]
"""(producer, partition) → numbers of records, in order."""


class Broker(Protocol):
    """A broker that restarts with its data at its address."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def start(self) -> object: ...

    def kill(self) -> None: ...

    def stop(self) -> object: ...


class KafkaBroker(KafkaOnZooKeeper):
    """An Apache Kafka as one broker of the cluster."""

    heap = ("-Xmx512m",)

    def __init__(self, broker_id: int, directory: Path, classpath: Path, connect: str, more: Mapping[str, str]) -> None:
        super().__init__(directory, classpath, connect)
        named = {"broker.id": str(broker_id), "listeners": f"PLAINTEXT://127.0.0.1:{self.port}"}
        named |= {"zookeeper.connect": connect, "log.dirs": str(self.data), **more}
        self._text = "".join(f"{name}={value}\n" for name, value in named.items())

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def format(self) -> None:
        self.directory.mkdir()
        self._properties.write_text(self._text)


class OnceflowBroker(BrokerProcess):
    """One of ours, which may start slowly while the machine is busy."""

    def _first_line(self, _timeout_seconds: float) -> str:
        return super()._first_line(WITHIN_SECONDS)


@dataclass(frozen=True)
class Cell:
    """One way to fail."""

    hard: bool
    bounces: int
    """0: the victims are stopped once."""
    victims: str
    """"leader" of partition 0, "controller" or "both" at the same time."""
    records: int = 100_000

    def __str__(self) -> str:
        return f"{'hard' if self.hard else 'clean'} {'bounces' if self.bounces else 'shutdown'}, {self.victims}"


CELLS = [
    Cell(hard, bounces, victims)
    for hard in (False, True)
    for bounces in (0, BOUNCES)
    for victims in ("leader", "controller", "both")
]


class ReplicatedCluster:
    """Three running brokers on one chroot, with the topic of the test."""

    def __init__(self, tree: Tree, brokers: Mapping[int, Broker], data: Mapping[int, Path]) -> None:
        self._tree = tree
        self.brokers = brokers
        self._data = data
        self.bootstrap = ",".join(broker.bootstrap for broker in brokers.values())

    def create_topic(self) -> None:
        """Create the topic, once the controller has noticed the last broker."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topic = NewTopic(TOPIC, PARTITIONS, len(self.brokers), config={"min.insync.replicas": "2"})
        refusals: list[KafkaException] = []

        def is_created() -> bool:
            (created,) = admin.create_topics([topic]).values()
            try:
                created.result(60)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                    raise
                refusals.append(error)
                return False
            return True

        until(is_created, lambda: refusals[-1])
        self.await_replicas()

    def state(self, partition: int) -> Any:
        return self._tree.json(f"/brokers/topics/{TOPIC}/partitions/{partition}/state")

    def await_replicas(self) -> None:
        """Wait until all replicas are in sync."""
        until(
            lambda: (
                self.is_led and all(len(self.state(index)["isr"]) == len(self.brokers) for index in range(PARTITIONS))
            ),
            lambda: [self.state(index) for index in range(PARTITIONS)] if self.is_led else "no leaders",
        )

    @property
    def is_led(self) -> bool:
        return all(
            self._tree.exists(f"/brokers/topics/{TOPIC}/partitions/{index}/state") for index in range(PARTITIONS)
        )

    def victims(self, which: str) -> list[int]:
        """Return the ids of the brokers to stop now."""
        until(lambda: self._tree.exists("/controller"), lambda: "no controller")
        leader, controller = self.state(0)["leader"], self._tree.json("/controller")["brokerid"]
        return sorted({"leader": {leader}, "controller": {controller}, "both": {leader, controller}}[which])

    def end(self, victims: Sequence[int], *, hard: bool) -> None:
        """Kill or stop brokers at the same time; return when ZooKeeper no longer has them."""
        brokers = [self.brokers[victim] for victim in victims]
        with ThreadPoolExecutor(len(victims)) as pool:
            list(pool.map(lambda broker: broker.kill() if hard else broker.stop(), brokers))
        until(
            lambda: not any(self._tree.exists(f"/brokers/ids/{victim}") for victim in victims),
            lambda: f"{victims} are registered",
        )

    def start(self, brokers: Sequence[int]) -> None:
        with ThreadPoolExecutor(len(brokers)) as pool:
            list(pool.map(lambda broker_id: self.brokers[broker_id].start(), brokers))

    def logs(self, partition: int) -> set[bytes]:
        """Return the different contents of a partition's replicas."""
        directories = [data / f"{TOPIC}-{partition}" for data in self._data.values()]
        return {b"".join(path.read_bytes() for path in sorted(of.glob("*.log"))) for of in directories}


@contextmanager
def replicated_cluster(
    tree: Tree,
    directory: Path,
    jars: Path | None = None,
    kinds: Sequence[str] = (ONCEFLOW,) * 3,
    more: Mapping[str, str] | None = None,
) -> Iterator[ReplicatedCluster]:
    """Start a broker of each kind, with ids from 1; `jars` are Kafka's, `more` are settings of all brokers."""
    settings = {**SETTINGS, **(more or {})}
    brokers: dict[int, Broker] = {}
    data: dict[int, Path] = {}
    with ExitStack() as stack:
        for broker_id, kind in enumerate(kinds, start=1):
            place = directory / f"broker-{broker_id}"
            if kind == KAFKA:
                assert jars is not None
                kafka = KafkaBroker(broker_id, place, jars, tree.connect, settings)
                brokers[broker_id], data[broker_id] = stack.enter_context(kafka), kafka.data
            else:
                named = {"zookeeper.connect": tree.connect, "broker.id": str(broker_id), **settings}
                options = [word for name, value in named.items() for word in (f"--{name.replace('.', '-')}", value)]
                brokers[broker_id] = stack.enter_context(OnceflowBroker(place, 0, *options))
                data[broker_id] = place
        yield ReplicatedCluster(tree, brokers, data)


class Load:
    """Idempotent producers with acks=all, each with a thread: they send the records that they are allowed to."""

    def __init__(self, bootstrap: str, records: int) -> None:
        self._records = records
        self._allowed = 0
        self.acknowledged: Sent = defaultdict(list)
        self.failures: list[str] = []
        self._is_stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(bootstrap, which)) for which in range(PRODUCERS)]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        """Number of acknowledged records."""
        return sum(map(len, list(self.acknowledged.values())))

    def allow(self, records: int) -> None:
        """Let the producers send that number of records, all together."""
        self._allowed = records

    def _send(self, bootstrap: str, which: int) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.failures.append(str(error))
            else:
                self.acknowledged[which, message.partition()].append(int(message.value()[2:]))

        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": WITHIN_SECONDS * 1000,
                "reconnect.backoff.max.ms": 500,
            }
        )
        sent = 0
        while not self._is_stopped.is_set() and sent < self._records // PRODUCERS:
            until_number = min(sent + RECORDS_PER_SECOND // 100, self._allowed // PRODUCERS)
            for number in range(sent, until_number):
                value = b"%d-%06d" % (which, number)
                producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=delivered)
            sent = max(sent, until_number)
            producer.poll(0)
            time.sleep(0.01)
        if producer.flush(WITHIN_SECONDS):
            self.failures.append(f"producer {which} has records without a response")

    def await_count(self, count: int) -> None:
        """Wait until that number of records is acknowledged."""
        until(lambda: self.count >= count, lambda: f"{self.count} of {count} records acknowledged")

    def join(self) -> None:
        """Wait until all records have a response."""
        for thread in self._threads:
            thread.join(4 * WITHIN_SECONDS)
            assert not thread.is_alive()

    def stop(self) -> None:
        self._is_stopped.set()
        self.join()


class Reading:
    """A consumer of all partitions from the first record on, in a thread."""

    def __init__(self, bootstrap: str) -> None:
        self.consumed: Sent = defaultdict(list)
        self.count = 0
        self.failures: list[str] = []
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(bootstrap,))
        self._thread.start()

    def _read(self, bootstrap: str) -> None:
        settings = {"group.id": "reader", "enable.auto.commit": False, "auto.offset.reset": "error"}
        consumer = Consumer({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 500, **settings})
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        offsets = dict.fromkeys(range(PARTITIONS), -1)
        while not self._is_stopped.is_set():
            messages: list[Any] = consumer.consume(5000, 0.2)
            for message in messages:
                if message.error() is not None:
                    self.failures.append(str(message.error()))
                    continue
                partition, offset, value = message.partition(), message.offset(), message.value()
                if offset <= offsets[partition]:
                    self.failures.append(f"offset {offset} of {partition} comes after {offsets[partition]}")
                offsets[partition] = offset
                self.consumed[int(value[:1]), partition].append(int(value[2:]))
                self.count += 1
        consumer.close()

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {WITHIN_SECONDS} s: {what()}"
        time.sleep(0.02)


def shut_down(cluster: ReplicatedCluster, load: Load, cell: Cell) -> None:
    """Stop the victims once under load; one alone stays away until the others have acknowledged everything."""
    load.allow(cell.records)
    load.await_count(cell.records // 4)
    victims = cluster.victims(cell.victims)
    cluster.end(victims, hard=cell.hard)
    if len(victims) == 1:
        load.join()
    cluster.start(victims)


def bounce(cluster: ReplicatedCluster, load: Load, cell: Cell) -> None:
    """Stop and start the victims again and again under load; all replicas are in sync in between."""
    part = cell.records // (cell.bounces + 1)
    for number in range(cell.bounces):
        load.allow((number + 1) * part)
        load.await_count(number * part + part // 4)
        victims = cluster.victims(cell.victims)
        cluster.end(victims, hard=cell.hard)
        cluster.start(victims)
        cluster.await_replicas()
    load.allow(cell.records)


def verify_replicas(cluster: ReplicatedCluster, jars: Path, directory: Path) -> None:
    """Let Kafka's ReplicaVerificationTool read all replicas from their first record, until its lag is 0."""
    options = {"--broker-list": cluster.bootstrap, "--topics-include": TOPIC, "--time": "-2", "--max-wait-ms": "100"}
    words = [word for option in (options | {"--report-interval-ms": "200"}).items() for word in option]
    tool = JavaTool("verification", jars, directory, "ReplicaVerificationTool", *words)

    def has_no_lag() -> bool:
        assert tool.code is None, (tool.printed, tool.log)
        reports = REPORT.findall(tool.printed)
        return bool(reports) and int(reports[-1][0]) == 0 and int(reports[-1][1]) > 0

    tool.start()
    try:
        until(has_no_lag, lambda: (tool.printed[-1000:], tool.log))
        assert b"match" not in tool.printed, tool.printed
        assert int(REPORT.findall(tool.printed)[-1][2]) == PARTITIONS
    finally:
        tool.end(signal.SIGKILL)


def run(cluster: ReplicatedCluster, cell: Cell, tool_jars: Path, directory: Path) -> str:
    """Run a cell; return its figures."""
    began = time.monotonic()
    cluster.create_topic()
    reading = Reading(cluster.bootstrap)
    load = Load(cluster.bootstrap, cell.records)
    try:
        (bounce if cell.bounces else shut_down)(cluster, load, cell)
        load.join()
        until(lambda: reading.count >= load.count, lambda: f"{reading.count} of {load.count} records consumed")
    finally:
        load.stop()
        reading.stop()
    assert not load.failures, load.failures[:5]
    assert not reading.failures, reading.failures[:5]
    assert load.count == cell.records
    assert reading.consumed == load.acknowledged
    cluster.await_replicas()
    for partition in range(PARTITIONS):
        until(lambda: len(cluster.logs(partition)) == 1, lambda: f"the logs of {partition} differ")  # noqa: B023
    verify_replicas(cluster, tool_jars, directory)
    return f"{cell}: {cell.records:,} records, {time.monotonic() - began:.0f} s"
