"""Faults as the tests of a program would use them, with three clients of other projects."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer

from onceflow.testing import Broker, Faults
from onceflow.wire.batch import batches, decode_batch
from tests.broker.raw_client import connected

FAST: dict[str, Any] = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 1,
    "reconnect.backoff.ms": 1,
    "log_level": 0,
    # librdkafka would close the only connection again, with its second request in flight, and send a third.
    "metadata.recovery.strategy": "none",
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def faults(shared: Broker) -> Iterator[Faults]:
    yield shared.faults
    shared.faults.clear()


@pytest.fixture
def broker(shared: Broker, faults: Faults) -> Broker:
    return shared


def written(broker: Broker, topic: str) -> list[bytes | None]:
    """All values in a topic of one partition."""
    with connected(broker.bootstrap_servers) as client:
        (fetched,) = client.fetch([(topic, 0, 0)])
        data = memoryview(fetched.records)
        return [record.value for position, _ in batches(data) for record in decode_batch(data, position)]


# confluent-kafka


def send(broker: Broker, topic: str, **settings: Any) -> KafkaError | None:
    """Produce one record and return the error of its delivery."""
    errors: list[KafkaError | None] = []
    named = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **FAST, **named})
    producer.produce(topic, b"click", callback=lambda error, _message: errors.append(error))
    assert not producer.flush(30)
    return errors[0]


def test_librdkafka_retries_a_retriable_error(broker: Broker, faults: Faults) -> None:
    topic = broker.create_topic("retried")
    fault = faults.fail("Produce", "NOT_ENOUGH_REPLICAS", times=3)
    assert send(broker, topic) is None
    assert fault.count == 3
    assert written(broker, topic) == [b"click"]


def test_librdkafka_reports_a_fatal_error(broker: Broker, faults: Faults) -> None:
    topic = broker.create_topic("refused")
    faults.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic=topic, times=None)
    error = send(broker, topic)
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(("is_idempotent", "count"), [(False, 2), (True, 1)])
def test_a_lost_response_duplicates(broker: Broker, faults: Faults, is_idempotent: bool, count: int) -> None:
    """A producer without idempotence sends the record again, and it is there twice."""
    topic = broker.create_topic(f"lost-{is_idempotent}")
    faults.lose("Produce")
    assert send(broker, topic, enable_idempotence=is_idempotent) is None
    assert written(broker, topic) == [b"click"] * count


def test_librdkafka_times_out_without_responses(broker: Broker, faults: Faults) -> None:
    topic = broker.create_topic("timed-out")
    faults.drop("Produce", times=None)
    error = send(broker, topic, message_timeout_ms=300)
    assert error is not None
    assert error.code() == KafkaError._MSG_TIMED_OUT
    assert written(broker, topic)[:1] == [b"click"]


def test_librdkafka_follows_its_group_coordinator(broker: Broker, faults: Faults) -> None:
    topic = broker.create_topic("grouped")
    assert send(broker, topic) is None
    fault = faults.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", times=2)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, **FAST})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(20)
        assert message is not None
        assert message.value() == b"click"
        assert fault.count == 2
    finally:
        consumer.close()


def test_an_older_kafka_has_less(broker: Broker, faults: Faults) -> None:
    """librdkafka sends Produce in a version of Kafka 0.11."""
    topic = broker.create_topic("old")
    with faults.play("0.11"):
        assert send(broker, topic) is None
    assert written(broker, topic) == [b"click"]


# kafka-python


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_kafka_python_infers_the_played_release(broker: Broker, faults: Faults) -> None:
    from kafka import KafkaProducer

    with faults.play("2.3"):
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        try:
            assert producer.config["api_version"][:2] == (2, 3)
        finally:
            producer.close()


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_kafka_python_survives_closed_connections(broker: Broker, faults: Faults) -> None:
    from kafka import KafkaProducer

    topic = broker.create_topic("closed")
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, retries=10, retry_backoff_ms=10, reconnect_backoff_ms=10
    )
    try:
        fault = faults.close("Produce", times=2)
        producer.send(topic, b"click").get(timeout=20)
        assert fault.count == 2
    finally:
        producer.close()
    assert written(broker, topic) == [b"click"]


# aiokafka


def test_aiokafka_waits_while_the_network_is_paused(broker: Broker, faults: Faults) -> None:
    topic = broker.create_topic("paused")

    async def run() -> list[bytes | None]:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
        await producer.start()
        await consumer.start()
        try:
            await producer.partitions_for(topic)
            pause = faults.pause()
            sent = await producer.send(topic, b"click")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(sent), 0.1)
            pause.remove()
            await asyncio.wait_for(sent, 20)
            return [(await asyncio.wait_for(consumer.getone(), 20)).value]
        finally:
            await consumer.stop()
            await producer.stop()

    assert asyncio.run(run()) == [b"click"]


def test_aiokafka_refreshes_its_metadata(broker: Broker, faults: Faults) -> None:
    topic = broker.create_topic("moved")

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all", retry_backoff_ms=5)
        await producer.start()
        try:
            await asyncio.wait_for(producer.send_and_wait(topic, b"click"), 20)
        finally:
            await producer.stop()

    fault = faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, partition=0, times=2)
    delay = faults.delay(0.01, "Metadata", times=None)
    asyncio.run(run())
    assert fault.count == 2
    assert delay.count
    assert written(broker, topic) == [b"click"]
