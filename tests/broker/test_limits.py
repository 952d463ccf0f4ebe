"""Limits of one client's requests, the broker's stop, and reports of long work on the loop."""

import contextlib
import logging
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow import testing
from onceflow.broker import server
from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups.shards import GroupShards
from onceflow.broker.handlers import metadata as metadata_handler
from onceflow.testing import BrokerProcess
from onceflow.wire import apis, fetch, produce
from onceflow.wire.batch import batches
from onceflow.wire.primitives import TAGS_MAX
from tests.broker.network.test_connection import resident_kib
from tests.broker.raw_client import RawClient, batch_of, connected, fetch_request

WAIT_MS = 60_000
PARTITIONS_MAX = BrokerConfig(Path()).request_partitions_max


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with connected(broker.bootstrap) as opened:
        yield opened


def is_refused(broker: BrokerProcess, request: bytes, reason: str) -> bool:
    with connected(broker.bootstrap) as bad:
        bad.socket.sendall(request)
        with contextlib.suppress(ConnectionError):
            assert bad.receive_frame() == b""
    return reason in broker.log_path.read_text()


def test_elements_of_a_request_are_limited(broker: BrokerProcess, client: RawClient) -> None:
    names = [{"name": f"{number}"} for number in range(20_000)]
    response = client.ask(apis.METADATA, 7, topics=names, allow_auto_topic_creation=False)
    assert len(response.topics) == 20_000
    head = struct.pack(">hhih", apis.METADATA, 4, 1, -1)
    body = struct.pack(">i", 20_001) + bytes(2 * 20_001) + b"\0"
    assert is_refused(broker, struct.pack(">i", len(head + body)) + head + body, "20001 more elements than")


def test_elements_of_nested_arrays_count_together(broker: BrokerProcess) -> None:
    topic = struct.pack(">h", 0) + struct.pack(">i", 200) + bytes(200 * 12)
    head = struct.pack(">hhih", apis.LIST_OFFSETS, 1, 1, -1)
    body = struct.pack(">ii", -1, 101) + topic * 101
    assert is_refused(broker, struct.pack(">i", len(head + body)) + head + body, "200 more elements than")


def test_partitions_of_a_request_are_limited(broker: BrokerProcess, client: RawClient) -> None:
    many = [("none", number, 0) for number in range(PARTITIONS_MAX // 2)]
    assert {result.error_code for result in client.fetch(many)} == {3}
    too_many = fetch.encode_request(12, 1, "raw", fetch_request([*many, ("none", 1, 1)]))
    reason = f"more than {PARTITIONS_MAX} topics and partitions"
    assert is_refused(broker, too_many, f"Fetch request version 12: {reason}")
    topics = [(f"{number}", [(0, batch_of(b""))]) for number in range(PARTITIONS_MAX // 2 + 1)]
    pieces = produce.encode_request(9, 1, "raw", transactional_id=None, acks=1, timeout_ms=1, topics=topics)
    assert is_refused(broker, b"".join(map(bytes, pieces)), f"Produce request version 9: {reason}")


def test_the_partition_limit_is_a_setting() -> None:
    """Each partition has a topic entry of its own here, so that it counts twice."""
    with (
        testing.Broker(settings={"request.max.partitions": 4}) as broker,
        connected(broker.bootstrap_servers) as client,
    ):
        assert [result.error_code for result in client.fetch([("none", 0, 0), ("none", 1, 0)])] == [3, 3]
        client.socket.sendall(fetch.encode_request(12, 2, "raw", fetch_request([("none", n, 0) for n in range(3)])))
        with contextlib.suppress(ConnectionError):
            assert client.receive_frame() == b""


def test_millions_of_empty_tags_are_not_read(broker: BrokerProcess) -> None:
    head = struct.pack(">hhih", apis.PRODUCE, 9, 1, -1)
    body = b"\x80\x80\x80\x01" + bytes(100_000)
    request = struct.pack(">i", len(head + body)) + head + body
    assert is_refused(broker, request, f"2097152 tagged fields, {TAGS_MAX} are allowed")


def test_memory_of_idle_brokers_and_connections(tmp_path: Path) -> None:
    """The limits are 80 MB, and 20 MB more for 1,000 connections; benchmarks/memory.py has the real figures."""
    with BrokerProcess(tmp_path / "data") as broker, contextlib.ExitStack() as exits:
        with connected(broker.bootstrap) as client:
            client.ask(apis.API_VERSIONS, 0)
        idle_kib = resident_kib(broker.pid)
        clients = [exits.enter_context(connected(broker.bootstrap)) for _ in range(400)]
        clients[-1].ask(apis.API_VERSIONS, 0)
        more_kib = resident_kib(broker.pid) - idle_kib
    assert idle_kib * 1024 < 80_000_000
    assert more_kib * 1024 < 8_000_000


def test_responses_are_limited_in_size(tmp_path: Path) -> None:
    with testing.Broker(tmp_path / "data", settings={"fetch.max.bytes": "5000"}) as broker:
        broker.create_topic("t")
        with connected(broker.bootstrap_servers) as client:
            for _ in range(4):
                client.produce("t", 0, batch_of(b"x" * 2000))
            (fetched,) = client.fetch([("t", 0, 0)])
            assert len(list(batches(fetched.records))) == 2


def test_a_stopping_broker_ends_waiting_fetches(tmp_path: Path) -> None:
    """The later Produce request was not handled, and never is."""
    with testing.Broker(tmp_path / "data") as broker:
        broker.create_topic("t")
        with connected(broker.bootstrap_servers) as client, connected(broker.bootstrap_servers) as waiting:
            client.produce("t", 0, batch_of(b"x"))
            waiting.send_fetch([("t", 0, 0)], wait_ms=WAIT_MS, min_bytes=10_000)
            waiting.send_batch("t", 0, batch_of(b"y"))
            assert client.produce("t", 0, batch_of(b"z")).base_offset == 1
            begin = time.monotonic()
            broker.stop()
            assert time.monotonic() - begin < WAIT_MS / 1000
            assert len(list(batches(waiting.receive_fetched()[0].records))) == 2
            assert waiting.receive_frame() == b""


def test_the_debug_option_names_long_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = metadata_handler.HANDLERS[apis.METADATA]

    def slow(node: object, request: object) -> None:
        time.sleep(0.03)
        real(node, request)  # type: ignore[arg-type]

    monkeypatch.setitem(server.HANDLERS, apis.METADATA, slow)
    with (
        caplog.at_level(logging.WARNING),
        testing.Broker(tmp_path / "data", settings={"loop.block.report.ms": "25"}) as broker,
        connected(broker.bootstrap_servers) as client,
    ):
        client.ask(apis.METADATA, 4, topics=[], allow_auto_topic_creation=False)
        host, port = client.socket.getsockname()
    what = f"Metadata of {host}:{port} held the loop for"
    lines = [record.getMessage() for record in caplog.records if what in record.getMessage()]
    assert len(lines) == 1


def test_a_failing_timeout_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def fail(_shards: GroupShards) -> None:
        raise RuntimeError("this time-out fails")

    def check_connections(_listener: object) -> None:
        done.set()

    monkeypatch.setattr(GroupShards, "expire", fail)
    monkeypatch.setattr("onceflow.broker.network.listener.Listener.check_connections", check_connections)
    monkeypatch.setattr(server, "TICK_SECONDS", 0.01)
    with testing.Broker(tmp_path / "data") as broker:
        assert done.wait(10)
        with connected(broker.bootstrap_servers) as client:
            assert client.ask(apis.API_VERSIONS, 0).error_code == 0
    assert "this time-out fails" in caplog.text
