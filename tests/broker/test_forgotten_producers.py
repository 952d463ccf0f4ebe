"""Idempotent producers of other projects, in a topic that was created again: the broker does not know them any more."""

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.wire.errors import ErrorCode
from tests.broker.raw_client import connected
from tests.broker.transactions.transactional_client import committed_values

EACH = 3
FIRST, LATER = ([b"%d" % number for number in range(begin, begin + EACH)] for begin in (0, EACH))
WAIT_S = 30


def with_librdkafka(bootstrap: str, topic: str, recreate: Callable[[], None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    errors: list[object] = []
    for values in (FIRST, LATER):
        for value in values:
            producer.produce(topic, value, partition=0, on_delivery=lambda error, _message: errors.append(error))
        assert producer.flush(WAIT_S) == 0
        if values is FIRST:
            recreate()
    assert errors == [None] * 2 * EACH


def with_transactions_of_librdkafka(bootstrap: str, topic: str, recreate: Callable[[], None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    for values in (FIRST, LATER):
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.commit_transaction(WAIT_S)
        if values is FIRST:
            recreate()


def with_kafka_python(bootstrap: str, topic: str, recreate: Callable[[], None]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    try:
        for values in (FIRST, LATER):
            for sent in [producer.send(topic, value, partition=0) for value in values]:
                sent.get(WAIT_S)
            if values is FIRST:
                recreate()
    finally:
        producer.close()


def with_aiokafka(bootstrap: str, topic: str, recreate: Callable[[], None]) -> None:
    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        try:
            for values in (FIRST, LATER):
                for sent in [await producer.send(topic, value, partition=0) for value in values]:
                    await sent
                if values is FIRST:
                    await asyncio.to_thread(recreate)
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(send(), 2 * WAIT_S))


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
@pytest.mark.parametrize(
    "produce", [with_librdkafka, with_transactions_of_librdkafka, with_kafka_python, with_aiokafka]
)
def test_a_forgotten_producer_continues(bootstrap: str, topic: str, produce: Callable[..., None]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def create() -> None:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
        except KafkaException as error:
            # The producer's request for metadata has created it.
            if error.args[0].code() != ErrorCode.topic_already_exists:
                raise

    def recreate() -> None:
        admin.delete_topics([topic])[topic].result(WAIT_S)
        create()

    create()
    produce(bootstrap, topic, recreate)
    with connected(bootstrap) as client:
        assert committed_values(client, topic) == LATER
