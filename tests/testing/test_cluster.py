"""Clusters in this process: replication, kills, moves and pauses, as clients see them."""

import gc
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from onceflow.broker.cluster.nodes import FEATURES
from onceflow.testing import BrokerNotUsable, Cluster
from onceflow.testing.registry import MemorySession
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.zookeeper.session import OutcomeUnknown, StoredNode
from tests.broker.raw_client import batch_of, connected, stored_batches

TOPIC = "visits"
FAST: dict[str, Any] = {
    "retry.backoff.ms": 5,
    "reconnect.backoff.ms": 5,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "log_level": 0,
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as running:
        yield running


def send(cluster: Cluster, *values: bytes, **settings: Any) -> list[KafkaError | None]:
    """Produce with acks=all, and return the errors of the deliveries."""
    errors: list[KafkaError | None] = []
    named = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", **FAST, **named})
    for value in values:
        producer.produce(TOPIC, value, callback=lambda error, _message: errors.append(error))
    assert not producer.flush(30)
    return errors


def read(cluster: Cluster, count: int) -> list[bytes | None]:
    """Consume a number of records, and see that no more follow."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.partition.eof": True, **FAST})
    consumer.subscribe([TOPIC])
    values: list[bytes | None] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF and len(values) >= count:
                return values
    finally:
        consumer.close()


def await_that(condition: Callable[[], bool]) -> None:
    event = threading.Event()
    for _ in range(6000):
        if condition():
            return
        event.wait(0.005)
    raise AssertionError("not within 30 s")


def test_three_brokers_serve_clients(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    assert set(cluster.in_sync(TOPIC)) == {1, 2, 3}
    assert send(cluster, b"ann", b"bob") == [None, None]
    assert read(cluster, 2) == [b"ann", b"bob"]


def test_records_survive_a_killed_leader(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    assert send(cluster, b"ann") == [None]
    first = cluster.leader(TOPIC)
    cluster.kill(first)
    assert cluster.leader(TOPIC) != first
    assert send(cluster, b"bob") == [None]
    cluster.start_broker(first)
    cluster.wait_in_sync(TOPIC)
    sizes = {
        broker_id: (broker.path / f"{TOPIC}-0" / f"{0:020}.log").stat().st_size
        for broker_id, broker in cluster.brokers.items()
    }
    assert len(set(sizes.values())) == 1
    assert sizes[first] > 0


def test_records_survive_a_power_cut_of_all(tmp_path: Path) -> None:
    with Cluster(3, path=tmp_path) as cluster:
        cluster.create_topic(TOPIC)
        assert send(cluster, b"ann", b"bob") == [None, None]
        for broker_id in (1, 2, 3):
            cluster.kill(broker_id)
        with pytest.raises(BrokerNotUsable, match="no broker of the cluster is running"):
            _ = cluster.bootstrap_servers
        for broker_id in (1, 2, 3):
            cluster.start_broker(broker_id)
        leader = cluster.brokers[cluster.leader(TOPIC)]
        # Readers see what the checkpoint of the high watermark has until the replicas have fetched.
        await_that(lambda: [batch.last_offset for batch in stored_batches(leader.bootstrap_servers, TOPIC)][-1:] == [1])


def test_unsynced_records_are_lost() -> None:
    """The disk of this broker ignores each request to sync."""
    with Cluster(1) as cluster:
        cluster.create_topic(TOPIC)
        cluster._members[1].power.ignores_sync_data = True
        assert send(cluster, b"ann") == [None]
        cluster.kill(1)
        cluster.start_broker(1)
        assert stored_batches(cluster.bootstrap_servers, TOPIC) == []


def test_a_killed_controller_is_replaced(cluster: Cluster) -> None:
    former = cluster.controller
    cluster.kill(former)
    assert cluster.controller != former
    cluster.create_topic(TOPIC, replication_factor=2)
    assert send(cluster, b"ann") == [None]


def test_a_new_controller_serves_without_the_registry(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It completes what the former one has left in another thread than that of its clients."""
    is_asked, is_back = threading.Event(), threading.Event()
    read = MemorySession.read

    def read_later(session: MemorySession, path: str) -> StoredNode | None:
        if path == FEATURES and not is_back.is_set():
            is_asked.set()
            raise OutcomeUnknown("the registry is away")
        return read(session, path)

    monkeypatch.setattr(MemorySession, "read", read_later)
    former = cluster.controller
    cluster.kill(former)
    assert is_asked.wait(60)
    try:
        for broker_id in {1, 2, 3} - {former}:
            with connected(cluster.brokers[broker_id].bootstrap_servers) as client:
                client.ask(apis.API_VERSIONS, 0)
    finally:
        is_back.set()


def test_a_stopped_broker_moves_its_leaders(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, 3)
    cluster.stop_broker(2)
    assert 2 not in {cluster.leader(TOPIC, partition) for partition in range(3)}
    cluster.start_broker(2)
    for partition in range(3):
        cluster.wait_in_sync(TOPIC, partition)


def test_a_leader_moves(cluster: Cluster) -> None:
    """The former leader refuses records, and a producer follows."""
    cluster.create_topic(TOPIC)
    former = cluster.leader(TOPIC)
    other = next(broker_id for broker_id in (1, 2, 3) if broker_id != former)
    cluster.move_leader(TOPIC, 0, other)
    cluster.move_leader(TOPIC, 0, other)
    assert cluster.leader(TOPIC) == other
    with connected(cluster.brokers[former].bootstrap_servers) as client:
        assert client.produce(TOPIC, 0, batch_of(b"ann")).error_code == ErrorCode.not_leader_or_follower
    assert send(cluster, b"ann") == [None]


def test_a_paused_follower_leaves_the_replicas() -> None:
    with Cluster(3, settings={"replica.lag.time.max.ms": 500}) as cluster:
        cluster.create_topic(TOPIC, configs={"min.insync.replicas": "3"})
        leader = cluster.leader(TOPIC)
        follower = next(broker_id for broker_id in (1, 2, 3) if broker_id not in (leader, cluster.controller))
        with cluster.pause(leader, follower):
            send(cluster, b"ann", message_timeout_ms=100)
            await_that(lambda: follower not in cluster.in_sync(TOPIC))
            with connected(cluster.brokers[leader].bootstrap_servers) as client:
                assert client.produce(TOPIC, 0, batch_of(b"ann")).error_code == ErrorCode.not_enough_replicas
        cluster.wait_in_sync(TOPIC)
        assert send(cluster, b"bob") == [None]


def test_only_one_broker_has_a_fault(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    leader = cluster.leader(TOPIC)
    fault = cluster.brokers[leader].faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    followers = cluster.brokers[leader].faults.close("Fetch", times=None)
    assert send(cluster, b"ann") == [None]
    assert fault.count == 2
    assert followers.count == 0
    for broker_id, broker in cluster.brokers.items():
        with connected(broker.bootstrap_servers) as client:
            expected = ErrorCode.none if broker_id == leader else ErrorCode.not_leader_or_follower
            assert client.produce(TOPIC, 0, batch_of(b"bob")).error_code == expected


def test_a_broker_returns_after_its_session(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    follower = next(
        broker_id for broker_id in (1, 2, 3) if broker_id not in (cluster.leader(TOPIC), cluster.controller)
    )
    cluster.expire_session(follower)
    await_that(cluster._is_complete)
    cluster.wait_in_sync(TOPIC)
    assert send(cluster, b"ann") == [None]


def test_an_older_cluster_is_played(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    for broker in cluster.brokers.values():
        broker.faults.play("2.0")
    assert send(cluster, b"ann") == [None]
    with connected(cluster.bootstrap_servers.split(",")[0]) as client:
        served = {api.api_key: api.max_version for api in client.ask(apis.API_VERSIONS, 0).api_keys}
        assert served[apis.FETCH] == 8


def test_a_stopped_cluster_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads = threading.active_count()
    for _ in range(2):
        with Cluster(2) as cluster:
            cluster.create_topic(TOPIC)
    assert threading.active_count() == threads
    assert not list(tmp_path.iterdir())


def test_a_killed_controller_keeps_no_connection() -> None:
    """Deleted while it is open, a connection warns, and pytest reports that as an error."""
    with Cluster(2) as brokers:
        brokers.create_topic("clicks")
        brokers.kill(brokers.controller)
    gc.collect()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda cluster: cluster.kill(4), "broker 4 is not one of the cluster's: 1, 2, 3"),
        (lambda cluster: cluster.start(), "the cluster is already running"),
        (lambda cluster: cluster.pause(2, 2), "two brokers are needed"),
        (lambda cluster: cluster.start_broker(1), "is already running"),
        (lambda cluster: cluster.create_topic("a", replication_factor=4), "replication factor"),
        (lambda cluster: Cluster(0), "a cluster of 0 brokers"),
        (lambda cluster: Cluster(1, settings={"broker.id": 7}), "must not contain broker.id"),
        (lambda cluster: Cluster(1).kill(1), "the cluster is not running"),
    ],
)
def test_mistakes_are_refused(shared: Cluster, use: Callable[[Cluster], object], message: str) -> None:
    with pytest.raises(BrokerNotUsable, match=message):
        use(shared)


def test_only_replicas_in_sync_lead(shared: Cluster) -> None:
    shared.create_topic("alone", replication_factor=1)
    other = next(broker_id for broker_id in (1, 2, 3) if broker_id != shared.leader("alone"))
    with pytest.raises(BrokerNotUsable, match=f"cannot be led by broker {other}: in sync are"):
        shared.move_leader("alone", 0, other)


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with Cluster(3) as running:
        yield running


WITHOUT_KAZOO = """
import sys
sys.modules["kazoo"] = None
from onceflow.testing import Cluster
with Cluster(2) as cluster:
    print(cluster.create_topic("visits"))
"""


def test_a_cluster_needs_no_kazoo() -> None:
    """The base install has the fixture, and not the extra [cluster]."""
    command = [sys.executable, "-c", WITHOUT_KAZOO]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "visits\n"
