"""Fetch versions 0 to 3 of the same log on Apache Kafka 3.9 and on Onceflow's broker, message by message."""

import time
from collections.abc import Iterator

import pytest

from benchmarks import kafka
from onceflow.testing import BrokerProcess
from onceflow.wire import message_sets
from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.codecs import Codec
from onceflow.wire.old_fetch import OldPartition
from tests.broker import old_fetch
from tests.broker.raw_client import RawClient, connected
from tests.compat.conftest import kafka_jars, tool

VERSION = "3.9.1"
"""A release before Kafka 4 removed these versions."""
FIRST_MS = time.time_ns() // 1_000_000
"""Present: retention deletes old records."""
RECORDS = [
    Record(0, FIRST_MS, b"key", b"value" * 20, (("header", b"1"),)),
    Record(1, FIRST_MS + 40, None, b"value" * 20),
    Record(2, FIRST_MS + 10, b"key", None),
    Record(3, -1, b"", b""),
]
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tool("java", "apt install default-jdk-headless")
    with kafka.KafkaProcess(tmp_path_factory.mktemp("apache") / "kafka", kafka_jars(VERSION)) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("ours") / "data"
    with BrokerProcess(data, 0, "--log-message-downconversion-enable", "true") as running:
        yield running.bootstrap


@pytest.fixture
def clients(theirs: str, ours: str) -> Iterator[tuple[RawClient, RawClient]]:
    with connected(theirs) as kafkas, connected(ours) as own:
        yield kafkas, own


def whole(part: OldPartition) -> list[tuple[int, int, bytes]]:
    """Return (offset, attributes, bytes) of each whole message: Kafka fills a response up with a cut one.

    A wrapper's bytes are those of its messages and of its header: compressors differ.
    """
    messages = []
    for position, header in message_sets.entries(part.records):
        if header.offset < 0:
            break
        data = part.records[position : position + header.size_bytes]
        if header.codec is not Codec.NONE:
            inner = repr((header.timestamp_ms, message_sets.decode_entry(data)))
            data = inner.encode()
        messages.append((header.offset, header.attributes, data))
    return messages


def responses(client: RawClient, version: int, topic: str, offset: int, **limits: int) -> list[object]:
    client.socket.sendall(old_fetch.request(version, [(topic, [(0, offset)])], **limits))
    return [
        (name, part.partition, part.error_code, part.high_watermark, whole(part))
        for name, parts in old_fetch.receive(client, version)
        for part in parts
    ]


def assert_same(clients: tuple[RawClient, RawClient], topic: str, offset: int, **limits: int) -> None:
    for version in range(4):
        kafkas, own = (responses(client, version, topic, offset, **limits) for client in clients)
        assert own == kafkas, (version, offset)


@pytest.mark.parametrize("codec", CODECS)
def test_messages_are_the_same(clients: tuple[RawClient, RawClient], codec: Codec) -> None:
    topic = f"of-{codec.name.lower()}"
    for client in clients:
        client.create_topic(topic)
        for number in range(3):
            records = RECORDS if number != 1 else RECORDS[:2]
            assert client.produce(topic, 0, encode_batch(records, codec=codec)).error_code == 0
    for offset in range(12):
        assert_same(clients, topic, offset)


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_the_same(clients: tuple[RawClient, RawClient], codec: Codec) -> None:
    """The times themselves differ; their bits and those of the messages inside do not."""
    topic = f"appended-{codec.name.lower()}"
    for client in clients:
        client.create_topic(topic, message_timestamp_type="LogAppendTime")
        client.produce(topic, 0, encode_batch(RECORDS, codec=codec))
    for version in range(4):
        kafkas, own = (
            [
                (header.offset, header.attributes, [record._replace(timestamp_ms=0) for record in decoded(part, at)])
                for _topic, parts in received(client, version, topic)
                for part in parts
                for at, header in message_sets.entries(part.records)
            ]
            for client in clients
        )
        assert own == kafkas


def decoded(part: OldPartition, position: int) -> list[Record]:
    return message_sets.decode_entry(part.records, position)


def received(client: RawClient, version: int, topic: str) -> list[tuple[str, list[OldPartition]]]:
    client.socket.sendall(old_fetch.request(version, [(topic, [(0, 0)])]))
    return [(name, list(parts)) for name, parts in old_fetch.receive(client, version)]


def test_zstd_is_refused_alike(clients: tuple[RawClient, RawClient]) -> None:
    for client in clients:
        client.create_topic("with-zstd")
        for codec in (Codec.NONE, Codec.ZSTD, Codec.GZIP):
            client.produce("with-zstd", 0, encode_batch(RECORDS, codec=codec))
    for offset in (0, 4, 5, 8):
        assert_same(clients, "with-zstd", offset)


def test_limits_are_the_same(clients: tuple[RawClient, RawClient]) -> None:
    """Version 3 returns a first batch that is larger than its limit; in the others Kafka returns nothing."""
    for client in clients:
        client.create_topic("limited")
        for _ in range(3):
            client.produce("limited", 0, encode_batch(RECORDS))
    for limits in ({"partition_max_bytes": 10}, {"max_bytes": 10}):
        kafkas, own = (responses(client, 3, "limited", 0, **limits) for client in clients)
        assert own == kafkas


def test_errors_are_the_same(clients: tuple[RawClient, RawClient]) -> None:
    for client in clients:
        client.create_topic("with-errors")
    for topic, offset in (("with-errors", 1), ("with-errors", -1), ("absent", 0)):
        assert_same(clients, topic, offset)
