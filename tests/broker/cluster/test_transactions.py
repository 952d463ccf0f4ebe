"""Transactions over partitions that different brokers of a cluster lead."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.conftest import Brokers, NewBroker
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


def connected_to(brokers: Brokers, broker_id: int) -> Any:
    return connected(brokers.running[broker_id].bootstrap_servers)


@pytest.fixture
def replicated(new_broker: NewBroker, tmp_path: Path) -> Iterator[Brokers]:
    """Three brokers with a copy of all coordinators' state each."""
    opened = Brokers(new_broker, tmp_path)
    with ExitStack() as stack:
        stack.callback(lambda: [broker.stop() for broker in opened.running.values()])
        for broker_id in (1, 2, 3):
            opened.start(broker_id, transaction_state_log_replication_factor=3, transaction_state_log_min_isr=2)
        yield opened


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


def coordinator_of(brokers: Brokers, transactional_id: str, from_broker: int = 2) -> int:
    def asked() -> Any:
        with connected_to(brokers, from_broker) as client:
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
        # The next transaction begins when the markers are written; until then the leader has the first one open.
        assert patiently(lambda: transaction.add((TOPIC, other))) == NONE
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


def test_every_replica_describes_producers(replicated: Brokers) -> None:
    """Followers too: Kafka's find-hanging asks one broker for all its replicas."""
    create(replicated, 3)
    producer = new_producer(replicated.bootstrap, "visitors")
    producer.begin_transaction()
    producer.produce(TOPIC, b"open", partition=0)
    assert producer.flush(60) == 0
    for broker_id in replicated.running:
        with connected_to(replicated, broker_id) as client:
            asked = TransactionalClient(client, "visitors")
            await_that(lambda asked=asked: [start for *_, start in asked.open_transactions(TOPIC)] == [0])  # type: ignore[misc]
    producer.abort_transaction(60)


def test_open_transaction_survives_its_coordinator(replicated: Brokers) -> None:
    create(replicated)
    first = coordinator_of(replicated, "visitors")
    leader = next(broker_id for broker_id in replicated.running if broker_id != first)
    partition = led_by(replicated, leader)
    with connected_to(replicated, first) as client, connected_to(replicated, leader) as at_leader:
        transaction = TransactionalClient(client, "visitors")
        transaction.init_until_done()
        assert patiently(lambda: transaction.add((TOPIC, partition))) == NONE
        writer = TransactionalClient(at_leader, "visitors")
        writer.producer = transaction.producer
        assert patiently(lambda: writer.produce(TOPIC, b"before", partition=partition)) == NONE
        replicated.stop(first)
        await_that(lambda: coordinator_of(replicated, "visitors", leader) != first)
        second = coordinator_of(replicated, "visitors", leader)
        with connected_to(replicated, second) as at_second:
            moved = TransactionalClient(at_second, "visitors")
            moved.producer = transaction.producer
            assert patiently(lambda: writer.produce(TOPIC, b"after", partition=partition)) == NONE
            assert patiently(lambda: moved.end(commit=True)) == NONE
        anyone = TransactionalClient(at_leader, "")
        await_that(lambda: not anyone.open_transactions(TOPIC, partition))
        assert committed_values(at_leader, TOPIC, partition) == [b"before", b"after"]


def test_other_brokers_do_not_coordinate(brokers: Brokers) -> None:
    create(brokers)
    coordinator = coordinator_of(brokers, "visitors")
    other = next(broker_id for broker_id in brokers.running if broker_id != coordinator)
    with connected_to(brokers, other) as client:
        transaction = TransactionalClient(client, "visitors")
        assert transaction.init() == ErrorCode.not_coordinator
        assert transaction.add((TOPIC, 0)) == ErrorCode.not_coordinator
        assert transaction.add_offsets("group") == ErrorCode.not_coordinator
        assert transaction.end(commit=True) == ErrorCode.not_coordinator
        assert transaction.described().error_code == ErrorCode.not_coordinator


def test_each_broker_lists_its_transactions(brokers: Brokers) -> None:
    create(brokers)
    names = {f"visitors {number}" for number in range(6)}
    for name in names:
        new_producer(brokers.bootstrap, name)
    listed: list[str] = []
    for broker_id in brokers.running:
        with connected_to(brokers, broker_id) as client:
            response = client.ask(apis.LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[])
            assert not response.error_code
            own = {state.transactional_id for state in response.transaction_states}
            assert own == {name for name in names if coordinator_of(brokers, name) == broker_id}
            listed += own
    assert sorted(listed) == sorted(names)
