"""Clients of other projects without special settings: they judge the protocol."""

import asyncio
import shutil
import subprocess
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

RECORDS = 2000
VALUES = sorted(b"value %d" % number for number in range(RECORDS))
WAIT_SECONDS = 20


def create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(10)


def produce(bootstrap: str, topic: str, **config: Any) -> None:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    for number in range(RECORDS):
        producer.produce(
            topic, value=b"value %d" % number, key=b"%d" % number, callback=lambda error, _message: errors.append(error)
        )
    assert producer.flush(WAIT_SECONDS) == 0
    assert errors == [None] * RECORDS


def consume(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(values), timeout=0.5):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    return values


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_in_every_codec(bootstrap: str, topic: str, codec: str) -> None:
    create(bootstrap, topic, 3)
    produce(bootstrap, topic, **{"compression.type": codec, "enable.idempotence": True})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert sorted(consume(consumer, RECORDS)) == VALUES
    consumer.commit(asynchronous=False)
    partitions = [TopicPartition(topic, partition) for partition in range(3)]
    assert sum(result.offset for result in consumer.committed(partitions, timeout=5)) == RECORDS
    consumer.close()


def test_librdkafka_with_acks_0_and_1(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 1)
    produce(bootstrap, topic, acks=1)
    produce(bootstrap, topic, acks=0)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert sorted(consume(consumer, 2 * RECORDS)) == sorted(VALUES * 2)
    consumer.close()


def test_two_librdkafka_consumers_share_a_topic(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 2)
    config = {"bootstrap.servers": bootstrap, "group.id": topic, "heartbeat.interval.ms": 200}
    first, second = Consumer(config), Consumer(config)
    for consumer in (first, second):
        consumer.subscribe([topic])
    deadline = time.monotonic() + WAIT_SECONDS
    while not (len(first.assignment()) == len(second.assignment()) == 1) and time.monotonic() < deadline:
        for consumer in (first, second):
            consumer.poll(0.1)
    assert {partition.partition for partition in first.assignment() + second.assignment()} == {0, 1}
    second.close()
    while len(first.assignment()) < 2 and time.monotonic() < deadline:
        first.poll(0.1)
    assert len(first.assignment()) == 2
    first.close()


def test_librdkafka_creates_and_deletes_a_topic(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert len(admin.list_topics(topic, timeout=5).topics[topic].partitions) == 1
    admin.delete_topics([topic])[topic].result(10)
    assert topic not in admin.list_topics(timeout=5).topics


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_kafka_python(bootstrap: str, topic: str) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as Partition
    from kafka.admin import NewTopic as Wanted

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([Wanted(topic, 2, 1)])
    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip")
    sent = [producer.send(topic, key=b"%d" % number, value=b"value %d" % number) for number in range(RECORDS)]
    producer.flush(WAIT_SECONDS)
    assert all(value.get(5).offset >= 0 for value in sent)
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=10_000
    )
    values = sorted(message.value for _number, message in zip(range(RECORDS), consumer, strict=False))
    assert values == VALUES
    partitions = [Partition(topic, 0), Partition(topic, 1)]
    assert sum(consumer.end_offsets(partitions).values()) == RECORDS
    assert consumer.offsets_for_times({partitions[0]: 0})[partitions[0]].offset == 0
    consumer.commit()
    assert sum(consumer.committed(partition) for partition in partitions) == RECORDS
    consumer.close()
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    admin.close()


def test_aiokafka(bootstrap: str, topic: str) -> None:
    asyncio.run(_aiokafka(bootstrap, topic))


async def _aiokafka(bootstrap: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.admin import NewTopic as Wanted

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([Wanted(topic, 2, 1)])
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, compression_type="zstd")
    await producer.start()
    sent = [await producer.send(topic, b"value %d" % number, key=b"%d" % number) for number in range(RECORDS)]
    await asyncio.gather(*sent)
    await producer.stop()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest")
    await consumer.start()
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(values) < RECORDS and time.monotonic() < deadline:
        batches = await consumer.getmany(timeout_ms=500)
        values += [message.value for messages in batches.values() for message in messages]
    assert sorted(values) == VALUES
    await consumer.commit()
    await consumer.stop()
    await admin.delete_topics([topic])
    await admin.close()


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat(bootstrap: str, topic: str) -> None:
    subprocess.run(["kcat", "-b", bootstrap, "-P", "-t", topic], input=b"one\ntwo\n", check=True, timeout=30)
    read = ["kcat", "-b", bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q"]
    assert subprocess.run(read, capture_output=True, check=True, timeout=30).stdout == b"one\ntwo\n"
