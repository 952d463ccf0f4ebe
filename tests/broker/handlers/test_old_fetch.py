"""Fetch versions 0 to 3: what consumers before Kafka 0.11 read. tests/compat compares them with Apache Kafka 3.9."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from onceflow.broker.handlers.old_fetch import LOG_BYTES_MAX, OldFetch
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import Authorizer
from onceflow.broker.security.client_quotas import CONSUMER_BYTE_RATE, USER
from onceflow.log.disk import RealDisk, RealFile
from onceflow.wire import apis
from onceflow.wire import old_fetch as old_fetch_codec
from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import ErrorCode
from tests.broker import old_fetch
from tests.broker.driven_broker import WAIT_SECONDS, InnerBroker, eventually
from tests.broker.raw_client import RawClient, batch_of, connected

TOPIC = "read"
FIRST_MS = 1_700_000_000_000


class GatedFile(RealFile):
    """A file whose reads in other threads than the broker's loop wait for the disk's gate."""

    disk: "GatedDisk"

    def read(self, size_bytes: int, position: int) -> bytes:
        if threading.current_thread().name == "down-conversion":
            self.disk.reads += 1
            self.disk.waiting.set()
            assert self.disk.gate.wait(WAIT_SECONDS)
            if self.disk.is_broken:
                raise OSError("the test's disk is broken")
        return super().read(size_bytes, position)


class GatedDisk(RealDisk):
    """A disk from which the thread that converts records reads only through a gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.is_broken = False
        self.reads = 0
        """Reads by the thread: two for each batch."""

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        if path.suffix != ".log":
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
    with InnerBroker(tmp_path / "data", disk=disk, down_converts=True) as running:
        try:
            yield running
        finally:
            disk.gate.set()


@pytest.fixture
def client(broker: InnerBroker) -> Iterator[RawClient]:
    with connected(broker.bootstrap) as connection:
        connection.create_topic(TOPIC, 3)
        yield connection


def records(count: int, value: bytes = b"value") -> list[Record]:
    return [Record(offset, FIRST_MS + offset, b"key", value) for offset in range(count)]


def read_all(client: RawClient, version: int, end: int) -> list[Record]:
    """Read partition 0 up to an offset, in as many requests as it takes."""
    read: list[Record] = []
    while not read or read[-1].offset + 1 < end:
        (part,) = old_fetch.fetch(client, version, (TOPIC, [(0, read[-1].offset + 1 if read else 0)]))
        assert (part.error_code, part.high_watermark) == (ErrorCode.none, end)
        read += part.records
    return read


def append_marker(broker: InnerBroker, partition: int = 0) -> None:
    """Append a control batch and wait until it is visible."""

    def append(node: Node) -> None:
        opened = node.partitions.get(TOPIC, partition)
        assert opened is not None
        opened.log.append_marker(7, 0, commit=True)
        node.group_commit.request(opened)

    log = broker.log(TOPIC, partition)
    end = log.log_end_offset + 1
    broker.call(append)
    eventually(lambda: log.visible.high_watermark == end, "the marker")


def damage(broker: InnerBroker, position: int) -> None:
    """Flip a bit of partition 0's file."""
    path = next((broker.data / f"{TOPIC}-0").glob("*.log"))
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_records_are_converted(client: RawClient, version: int, codec: Codec) -> None:
    client.produce(TOPIC, 0, encode_batch(records(3), codec=codec))
    client.produce(TOPIC, 0, encode_batch([record._replace(headers=(("h", b"1"),)) for record in records(2)]))
    expected = [Record(offset, FIRST_MS + offset % 3 if version >= 2 else -1, b"key", b"value") for offset in range(5)]
    assert read_all(client, version, 5) == expected


def test_later_versions_are_served_unchanged(client: RawClient) -> None:
    batch = encode_batch(records(3))
    client.produce(TOPIC, 0, batch)
    (fetched,) = client.fetch([(TOPIC, 0, 0)])
    assert bytes(fetched.records)[61:] == bytes(batch)[61:]


@pytest.mark.parametrize("down_converts", [False, True])
def test_setting_decides_the_offered_versions(tmp_path: Path, down_converts: bool) -> None:
    with (
        InnerBroker(tmp_path / "data", down_converts=down_converts) as broker,
        connected(broker.bootstrap) as client,
    ):
        client.create_topic(TOPIC)
        for _ in range(2):
            (api,) = (api for api in client.ask(apis.API_VERSIONS, 0).api_keys if api.api_key == apis.FETCH)
            assert (api.min_version, api.max_version) == (0 if down_converts else 4, 12)
        with suppress(ConnectionError):
            responded = old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]))
        assert bool(responded) is down_converts


def test_partitions_are_read_in_one_response(client: RawClient) -> None:
    client.produce(TOPIC, 0, encode_batch(records(2)))
    client.produce(TOPIC, 2, encode_batch(records(1)))
    read = old_fetch.fetch(client, 3, (TOPIC, [(2, 0), (1, 0), (0, 1), (1, 5), (9, 0)]), ("absent", [(0, 0)]))
    assert [(part.topic, part.partition, part.error_code, part.high_watermark, part.offsets) for part in read] == [
        (TOPIC, 2, ErrorCode.none, 1, [0]),
        (TOPIC, 1, ErrorCode.offset_out_of_range, -1, []),
        (TOPIC, 0, ErrorCode.none, 2, [1]),
        (TOPIC, 9, ErrorCode.unknown_topic_or_partition, -1, []),
        ("absent", 0, ErrorCode.unknown_topic_or_partition, -1, []),
    ]


def test_first_batch_may_exceed_the_limits(client: RawClient) -> None:
    """A reader progresses in versions 0 to 2 too, where Kafka returns nothing."""
    for _ in range(2):
        client.produce(TOPIC, 0, encode_batch(records(3)))
    for version in range(4):
        (read,) = old_fetch.fetch(client, version, (TOPIC, [(0, 0)]), partition_max_bytes=10)
        assert read.offsets == [0, 1, 2]


def test_no_message_is_cut(client: RawClient) -> None:
    """Messages are larger than records: those beyond the batches' size wait for the next request."""
    for _ in range(2):
        client.produce(TOPIC, 0, encode_batch(records(20, b"")))
    (read,) = old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]))
    assert 20 <= len(read.offsets) < 40
    assert read_all(client, 3, 40) == [
        record._replace(offset=offset) for offset, record in enumerate(records(20, b"") * 2)
    ]


def test_response_has_a_limit(client: RawClient) -> None:
    value = bytes(LOG_BYTES_MAX // 2)
    for partition in (0, 1):
        for _ in range(2):
            client.produce(TOPIC, partition, encode_batch(records(1, value)))
    read = old_fetch.fetch(client, 0, (TOPIC, [(0, 0), (1, 0)]))
    assert [part.offsets for part in read] == [[0], []]


@pytest.mark.parametrize(("version", "places"), [(2, 5), (3, 1)])
def test_old_clients_get_every_partition(client: RawClient, version: int, places: int) -> None:
    """Each of five partitions comes first, in any number of topics."""
    client.create_topic("other", 2)
    asked = [(TOPIC, [(0, 0), (1, 0), (2, 0)]), ("other", [(0, 0), (1, 0)])]
    for topic, partitions in asked:
        for partition, _offset in partitions:
            client.produce(topic, partition, encode_batch(records(1)))
    first = set()
    for correlation_id in range(12):
        client.socket.sendall(old_fetch.request(version, asked, max_bytes=1, correlation_id=correlation_id))
        read = old_fetch.read(client, version)
        assert {(part.topic, part.partition) for part in read} == {
            (TOPIC, 0),
            (TOPIC, 1),
            (TOPIC, 2),
            ("other", 0),
            ("other", 1),
        }
        first.add((read[0].topic, read[0].partition))
    assert len(first) == places


def test_zstd_is_refused_at_its_batch(client: RawClient) -> None:
    client.produce(TOPIC, 0, encode_batch(records(2)))
    client.produce(TOPIC, 0, encode_batch(records(2), codec=Codec.ZSTD))
    client.produce(TOPIC, 0, encode_batch(records(2)))
    assert [old_fetch.fetch(client, 3, (TOPIC, [(0, offset)]))[0][2:] for offset in (2, 3)] == [
        (ErrorCode.unsupported_compression_type, -1, [])
    ] * 2
    (read,) = old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]))
    assert (read.error_code, read.offsets) == (ErrorCode.none, [0, 1])
    assert old_fetch.fetch(client, 3, (TOPIC, [(0, 4)]))[0].offsets == [4, 5]


def test_large_compressed_batch_is_refused(tmp_path: Path) -> None:
    from onceflow.log.config import LogConfig

    log = LogConfig(batch_unpacked_bytes_max=1000)
    with (
        InnerBroker(tmp_path / "data", down_converts=True, log=log) as broker,
        connected(broker.bootstrap) as client,
    ):
        client.create_topic(TOPIC)
        client.produce(TOPIC, 0, encode_batch(records(1, bytes(1001)), codec=Codec.GZIP))
        assert old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]))[0][2:] == (ErrorCode.message_too_large, -1, [])


def test_damaged_batch_is_refused(broker: InnerBroker, client: RawClient) -> None:
    batch = encode_batch(records(2))
    for _ in range(2):
        client.produce(TOPIC, 0, batch)
    damage(broker, 2 * len(batch) - 1)
    (read,) = old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]))
    assert read.offsets == [0, 1]
    assert old_fetch.fetch(client, 3, (TOPIC, [(0, 2)]))[0][2:] == (ErrorCode.corrupt_message, -1, [])


def test_failing_disk_has_the_older_code(client: RawClient, disk: GatedDisk) -> None:
    client.produce(TOPIC, 0, encode_batch(records(2)))
    disk.is_broken = True
    assert old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]))[0].error_code == ErrorCode.not_leader_or_follower


def test_reading_continues_after_control_batches(broker: InnerBroker, client: RawClient) -> None:
    """A request whose slice has nothing else gets the records after it."""
    for _ in range(3):
        append_marker(broker)
    client.produce(TOPIC, 0, encode_batch(records(2)))
    (read,) = old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]), partition_max_bytes=78)
    assert (read.high_watermark, read.offsets) == (5, [3, 4])


def test_control_batches_end_no_wait(broker: InnerBroker, client: RawClient) -> None:
    append_marker(broker)
    client.socket.sendall(old_fetch.request(3, [(TOPIC, [(0, 0)])], wait_ms=60_000))
    eventually(lambda: broker.call(lambda node: node.parked_fetches.partition_count == 1), "the wait")
    append_marker(broker)
    with connected(broker.bootstrap) as producer:
        producer.produce(TOPIC, 0, encode_batch(records(1)))
    (read,) = old_fetch.read(client, 3)
    assert read.offsets == [2]


def test_wait_without_records_ends_in_time(broker: InnerBroker, client: RawClient) -> None:
    append_marker(broker)
    for wait_ms in (0, 20):
        (read,) = old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]), wait_ms=wait_ms)
        assert (read.error_code, read.high_watermark, read.offsets) == (ErrorCode.none, 1, [])


def test_new_record_ends_the_wait(broker: InnerBroker, client: RawClient) -> None:
    client.socket.sendall(old_fetch.request(0, [(TOPIC, [(1, 0), (0, 0)])], wait_ms=60_000))
    eventually(lambda: broker.call(lambda node: node.parked_fetches.partition_count == 2), "the wait")
    with connected(broker.bootstrap) as producer:
        producer.produce(TOPIC, 0, encode_batch(records(1)))
    assert [part.offsets for part in old_fetch.read(client, 0)] == [[], [0]]
    assert broker.call(lambda node: node.parked_fetches.partition_count) == 0


def test_others_are_served_during_a_conversion(client: RawClient, broker: InnerBroker, disk: GatedDisk) -> None:
    client.produce(TOPIC, 0, encode_batch(records(2)))
    disk.gate.clear()
    client.socket.sendall(old_fetch.request(3, [(TOPIC, [(0, 0)])]))
    assert disk.waiting.wait(WAIT_SECONDS)
    with connected(broker.bootstrap) as other:
        assert other.fetch([(TOPIC, 0, 0)])[0].high_watermark == 2
    disk.gate.set()
    assert old_fetch.read(client, 3)[0].offsets == [0, 1]


def test_requests_are_converted_in_turn(client: RawClient, broker: InnerBroker, disk: GatedDisk) -> None:
    """A reader of one batch does not wait for all batches of another."""
    for _ in range(50):
        client.produce(TOPIC, 0, encode_batch(records(1)))
    client.produce(TOPIC, 1, encode_batch(records(1)))
    disk.gate.clear()
    client.socket.sendall(old_fetch.request(3, [(TOPIC, [(0, 0)])]))
    assert disk.waiting.wait(WAIT_SECONDS)
    responded = []
    with connected(broker.bootstrap) as other:
        other.socket.sendall(old_fetch.request(3, [(TOPIC, [(1, 0)])]))
        eventually(lambda: broker.call(lambda node: len(node.conversions._queue) == 2), "the queue")
        threads = [
            threading.Thread(target=lambda: (old_fetch.read(client, 3), responded.append("many"))),
            threading.Thread(target=lambda: (old_fetch.read(other, 3), responded.append("one"))),
        ]
        for thread in threads:
            thread.start()
        disk.gate.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert responded == ["one", "many"]


def test_closed_connection_ends_its_conversion(client: RawClient, broker: InnerBroker, disk: GatedDisk) -> None:
    client.produce(TOPIC, 0, batch_of(b"a"))
    client.produce(TOPIC, 0, batch_of(b"b"))
    disk.gate.clear()
    with connected(broker.bootstrap) as leaving:
        leaving.socket.sendall(old_fetch.request(3, [(TOPIC, [(0, 0)])]))
        assert disk.waiting.wait(WAIT_SECONDS)
    eventually(lambda: broker.call(lambda node: node.parked_fetches.partition_count == 0), "the end")
    disk.gate.set()
    eventually(lambda: broker.call(lambda node: not node.conversions._queue), "the end")
    assert disk.reads == 2
    assert old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]))[0].offsets == [0, 1]


def test_stopping_broker_sends_what_is_converted(tmp_path: Path, disk: GatedDisk) -> None:
    broker = InnerBroker(tmp_path / "data", disk=disk, down_converts=True)
    broker.start()
    with connected(broker.bootstrap) as client:
        client.create_topic(TOPIC)
        client.produce(TOPIC, 0, encode_batch(records(2)))
        disk.gate.clear()
        client.socket.sendall(old_fetch.request(3, [(TOPIC, [(0, 0)])]))
        assert disk.waiting.wait(WAIT_SECONDS)
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        assert old_fetch.read(client, 3)[0].offsets == []
        disk.gate.set()
        stopping.join(WAIT_SECONDS)


def test_unexpected_error_closes_the_connection(
    client: RawClient, broker: InnerBroker, disk: GatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.produce(TOPIC, 0, encode_batch(records(2)))

    def fail(*_arguments: object, **_named: object) -> Iterator[bytes]:
        raise ArithmeticError("not expected")
        yield b""

    disk.gate.clear()
    with (
        monkeypatch.context() as patch,
        connected(broker.bootstrap) as first,
        connected(broker.bootstrap) as second,
    ):
        patch.setattr("onceflow.broker.handlers.old_fetch.down_convert", fail)
        for other in (first, second):
            other.socket.sendall(old_fetch.request(3, [(TOPIC, [(0, 0)])]))
        eventually(lambda: broker.call(lambda node: len(node.conversions._queue) == 2), "the queue")
        disk.gate.set()
        assert [old_fetch.read(other, 3) for other in (first, second)] == [[], []]
    assert old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]))[0].offsets == [0, 1]


def test_topics_without_permission_come_last(client: RawClient, broker: InnerBroker) -> None:
    client.produce(TOPIC, 0, encode_batch(records(2)))
    broker.call(lambda node: setattr(node, "authorizer", Authorizer(node.acls, (), allow_if_no_acl=False)))
    refused = old_fetch.Read(TOPIC, 0, ErrorCode.topic_authorization_failed, -1, [])
    assert old_fetch.fetch(client, 1, (TOPIC, [(0, 0)])) == [refused]


@pytest.mark.parametrize("version", range(4))
def test_quotas_hold_for_old_versions(client: RawClient, broker: InnerBroker, version: int) -> None:
    client.produce(TOPIC, 0, encode_batch(records(2, bytes(4000))))
    broker.call(lambda node: node.throttling.quotas.set(frozenset({(USER, None)}), CONSUMER_BYTE_RATE, 100))
    client.socket.sendall(old_fetch.request(version, [(TOPIC, [(0, 0)])]))
    throttled = client.receive_frame()
    assert old_fetch_codec.parse_response(version, throttled) == (old_fetch.CORRELATION_ID, [])
    throttle_ms = throttled[4:8]
    assert (len(throttled), throttle_ms > bytes(4)) == ((8, False) if version == 0 else (12, True))


def test_replicas_are_refused(client: RawClient) -> None:
    client.produce(TOPIC, 0, encode_batch(records(2)))
    (read,) = old_fetch.fetch(client, 3, (TOPIC, [(0, 0)]), replica_id=2)
    assert read == (TOPIC, 0, ErrorCode.unsupported_version, -1, [])


def test_large_request_is_read_in_steps(client: RawClient) -> None:
    """More than 8 KiB, over several turns of the loop."""
    client.produce(TOPIC, 2, encode_batch(records(2)))
    for wait_ms in (0, 60_000):
        read = old_fetch.fetch(client, 2, (TOPIC, [(0, 0), (1, 0), (2, 1)] * 200), wait_ms=wait_ms)
        assert [(part.partition, part.offsets) for part in read] == [(0, []), (1, []), (2, [1])]


def test_end_of_the_wait_repeats_no_conversion(client: RawClient, broker: InnerBroker, disk: GatedDisk) -> None:
    client.produce(TOPIC, 0, encode_batch(records(2)))
    disk.gate.clear()
    client.socket.sendall(old_fetch.request(3, [(TOPIC, [(0, 0)] * 600)], wait_ms=1))
    assert disk.waiting.wait(WAIT_SECONDS)
    eventually(
        lambda: broker.call(
            lambda node: all(isinstance(parked, OldFetch) and parked._is_due for parked in node.parked_fetches._counts)
        ),
        "the end",
    )
    disk.gate.set()
    assert old_fetch.read(client, 3)[0].offsets == [0, 1]
    assert disk.reads == 2
