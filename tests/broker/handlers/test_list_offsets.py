"""Responses that reveal a log's end wait for the sync: an acknowledged record is below the end."""

import asyncio
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.log.disk import RealDisk, RealFile
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import WAIT_SECONDS, InnerBroker, eventually
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds

TOPIC = "watched"
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
READ_COMMITTED = 1
FIRST_MS = 1_700_000_000_000
REPEATS = 1000


class GatedFile(RealFile):
    """A file with syncs that wait for the disk's gate, and fail if the disk is set to fail."""

    disk: "GatedDisk"

    def sync_data(self) -> None:
        assert self.disk.gate.wait(WAIT_SECONDS)
        if self.disk.is_broken:
            raise OSError("the test's disk is broken")
        super().sync_data()


class GatedDisk(RealDisk):
    """A disk on which syncs of the watched topic's records wait while the gate is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.is_broken = False

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        if path.suffix != ".log" or not path.parent.name.startswith(TOPIC):
            return file
        gated = GatedFile(os.dup(file.fileno()))
        gated.disk = self
        return gated


@pytest.fixture
def disk() -> Iterator[GatedDisk]:
    gated = GatedDisk()
    yield gated
    gated.gate.set()


@pytest.fixture
def broker(tmp_path: Path, disk: GatedDisk) -> Iterator[InnerBroker]:
    with InnerBroker(tmp_path / "data", disk=disk) as running:
        try:
            yield running
        finally:
            disk.gate.set()


@pytest.fixture
def client(broker: InnerBroker) -> Iterator[RawClient]:
    with connected(broker.bootstrap) as connection:
        connection.create_topic(TOPIC)
        yield connection


def list_offsets(timestamp: int, *, version: int = 7, isolation_level: int = 0) -> tuple[int, int, dict[str, Any]]:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp, "max_num_offsets": 1}
    topics = [{"name": TOPIC, "partitions": [asked]}]
    fields = {"replica_id": -1, "isolation_level": isolation_level, "topics": topics}
    return apis.LIST_OFFSETS, version, fields


def epoch_end() -> tuple[int, int, dict[str, Any]]:
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    topics = [{"topic": TOPIC, "partitions": [partition]}]
    return apis.OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": topics}


def delete_records(offset: int) -> tuple[int, int, dict[str, Any]]:
    partition = {"partition_index": 0, "offset": offset}
    topics = [{"name": TOPIC, "partitions": [partition]}]
    return apis.DELETE_RECORDS, 2, {"topics": topics, "timeout": milliseconds(int(WAIT_SECONDS * 1000))}


def found(response: Any) -> tuple[int, int]:
    """Return error code and offset of the one partition, for any API."""
    (partition,) = response.topics[0].partitions
    names = ("offset", "old_style_offsets", "end_offset", "low_watermark")
    (offset,) = (getattr(partition, name) for name in names if hasattr(partition, name))
    return int(partition.error_code), offset[0] if isinstance(offset, tuple) else offset


def has_response(client: RawClient) -> bool:
    return bool(select.select([client.socket], [], [], 0)[0])


BY_END = {
    "latest": (list_offsets(LATEST), 2),
    "latest, version 0": (list_offsets(LATEST, version=0), 2),
    "latest, committed": (list_offsets(LATEST, isolation_level=READ_COMMITTED), 2),
    "max timestamp": (list_offsets(MAX_TIMESTAMP), 1),
    "by time": (list_offsets(FIRST_MS), 0),
    "epoch's end": (epoch_end(), 2),
    "delete all": (delete_records(-1), 2),
    "delete one": (delete_records(1), 1),
}
"""Requests with a response that depends on the end, and the offset in it after two records."""


@pytest.mark.parametrize("name", BY_END)
def test_the_end_waits_for_its_sync(name: str, broker: InnerBroker, client: RawClient, disk: GatedDisk) -> None:
    """The record was acknowledged with acks=1; its sync is held until the request has been handled."""
    (api_key, version, fields), offset = BY_END[name]
    disk.gate.clear()
    assert client.produce(TOPIC, 0, batch_of(b"a", b"b"), acks=1).base_offset == 0
    client.send(api_key, version, **fields)
    with connected(broker.bootstrap) as other:
        assert found(other.ask(*list_offsets(EARLIEST)[:2], **list_offsets(EARLIEST)[2])) == (0, 0)
        assert other.fetch([(TOPIC, 0, 0)])[0].high_watermark == 0, "a Fetch does not wait"
    eventually(lambda: broker.call(has_waiters), "the request waits")
    assert not has_response(client)
    disk.gate.set()
    assert found(client.receive(api_key, version)) == (0, offset)


def has_waiters(node: Any) -> bool:
    return bool(node.partitions.get(TOPIC, 0).has_waiters)


@pytest.mark.parametrize("name", BY_END)
def test_a_failed_sync_is_a_storage_error(name: str, client: RawClient, disk: GatedDisk) -> None:
    (api_key, version, fields), _offset = BY_END[name]
    disk.gate.clear()
    disk.is_broken = True
    client.produce(TOPIC, 0, batch_of(b"a", b"b"), acks=1)
    client.send(api_key, version, **fields)
    disk.gate.set()
    response = client.receive(api_key, version)
    assert int(response.topics[0].partitions[0].error_code) == ErrorCode.kafka_storage_error
    again = client.ask(api_key, version, **fields)
    assert int(again.topics[0].partitions[0].error_code) == ErrorCode.kafka_storage_error, "and does not wait again"
    assert found(client.ask(*list_offsets(EARLIEST)[:2], **list_offsets(EARLIEST)[2])) == (0, 0)


def test_a_deleted_topic_ends_the_wait(broker: InnerBroker, client: RawClient, disk: GatedDisk) -> None:
    disk.gate.clear()
    client.produce(TOPIC, 0, batch_of(b"a"), acks=1)
    api_key, version, fields = list_offsets(LATEST)
    client.send(api_key, version, **fields)
    with connected(broker.bootstrap) as other:
        eventually(lambda: broker.call(has_waiters), "the request waits")
        other.send(apis.DELETE_TOPICS, 5, topic_names=[TOPIC], timeout=milliseconds(10_000))
        assert found(client.receive(api_key, version))[0] == ErrorCode.unknown_topic_or_partition
        disk.gate.set()
        assert other.receive(apis.DELETE_TOPICS, 5).responses[0].error_code == 0


def test_a_closed_connection_ends_nothing_else(broker: InnerBroker, client: RawClient, disk: GatedDisk) -> None:
    """The waiting request's client disconnects; other clients that wait for the same sync get their responses."""
    disk.gate.clear()
    client.produce(TOPIC, 0, batch_of(b"a"), acks=1)
    api_key, version, fields = list_offsets(LATEST)
    with connected(broker.bootstrap) as leaving:
        leaving.send(api_key, version, **fields)
        client.send(api_key, version, **fields)
        eventually(lambda: broker.call(lambda node: len(node.partitions.get(TOPIC, 0)._waiting) == 2), "both wait")  # type: ignore[union-attr]
    disk.gate.set()
    assert found(client.receive(api_key, version)) == (0, 1)
    assert not broker.call(has_waiters)


def test_a_disconnect_cancels_a_deletion(broker: InnerBroker, client: RawClient, disk: GatedDisk) -> None:
    disk.gate.clear()
    client.produce(TOPIC, 0, batch_of(b"a"), acks=1)
    api_key, version, fields = delete_records(-1)
    with connected(broker.bootstrap) as leaving:
        leaving.send(api_key, version, **fields)
        eventually(lambda: broker.call(has_waiters), "the request waits")
    listener = broker._broker and broker._broker._listener
    assert listener is not None
    eventually(lambda: broker.call(lambda _node: len(listener._connections) == 1), "the broker sees its end")  # type: ignore[union-attr]
    disk.gate.set()
    assert found(client.ask(*list_offsets(LATEST)[:2], **list_offsets(LATEST)[2])) == (0, 1)
    assert found(client.ask(*list_offsets(EARLIEST)[:2], **list_offsets(EARLIEST)[2])) == (0, 0)


def test_a_stopping_broker_sends_the_end(tmp_path: Path, disk: GatedDisk) -> None:
    """A broker that stops waits for the sync, and sends the response before the connection closes."""
    broker = InnerBroker(tmp_path / "data", disk=disk)
    broker.start()
    with connected(broker.bootstrap) as client:
        client.create_topic(TOPIC)
        disk.gate.clear()
        client.produce(TOPIC, 0, batch_of(b"a"), acks=1)
        api_key, version, fields = list_offsets(LATEST)
        client.send(api_key, version, **fields)
        eventually(lambda: broker.call(has_waiters), "the request waits")
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        threading.Timer(0.2, disk.gate.set).start()
        assert found(client.receive(api_key, version)) == (0, 1)
        assert client.receive_frame() == b""
        stopping.join()


def test_flush_policies_delay_nothing(client: RawClient, disk: GatedDisk) -> None:
    """Data that the policy shows before its sync counts at once; data that it holds back waits for its sync."""
    client.create_topic(f"{TOPIC}-2", flush_messages="2")
    disk.gate.clear()
    api_key, version, fields = list_offsets(LATEST)
    fields["topics"][0]["name"] = f"{TOPIC}-2"
    client.produce(f"{TOPIC}-2", 0, batch_of(b"a"), acks=1)
    assert found(client.ask(api_key, version, **fields)) == (0, 1)
    client.produce(f"{TOPIC}-2", 0, batch_of(b"b"), acks=1)
    client.send(api_key, version, **fields)
    disk.gate.set()
    assert found(client.receive(api_key, version)) == (0, 2)


# Clients that read the end right after each of many records


@pytest.fixture
def appended(broker: InnerBroker) -> Callable[[int], None]:
    """Wait until this number of records is appended: with acks=0 no response reports it."""

    def wait(count: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while broker.call(lambda node: node.partitions.get(TOPIC, 0).log.log_end_offset) < count:  # type: ignore[union-attr]
            assert time.monotonic() < deadline, f"record {count} did not arrive"

    return wait


@pytest.mark.parametrize("acks", [0, 1])
def test_librdkafka_sees_each_record_at_once(
    acks: int, broker: InnerBroker, client: RawClient, appended: Callable[[int], None]
) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": acks, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    ends = []
    for number in range(REPEATS):
        producer.produce(TOPIC, b"x", partition=0)
        assert producer.flush(WAIT_SECONDS) == 0
        appended(number + 1)
        ends.append(consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=WAIT_SECONDS, cached=False)[1])
    consumer.close()
    assert ends == list(range(1, REPEATS + 1))


@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_kafka_python_sees_each_record_at_once(
    acks: int, broker: InnerBroker, client: RawClient, appended: Callable[[int], None]
) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    place = TopicPartition(TOPIC, 0)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks=acks, enable_idempotence=False)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
    ends = []
    for number in range(REPEATS):
        producer.send(TOPIC, b"x", partition=0).get(WAIT_SECONDS)
        appended(number + 1)
        ends.append(consumer.end_offsets([place])[place])
    producer.close()
    consumer.close()
    assert ends == list(range(1, REPEATS + 1))


@pytest.mark.parametrize("acks", [0, 1])
def test_aiokafka_sees_each_record_at_once(
    acks: int, broker: InnerBroker, client: RawClient, appended: Callable[[int], None]
) -> None:
    ends = asyncio.run(_ends_with_aiokafka(broker.bootstrap, acks, appended))
    assert ends == list(range(1, REPEATS + 1))


async def _ends_with_aiokafka(bootstrap: str, acks: int, appended: Callable[[int], None]) -> list[int]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    place = TopicPartition(TOPIC, 0)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks=acks)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await producer.start()
    await consumer.start()
    ends = []
    for number in range(REPEATS):
        await producer.send_and_wait(TOPIC, b"x", partition=0)
        appended(number + 1)
        ends.append((await consumer.end_offsets([place]))[place])
    await producer.stop()
    await consumer.stop()
    return ends
