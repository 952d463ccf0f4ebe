"""The HTTP endpoint over real sockets, with a real broker."""

import gzip
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from onceflow.clicks.events import Reason, Rules
from onceflow.clicks.ingest import endpoint
from onceflow.clicks.ingest.access import Access, ApiKey
from onceflow.clicks.ingest.limits import RateLimit
from onceflow.clicks.ingest.visits import AddedFields
from onceflow.client.cluster import Cluster
from onceflow.testing import BrokerProcess
from tests.clicks.ingest.conftest import CLOCK_MS, MIB, Ingestion, request, running_ingestion
from tests.clicks.ingest.test_generator import records
from tests.clicks.ingest.test_limits import Clock
from tests.dashboard.conftest import wait_until

Ingest = Callable[..., Ingestion]

ANN = {"uid": "ann", "click_count": 1, "event_time": 5}
SHOP = {"Origin": "https://shop.example"}
ACCESS = Access({"pub": ApiKey("shop", ("https://shop.example",)), "secret": ApiKey("backend")})
BOT_AGENT = {"User-Agent": "Googlebot/2.1"}


@pytest.mark.parametrize("content_type", ["application/json", "text/plain;charset=UTF-8", "application/x-ndjson"])
def test_each_format_is_written(ingest: Ingest, content_type: str) -> None:
    server = ingest()
    lines = [json.dumps({**ANN, "uid": f"user{number}"}).encode() for number in range(4)]
    headers = {"Content-Type": content_type}
    assert server.post(lines[0], headers).results == ["ok"]
    assert server.post(b"[" + lines[1] + b"]", headers).results == ["ok"]
    packed = gzip.compress(lines[2] + b"\n" + lines[3])
    assert server.post(packed, {**headers, "Content-Encoding": "gzip"}).results == ["ok", "ok"]
    assert sorted(server.values()) == lines
    assert {record.key for _, record in records(server.bootstrap, server.topic)} == {
        f"user{number}".encode() for number in range(4)
    }


def test_each_event_has_its_result(ingest: Ingest) -> None:
    """The reasons are those of the rules, and only valid events are written."""
    server = ingest(fields=AddedFields(address="visitor"))
    events = [
        ANN,
        {"click_count": 1},
        {**ANN, "click_count": 10_001},
        {"uid": 7, "click_count": "6", "page": "/x", "event_id": "e1"},
        "text",
        {**ANN, "uid": "u" * 1_025},
    ]
    response = server.post(events)
    assert response.status == 200
    judged = [Rules().judge(json.dumps(event).encode()) for event in events]
    assert response.results == [click.value if isinstance(click, Reason) else "ok" for click in judged]
    assert response.document["accepted"] == 2
    written = sorted(server.events(), key=lambda event: str(event["uid"]))
    visitor = written[0]["visitor"]
    added = {"server_time": CLOCK_MS, "visitor": visitor}
    assert written == [{**events[3], **added, "event_time": CLOCK_MS}, {**ANN, **added}]  # type: ignore[dict-item]
    assert {record.timestamp_ms for _, record in records(server.bootstrap, server.topic)} == {CLOCK_MS}
    assert server.endpoint.counts["ok"] == 2 and server.endpoint.counts["uid-too-long"] == 1


def test_lines_are_judged_one_by_one(ingest: Ingest) -> None:
    server = ingest()
    good = json.dumps(ANN).encode()
    assert server.post(good + b"\nbroken\n\xff\n" + good).results == ["ok", "not-json", "not-utf8", "ok"]
    assert server.values() == [good, good]


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/events", {}, (401, "unknown-key")),
        ("/events?key=wrong", SHOP, (401, "unknown-key")),
        ("/events?key=pub", {}, (403, "origin-not-allowed")),
        ("/events?key=pub", {"Origin": "https://evil.example"}, (403, "origin-not-allowed")),
        ("/events", {**SHOP, "Authorization": "Bearer secret"}, (403, "origin-not-allowed")),
        ("/events?key=pub", SHOP, (200, None)),
        ("/events", {"Authorization": "Bearer secret"}, (200, None)),
    ],
)
def test_keys_and_origins(ingest: Ingest, path: str, headers: dict[str, str], expected: tuple[int, str]) -> None:
    server = ingest(access=ACCESS)
    response = server.post(ANN, headers, path)
    assert (response.status, response.document.get("error")) == expected
    known = headers.get("Origin") == SHOP["Origin"]
    assert response.headers.get("access-control-allow-origin") == (SHOP["Origin"] if known else None)
    assert response.headers["vary"] == "Origin"
    assert len(server.values()) == (response.status == 200)


@pytest.mark.parametrize(("origin", "status"), [("https://shop.example", 204), ("https://evil.example", 403)])
def test_preflight(ingest: Ingest, origin: str, status: int) -> None:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    response = request(ingest(access=ACCESS).url, b"", headers, method="OPTIONS")
    assert response.status == status
    if status == 204:
        assert response.headers["access-control-allow-origin"] == origin
        assert response.headers["access-control-allow-methods"] == "POST"
        assert "content-encoding" in response.headers["access-control-allow-headers"]
    else:
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("limited", ["address", "key"])
def test_rate_limits(ingest: Ingest, limited: str) -> None:
    clock = Clock()
    of_address = RateLimit(1 if limited == "address" else 0, clock)
    server = ingest(rates=(of_address, {"local": RateLimit(1 if limited == "key" else 0, clock)}))
    assert server.post([ANN] * 12).status == 200
    refused = server.post([ANN])
    assert (refused.status, refused.headers["retry-after"]) == (429, "2")
    assert refused.document == {"error": "too-many-events"}
    clock.now_s += 2
    assert server.post([ANN]).status == 200
    assert len(server.values()) == 13


def test_bots_are_dropped_and_counted(ingest: Ingest, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the first one, since a browser that a program drives is a bot too."""
    server = ingest()
    response = server.post([ANN, ANN], BOT_AGENT)
    assert (response.status, response.results) == (200, ["bot", "bot"])
    server.post([ANN], BOT_AGENT)
    assert server.endpoint.counts == {"bot": 3}
    assert [record.getMessage() for record in caplog.records] == [
        "without --keep-bots events of bots are refused and counted; the first: User-Agent 'Googlebot/2.1'"
    ]
    assert server.values() == []
    with running_ingestion(server.bootstrap, server.topic, keep_bots=True) as keeping:
        assert keeping.post([ANN], BOT_AGENT).results == ["ok"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "error"),
    [
        (b"x" * 10_001, {}, 413, "body-too-large"),
        (gzip.compress(b" " * 1_000_000, mtime=0), {"Content-Encoding": "gzip"}, 413, "body-too-large"),
        (b"{}", {"Content-Encoding": "gzip"}, 400, "not-gzip"),
        (b"{}", {"Content-Encoding": "zstd"}, 415, "unknown-encoding"),
        (b"", {}, 400, "no-events"),
        (b"[" * 9_000, {}, 400, "not-json"),
    ],
)
def test_refused_bodies(ingest: Ingest, body: bytes, headers: Mapping[str, str], status: int, error: str) -> None:
    server = ingest(body_bytes=10_000)
    response = server.post(body, headers)
    assert (response.status, response.document) == (status, {"error": error})
    assert server.memory.used == 0
    assert server.post(ANN).results == ["ok"]


def test_too_many_events(ingest: Ingest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "EVENTS_MAX", 2)
    server = ingest()
    assert server.post([ANN] * 3).document == {"error": "too-many-events"}
    assert server.values() == []


def test_other_paths_and_methods(ingest: Ingest) -> None:
    server = ingest()
    assert request(server.url, method="GET").status == 405
    assert request(server.url, path="/", method="GET").status == 404
    assert request(server.url, path="/healthz", method="GET").document == {"ok": True}


def test_load_is_refused_before_memory_grows(tmp_path: Path, topic: str) -> None:
    """The broker is stopped, so that no event is acknowledged: requests wait until the memory is used up."""
    body = json.dumps([{**ANN, "text": "x" * 100_000}]).encode()
    with BrokerProcess(tmp_path / "data") as broker:
        with Cluster(broker.bootstrap) as cluster:
            cluster.create_topic(topic, 1)
        with running_ingestion(broker.bootstrap, topic, memory_bytes=MIB) as server:
            assert server.post(ANN).results == ["ok"]
            os.kill(broker.pid, signal.SIGSTOP)
            responses = []
            threads = [threading.Thread(target=lambda: responses.append(server.post(body))) for _ in range(40)]
            try:
                for thread in threads:
                    thread.start()
                # Ten bodies of 0.1 MB fit into 1 MiB.
                wait_until(lambda: len(responses) >= 30, "refusals")
                assert {(response.status, response.headers["retry-after"]) for response in responses} == {(503, "1")}
                assert 0 < server.memory.used <= MIB
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            for thread in threads:
                thread.join()
            accepted = [response for response in responses if response.status == 200]
            assert accepted
            assert len(server.values()) == 1 + len(accepted)
            assert server.memory.used == 0


def test_events_without_acknowledgement(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Cluster(broker.bootstrap) as cluster:
            cluster.create_topic(topic, 1)
        with running_ingestion(broker.bootstrap, topic, delivery_timeout_ms=1_000) as server:
            # A busy machine may need longer than a second for the first connection.
            wait_until(lambda: server.post(ANN).results == ["ok"], "the first acknowledgement")
            broker.kill()
            response = server.post([ANN, {}])
            assert (response.status, response.headers["retry-after"]) == (503, "1")
            assert response.results == ["not-acknowledged", "no-uid"]
            broker.start()
            wait_until(lambda: server.post(ANN).status == 200, "the broker")


def test_health_follows_the_broker(tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PROBE_SECONDS", 0.2)
    with BrokerProcess(tmp_path / "data") as broker:
        with Cluster(broker.bootstrap) as cluster:
            cluster.create_topic(topic, 1)
        with running_ingestion(broker.bootstrap, topic) as server:

            def status() -> int:
                return request(server.url, path="/healthz", method="GET").status

            wait_until(lambda: status() == 200, "health")
            broker.kill()
            wait_until(lambda: status() == 503, "a failed probe")
            broker.start()
            wait_until(lambda: status() == 200, "health again")


def test_events_larger_than_the_broker_takes(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path / "data", 0, "--message-max-bytes", "10000") as broker:
        with Cluster(broker.bootstrap) as cluster:
            cluster.create_topic(topic, 1)
        with running_ingestion(broker.bootstrap, topic, body_bytes=4 * MIB) as server:
            for size in (20_000, 2 * MIB):
                response = server.post([{**ANN, "text": "x" * size}])
                assert (response.status, response.results) == (200, ["event-too-large"])
            assert server.post([ANN]).results == ["ok"]


# Slow and hostile clients


def connected(server: Ingestion) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=240)


def rest_of(connection: socket.socket) -> bytes:
    """Return what is received until the server closes."""
    received = b""
    try:
        while chunk := connection.recv(65_536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("sent", [b"", b"POST /eve", b"POST /events HTTP/1.1\r\nHost: x\r\nX-Long: "])
def test_slow_heads_are_closed(ingest: Ingest, sent: bytes) -> None:
    server = ingest(head_seconds=0.5)
    with connected(server) as connection:
        connection.sendall(sent)
        assert rest_of(connection) == b""


def test_slow_bodies_are_refused(ingest: Ingest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_SECONDS", 0.5)
    server = ingest()
    with connected(server) as connection:
        connection.sendall(b'POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"uid"')
        response = rest_of(connection)
    assert response.startswith(b"HTTP/1.1 408 ") and b"body-too-slow" in response
    assert server.memory.used == 0


def test_body_without_a_length_is_bounded(ingest: Ingest) -> None:
    server = ingest(body_bytes=100_000)
    with connected(server) as connection:
        connection.sendall(b"POST /events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        try:
            for _ in range(1_000):
                connection.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            pytest.fail("the server read 65 MB")
    wait_until(lambda: server.memory.used == 0, "the memory")
    assert server.endpoint.counts["body-too-large"] == 1


def test_client_that_leaves_returns_memory(ingest: Ingest) -> None:
    server = ingest()
    with connected(server) as connection:
        connection.sendall(b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000)
        wait_until(lambda: server.memory.used >= 50_000, "the body")
    wait_until(lambda: server.memory.used == 0, "the memory")


def test_number_of_connections_is_bounded(ingest: Ingest) -> None:
    server = ingest(connections_max=20)
    open_ones = [connected(server) for _ in range(20)]
    try:
        wait_until(lambda: _is_refused(server), "a refused connection")
        open_ones.pop().close()
        wait_until(lambda: not _is_refused(server), "a free connection")
    finally:
        for connection in open_ones:
            connection.close()


def _is_refused(server: Ingestion) -> bool:
    with connected(server) as connection:
        try:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            return True
        response = rest_of(connection)
    return not response.startswith(b"HTTP/1.1 200 ")


def test_refused_before_the_body_keeps_nothing(ingest: Ingest) -> None:
    """A small body is read and dropped, so that its sender sees the response."""
    server = ingest(access=ACCESS)
    with connected(server) as connection:
        connection.sendall(b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        connection.sendall(b"x" * 100_000)
        assert rest_of(connection).startswith(b"HTTP/1.1 401 ")
    assert server.memory.used == 0
