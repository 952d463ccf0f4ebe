"""Responses for READ_COMMITTED: Fetch, ListOffsets, OffsetForLeaderEpoch; and searches by time.

The log was written by Kafka (`tests.log.golden_transactions`), and the expected responses are those of Apache Kafka
4.1.1.
"""

import asyncio
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RdkafkaPartition

from onceflow.broker.node import Node
from onceflow.broker.storage.partitions import Partition
from onceflow.log.segment import Segment, Slice
from onceflow.log.visible import VisibleLog
from onceflow.testing import FaultyDisk
from onceflow.wire import apis
from onceflow.wire.batch import batches, patch_offset
from onceflow.wire.errors import ErrorCode
from onceflow.wire.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    encode_request,
    parse_response,
)
from tests.broker.driven_broker import PoweredBroker, eventually
from tests.broker.raw_client import FETCH_VERSION, RawClient, batch_of, connected
from tests.broker.test_durability import WAIT_SECONDS
from tests.log import golden_transactions as golden

Result = TypeVar("Result")

FIRST_MS = 1795263411910
LAST_MS = 1795263412040
FOR_EVER_MS = str(2**62)
LATER_MS = time.time_ns() // 1_000_000 + 3_000_000
COMMITTED = [b"v0", b"v1", b"v0", b"v0"]
"""Timestamps at the offsets 0, 1, 10, 11."""


class ChangedBroker(PoweredBroker):
    """A broker with partitions that a test can change."""

    def change(self, topic: str, work: Callable[[Partition], Result]) -> Result:
        """Change partition 0 and sync it."""

        def changed(node: Node) -> Result:
            partition = node.partitions.get(topic, 0)
            assert partition is not None
            result = work(partition)
            node.group_commit.request(partition)
            return result

        return self.call(changed)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ChangedBroker]:
    data = tmp_path / "disk"
    data.mkdir()
    with ChangedBroker(FaultyDisk(data), data) as running:
        yield running


@pytest.fixture
def client(broker: ChangedBroker) -> Iterator[RawClient]:
    with connected(broker.bootstrap) as connection:
        # Its records are of 2026-11-21: the log would start a segment for the markers of later weeks, and delete them.
        connection.create_topic("g", segment_ms=FOR_EVER_MS, retention_ms="-1")
        broker.change("g", append_golden)
        while connection.fetch([("g", 0, 0)])[0].high_watermark < 15:
            pass
        yield connection


def append_golden(partition: Partition) -> None:
    for position, header in batches(golden.LOG):
        if header.is_control:
            is_commit = header.base_offset in (2, 12, 13)
            partition.log.append_marker(header.producer_id, header.producer_epoch, commit=is_commit)
        else:
            data = bytearray(golden.LOG[position : position + header.size_bytes])
            patch_offset(data, 0, 0, -1)
            partition.log.append(data)


def test_rule_8_committed_fetches_list_aborted_transactions(client: RawClient) -> None:
    for offset, aborted in golden.ABORTED_FROM.items():
        (fetched,) = client.fetch([("g", 0, offset)], isolation_level=READ_COMMITTED)
        assert (fetched.error_code, fetched.high_watermark, fetched.last_stable_offset) == (0, 15, 14)
        assert fetched.aborted == aborted, offset
        offsets = [header.last_offset for _, header in batches(fetched.records)]
        assert offsets[-1:] == ([13] if offset < 14 else [])
    (small,) = client.fetch([("g", 0, 3)], isolation_level=READ_COMMITTED, partition_max_bytes=10)
    assert small.aborted == [(2, 3), (3, 6), (2, 5)], "as in Kafka: the range of the sparse index"


def test_rule_8_empty_and_null_abort_lists(client: RawClient) -> None:
    aborted = {}
    for isolation_level in (READ_UNCOMMITTED, READ_COMMITTED):
        client.send_fetch([("g", 0, 13)], isolation_level=isolation_level)
        response = client.receive(apis.FETCH, FETCH_VERSION)
        aborted[isolation_level] = response.responses[0].partitions[0].aborted_transactions
    assert aborted == {READ_UNCOMMITTED: None, READ_COMMITTED: ()}


def list_offset(client: RawClient, timestamp: int, isolation_level: int, topic: str = "g") -> tuple[int, ...]:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": topic, "partitions": [partition]}]
    response = client.ask(apis.LIST_OFFSETS, 7, replica_id=-1, isolation_level=isolation_level, topics=topics)
    partition = response.topics[0].partitions[0]
    return int(partition.error_code), partition.timestamp, partition.offset, partition.leader_epoch


@pytest.mark.parametrize(
    ("timestamp", "plain", "committed"),
    [
        (-1, (0, -1, 15, 0), (0, -1, 14, 0)),
        (-2, (0, -1, 0, 0), (0, -1, 0, 0)),
        (0, (0, FIRST_MS, 0, 0), (0, FIRST_MS, 0, 0)),
        (2**62, (0, -1, -1, -1), (0, -1, -1, -1)),
    ],
)
def test_list_offsets_like_kafka(
    client: RawClient, timestamp: int, plain: tuple[int, ...], committed: tuple[int, ...]
) -> None:
    assert list_offset(client, timestamp, READ_UNCOMMITTED) == plain
    assert list_offset(client, timestamp, READ_COMMITTED) == committed


def test_time_search_ends_at_last_stable_offset(broker: ChangedBroker, client: RawClient) -> None:
    later_ms = 4 * LAST_MS // 5
    client.create_topic("open")
    broker.change("open", lambda partition: partition.log.append(batch_of(b"0", timestamp_ms=1000)))
    data = batch_of(b"1", timestamp_ms=later_ms, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    broker.change("open", lambda partition: partition.log.append(data))
    while list_offset(client, -1, READ_UNCOMMITTED, "open")[2] < 2:
        pass
    for wanted in (2000, -3):
        assert list_offset(client, wanted, READ_UNCOMMITTED, "open") == (0, later_ms, 1, 0)
        assert list_offset(client, wanted, READ_COMMITTED, "open") == (0, -1, -1, -1)
    assert list_offset(client, 500, READ_COMMITTED, "open") == (0, 1000, 0, 0)


def epoch_end(client: RawClient, current: int, wanted: int, *, version: int = 4, partition: int = 0) -> tuple[int, ...]:
    asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": wanted}
    topics = [{"topic": "g", "partitions": [asked]}]
    response = client.ask(apis.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=topics)
    end = response.topics[0].partitions[0]
    return int(end.error_code), end.leader_epoch, end.end_offset


def test_rule_5_epoch_ends_like_kafka(client: RawClient) -> None:
    for version in (2, 3, 4):
        for current in (-1, 0):
            for wanted, expected in {-2: (0, -2, 0), -1: (0, -1, -1), 0: (0, 0, 15), 1: (0, -1, -1)}.items():
                assert epoch_end(client, current, wanted, version=version) == expected
        assert epoch_end(client, 1, 0, version=version) == (ErrorCode.unknown_leader_epoch, -1, -1)
        missing = epoch_end(client, -1, 0, version=version, partition=7)
        assert missing == (ErrorCode.unknown_topic_or_partition, -1, -1)


def lead_again(partition: Partition) -> None:
    """Lead the golden log, of 15 records, in epoch 3."""
    partition.log.begin_epoch(3)
    partition.leader_epoch = 3
    partition.log.append(batch_of(b"later", timestamp_ms=LATER_MS))


def test_later_epochs_are_reported(broker: ChangedBroker, client: RawClient) -> None:
    broker.change("g", lead_again)
    while list_offset(client, -1, READ_UNCOMMITTED) != (0, -1, 16, 3):
        pass
    assert list_offset(client, -2, READ_UNCOMMITTED) == (0, -1, 0, 0)
    assert list_offset(client, FIRST_MS, READ_UNCOMMITTED) == (0, FIRST_MS, 0, 0)
    assert list_offset(client, LATER_MS, READ_UNCOMMITTED) == (0, LATER_MS, 15, 3)
    assert [epoch_end(client, 3, wanted) for wanted in (0, 2, 3)] == [(0, 0, 15), (0, 0, 15), (0, 3, 16)]
    assert epoch_end(client, 0, 0) == (ErrorCode.fenced_leader_epoch, -1, -1)


def test_reader_learns_where_it_diverges(broker: ChangedBroker, client: RawClient) -> None:
    broker.change("g", lead_again)

    def fetched(offset: int, last_epoch: int, current: int = -1) -> tuple[object, ...]:
        asked = FetchPartition(0, current, offset, -1, 2**20, last_epoch)
        request = FetchRequest(-1, 5000, 1, 2**20, READ_UNCOMMITTED, 0, -1, [("g", [asked])])
        client.socket.sendall(encode_request(FETCH_VERSION, 1, "raw", request))
        (response,) = parse_response(FETCH_VERSION, client.receive_frame()).partitions
        return ErrorCode(response.error_code).name, response.diverging_epoch, bool(response.records)

    assert fetched(15, 0) == ("none", None, True)
    assert fetched(16, 0) == ("none", (0, 15), False)
    assert fetched(15, 2) == ("none", (0, 15), False)
    assert fetched(16, 4) == ("offset_out_of_range", None, False)
    assert fetched(0, -1, current=2) == ("fenced_leader_epoch", None, False)


def has_response(client: RawClient, within_seconds: float) -> bool:
    return bool(select.select([client.socket], [], [], within_seconds)[0])


@pytest.mark.parametrize("commit", [True, False])
def test_rule_15_a_marker_wakes_a_fetch(broker: ChangedBroker, client: RawClient, commit: bool) -> None:
    client.send_fetch([("g", 0, 14)], isolation_level=READ_COMMITTED, wait_ms=WAIT_SECONDS * 1000)
    with connected(broker.bootstrap) as other:
        assert other.produce("g", 0, batch_of(b"plain")).base_offset == 15
        assert not has_response(client, 0.1), "new data behind the last stable offset is nothing to this reader"
        (fetched,) = other.fetch([("g", 0, 14)], isolation_level=READ_UNCOMMITTED)
        assert (fetched.last_stable_offset, fetched.high_watermark, len(list(batches(fetched.records)))) == (14, 16, 2)
    broker.change("g", lambda partition: partition.log.append_marker(3, 0, commit=commit))
    (fetched,) = client.receive_fetched()
    assert (fetched.last_stable_offset, fetched.high_watermark) == (17, 17)
    assert fetched.aborted == ([] if commit else [(3, 14)])
    assert [header.base_offset for _, header in batches(fetched.records)] == [14, 15, 16]


@pytest.mark.parametrize("wait_ms", [WAIT_SECONDS * 1000, 50], ids=["woken", "expired"])
def test_a_failing_waiting_fetch_closes_its_connection(
    broker: ChangedBroker, client: RawClient, wait_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    read = VisibleLog.read

    def fails_from_the_second_look_on(log: VisibleLog, *arguments: Any, **options: Any) -> Slice | None:
        looks.append(log)
        if len(looks) > 1:
            raise RuntimeError("unexpected error")
        return read(log, *arguments, **options)

    monkeypatch.setattr(VisibleLog, "read", fails_from_the_second_look_on)
    client.send_fetch([("g", 0, 15)], wait_ms=wait_ms)
    with connected(broker.bootstrap) as other:
        if wait_ms > 1000:
            eventually(lambda: broker.call(lambda node: node.partitions.get("g", 0).watchers), "the fetch waits")  # type: ignore[union-attr]
            broker.change("g", Partition.wake)
        assert client.receive_frame() == b""
        assert len(looks) == 2, "it waited"
        monkeypatch.undo()
        assert other.fetch([("g", 0, 0)])[0].error_code == 0
    assert not broker.call(lambda node: node.partitions.get("g", 0).watchers)  # type: ignore[union-attr]


def test_searches_by_time_do_not_block(
    broker: ChangedBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_in: list[str] = []
    may_go_on = threading.Event()
    find = Segment.find_timestamp

    def slow(segment: Segment, *arguments: int) -> tuple[int, int] | None:
        found_in.append(threading.current_thread().name)
        assert may_go_on.wait(WAIT_SECONDS)
        return find(segment, *arguments)

    monkeypatch.setattr(Segment, "find_timestamp", slow)
    topics = [{"name": "g", "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": 0}]}]
    client.send(apis.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    with connected(broker.bootstrap) as other:
        assert list_offset(other, -1, READ_UNCOMMITTED) == (0, -1, 15, 0), "served during the search"
    assert not has_response(client, 0)
    may_go_on.set()
    assert client.receive(apis.LIST_OFFSETS, 7).topics[0].partitions[0].offset == 0
    assert found_in == ["time-search"]


def test_a_failing_search_is_one_partitions_error(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_arguments: object) -> None:
        raise FileNotFoundError("retention was here")

    monkeypatch.setattr(Segment, "find_timestamp", missing)
    assert list_offset(client, 0, READ_UNCOMMITTED)[0] == ErrorCode.kafka_storage_error
    assert list_offset(client, -1, READ_UNCOMMITTED) == (0, -1, 15, 0)


def read_with_librdkafka(bootstrap: str) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_committed",
         "enable.auto.commit": False, "enable.partition.eof": False}
    )  # fmt: skip
    try:
        consumer.assign([RdkafkaPartition("g", 0, 0)])
        messages = [consumer.poll(WAIT_SECONDS) for _ in COMMITTED]
        assert consumer.poll(0.2) is None
        return [message.value() or b"" for message in messages if message is not None]
    finally:
        consumer.close()


def read_with_kafka_python(bootstrap: str) -> list[bytes]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", group_id=None)
    try:
        consumer.assign([TopicPartition("g", 0)])
        consumer.seek_to_beginning()
        return poll_until(lambda: consumer.poll(timeout_ms=300))
    finally:
        consumer.close()


def poll_until(poll: Callable[[], Any]) -> list[bytes]:
    """Return at least the expected number of records, and those of one more poll."""
    values: list[bytes] = []
    for _ in range(100):
        enough = len(values) >= len(COMMITTED)
        values += [record.value for records in poll().values() for record in records]
        if enough:
            break
    return values


def read_with_aiokafka(bootstrap: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", group_id=None)
        await consumer.start()
        try:
            consumer.assign([TopicPartition("g", 0)])
            await consumer.seek_to_beginning()
            values: list[bytes] = []
            for _ in range(100):
                enough = len(values) >= len(COMMITTED)
                polled = await consumer.getmany(timeout_ms=300)
                values += [record.value or b"" for records in polled.values() for record in records]
                if enough:
                    break
            return values
        finally:
            await consumer.stop()

    return asyncio.run(read())


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
@pytest.mark.parametrize("read", [read_with_librdkafka, read_with_kafka_python, read_with_aiokafka])
def test_other_clients_read_committed_records(
    broker: ChangedBroker, client: RawClient, read: Callable[[str], list[bytes]]
) -> None:
    assert client.fetch([("g", 0, 0)])[0].error_code == 0
    assert read(broker.bootstrap) == COMMITTED
