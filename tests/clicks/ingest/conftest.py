"""Fixtures of the HTTP endpoint: a server in a thread of this process, and requests over a real socket."""

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from onceflow.clicks.events import Rules
from onceflow.clicks.ingest.access import Access
from onceflow.clicks.ingest.appender import Appender
from onceflow.clicks.ingest.endpoint import Endpoint, Limits, create_app
from onceflow.clicks.ingest.limits import Memory, RateLimit
from onceflow.clicks.ingest.server import EventServer
from onceflow.clicks.ingest.visits import AddedFields, Stamp
from onceflow.client.cluster import Cluster
from onceflow.http_server import bounded
from onceflow.listening import listen, url
from tests.clicks.ingest.test_generator import records
from tests.conftest import WITHIN_S

MIB = 1 << 20
CLOCK_MS = 1_700_000_000_000


@dataclass
class Response:
    """Response to a request, with the headers' names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def results(self) -> list[str]:
        """Result of each event: `ok` or the reason."""
        assert [result["index"] for result in self.document["results"]] == list(range(len(self.document["results"])))
        return ["ok" if result["ok"] else result["reason"] for result in self.document["results"]]


def request(
    base: str, body: Any = b"", headers: Mapping[str, str] | None = None, *, path: str = "/events", method: str = "POST"
) -> Response:
    """Send a request over a connection of its own; a body that is not bytes is sent as JSON."""
    address = urlsplit(base)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=WITHIN_S)
    with contextlib.closing(connection):
        connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body), dict(headers or {}))
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, names, response.read())


@dataclass(frozen=True)
class Ingestion:
    """A running server and its topic."""

    url: str
    bootstrap: str
    topic: str
    endpoint: Endpoint
    memory: Memory

    def post(self, body: Any, headers: Mapping[str, str] | None = None, path: str = "/events") -> Response:
        return request(self.url, body, headers, path=path)

    def values(self) -> list[bytes]:
        """Return the values in the topic."""
        return [record.value or b"" for _, record in records(self.bootstrap, self.topic)]

    def events(self) -> list[Any]:
        """Return the events in the topic."""
        return [json.loads(value) for value in self.values()]


@contextlib.contextmanager
def running_ingestion(
    bootstrap: str,
    topic: str,
    *,
    access: Access | None = None,
    rates: tuple[RateLimit, Mapping[str, RateLimit]] = (RateLimit(0), {}),
    fields: AddedFields | None = None,
    memory_bytes: int = 64 * MIB,
    body_bytes: int = MIB,
    keep_bots: bool = False,
    connections_max: int = 1_000,
    head_seconds: float = WITHIN_S,
    delivery_timeout_ms: int = WITHIN_S * 1_000,
    port: int = 0,
) -> Iterator[Ingestion]:
    """Serve until the block ends."""
    memory = Memory(memory_bytes)
    limits = Limits(memory, body_bytes, rates[0], dict(rates[1]))
    stamp = Stamp(fields or AddedFields(server_time=""), lambda: CLOCK_MS)
    started: list[tuple[EventServer, Endpoint]] = []
    ready = threading.Event()

    async def serve() -> None:
        appender = Appender(bootstrap, topic, delivery_timeout_ms=delivery_timeout_ms)
        endpoint = Endpoint(appender, Rules(), stamp, access or Access(), limits, keep_bots=keep_bots)
        protocol = bounded(connections_max, head_seconds)
        config = uvicorn.Config(create_app(endpoint, appender), http=protocol, log_level="error", access_log=False)
        server = EventServer(config, appender, lambda: None)
        started.append((server, endpoint))
        ready.set()
        await server.serve(sockets=[listening])

    with listen("127.0.0.1", port) as listening:
        address = url(listening)
        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        assert ready.wait(WITHIN_S)
        server, endpoint = started[0]
        try:
            yield Ingestion(address, bootstrap, topic, endpoint, memory)
        finally:
            server.should_exit = True
            thread.join(WITHIN_S)
            assert not thread.is_alive()


@pytest.fixture
def ingest(bootstrap: str, cluster: Cluster, topic: str) -> Iterator[Callable[..., Ingestion]]:
    """A factory of servers for the test's topic, which has two partitions; all are stopped after the test."""
    cluster.create_topic(topic, 2)
    with contextlib.ExitStack() as servers:
        yield lambda **options: servers.enter_context(running_ingestion(bootstrap, topic, **options))
