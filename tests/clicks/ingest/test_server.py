"""`onceflow serve` as a process: its stop, and kill -9 of server and broker under clients that send again."""

import contextlib
import http.client
import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from onceflow.client.cluster import Cluster
from onceflow.services import free_port
from onceflow.testing import BrokerProcess
from tests.clicks.ingest.conftest import request
from tests.clicks.ingest.test_generator import records
from tests.conftest import WITHIN_S

CLIENTS = 4
KILLS = 2


class ServerProcess:
    """`onceflow serve` on a port that is kept over restarts."""

    def __init__(self, bootstrap: str, topic: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "onceflow", "serve", "--bootstrap", bootstrap, "--topic", topic]
        self._command += ["--address-rate", "0", *arguments]
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [*self._command, "--port", str(self._port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("accepting events for "), self.process.communicate()
        assert line.split()[-1] == f"{self.url}/events"

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal; return exit code and standard error."""
        assert self.process is not None
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, errors


@contextlib.contextmanager
def running(bootstrap: str, topic: str, *arguments: str) -> Iterator[ServerProcess]:
    server = ServerProcess(bootstrap, topic, *arguments)
    server.start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.end(signal.SIGKILL)


class Client(threading.Thread):
    """Sends small batches until it is stopped; what is not acknowledged is sent again with the same ids."""

    def __init__(self, url: str, number: int, stop: threading.Event) -> None:
        super().__init__()
        self._url = url
        self._number = number
        self._stop_sending = stop
        self.acknowledged: set[str] = set()
        self.retries = 0

    def run(self) -> None:
        for batch in itertools.count():
            ids = [f"{self._number}-{batch}-{index}" for index in range(5)]
            while not self._send(ids):
                self.retries += 1
                if self._stop_sending.wait(0.02):
                    return
            if self._stop_sending.is_set():
                return

    def _send(self, ids: Sequence[str]) -> bool:
        events = [{"uid": event_id, "click_count": 1, "event_id": event_id} for event_id in ids]
        try:
            response = request(self._url, events)
        except (OSError, http.client.HTTPException):
            return False
        if response.status not in (200, 503) or "results" not in response.document:
            return False
        self.acknowledged |= {
            event_id for event_id, result in zip(ids, response.results, strict=True) if result == "ok"
        }
        return response.status == 200


def ids_in(bootstrap: str, topic: str) -> set[str]:
    return {json.loads(record.value or b"")["event_id"] for _, record in records(bootstrap, topic)}


def test_nothing_acknowledged_is_lost(tmp_path: Path, topic: str) -> None:
    """Server and broker are killed in turn."""
    stop = threading.Event()
    with BrokerProcess(tmp_path / "data") as broker, running(broker.bootstrap, topic) as server:
        clients = [Client(server.url, number, stop) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            for _ in range(KILLS):
                _wait_for_more(clients)
                server.end(signal.SIGKILL)
                server.start()
                _wait_for_more(clients)
                broker.kill()
                broker.start()
        finally:
            stop.set()
            for client in clients:
                client.join(WITHIN_S)
        acknowledged = set().union(*(client.acknowledged for client in clients))
        assert sum(client.retries for client in clients) > 0
        assert not acknowledged - ids_in(broker.bootstrap, topic)


def _wait_for_more(clients: Sequence[Client]) -> None:
    """Wait until each client has more acknowledgements."""
    before = [len(client.acknowledged) for client in clients]
    deadline = time.monotonic() + WITHIN_S
    while not all(len(client.acknowledged) > count for client, count in zip(clients, before, strict=True)):
        assert time.monotonic() < deadline
        assert all(client.is_alive() for client in clients)
        time.sleep(0.02)


def test_stop_completes_requests_in_progress(bootstrap: str, topic: str) -> None:
    """The body is sent in two halves, with the signal between them."""
    body = json.dumps([{"uid": "ann", "click_count": 1, "event_id": "e1"}]).encode()
    with running(bootstrap, topic) as server:
        address = urlsplit(server.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=WITHIN_S)
        with contextlib.closing(connection):
            connection.putrequest("POST", "/events")
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body[:10])
            # A second request shows that the server has read the first half.
            assert request(server.url, path="/healthz", method="GET").document["ok"] in (True, False)
            assert server.process is not None
            server.process.send_signal(signal.SIGTERM)
            _wait_until_closed(server.url)
            connection.send(body[10:])
            response = connection.getresponse()
            assert (response.status, json.loads(response.read())["accepted"]) == (200, 1)
        _, errors = server.process.communicate(timeout=WITHIN_S)
        assert (server.process.returncode, errors) == (0, "1 event accepted\n")
    assert ids_in(bootstrap, topic) == {"e1"}


def _wait_until_closed(url: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        try:
            request(url, path="/healthz", method="GET")
        except OSError:
            return
    raise AssertionError("the port is still open")


def test_many_connections_are_bounded(bootstrap: str, topic: str) -> None:
    """The server keeps 100 of 3,000 connections, and responds when they are closed."""
    with running(bootstrap, topic, "--connections-max", "100") as server:
        address = urlsplit(server.url)
        where = (address.hostname or "", address.port or 0)
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(socket.create_connection(where, WITHIN_S)) for _ in range(3_000)]
            refused = sum(_is_closed(connection) for connection in connections[100:])
            assert refused == 2_900
        deadline = time.monotonic() + WITHIN_S
        while request(server.url, path="/healthz", method="GET").status == 503:
            assert time.monotonic() < deadline
        with Cluster(bootstrap) as cluster:
            assert topic in cluster.topics(topic)


def _is_closed(connection: Any) -> bool:
    received = connection.recv(1_000)
    assert received.startswith(b"HTTP/1.1 503 ")
    return connection.recv(1) == b""


def test_usage(run: Any, tmp_path: Path) -> None:
    """A public address needs keys, and fields need different names."""
    public = run("serve", "--host", "0.0.0.0")
    assert public.returncode == 2
    assert "--host 0.0.0.0 is reachable from other machines; it needs --keys FILE" in public.stderr
    assert "must have different names" in run("serve", "--address-field", "uid").stderr
    assert "must have different names" in run("serve", "--time-field", "").stderr
    wrong = run("serve", "--keys", str(tmp_path / "missing"))
    assert (wrong.returncode, "cannot read the keys in" in wrong.stderr) == (1, True)


@pytest.mark.parametrize("name", ["--server-time-field", "--value-field"])
def test_fields_may_be_left_out(bootstrap: str, topic: str, name: str) -> None:
    with running(bootstrap, topic, name, "") as server:
        response = request(server.url, {"uid": "ann", "click_count": 1, "event_id": "e1", "event_time": 5})
        assert response.results == ["ok"]
        without = request(server.url, {"uid": "ann"})
        assert without.results == (["ok"] if name == "--value-field" else ["no-count"])
        assert server.end(signal.SIGINT)[0] == 0
    values = [json.loads(record.value or b"") for _, record in records(bootstrap, topic)]
    assert all(("server_time" in value) == (name == "--value-field") for value in values)
