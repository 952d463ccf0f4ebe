"""`onceflow watch` against a real broker, a real Redis and a real webhook."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from onceflow.cli import watch
from tests.clicks.counted import GOOD_AND_BAD, count, write
from tests.conftest import RedisProcess

Run = Callable[..., subprocess.CompletedProcess[str]]
DEAD = "redis://127.0.0.1:1/1"


class Hook:
    """A webhook that keeps the documents, and fails as often as `failures` says."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        self.failures = 0
        self.attempts = 0
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.attempts += 1
                is_failing = hook.attempts <= hook.failures
                if not is_failing:
                    assert self.headers["Content-Type"] == "application/json"
                    hook.documents.append(json.loads(body))
                self.send_response(500 if is_failing else 204)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setattr(watch, "POST_PAUSE_S", 0.01)
    hook = Hook()
    thread = threading.Thread(target=hook.server.serve_forever)
    thread.start()
    yield hook
    hook.server.shutdown()
    hook.server.server_close()
    thread.join()


@pytest.fixture
def counted(bootstrap: str, topic: str, redis_server: RedisProcess) -> list[str]:
    """Options of a count with a lag of three messages."""
    hash_key = f"watch::{topic}"
    write(bootstrap, topic, GOOD_AND_BAD)
    count(redis_server.url, hash_key, topic, GOOD_AND_BAD)
    write(bootstrap, topic, {0: [b'{"uid":"ada","click_count":1}'] * 3})
    return ["--redis", redis_server.url, "--hash-key", hash_key]


def test_once_reports_the_lag(run: Run, counted: list[str], hook: Hook) -> None:
    ended = run("watch", "--once", "--alert", "lag > 2", "--alert", "lag > 3", "--webhook", hook.url, *counted)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.endswith("  begin  lag > 2: lag is 3 messages\n")
    assert [(document["alert"], document["state"]) for document in hook.documents] == [("lag > 2", "begin")]
    assert hook.documents[0]["text"] == "onceflow: begin of alert lag > 2: lag is 3 messages"


def test_exit_codes_of_once(run: Run, counted: list[str]) -> None:
    assert run("watch", "--once", "--alert", "redis down", *counted).returncode == 0
    assert run("watch", "--once", "--alert", "redis down", "--redis", DEAD).returncode == 1
    assert run("watch", "--once", "--alert", "lag > 2", "--redis", DEAD).returncode == 2
    wrong = run("watch", "--once", "--alert", "lag > 2 parsecs")
    assert wrong.returncode == 2 and "is not a valid condition" in wrong.stderr


def test_once_waits_for_a_rate(run: Run, counted: list[str]) -> None:
    ended = run("watch", "--once", "--interval", "1s", "--alert", "rate < 1", "--json", *counted)
    assert ended.returncode == 1, ended.stderr
    change = json.loads(ended.stdout)
    assert (change["alert"], change["reading"]) == ("rate < 1", "rate is 0 events per second")


def test_failed_posts_are_repeated(run: Run, hook: Hook) -> None:
    hook.failures = 2
    ended = run("watch", "--once", "--alert", "redis down", "--redis", DEAD, "--webhook", hook.url)
    assert (ended.returncode, hook.attempts, len(hook.documents)) == (1, 3, 1)
    hook.failures = hook.attempts + 100
    ended = run("watch", "--once", "--alert", "redis down", "--redis", DEAD, "--webhook", hook.url)
    assert hook.attempts == 6
    assert "webhook at 127.0.0.1: 3 attempts failed: HTTP Error 500" in ended.stderr
    assert "secret" not in ended.stderr


@pytest.mark.parametrize("interval", ["0.5s", "10", "soon"])
def test_invalid_interval_is_refused(run: Run, interval: str) -> None:
    ended = run("watch", "--alert", "redis down", "--interval", interval)
    assert ended.returncode == 2
    assert f"'{interval}' is not a valid duration" in ended.stderr


def test_invalid_webhook_is_refused(run: Run) -> None:
    ended = run("watch", "--alert", "redis down", "--webhook", "file:///etc/passwd")
    assert ended.returncode == 2
    assert "expected http://HOST/" in ended.stderr


def test_alert_ends_when_redis_returns(new_redis: Callable[..., RedisProcess], bootstrap: str, topic: str) -> None:
    server = new_redis()
    server.stop()
    options = ["--redis", server.url, "--bootstrap", bootstrap, "--interval", "1s"]
    command = [sys.executable, "-u", "-m", "onceflow", "watch", "--alert", "redis down", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        assert "  begin  redis down: redis is down" in process.stdout.readline()
        server.start()
        assert "  end    redis down: redis is up" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
