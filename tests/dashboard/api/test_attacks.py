"""Hostile requests to the API, beside those of an ordinary client."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from urllib.parse import quote, urlsplit

import pytest

from onceflow.clicks import queries
from onceflow.clicks.archive_errors import QueryCancelled
from onceflow.dashboard.api.routes import PREFIX
from onceflow.dashboard.api.workers import Busy, Cancellation, TimedOut, Workers
from onceflow.remedies import Remedy
from tests import remedies
from tests.conftest import WITHIN_S
from tests.dashboard.api.conftest import Api
from tests.dashboard.conftest import run_apart, running_page, wait_until
from tests.dashboard.events_of_two_days import Counted
from tests.dashboard.test_app import get

NASTY = [
    "\r\nSet-Cookie: a=b",
    "\x00",
    "%00",
    "a/../b",
    "';--",
    "\u202e",
    "{{7*7}}",
    "<script>",
    "\U0001f600",
    "é" * 400,
]


@pytest.mark.parametrize("text", NASTY)
def test_texts_stay_texts(api: Api, text: str) -> None:
    """Also in the header of the next page, and in a database's or a Redis's query."""
    value = quote(text, safe="")
    for path in (f"user?uid={value}", f"users?search={value}", f"timeline?uid={value}", f"sessions?uid={value}"):
        status, headers, body = get(api.url, PREFIX + path)
        assert status == (404 if path.startswith("user?") else 200), body
        assert "set-cookie" not in headers and headers["content-type"] == "application/json"
    for parameter in ("by", "where", "dimension"):
        name = f"{text}=x" if parameter == "where" else text
        path = "top" if parameter == "dimension" else "series"
        status, _, content = api.get(path, **{"per": "hour"} if path == "series" else {}, **{parameter: name})
        assert status == 200 or content["code"] in ("bad-parameter", "not-counted"), content


def test_link_to_the_next_page_is_encoded(api: Api) -> None:
    status, headers, _ = api.get("users", limit=1)
    assert status == 200
    assert headers["link"].isascii() and "\n" not in headers["link"]


def raw(base: str, request: bytes) -> bytes:
    """Send bytes and return what the server sends until it closes."""
    address = urlsplit(base)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=WITHIN_S) as connection:
        connection.sendall(request)
        with contextlib.suppress(ConnectionError):
            return connection.makefile("rb").read()
    return b""


def test_broken_requests_end_their_connection(api: Api) -> None:
    for request in (
        b"GET /api/v1/now\r\n\r\n",
        b"GET /api/v1/now HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\nConnection: close\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"POST /api/v1/now HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"GET /api/v1/now?" + b"a=b&" * 2_000 + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ):
        assert raw(api.url, request).split(b" ", 2)[1:2] in ([b"400"], [b"405"], [b"404"], [b"431"], [])
    assert api.rows("quality")["bad"] == 2


def test_methods_other_than_get_are_refused(api: Api) -> None:
    address = urlsplit(api.url)
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        with contextlib.closing(http.client.HTTPConnection(address.netloc, timeout=WITHIN_S)) as connection:
            connection.request(method, f"{PREFIX}now", b"x")
            response = connection.getresponse()
            assert response.status == 405, method
            assert response.getheader("access-control-allow-origin") is None
            assert json.loads(response.read())["code"] == "method"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Queries of the archive that last until they are cancelled; the event is set while one runs."""
    running = threading.Event()

    def rows(self: queries.Events, *_: object) -> None:
        running.set()
        while not self._is_cancelled():
            time.sleep(0.01)
        running.clear()
        raise QueryCancelled("cancelled")

    monkeypatch.setattr(queries.Events, "_rows", rows)
    return running


def test_client_that_leaves_cancels_its_query(api: Api, slow: threading.Event) -> None:
    address = urlsplit(api.url)
    with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
        target = f"{PREFIX}totals?where=os%3DiOS"
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert slow.wait(WITHIN_S)
        # Others are served meanwhile.
        assert api.rows("quality")["bad"] == 2
    wait_until(lambda: not slow.is_set(), "the end of the query")


def test_stop_cancels_queries(two_days_counted: Counted, slow: threading.Event) -> None:
    results: list[int] = []
    with running_page(two_days_counted.addresses, archive=two_days_counted.archive) as running:
        client = threading.Thread(target=lambda: results.append(get(running.url, f"{PREFIX}totals?where=os%3DiOS")[0]))
        client.start()
        assert slow.wait(WITHIN_S)
    client.join(WITHIN_S)
    assert results == [503] and not slow.is_set()


@pytest.mark.remedy(Remedy.TRY_AGAIN)
def test_calls_beyond_the_bound_are_refused() -> None:
    async def scenario() -> None:
        pool = Workers("test", threads=1, waiting_max=1, seconds_max=WITHIN_S)
        release = threading.Event()
        calls = [asyncio.create_task(pool.run(lambda _: release.wait(WITHIN_S))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy) as refused:
            await pool.run(lambda _: True)
        remedies.find(Remedy.TRY_AGAIN, refused.value)
        release.set()
        assert await asyncio.gather(*calls) == [True, True]
        while pool.calls:
            await asyncio.sleep(0.01)
        assert await pool.run(lambda _: True)
        pool.shutdown()

    run_apart(scenario())


def test_calls_that_take_too_long_are_interrupted() -> None:
    interrupts = []

    def call(cancellation: Cancellation) -> None:
        cancellation.interrupt = lambda: interrupts.append(1)
        while len(interrupts) < 3:
            time.sleep(0.001)

    async def scenario() -> None:
        pool = Workers("test", threads=1, waiting_max=0, seconds_max=0.01)
        with pytest.raises(TimedOut):
            await pool.run(call)
        while pool.calls:
            await asyncio.sleep(0.01)
        pool.shutdown()

    run_apart(scenario())
    assert len(interrupts) >= 3


def test_silent_connections_are_bounded(two_days_counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.dashboard.conftest.CONNECTIONS_MAX", 3)
    with running_page(two_days_counted.addresses) as running, contextlib.ExitStack() as opened:
        address = urlsplit(running.url)
        place = (address.hostname or "", address.port or 0)
        for _ in range(3):
            opened.enter_context(socket.create_connection(place)).sendall(b"GET / HTTP/1.1\r\nHost: loc")
        wait_until(lambda: get(running.url, "/static/icon.svg")[0] == 503, "a refusal")
        opened.close()
        wait_until(lambda: get(running.url, "/static/icon.svg")[0] == 200, "a free place")
