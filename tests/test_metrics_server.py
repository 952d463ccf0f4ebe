"""The server of `/metrics`: its paths, its errors and its limits."""

import socket
from collections.abc import Iterator

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from onceflow import metrics_server
from onceflow.metrics_server import MetricsServer
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


def test_the_port_is_free_after_a_stop(server: MetricsServer) -> None:
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    server.stop()
    MetricsServer("127.0.0.1", port, list).stop()
