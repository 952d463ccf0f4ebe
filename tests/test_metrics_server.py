"""The server of `/metrics`: its paths, its errors and its limits."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from onceflow import metrics_server
from onceflow.metrics_server import MetricsServer
from tests.conftest import WITHIN_S
from tests.scrapes import get, scrape


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    serving = MetricsServer("127.0.0.1", 0, lambda: [GaugeMetricFamily("numbers", "Help.", value=42)])
    serving.start()
    yield serving
    serving.stop()


def test_values_and_the_process(server: MetricsServer) -> None:
    scraped = scrape(server.url)
    assert scraped.value("numbers") == 42
    assert scraped.value("process_open_fds") > 0


def test_other_paths_are_not_found(server: MetricsServer) -> None:
    assert get(server.url.removesuffix("metrics")) == (404, "metrics are at /metrics\n")


def host_status(port: int, head: str) -> str:
    """Return the status of a scrape with this head."""
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
        connection.sendall(f"GET /metrics HTTP/1.0\r\n{head}\r\n".encode())
        return connection.makefile("rb").readline().split()[1].decode()


def test_foreign_hosts_are_refused(server: MetricsServer) -> None:
    """A page of another site whose name leads to this machine could read the metrics otherwise (DNS rebinding)."""
    port = server._server.socket.getsockname()[1]
    for name in ("localhost", "LOCALHOST:9404", "127.0.0.1:1", "[::1]:9404", "[::1]"):
        assert host_status(port, f"Host: {name}\r\n") == "200", name
    for head in ("", "Host: \r\n", "Host: evil.example\r\n", "Host: localhost.evil.example:1\r\n", "Host: [::2]\r\n"):
        assert host_status(port, head) == "400", head


def test_public_addresses_have_any_name() -> None:
    serving = MetricsServer("0.0.0.0", 0, list)
    serving.start()
    try:
        assert host_status(serving._server.socket.getsockname()[1], "Host: broker.example:9404\r\n") == "200"
    finally:
        serving.stop()


def test_failure_is_the_response() -> None:
    def collect() -> list[Metric]:
        raise ValueError("no numbers")

    serving = MetricsServer("127.0.0.1", 0, collect)
    serving.start()
    try:
        assert get(serving.url) == (500, "metrics could not be collected: no numbers\n")
    finally:
        serving.stop()


def test_silent_connections_are_limited(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest one is closed for a scrape, long before its time is over."""
    monkeypatch.setattr(metrics_server._Handler, "timeout", 3600.0)
    address = ("127.0.0.1", int(server.url.rpartition(":")[2].partition("/")[0]))
    silent = [socket.create_connection(address, timeout=30) for _ in range(metrics_server.CONNECTIONS_MAX)]
    try:
        assert scrape(server.url).value("numbers") == 42
        assert silent[0].recv(1) == b""
    finally:
        for connection in silent:
            connection.close()


def test_waiting_scrapes_are_limited() -> None:
    """A client that leaves and asks again does not add threads while a scrape is slow."""
    may_end = threading.Event()

    def collect() -> list[Metric]:
        may_end.wait(WITHIN_S)
        return []

    serving = MetricsServer("127.0.0.1", 0, collect)
    serving.start()
    before = threading.active_count()
    address = ("127.0.0.1", int(serving.url.rpartition(":")[2].partition("/")[0]))
    clients: list[socket.socket] = []
    try:
        for _ in range(metrics_server.SCRAPES_MAX):
            clients.append(socket.create_connection(address, timeout=WITHIN_S))
            clients[-1].sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        deadline = time.monotonic() + WITHIN_S
        while serving._server.places._value:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        for _ in range(20):
            assert get(serving.url)[0] == 503
        assert threading.active_count() <= before + metrics_server.SCRAPES_MAX + metrics_server.CONNECTIONS_MAX
    finally:
        may_end.set()
        for client in clients:
            client.close()
        serving.stop()


def test_the_port_is_free_after_a_stop(server: MetricsServer) -> None:
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    server.stop()
    MetricsServer("127.0.0.1", port, list).stop()
