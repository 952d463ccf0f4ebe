"""A producer's first batch, which a former leader refuses late: librdkafka sends its second one first."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow import services
from onceflow.wire import apis, produce
from onceflow.wire.batch import read_header
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import read_request_header
from tests.broker.cluster.configured_broker import ConfiguredBroker
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.link import Link
from tests.broker.raw_client import connected, milliseconds

BROKERS = (1, 2)
EARLY_MIN = 2
"""Second batches that came first; on an idle machine they do in about four of ten rounds."""
ROUNDS_MAX = 40
_PRODUCE = apis.PRODUCE.to_bytes(2)
TOPIC = "visits"


class ProduceGate(Link):
    """Forwards a client's requests to a broker; while it holds Produce requests, others pass them."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__(upstream_port)
        self.holds = threading.Event()
        """Set when a request waits."""
        self.sequences: list[int] = []
        """First sequence of each batch that did not wait."""
        self._lock = threading.Lock()
        self._waiting: list[tuple[socket.socket, bytes]] | None = None

    def hold(self) -> None:
        self.holds.clear()
        self._waiting = []

    def release(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
            for broker, frame in waiting or ():
                with suppress(OSError):  # The client has reconnected.
                    broker.sendall(frame)

    def _copy_requests(self, client: socket.socket, upstream: socket.socket) -> None:
        with client.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                self._send(upstream, size + stream.read(int.from_bytes(size)))

    def _send(self, broker: socket.socket, frame: bytes) -> None:
        with self._lock:
            if frame[4:6] == _PRODUCE:
                if self._waiting is not None:
                    self._waiting.append((broker, frame))
                    self.holds.set()
                    return
                self._note_sequences(memoryview(frame)[4:])
            broker.sendall(frame)

    def _note_sequences(self, request: memoryview) -> None:
        for _topic, partitions in produce.parse_request(request, read_request_header(request)).topics:
            self.sequences += [read_header(records).base_sequence for _, records in partitions if records]


class Cluster:
    """Two brokers, which clients reach through a gate each, and other brokers directly."""

    def __init__(self, tree: Tree, directory: Path, stack: ExitStack) -> None:
        self._tree = tree
        self.gates: dict[int, ProduceGate] = {}
        self.addresses: dict[int, str] = {}
        for broker_id in BROKERS:
            port, inside = services.free_port(), services.free_port()
            gate = self.gates[broker_id] = stack.enter_context(ProduceGate(port))
            self.addresses[broker_id] = gate.address
            settings = {
                "broker.id": str(broker_id),
                "zookeeper.connect": tree.connect,
                "controlled.shutdown.max.retries": "0",
                "listeners": f"OUT://127.0.0.1:{port},IN://127.0.0.1:{inside}",
                "advertised.listeners": f"OUT://127.0.0.1:{gate.port},IN://127.0.0.1:{inside}",
                "listener.security.protocol.map": "OUT:PLAINTEXT,IN:PLAINTEXT",
                "inter.broker.listener.name": "IN",
            }
            broker = ConfiguredBroker(directory / str(broker_id), settings)
            broker.start()
            stack.callback(broker.stop)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    def create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self._tree.await_that(lambda: admin.list_topics(timeout=10).controller_id != -1)
        (created,) = admin.create_topics([NewTopic(TOPIC, 1, len(BROKERS))]).values()
        created.result(30)
        path = f"/brokers/topics/{TOPIC}/partitions/0/state"
        self._tree.await_that(lambda: self._tree.exists(path) and sorted(self._state()["isr"]) == [*BROKERS])

    def _state(self) -> Any:
        return self._tree.json(f"/brokers/topics/{TOPIC}/partitions/0/state")

    def leader(self) -> int:
        return int(self._state()["leader"])

    def lead(self, leader: int) -> None:
        """Let a broker lead, after it is in sync."""
        replicas = sorted(BROKERS, key=lambda broker_id: broker_id != leader)
        change = [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        election = {"election_type": 0, "topic_partitions": [{"topic": TOPIC, "partitions": [0]}]}
        controller = self._tree.controller()
        assert controller is not None
        with connected(self.addresses[controller]) as client:
            timeout = milliseconds(30_000)
            changed = client.ask(apis.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=timeout, topics=change)
            assert changed.error_code == ErrorCode.none
            self._tree.await_that(lambda: self._assigned() == replicas)
            assert client.ask(apis.ELECT_LEADERS, 1, timeout=timeout, **election).error_code == ErrorCode.none
        self._tree.await_that(lambda: self.leader() == leader)

    def _assigned(self) -> list[int]:
        node = self._tree.json(f"/brokers/topics/{TOPIC}")
        replicas: list[int] = node["partitions"]["0"]
        return replicas


@pytest.fixture
def cluster(tree: Tree, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tree, tmp_path, stack)


class Load:
    """Values "ROUND NUMBER", produced by one new client; each must be acknowledged."""

    def __init__(self, bootstrap: str, name: int) -> None:
        self.values: list[bytes] = []
        self.leader = -1
        """The leader, as the client knows it."""
        self.errors: list[object] = []
        self._name = name
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "topic.metadata.refresh.interval.ms": 20,
                "topic.metadata.refresh.fast.interval.ms": 5,
                "retry.backoff.ms": 1,
                "statistics.interval.ms": 20,
                "stats_cb": self._note_leader,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def _note_leader(self, text: str) -> None:
        statistics = json.loads(text)
        partition = statistics["topics"].get(TOPIC, {}).get("partitions", {}).get("0", {"leader": -1})
        self.leader = partition["leader"]

    def _run(self) -> None:
        while not self._stopping.wait(0.002):
            self.values.append(b"%d %d" % (self._name, len(self.values)))
            self._producer.produce(TOPIC, self.values[-1], partition=0, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self.errors.append(error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


def read(bootstrap: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        partition = TopicPartition(TOPIC, 0, 0)
        _low, high = consumer.get_watermark_offsets(partition, timeout=30)
        consumer.assign([partition])
        return [message.value() or b"" for message in consumer.consume(high, timeout=60)]
    finally:
        consumer.close()


def test_late_refusal_of_a_first_batch(tree: Tree, cluster: Cluster) -> None:
    """Each record that librdkafka reports as acknowledged is in the log, once and in order."""
    cluster.create()
    expected: list[bytes] = []
    early = 0
    for number in range(ROUNDS_MAX):
        former = cluster.leader()
        (leader,) = set(BROKERS) - {former}
        gate, sequences = cluster.gates[former], cluster.gates[leader].sequences
        gate.hold()
        sequences.clear()
        with Load(cluster.bootstrap, number) as load:
            assert gate.holds.wait(60)
            cluster.lead(leader)
            tree.await_that(lambda load=load, leader=leader: load.leader == leader)  # type: ignore[misc]
            gate.release()
        assert load.errors == []
        expected += load.values
        early += sequences[0] > 0
        if early == EARLY_MIN:
            break
    assert read(cluster.bootstrap) == expected
