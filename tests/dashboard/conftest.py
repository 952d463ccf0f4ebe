"""The dashboard's fixtures: a read model written as the pipeline writes it, a page server, a chromium."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
import uvicorn

from onceflow.clicks.results import Keys
from onceflow.dashboard.api.service import Service
from onceflow.dashboard.app import create_app
from onceflow.dashboard.feed import Feed
from onceflow.dashboard.server import CONNECTIONS_MAX, HTTP, PageServer
from onceflow.dashboard.sources import Addresses
from onceflow.http_server import bounded
from onceflow.listening import listen, url
from tests.conftest import WITHIN_S, RedisProcess

UNREACHABLE = "127.0.0.1:1"
"""An address without a listener, which refuses connections at once."""

Result = TypeVar("Result")


def run_apart(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a thread of its own: once a test has a browser, its event loop is the main thread's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


ALIVE_S = 10.0
"""Maximum wait of a response for Redis and the broker; a page treats a server silent for 12 s as lost."""


class Counted:
    """Writer of micro-batches under one hash key, each in one transaction as in the sink."""

    def __init__(self, redis_url: str, hash_key: str, topic: str = "user_events") -> None:
        self.redis_url = redis_url
        self.hash_key = hash_key
        self.topic = topic
        self.keys = Keys(hash_key)
        self.batch = -1
        self.offsets: dict[str, int] = {}
        self.plan = json.dumps({"counts": "clicks", "key_field": "uid", "value_field": "click_count"})

    def addresses(self, bootstrap: str = UNREACHABLE) -> Addresses:
        """Return the addresses for the page, by default with an unreachable broker."""
        return Addresses(self.redis_url, self.hash_key, bootstrap, self.topic)

    def micro_batch(
        self,
        clicks: Mapping[tuple[str, str], int],
        *,
        bad: Mapping[str, int] | None = None,
        events: int | None = None,
        finished_ms: int | None = None,
        duration_ms: int = 840,
        offsets: Mapping[int, int] | None = None,
    ) -> None:
        """Count clicks of (uid, os) and bad events by reason; `offsets` is the new end of each partition."""
        self.batch += 1
        bad = bad or {}
        events = len(clicks) + sum(bad.values()) if events is None else events
        finished_ms = int(time.time() * 1_000) if finished_ms is None else finished_ms
        if offsets is None:
            offsets = {0: self.offsets.get("0", 0) + events}
        self.offsets = {str(partition): offset for partition, offset in offsets.items()}
        with redis.Redis.from_url(self.redis_url) as client, client.pipeline(transaction=True) as pipe:
            for (uid, system), count in clicks.items():
                pipe.hincrby(self.keys.count, uid, count)
                pipe.zincrby(self.keys.top, count, uid)
                pipe.hincrby(self.keys.os, system, count)
            for reason, count in bad.items():
                pipe.hincrby(self.keys.bad, reason, count)
            totals = {"events": events, "clicks": sum(clicks.values()), "bad": sum(bad.values())}
            for name, count in totals.items():
                pipe.hincrby(self.keys.totals, name, count)
            pipe.hset(self.keys.marker, mapping=self._marker(finished_ms, duration_ms))
            entry = {"batch": self.batch, "finished_ms": finished_ms, "events": events, "offsets": self.offsets}
            pipe.lpush(self.keys.history, json.dumps(entry))
            pipe.execute()

    def _marker(self, finished_ms: int, duration_ms: int) -> dict[str, str | int]:
        return {
            "format": 1,
            "query": "8d6a1f0e-2f7e-4f0e-9a39-2b4f7f2f3a11",
            "owner": 1,
            "batch": self.batch,
            "plan": self.plan,
            "offsets": json.dumps({self.topic: self.offsets}),
            "since": json.dumps({self.topic: dict.fromkeys(self.offsets, 0)}),
            "complete": 1,
            "started_ms": finished_ms - duration_ms,
            "finished_ms": finished_ms,
            "duration_ms": duration_ms,
        }


@dataclass(frozen=True)
class RunningPage:
    """A page server in a thread of this process, with access to its feed."""

    url: str
    feed: Feed


@contextlib.contextmanager
def running_page(
    addresses: Addresses,
    *,
    port: int = 0,
    poll_s: float = 0.1,
    alive_s: float = ALIVE_S,
    archive: Path | None = None,
    **options: Any,
) -> Iterator[RunningPage]:
    """Serve the page until the block ends, on a free port unless one is named."""
    with listen("127.0.0.1", port) as listening:
        feed = Feed(addresses, poll_s=poll_s, alive_s=alive_s)
        app = create_app(feed, service=Service(feed, addresses, archive), **options)
        server = PageServer(uvicorn.Config(app, http=bounded(CONNECTIONS_MAX), **HTTP), feed)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        running = RunningPage(url(listening), feed)
        thread.start()
        try:
            yield running
        finally:
            server.should_exit = True
            thread.join(WITHIN_S)
            assert not thread.is_alive()


@pytest.fixture
def counted(redis_server: RedisProcess, topic: str) -> Counted:
    """A new hash key in the shared Redis."""
    return Counted(redis_server.url, f"clicks::{topic}", topic)


@pytest.fixture
def serve_page() -> Iterator[Callable[..., RunningPage]]:
    """A factory of page servers; all are stopped after the test."""
    with contextlib.ExitStack() as pages:
        yield lambda addresses, **options: pages.enter_context(running_page(addresses, **options))


@pytest.fixture(scope="session")
def still_page(redis_server: RedisProcess) -> Iterator[str]:
    """The address of one page server for all tests that do not read numbers."""
    with running_page(Addresses(redis_server.url, "still", bootstrap=UNREACHABLE)) as running:
        yield running.url


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = WITHIN_S) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)
