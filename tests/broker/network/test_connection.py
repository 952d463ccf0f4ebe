"""Connections: frames in pieces, many requests in flight, large responses to slow readers, invalid input."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.broker.config import BrokerConfig
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from onceflow.wire.batch import batches
from onceflow.wire.frames import decode_response, encode_request, request_class
from tests.broker.raw_client import RawClient, batch_of, connected

LONGER_THAN_THE_TEST_MS = 60_000
PENDING_REQUESTS_MAX = BrokerConfig(Path()).queued_requests_max
API_VERSIONS_REQUEST = encode_request(apis.API_VERSIONS, 0, 7, "raw", request_class(apis.API_VERSIONS, 0)())


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with connected(broker.bootstrap) as opened:
        yield opened


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def is_closed(client: RawClient) -> bool:
    try:
        return client.receive_frame() == b""
    except ConnectionError:
        return True


def test_a_request_byte_by_byte(client: RawClient) -> None:
    for byte in API_VERSIONS_REQUEST:
        client.socket.sendall(bytes([byte]))
    assert decode_response(apis.API_VERSIONS, 0, client.receive_frame())[0] == 7


def test_responses_keep_the_order_of_requests(client: RawClient, broker: BrokerProcess, topic: str) -> None:
    client.create_topic(topic)
    client.send_batch(topic, 0, batch_of(b"a"))
    client.send_fetch([(topic, 0, 1)], wait_ms=LONGER_THAN_THE_TEST_MS)
    correlation_id = client.send(apis.API_VERSIONS, 0)
    client.send_batch(topic, 0, batch_of(b"c"))
    assert client.receive_produced().base_offset == 0
    with connected(broker.bootstrap) as other:
        assert other.produce(topic, 0, batch_of(b"b")).base_offset == 1, "the request behind the fetch waits"
    (fetched,) = client.receive_fetched()
    assert [header.base_offset for _, header in batches(fetched.records)] == [1]
    assert decode_response(apis.API_VERSIONS, 0, client.receive_frame())[0] == correlation_id
    assert client.receive_produced().base_offset == 2


def test_more_requests_in_flight_than_accepted(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    count = 5 * PENDING_REQUESTS_MAX
    for _ in range(count):
        client.send_batch(topic, 0, batch_of(b"a"))
    assert [client.receive_produced().base_offset for _ in range(count)] == list(range(count))


def test_requests_before_a_pause_are_served(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.produce(topic, 0, batch_of(b"x" * 100_000))
    count = PENDING_REQUESTS_MAX + 50
    client.socket.sendall(b"".join(client.produce_request(topic, 0, batch_of(b"a")) for _ in range(count)))
    assert [client.receive_produced().base_offset for _ in range(count)] == list(range(1, count + 1))


def ask_in_vain(client: RawClient, names: list[dict[str, str]], count: int) -> None:
    for _ in range(count):
        client.send(apis.METADATA, 4, topics=names, allow_auto_topic_creation=False)


def test_unread_responses_pause_reading(broker: BrokerProcess) -> None:
    names = [{"name": f"{number:0200d}"} for number in range(1000)]
    with connected(broker.bootstrap) as deaf:
        assert deaf.ask(apis.METADATA, 4, topics=names, allow_auto_topic_creation=False).topics[0].error_code == 3
        before_kib = resident_kib(broker.pid)
        deaf.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            ask_in_vain(deaf, names, 500)
        assert resident_kib(broker.pid) - before_kib < 20_000, "100 MB of responses were requested"


def test_rule_15_long_poll_ends_in_time(client: RawClient, broker: BrokerProcess, topic: str) -> None:
    client.create_topic(topic)
    # On a busy machine the poll may end before anything was written: the next one waits longer.
    for end, wait_ms in enumerate((400, 2_000, 10_000), 1):
        client.send_fetch([(topic, 0, end - 1)], wait_ms=wait_ms, min_bytes=10_000)
        with connected(broker.bootstrap) as other:
            assert other.produce(topic, 0, batch_of(b"little")).base_offset == end - 1
        (fetched,) = client.receive_fetched()
        if fetched.high_watermark == end:
            break
    assert fetched.high_watermark == end
    assert len(fetched.records) > 0, "what there is, when the time is over"


def test_a_large_response_to_a_slow_reader(broker: BrokerProcess, topic: str) -> None:
    batch = batch_of(b"x" * 1_000_000)
    with connected(broker.bootstrap) as writer, connected(broker.bootstrap) as reader:
        writer.create_topic(topic)
        for _ in range(40):
            writer.produce(topic, 0, batch)
        before_kib = resident_kib(broker.pid)
        for _ in range(5):
            reader.send_fetch([(topic, 0, 0)], max_bytes=100_000_000, partition_max_bytes=100_000_000)
        for _ in range(3):
            assert writer.produce(topic, 0, batch_of(b"meanwhile")).error_code == 0
        assert resident_kib(broker.pid) - before_kib < 20_000, "200 MB wait to be read"
        for _ in range(5):
            (fetched,) = reader.receive_fetched()
            assert sum(1 for _ in batches(fetched.records)) >= 40


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 2**31 - 1),
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        struct.pack(">ihhi", 8, 12345, 0, 1),
        struct.pack(">ihhih", 10, apis.METADATA, 99, 1, -1),
        struct.pack(">ihhihi", 14, apis.METADATA, 1, 1, -1, 2**31 - 1),
        struct.pack(">ihhihi", 14, apis.METADATA, 1, 1, -1, 5),
    ],
    ids=["-1", "0", "2 GiB", "HTTP", "TLS", "no API", "no version", "2**31 topics", "cut"],
)
def test_an_invalid_frame_closes_its_connection_alone(broker: BrokerProcess, data: bytes) -> None:
    with connected(broker.bootstrap) as bad, connected(broker.bootstrap) as good:
        bad.socket.sendall(data)
        assert is_closed(bad)
        assert good.ask(apis.API_VERSIONS, 0).error_code == 0


def test_the_log_names_peer_and_reason(broker: BrokerProcess) -> None:
    with connected(broker.bootstrap) as bad:
        host, port = bad.socket.getsockname()
        bad.socket.sendall(struct.pack(">i", 2**31 - 1))
        assert is_closed(bad)
    lines = [line for line in broker.log_path.read_text().splitlines() if f"{host}:{port} closed" in line]
    assert len(lines) == 1
    assert "a frame of 2147483647 bytes" in lines[0]


def test_prefixes_of_requests(broker: BrokerProcess) -> None:
    body = API_VERSIONS_REQUEST[4:]
    for length in range(8, len(body)):
        with connected(broker.bootstrap) as bad:
            bad.socket.sendall(struct.pack(">i", length) + body[:length])
            assert is_closed(bad)


def test_half_frames_cost_what_arrived(broker: BrokerProcess) -> None:
    before_kib = resident_kib(broker.pid)
    clients = [RawClient(broker.bootstrap) for _ in range(200)]
    for client in clients:
        client.socket.sendall(struct.pack(">i", 100_000_000) + bytes(5000))
    with connected(broker.bootstrap) as good:
        assert good.ask(apis.API_VERSIONS, 0).error_code == 0
    assert resident_kib(broker.pid) - before_kib < 40_000
    for client in clients:
        client.close()
