"""Transactions over partitions that different brokers of a cluster lead."""

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.conftest import Brokers
from tests.broker.raw_client import connected
from tests.broker.transactions.transactional_client import TransactionalClient, committed_values, patiently

PARTITIONS = 6
TOPIC = "visits"
NONE = ErrorCode.none


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def create(brokers: Brokers, replication_factor: int = 1) -> None:
    """Create a topic with two partitions led by each broker."""
    brokers.create(TOPIC, PARTITIONS, replication_factor)


def led_by(brokers: Brokers, broker_id: int) -> int:
    """Return a partition that a broker leads."""
    return next(index for index, leader in brokers.leaders(TOPIC, broker_id).items() if leader == broker_id)


def new_producer(bootstrap: str, transactional_id: str, **settings: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, **settings}
    )
    producer.init_transactions(60)
    return producer


def transact(producer: Producer, text: str, *, commit: bool = True) -> list[bytes]:
    """Send one message to each partition in one transaction; return them."""
    producer.begin_transaction()
    values = [f"{text} {partition}".encode() for partition in range(PARTITIONS)]
    for partition, value in enumerate(values):
        producer.produce(TOPIC, value, partition=partition)
    if commit:
        producer.commit_transaction(60)
    else:
        assert producer.flush(60) == 0
        producer.abort_transaction(60)
    return values


def read_committed(brokers: Brokers) -> list[bytes]:
    """Read the committed records of each partition, in which no transaction may be open."""
    values: list[bytes] = []
    for index, leader in brokers.leaders(TOPIC, max(brokers.running)).items():
        with connected(brokers.running[leader].bootstrap_servers) as client:
            anyone = TransactionalClient(client, "")
            await_that(lambda anyone=anyone, index=index: not anyone.open_transactions(TOPIC, index))  # type: ignore[misc]
            values += committed_values(client, TOPIC, index)
    return sorted(values)


def test_transaction_spans_brokers(brokers: Brokers) -> None:
    create(brokers)
    producer = new_producer(brokers.bootstrap, "visitors")
    first = transact(producer, "first")
    transact(producer, "aborted", commit=False)
    second = transact(producer, "second")
    assert read_committed(brokers) == sorted(first + second)


def coordinator_of(brokers: Brokers, transactional_id: str) -> int:
    def asked() -> Any:
        with connected(brokers.running[2].bootstrap_servers) as client:
            return client.ask(apis.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[transactional_id]).coordinators[0]

    await_that(lambda: not asked().error_code)
    return int(asked().node_id)


def test_batch_outside_transaction_is_refused(brokers: Brokers) -> None:
    """The leader asks the coordinator, which is another broker."""
    create(brokers)
    coordinator = coordinator_of(brokers, "visitors")
    leader = next(broker_id for broker_id in brokers.running if broker_id != coordinator)
    partition, other = led_by(brokers, leader), led_by(brokers, coordinator)
    with (
        connected(brokers.running[coordinator].bootstrap_servers) as at_coordinator,
        connected(brokers.running[leader].bootstrap_servers) as at_leader,
    ):
        transaction = TransactionalClient(at_coordinator, "visitors")
        transaction.init_until_done()
        assert patiently(lambda: transaction.add((TOPIC, other))) == NONE
        writer = TransactionalClient(at_leader, "visitors")
        writer.producer = transaction.producer
        assert writer.produce(TOPIC, b"outside", partition=partition) == ErrorCode.invalid_txn_state
        assert patiently(lambda: transaction.add((TOPIC, partition))) == NONE
        assert writer.produce(TOPIC, b"inside", partition=partition) == NONE
        assert writer.produce(TOPIC, b"inside too", partition=partition) == NONE
        assert transaction.end(commit=True) == NONE
        assert writer.produce(TOPIC, b"late", partition=partition) == ErrorCode.invalid_txn_state
    assert read_committed(brokers) == [b"inside", b"inside too"]


def test_markers_wait_for_their_leaders(brokers: Brokers) -> None:
    """The outcome is decided while a leader is away, and its coordinator restarts before the leader returns."""
    create(brokers)
    producer = new_producer(brokers.bootstrap, "visitors")
    coordinator = coordinator_of(brokers, "visitors")
    away = next(broker_id for broker_id in brokers.running if broker_id != coordinator)
    producer.begin_transaction()
    values = [f"{partition}".encode() for partition in range(PARTITIONS)]
    for partition, value in enumerate(values):
        producer.produce(TOPIC, value, partition=partition)
    assert producer.flush(60) == 0
    brokers.stop(away)
    producer.commit_transaction(60)
    brokers.stop(coordinator)
    brokers.start(coordinator)
    brokers.start(away)
    for broker_id in brokers.running:
        brokers.await_leaders(TOPIC, broker_id)
    assert read_committed(brokers) == values
