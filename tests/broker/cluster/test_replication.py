"""Partitions with three replicas: copied, led by another broker after a kill, and equal in the end."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from onceflow.log.clock import SystemClock
from onceflow.log.config import LogConfig
from onceflow.log.disk import RealDisk
from onceflow.log.offset_checkpoint import parse_offsets
from onceflow.log.partition import PartitionLog
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.conftest import Brokers, NewBroker, Tree, create_on
from tests.broker.raw_client import batch_of, connected


def log_starts(brokers: Brokers, topic: str) -> set[int]:
    """Return the log start of each replica, as it is stored."""
    paths = [brokers.directory / str(broker_id) / "log-start-offset-checkpoint" for broker_id in brokers.running]
    stored = [parse_offsets(path, path.read_bytes()) if path.exists() else {} for path in paths]
    return {offsets.get((topic, 0), 0) for offsets in stored}


def log(brokers: Brokers, broker_id: int, topic: str) -> bytes:
    directory = brokers.directory / str(broker_id) / f"{topic}-0"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def send(bootstrap: str, topic: str, values: list[bytes]) -> None:
    failures: list[Any] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert not failures


def send_and_delete(bootstrap: str, topic: str) -> None:
    send(bootstrap, topic, [b"deleted"])
    delete(bootstrap, topic, -1)


def delete(bootstrap: str, topic: str, offset: int) -> None:
    """Delete the records below an offset (-1: all); the segments stay, and only the log start moves."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    deleted.result(30)


def read(bootstrap: str, topic: str, count: int, *, start: int = 0) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, start)])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [value for message in consumer.consume(count, 0.2) if (value := message.value()) is not None]
    consumer.close()
    return values


def as_follower_appended(directory: Path, epoch: int, *values: bytes) -> None:
    """Append to the log of a stopped broker, as a leader of an earlier epoch whose last records were not copied."""
    log = PartitionLog.open(directory, LogConfig(), disk=RealDisk(), clock=SystemClock(), clean=False, is_replica=True)
    log.begin_epoch(epoch)
    log.append(batch_of(*values))
    log.close()


def await_equal_logs(brokers: Brokers, topic: str) -> bytes:
    deadline = time.monotonic() + 60
    while len(logs := {log(brokers, broker_id, topic) for broker_id in brokers.running}) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return logs.pop()


def state(tree: Tree, topic: str) -> dict[str, Any]:
    stored: dict[str, Any] = tree.json(f"/brokers/topics/{topic}/partitions/0/state")
    return stored


def test_followers_copy_and_lead(brokers: Brokers, tree: Tree) -> None:
    brokers.create("clicks", replication_factor=3)
    values = [b"%03d" % number for number in range(100)]
    send(brokers.bootstrap, "clicks", values)
    assert sorted(state(tree, "clicks")["isr"]) == [1, 2, 3]
    assert values[0] in await_equal_logs(brokers, "clicks")
    delete(brokers.bootstrap, "clicks", 10)
    tree.await_that(lambda: log_starts(brokers, "clicks") == {10})
    former = state(tree, "clicks")["leader"]
    brokers.stop(former)
    tree.await_that(lambda: state(tree, "clicks")["leader"] not in (former, -1))
    more = [b"more %03d" % number for number in range(100)]
    send(brokers.bootstrap, "clicks", more)
    assert read(brokers.bootstrap, "clicks", 190, start=10) == values[10:] + more
    brokers.start(former)
    tree.await_that(lambda: sorted(state(tree, "clicks")["isr"]) == [1, 2, 3])
    await_equal_logs(brokers, "clicks")


def test_records_need_enough_replicas(brokers: Brokers, tree: Tree) -> None:
    """Until the leader knows that a replica is away, a record waits for it, but not longer than the request allows."""
    brokers.create("clicks", replication_factor=3, configs={"min.insync.replicas": "3"})
    send(brokers.bootstrap, "clicks", [b"first"])
    leader = state(tree, "clicks")["leader"]
    follower = next(broker_id for broker_id in (3, 2) if broker_id != leader)
    with connected(brokers.running[leader].bootstrap_servers) as client:
        brokers.stop(follower)
        code = ErrorCode.request_timed_out
        while code == ErrorCode.request_timed_out:
            code = ErrorCode(client.produce("clicks", 0, batch_of(b"more"), timeout_ms=1).error_code)
        assert code == ErrorCode.not_enough_replicas
        assert client.produce("clicks", 0, batch_of(b"more"), acks=1).error_code == 0
        (fetched,) = client.fetch([("clicks", 0, 0)], wait_ms=0)
        assert fetched.high_watermark == 1, "nothing is visible that is on fewer replicas"
        brokers.start(follower)
        while code == ErrorCode.not_enough_replicas:
            code = ErrorCode(client.produce("clicks", 0, batch_of(b"last")).error_code)
    assert code == 0
    assert read(brokers.bootstrap, "clicks", 1)[0] == b"first"


def test_returning_follower_becomes_equal(brokers: Brokers, tree: Tree) -> None:
    """It has records that no other replica has, then an empty disk, then an end before the leader's start."""
    brokers.create("clicks", replication_factor=3)
    send(brokers.bootstrap, "clicks", [b"first"])
    leader = state(tree, "clicks")["leader"]
    follower = next(broker_id for broker_id in (3, 2) if broker_id != leader)
    directory = brokers.directory / str(follower) / "clicks-0"

    def stop_and_change(change: Callable[[], None]) -> None:
        brokers.stop(follower)
        tree.await_that(lambda: follower not in state(tree, "clicks")["isr"])
        change()
        send(brokers.bootstrap, "clicks", [b"while it was away"])
        brokers.start(follower)
        tree.await_that(lambda: follower in state(tree, "clicks")["isr"])

    stop_and_change(lambda: as_follower_appended(directory, 0, b"never acknowledged", b"nor this"))
    assert b"never acknowledged" not in await_equal_logs(brokers, "clicks")
    stop_and_change(lambda: shutil.rmtree(directory))
    assert await_equal_logs(brokers, "clicks")
    assert read(brokers.bootstrap, "clicks", 3) == [b"first", *[b"while it was away"] * 2]
    stop_and_change(lambda: send_and_delete(brokers.bootstrap, "clicks"))
    assert read(brokers.bootstrap, "clicks", 1, start=4) == [b"while it was away"]
    tail = log(brokers, follower, "clicks")
    assert 0 < len(tail) < len(log(brokers, leader, "clicks"))
    assert log(brokers, leader, "clicks").endswith(tail)


def test_high_watermarks_are_stored(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    """Apache Kafka writes the same file."""
    checkpoint = tmp_path / "1" / "replication-offset-checkpoint"
    brokers = Brokers(new_broker, tmp_path)
    brokers.start(1, replica_high_watermark_checkpoint_interval_ms=0)
    try:
        create_on(brokers, "clicks", [1])
        send(brokers.bootstrap, "clicks", [b"first", b"second"])
        tree.await_that(lambda: checkpoint.exists() and "clicks 0 2" in checkpoint.read_text().splitlines())
    finally:
        brokers.stop(1)


def test_an_unclean_leader_loses_records(brokers: Brokers, tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    """The replica that has them removes them when it returns."""
    create_on(brokers, "clicks", [2, 3])
    send(brokers.bootstrap, "clicks", [b"kept"])
    brokers.stop(3)
    tree.await_that(lambda: state(tree, "clicks")["isr"] == [2])
    send(brokers.bootstrap, "clicks", [b"lost"] * 3)
    brokers.stop(2)
    brokers.start(3)
    tree.await_that(lambda: state(tree, "clicks")["leader"] == -1)
    assert state(tree, "clicks")["isr"] == [2]
    brokers.configure("clicks", "unclean.leader.election.enable", "true")
    tree.await_that(lambda: state(tree, "clicks")["leader"] == 3)
    tree.await_that(lambda: "clicks-0: broker 3 leads without having been in sync" in caplog.text)
    send(brokers.bootstrap, "clicks", [b"new"])
    brokers.start(2)
    tree.await_that(lambda: sorted(state(tree, "clicks")["isr"]) == [2, 3])
    tree.await_that(lambda: log(brokers, 2, "clicks") == log(brokers, 3, "clicks"))
    tree.await_that(lambda: "clicks-0: the records from 1 to 3 are lost: broker 3" in caplog.text)
    assert read(brokers.bootstrap, "clicks", 2) == [b"kept", b"new"]
    assert "leader_recovery_state" not in state(tree, "clicks")


def test_a_replica_returns_below_its_start(brokers: Brokers, tree: Tree) -> None:
    """Its records were deleted up to its end, and the replica that leads without them ends before."""
    create_on(brokers, "clicks", [2, 3])
    send(brokers.bootstrap, "clicks", [b"kept"])
    brokers.stop(3)
    tree.await_that(lambda: state(tree, "clicks")["isr"] == [2])
    send(brokers.bootstrap, "clicks", [b"lost"] * 9)
    delete(brokers.bootstrap, "clicks", -1)
    brokers.stop(2)
    brokers.start(3)
    tree.await_that(lambda: state(tree, "clicks")["leader"] == -1)
    brokers.configure("clicks", "unclean.leader.election.enable", "true")
    tree.await_that(lambda: state(tree, "clicks")["leader"] == 3)
    brokers.start(2)
    tree.await_that(lambda: sorted(state(tree, "clicks")["isr"]) == [2, 3])
    send(brokers.bootstrap, "clicks", [b"new"] * 15)
    tree.await_that(lambda: log(brokers, 3, "clicks").endswith(log(brokers, 2, "clicks")))
    brokers.stop(2)
    brokers.start(2)
    tree.await_that(lambda: sorted(state(tree, "clicks")["isr"]) == [2, 3])
    brokers.stop(3)
    tree.await_that(lambda: state(tree, "clicks")["leader"] == 2)
    assert read(brokers.bootstrap, "clicks", 15, start=1) == [b"new"] * 15


def test_a_recreated_topic_takes_records(brokers: Brokers, tree: Tree) -> None:
    """Its leader epoch is lower than the last one of the deleted topic."""
    create_on(brokers, "clicks", [1, 3])
    send(brokers.bootstrap, "clicks", [b"old"])
    brokers.stop(3)
    tree.await_that(lambda: state(tree, "clicks")["isr"] == [1])
    brokers.start(3)
    tree.await_that(lambda: sorted(state(tree, "clicks")["isr"]) == [1, 3])
    assert state(tree, "clicks")["leader_epoch"] > 0
    brokers.delete("clicks")
    tree.await_that(lambda: not tree.exists("/brokers/topics/clicks"))
    create_on(brokers, "clicks", [1, 3])
    send(brokers.bootstrap, "clicks", [b"new"])
    assert read(brokers.bootstrap, "clicks", 1) == [b"new"]
