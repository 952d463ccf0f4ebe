"""The server's HTTP responses, with a real Redis."""

import contextlib
import hashlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import redis
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.clicks.results import OtherJob
from onceflow.client.cluster import Cluster
from onceflow.client.producer import EventWriter
from onceflow.dashboard import app, feed
from onceflow.dashboard.sources import Addresses, CountsSource
from onceflow.remedies import Remedy
from tests import remedies
from tests.conftest import WITHIN_S
from tests.dashboard.conftest import UNREACHABLE, Counted, RunningPage, wait_until

ServePage = Callable[..., RunningPage]


def get(base: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers with lower-case names, and the body."""
    address = urlsplit(base)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=WITHIN_S)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def get_json(base: str, path: str) -> Any:
    status, _, body = get(base, path)
    assert status == 200, body
    return json.loads(body)


@contextlib.contextmanager
def events(base: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """Open the feed and return an iterator of (event, data)."""
    address = urlsplit(base)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=WITHIN_S)
    connection.request("GET", "/events")
    response = connection.getresponse()
    assert response.getheader("content-type", "").startswith("text/event-stream")

    def parsed() -> Iterator[tuple[str, Any]]:
        name = ""
        while line := response.readline().decode():
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)

    try:
        yield parsed()
    finally:
        response.close()
        connection.close()


# Numbers


def test_snapshot_matches_redis(serve_page: ServePage, counted: Counted) -> None:
    counted.micro_batch({("ann", "iOS"): 6, ("bob", "Android"): 0}, bad={"not JSON": 2})
    counted.micro_batch({("ann", "Android"): 3})
    snapshot = get_json(serve_page(counted.addresses()).url, "/api/snapshot")
    assert snapshot["counted"] is True
    assert snapshot["totals"] == {"events": 5, "clicks": 9, "bad": 2, "users": 2}
    assert snapshot["top"] == [{"uid": "ann", "clicks": 9}, {"uid": "bob", "clicks": 0}]
    assert snapshot["os"] == [{"name": "iOS", "clicks": 6}, {"name": "Android", "clicks": 3}]
    assert snapshot["bad"] == [{"reason": "not JSON", "events": 2}]
    assert snapshot["batch"]["number"] == 1
    assert snapshot["services"]["redis"]["state"] == "up"
    assert snapshot["services"]["broker"]["state"] == "down"
    assert snapshot["lag"] is None


def test_lag_after_the_counted_offsets(serve_page: ServePage, counted: Counted, bootstrap: str) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(counted.topic, 2)
    sent_ms = int(time.time() * 1_000) - 30_000
    with EventWriter(bootstrap, counted.topic) as writer:
        for number in range(10):
            writer.write(None, b"{}", sent_ms + number, partition=number % 2)
    counted.micro_batch({("ann", "iOS"): 1}, offsets={0: 5, 1: 2})
    page = serve_page(counted.addresses(bootstrap))
    lag = get_json(page.url, "/api/snapshot")["lag"]
    assert lag["messages"] == 3
    assert lag["oldest_ms"] == sent_ms + 5
    counted.micro_batch({("ann", "iOS"): 1}, offsets={0: 5, 1: 5})
    assert get_json(page.url, "/api/snapshot")["lag"] == {
        "messages": 0,
        "seconds": 0.0,
        "oldest_ms": None,
        "topic_exists": True,
    }
    assert get_json(page.url, "/health")["ok"] is True


def test_lag_before_the_first_count(serve_page: ServePage, counted: Counted, bootstrap: str) -> None:
    page = serve_page(counted.addresses(bootstrap))
    snapshot = get_json(page.url, "/api/snapshot")
    assert snapshot["counted"] is False
    assert snapshot["lag"]["topic_exists"] is False
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(counted.topic, 1)
    with EventWriter(bootstrap, counted.topic) as writer:
        writer.write(None, b"{}")
    snapshot = get_json(page.url, "/api/snapshot")
    assert snapshot["counted"] is False
    assert snapshot["lag"]["messages"] == 1


def test_one_user(serve_page: ServePage, counted: Counted) -> None:
    uid = "a/b?c&<script>é"
    counted.micro_batch({(uid, "iOS"): 2**53})
    base = serve_page(counted.addresses()).url
    assert get_json(base, f"/api/user?uid={quote(uid, safe='')}") == {
        "uid": uid,
        "clicks": str(2**53),
        "live": False,
    }
    assert get_json(base, "/api/user?uid=nobody") == {"uid": "nobody", "clicks": None, "live": False}
    assert get(base, "/api/user")[0] == 400
    assert get(base, "/api/user?uid=" + "x" * 1_025)[0] == 400


def test_live_numbers_include_the_log(serve_page: ServePage, counted: Counted, bootstrap: str) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(counted.topic, 1)
    with EventWriter(bootstrap, counted.topic) as writer:
        for clicks in (1, 5, 3):
            writer.write(None, json.dumps({"uid": "ann", "click_count": clicks, "os_type": "iOS"}).encode())
        writer.write(None, b"nonsense")
    counted.micro_batch({("ann", "iOS"): 1})
    base = serve_page(counted.addresses(bootstrap)).url
    snapshot = get_json(base, "/api/snapshot")
    assert (snapshot["now"]["live"], snapshot["now"]["not_counted"], snapshot["now"]["reason"]) == (True, 3, None)
    assert 0 <= snapshot["taken_ms"] - snapshot["now"]["as_of_ms"] < WITHIN_S * 1_000
    assert snapshot["totals"] == {"events": 4, "clicks": 9, "bad": 1, "users": 1}
    assert snapshot["top"] == [{"uid": "ann", "clicks": 9}]
    assert snapshot["os"] == [{"name": "iOS", "clicks": 9}]
    assert snapshot["bad"] == [{"reason": "not-json", "events": 1}]
    assert get_json(base, "/api/user?uid=ann") == {"uid": "ann", "clicks": 9, "live": True}
    counted.micro_batch({("ann", "iOS"): 8}, bad={"not-json": 1}, events=3)
    wait_until(lambda: get_json(base, "/api/snapshot")["now"]["not_counted"] == 0, "the next base")
    assert get_json(base, "/api/snapshot")["totals"] == {"events": 4, "clicks": 9, "bad": 1, "users": 1}


def test_counted_numbers_without_a_broker(serve_page: ServePage, counted: Counted) -> None:
    counted.micro_batch({("ann", "iOS"): 1})
    now = get_json(serve_page(counted.addresses()).url, "/api/snapshot")["now"]
    assert (now["live"], now["as_of_ms"], now["not_counted"]) == (False, None, 0)
    assert UNREACHABLE in now["reason"]


def test_live_counts_end_after_their_last_use(
    serve_page: ServePage, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LINGER_S", 0.2)
    counted.micro_batch({("ann", "iOS"): 1})
    page = serve_page(counted.addresses())
    of_other_pages = set(threading.enumerate())

    def threads() -> list[threading.Thread]:
        new = set(threading.enumerate()) - of_other_pages
        return [thread for thread in new if thread.name == "live counts"]

    with events(page.url) as opened:
        next(opened)
        time.sleep(0.5)
        assert threads()
    wait_until(lambda: not threads(), "the end of the live counts")
    assert get_json(page.url, "/api/user?uid=ann")["clicks"] == 1
    assert threads()


@pytest.mark.remedy(Remedy.OTHER_COUNTS)
def test_foreign_data_under_the_hash_key(serve_page: ServePage, counted: Counted) -> None:
    with redis.Redis.from_url(counted.redis_url) as client:
        client.hset(counted.keys.totals, "events", "many")
    page = serve_page(counted.addresses())
    down = get_json(page.url, "/api/snapshot")["services"]["redis"]
    assert down["state"] == "down"
    assert "did not write" in down["error"]
    remedies.find(Remedy.OTHER_COUNTS, down["error"])
    other = Counted(counted.redis_url, f"{counted.hash_key}-other")
    other.micro_batch({("ann", "iOS"): 1})
    assert get_json(serve_page(other.addresses()).url, "/api/snapshot")["services"]["redis"]["state"] == "up"
    with redis.Redis.from_url(counted.redis_url) as client:
        client.delete(counted.keys.totals)
    assert get_json(page.url, "/api/snapshot")["services"]["redis"]["state"] == "up"


def test_health_503_names_the_unreachable_service(serve_page: ServePage) -> None:
    page = serve_page(Addresses("redis://:secret@127.0.0.1:1/1", bootstrap=UNREACHABLE))
    status, _, body = get(page.url, "/health")
    health = json.loads(body)
    assert status == 503
    assert {name: health[name]["state"] for name in ("redis", "broker")} == {"redis": "down", "broker": "down"}
    assert "127.0.0.1:1" in health["redis"]["error"]
    assert b"secret" not in body
    assert b"secret" not in get(page.url, "/api/snapshot")[2]
    assert b"secret" not in get(page.url, "/api/user?uid=ann")[2]


def test_counts_of_another_job_are_not_shown(serve_page: ServePage, counted: Counted) -> None:
    """They appear under the hash key while the page is open."""
    counted.plan = '{"counts": "sums"}'
    page = serve_page(counted.addresses())
    assert json.loads(get(page.url, "/api/snapshot")[2])["services"]["redis"]["state"] == "up"
    counted.micro_batch({("ann", "iOS"): 1})
    document = json.loads(get(page.url, "/api/snapshot")[2])
    assert document["services"]["redis"]["other_job"] is True
    assert "was written by another job than 'onceflow run'" in document["services"]["redis"]["error"]
    assert (document["counted"], document["totals"]["events"]) == (False, 0)
    assert get(page.url, "/health")[0] == 503


@pytest.mark.remedy(Remedy.NAME_HASH_KEY)
def test_dashboard_refuses_another_jobs_hash_key(counted: Counted) -> None:
    """The message is that of 'onceflow clicks' and 'onceflow dead'."""
    counted.plan = "sums"
    counted.micro_batch({("ann", "iOS"): 1})
    where = ["--redis", counted.redis_url, "--hash-key", counted.hash_key]
    with pytest.raises(OtherJob, match="was written by another job than 'onceflow run'") as raised:
        onceflow(["dashboard", *where, "--port", "0"], standalone_mode=False)
    remedies.find(Remedy.NAME_HASH_KEY, raised.value)
    its_own = Counted(counted.redis_url, f"{counted.hash_key}-own")
    its_own.micro_batch({("ann", "iOS"): 1})
    CountsSource(its_own.addresses()).refuse_other_job()
    shared = str(raised.value).partition(": the page")[0]
    assert shared in CliRunner().invoke(onceflow, ["clicks", *where]).stdout


# The feed


def test_events_on_change_and_keep_alives(serve_page: ServePage, counted: Counted) -> None:
    counted.micro_batch({("ann", "iOS"): 1}, finished_ms=int(time.time() * 1_000) - 3_600_000)
    with events(serve_page(counted.addresses(), alive_s=0.3).url) as stream:
        clicks = (data["totals"]["clicks"] for name, data in stream if name == "snapshot")
        assert next(clicks) == 1
        assert "alive" in (name for name, _ in stream)
        counted.micro_batch({("ann", "iOS"): 4})
        # An earlier snapshot may repeat the count: the chart advances every five seconds.
        assert next(count for count in clicks if count != 1) == 5


def test_one_poller_serves_all_pages(serve_page: ServePage, counted: Counted) -> None:
    page = serve_page(counted.addresses())
    with redis.Redis.from_url(counted.redis_url) as client:

        def commands() -> int:
            return int(client.info("commandstats")["cmdstat_zrevrange"]["calls"])

        with events(page.url) as first, events(page.url) as second:
            next(first)
            next(second)
            assert page.feed.listeners == 2
            assert page.feed.polling
            begin, polls = time.monotonic(), commands()
            wait_until(lambda: commands() >= polls + 5, "five polls")
            # Two pages, one poll each 100 ms: twice as many would show two pollers.
            assert commands() - polls <= (time.monotonic() - begin) / 0.1 + 2
        wait_until(lambda: not page.feed.polling, "both pages to be noticed as closed")
        assert page.feed.listeners == 0
        polls = commands()
        time.sleep(0.3)
        assert commands() <= polls + 1  # One may have been running.
        with events(page.url) as third:
            assert next(third)[0] == "snapshot"


@pytest.mark.remedy(Remedy.CLOSE_PAGES)
def test_too_many_pages_are_refused(serve_page: ServePage, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PAGES_MAX", 1)
    page = serve_page(counted.addresses())
    with events(page.url) as first:
        next(first)
        status, _, body = get(page.url, "/events")
        assert status == 503
        remedies.find(Remedy.CLOSE_PAGES, body.decode())
    wait_until(lambda: not page.feed.listeners, "the page to be noticed as closed")
    with events(page.url) as another:
        assert next(another)[0] == "snapshot"


# Host headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", ""])
def test_foreign_host_header_is_refused(still_page: str, host: str) -> None:
    assert get(still_page, "/api/snapshot", {"Host": host})[0] == 400


def test_local_host_header_is_accepted(still_page: str) -> None:
    for host in ("127.0.0.1:1234", "localhost:8080", "LOCALHOST", "[::1]:8080"):
        assert get(still_page, "/", {"Host": host})[0] == 200


def test_every_response_has_the_policy(still_page: str) -> None:
    for path in ("/", "/static/page.js", "/api/snapshot", "/no-such-page", "/static/../app.py"):
        _, headers, _ = get(still_page, path)
        for name, value in app.HEADERS.items():
            assert headers[name.lower()] == value, path
    _, headers, _ = get(still_page, "/", {"Host": "evil.example"})
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_only_the_static_files_are_served(still_page: str) -> None:
    assert get(still_page, "/static/page.css")[0] == 200
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/"):
        assert get(still_page, path)[0] == 404, path


def test_the_vendored_files_are_the_published_ones() -> None:
    vendor = app.STATIC / "vendor"
    listed = {line.split()[1]: line.split()[0] for line in (vendor / "SHA256SUMS").read_text().splitlines()}
    assert {path.name for path in vendor.iterdir()} == {*listed, "SHA256SUMS"}
    for name, digest in listed.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest, name


def test_scripts_set_text_and_never_markup() -> None:
    for script in app.STATIC.glob("*.js"):
        text = script.read_text()
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert sink not in text, script.name


# The command


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "onceflow", "dashboard", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_command_prints_address_and_stops(counted: Counted) -> None:
    where = ["--redis", counted.redis_url, "--hash-key", counted.hash_key, "--bootstrap", UNREACHABLE, "--port", "0"]
    with start(*where) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("dashboard on http://127.0.0.1:"), process.communicate()
        with events(line.split()[-1]) as stream:
            next(stream)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WITHIN_S) == 0
        assert process.communicate() == ("", "")


def test_command_names_a_used_port(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    with socket.create_server(("0.0.0.0", 0)) as used:
        port = str(used.getsockname()[1])
        with start("--host", "0.0.0.0", "--port", port, "--token-file", str(token)) as process:
            output, errors = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, output) == (1, "")
    assert errors.startswith(f"onceflow: port {port} of 0.0.0.0 is in use")
