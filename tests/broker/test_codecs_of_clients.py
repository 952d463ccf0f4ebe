"""Every Python client reads the records that each other wrote in each codec: keys, headers and nulls too.

Partition N of the topic has the records of the codec with the number N.
"""

import asyncio
import types
from collections.abc import Callable
from typing import Any

import cramjam
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from onceflow.wire.codecs import Codec
from tests.broker.raw_client import connected, stored_batches

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
"""kafka-python's imports."""

RECORDS = 300
WAIT_SECONDS = 20
NAMES = {codec: None if codec is Codec.NONE else codec.name.lower() for codec in Codec}
"""Names of the codecs in kafka-python and aiokafka."""

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes]]]


def row(partition: int, number: int) -> Row:
    """(partition, offset, key, value, headers); kafka-python accepts no record without both key and value."""
    key = b"key %d" % number if number % 5 else None
    value = b"value %d " % number * 10 if number % 5 != 1 else None
    return partition, number, key, value, [("number", b"%d" % number), ("empty", b"")]


def write_with_librdkafka(bootstrap: str, topic: str) -> None:
    for codec, name in NAMES.items():
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": name or "none",
                "enable.idempotence": True,
                "linger.ms": 50,
            }
        )
        for number in range(RECORDS):
            _, _, key, value, headers = row(codec, number)
            producer.produce(topic, value, key, codec, headers=headers)  # type: ignore[arg-type]
        assert producer.flush(WAIT_SECONDS) == 0


def write_with_kafka_python(bootstrap: str, topic: str) -> None:
    from kafka import KafkaProducer

    for codec, name in NAMES.items():
        producer = KafkaProducer(
            bootstrap_servers=bootstrap, compression_type=name, enable_idempotence=True, linger_ms=50
        )
        for number in range(RECORDS):
            _, _, key, value, headers = row(codec, number)
            producer.send(topic, value, key, headers, codec)
        producer.close(timeout=WAIT_SECONDS)


def write_with_aiokafka(bootstrap: str, topic: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def write(codec: Codec) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=NAMES[codec], enable_idempotence=True, linger_ms=50
        )
        await producer.start()
        sent = []
        for number in range(RECORDS):
            _, _, key, value, headers = row(codec, number)
            sent.append(await producer.send(topic, value, key, codec, headers=headers))
        await asyncio.wait_for(asyncio.gather(*sent), WAIT_SECONDS)
        await producer.stop()

    for codec in NAMES:
        asyncio.run(write(codec))


def read_with_librdkafka(bootstrap: str, topic: str) -> list[Row]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, codec, 0) for codec in Codec])
    messages = consumer.consume(RECORDS * len(Codec), timeout=WAIT_SECONDS)
    consumer.close()
    return [
        (message.partition(), message.offset(), message.key(), message.value(), message.headers())  # type: ignore[misc]
        for message in messages
    ]


def as_rows(polled: dict[Any, Any]) -> list[Row]:
    return [
        (message.partition, message.offset, message.key, message.value, list(message.headers))
        for messages in polled.values()
        for message in messages
    ]


def read_with_kafka_python(bootstrap: str, topic: str) -> list[Row]:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Place

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
    consumer.assign([Place(topic, codec) for codec in Codec])
    rows: list[Row] = []
    while len(rows) < RECORDS * len(Codec):
        polled = as_rows(consumer.poll(timeout_ms=WAIT_SECONDS * 1000))
        assert polled, f"{len(rows)} records came"
        rows += polled
    consumer.close()
    return rows


def read_with_aiokafka(bootstrap: str, topic: str) -> list[Row]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as Place

    async def read() -> list[Row]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([Place(topic, codec) for codec in Codec])
        rows: list[Row] = []
        while len(rows) < RECORDS * len(Codec):
            polled = as_rows(await consumer.getmany(timeout_ms=WAIT_SECONDS * 1000))
            assert polled, f"{len(rows)} records came"
            rows += polled
        await consumer.stop()
        return rows

    return asyncio.run(read())


@pytest.fixture(autouse=True)
def snappy_of_kafka_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python frames snappy's blocks itself; python-snappy, another name for cramjam's, compresses them."""
    import kafka.codec

    def compress(block: bytes) -> bytes:
        return bytes(cramjam.snappy.compress_raw(block))

    def decompress(block: bytes) -> bytes:
        return bytes(cramjam.snappy.decompress_raw(block))

    monkeypatch.setattr(kafka.codec, "snappy", types.SimpleNamespace(compress=compress, decompress=decompress))


@pytest.mark.parametrize("write", [write_with_librdkafka, write_with_kafka_python, write_with_aiokafka])
def test_each_codec_is_read_by_every_client(bootstrap: str, topic: str, write: Callable[[str, str], None]) -> None:
    wanted = [row(codec, number) for codec in Codec for number in range(RECORDS)]
    with connected(bootstrap) as client:
        client.create_topic(topic, len(Codec))
    write(bootstrap, topic)
    for codec in Codec:
        headers = stored_batches(bootstrap, topic, codec)
        assert {header.codec for header in headers} == {codec}, "as configured in the client"
        assert all(header.producer_id >= 0 for header in headers), "idempotent"
    for read in (read_with_librdkafka, read_with_kafka_python, read_with_aiokafka):
        assert sorted(read(bootstrap, topic), key=lambda item: item[:2]) == wanted, read.__name__
