"""The Java client's producer and consumer: each codec, headers, nulls, sizes, read across clients."""

import time
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.wire.batch import BatchHeader
from onceflow.wire.codecs import Codec
from tests.broker.raw_client import stored_batches
from tests.compat.java_programs import JavaPrograms

RECORDS = 1000
BEGIN_MS = 1_700_000_000_000
PARTITIONS = 3
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
WAIT_SECONDS = 30


def expected(number: int, offset: int) -> dict[str, Any]:
    """Return record `number` as Produce.java sends it."""
    value = "" if number % 11 == 0 else f"value {number}"
    return {
        "partition": number % PARTITIONS,
        "offset": offset,
        "timestamp": BEGIN_MS + number,
        "key": None if number % 5 == 0 else f"key {number}",
        "value": None if number % 7 == 0 else value,
        "headers": [["number", str(number)], ["nothing", None], ["number", "again"]] if number % 4 == 0 else [],
    }


EXPECTED = [expected(number, number // PARTITIONS) for number in range(RECORDS)]


def by_place(record: dict[str, Any]) -> tuple[int, int]:
    return record["partition"], record["offset"]


def read_with_librdkafka(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "check.crcs": True})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    records: list[dict[str, Any]] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(records) < RECORDS and time.monotonic() < deadline:
        for message in consumer.consume(RECORDS, 0.2):
            assert message.error() is None, message.error()
            records.append(
                {
                    "partition": message.partition(),
                    "offset": message.offset(),
                    "timestamp": message.timestamp()[1],
                    "key": text(message.key()),
                    "value": text(message.value()),
                    "headers": [[name, text(value)] for name, value in message.headers() or []],  # type: ignore[arg-type]
                }
            )
    consumer.close()
    return records


def batches_of(java: JavaPrograms, topic: str) -> list[BatchHeader]:
    return [batch for partition in range(PARTITIONS) for batch in stored_batches(java.bootstrap, topic, partition)]


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


@pytest.mark.parametrize("codec", CODECS)
def test_idempotent_produce_in_every_codec(java: JavaPrograms, topic: str, codec: str) -> None:
    """Every acknowledgement has its offset and time; librdkafka and Java read the records back, headers and nulls."""
    settings = (f"compression.type={codec}", "enable.idempotence=true", "acks=all", "linger.ms=20")
    partitions_for, *acknowledged = java.run("Produce", topic, str(PARTITIONS), "records", *settings)
    assert partitions_for == {"partitionsFor": PARTITIONS}
    fields = ("partition", "offset", "timestamp")
    assert acknowledged == [{name: record[name] for name in fields} for record in EXPECTED]
    stored = batches_of(java, topic)
    assert {batch.codec for batch in stored} == {Codec[codec.upper()]}
    assert all(batch.producer_id >= 0 for batch in stored), "idempotent"
    assert sorted(read_with_librdkafka(java.bootstrap, topic), key=by_place) == sorted(EXPECTED, key=by_place)
    read = java.run("Produce", topic, str(PARTITIONS), "read")
    assert sorted(read, key=by_place) == sorted(EXPECTED, key=by_place)


@pytest.mark.parametrize("acks", ["0", "1"])
def test_produce_without_idempotence(java: JavaPrograms, topic: str, acks: str) -> None:
    """The client gets no offset (-1) with acks 0; the records are stored either way."""
    settings = ("enable.idempotence=false", f"acks={acks}", "linger.ms=20")
    _, *acknowledged = java.run("Produce", topic, str(PARTITIONS), "records", *settings)
    assert {batch.producer_id for batch in batches_of(java, topic)} == {-1}
    assert [value["offset"] for value in acknowledged] == [
        -1 if acks == "0" else record["offset"] for record in EXPECTED
    ]
    assert sorted(read_with_librdkafka(java.bootstrap, topic), key=by_place) == sorted(EXPECTED, key=by_place)


@pytest.mark.parametrize("codec", CODECS)
def test_java_reads_what_librdkafka_wrote(java: JavaPrograms, topic: str, codec: str) -> None:
    """Each codec in librdkafka's framing, headers and nulls included."""
    wanted = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": java.bootstrap})
    admin.create_topics([wanted])[topic].result(10)
    producer = Producer(
        {"bootstrap.servers": java.bootstrap, "compression.type": codec, "linger.ms": 50, "enable.idempotence": True}
    )
    for record in EXPECTED:
        producer.produce(
            topic,
            value=record["value"],
            key=record["key"],
            partition=record["partition"],
            timestamp=record["timestamp"],
            headers=[(name, value) for name, value in record["headers"]],
        )
    assert producer.flush(WAIT_SECONDS) == 0
    read = java.run("Produce", topic, str(PARTITIONS), "read")
    assert sorted(read, key=by_place) == sorted(EXPECTED, key=by_place)


@pytest.mark.parametrize("codec", CODECS)
def test_large_values(java: JavaPrograms, topic: str, codec: str) -> None:
    """Five values of 900,000 bytes are read back, from a topic that the first of them creates."""
    assert java.run("Produce", topic, "1", "large", f"compression.type={codec}") == [{"same": 5}]


def test_a_value_above_message_max_bytes(java: JavaPrograms, topic: str) -> None:
    """The producer's exception is the one of Kafka's MESSAGE_TOO_LARGE."""
    assert java.run("Produce", topic, "1", "too-large") == [{"error": "RecordTooLargeException"}]
