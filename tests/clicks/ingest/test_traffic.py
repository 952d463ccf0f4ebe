"""`/metrics` of `onceflow serve`."""

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from prometheus_client import generate_latest

from onceflow.clicks.ingest.traffic import collector
from onceflow.metrics_server import registry_of
from tests.clicks.ingest.conftest import Ingestion, request
from tests.scrapes import Scraped, scrape

Ingest = Callable[..., Ingestion]
ANN = {"uid": "ann", "click_count": 1}


def scraped(server: Ingestion) -> Scraped:
    return Scraped(generate_latest(registry_of(collector(server.endpoint))).decode())


def test_results_bytes_and_times(ingest: Ingest) -> None:
    server = ingest(body_bytes=1000)
    body = b'{"uid":"ann","click_count":1}'
    assert server.post(body).status == 200
    assert server.post([ANN, {"click_count": 1}]).status == 200
    assert server.post(b"x" * 2000).status == 413
    now = scraped(server)
    results = {dict(labels)["result"]: value for (name, labels), value in now.values.items() if "_results_" in name}
    assert results == {"ok": 2, "no-uid": 1, "body-too-large": 1}
    assert now.value("onceflow_serve_requests_total", status="200") == 2
    assert now.value("onceflow_serve_requests_total", status="413") == 1
    assert now.value("onceflow_serve_request_seconds_count") == 3
    assert now.value("onceflow_serve_received_bytes_total") >= 2 * len(body)
    assert now.value("onceflow_serve_memory_bytes") == 0
    assert now.value("onceflow_serve_memory_max_bytes") == 64 << 20


def test_memory_of_requests_in_progress(ingest: Ingest) -> None:
    server = ingest()
    assert server.memory.take(5000)
    assert scraped(server).value("onceflow_serve_memory_bytes") == 5000
    server.memory.give_back(5000)


@pytest.mark.parametrize(("host", "is_open"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_command_serves_metrics(bootstrap: str, topic: str, host: str, is_open: bool) -> None:
    """They are on a port of their own: the other one is for browsers of any visitor."""
    options = ["--port", "0", "--metrics-port", "0", "--metrics-host", host]
    command = [sys.executable, "-m", "onceflow", "serve", "--topic", topic, "--bootstrap", bootstrap, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().split()[-1].removesuffix("/events")
        lines = [process.stderr.readline()]
        while "metrics are at" not in lines[-1] and process.poll() is None:
            lines.append(process.stderr.readline())
        assert any("are open to other machines" in line for line in lines) is is_open
        assert request(url, ANN).status == 200
        assert request(url, path="/metrics", method="GET").status == 404
        now = scrape(lines[-1].split()[-1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.stderr.read()
    assert now.value("onceflow_serve_results_total", result="ok") == 1
