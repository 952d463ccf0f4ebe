"""`onceflow demo` as a user runs it: it counts, refuses a second one, cleans up, and resumes."""

import json
import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from tests.end_to_end.pipeline import ONCEFLOW
from tests.processes import MARK, jvms_of, processes_of

WITHIN_S = 300


def eventually(what: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def retention_ms(port: int) -> str | None:
    """Return the retention time of the demo's topic."""
    with Cluster(f"127.0.0.1:{port}") as cluster:
        return Admin(cluster).describe_topic_configs("user_events")["retention.ms"].value


def minutes(port: int) -> list[dict[str, int]]:
    """Return the page's numbers per minute."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/series?per=minute", timeout=60) as response:
        rows: list[dict[str, int]] = json.load(response)
    return rows


def snapshot(port: int) -> dict[str, Any]:
    """Return what the page shows."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/snapshot", timeout=60) as response:
        document: dict[str, Any] = json.load(response)
    return document


def kill_spark_as_printed(printed: str, mark: str, port: int) -> None:
    """Enter the command that the demo prints, and wait until another JVM has counted."""
    _, _, command = next(line for line in printed.splitlines() if "kill Spark" in line).partition("kill Spark ")
    jvms = jvms_of(mark)
    assert len(jvms) == 1
    subprocess.run(shlex.split(command), check=True, timeout=30)
    eventually(lambda: not set(jvms) & set(jvms_of(mark)))
    shown = snapshot(port)
    assert shown["now"]["live"]
    eventually(lambda: snapshot(port)["totals"]["events"] > shown["totals"]["events"])
    eventually(lambda: snapshot(port)["batch"]["number"] > shown["batch"]["number"] + 2)
    assert len(jvms_of(mark)) == 1


def data_with_free_ports(directory: Path) -> Path:
    """Return a data directory whose demo takes any free ports, not 9092 and 6379, which another demo may be taking."""
    (directory / "data").mkdir()
    (directory / "data" / "demo.json").write_text('{"ports": {"broker": 0, "redis": 0}}')
    return directory / "data"


def test_interrupt_stops_all_and_reports_port(tmp_path: Path) -> None:
    mark = f"demo-{uuid.uuid4()}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo = [*ONCEFLOW, "demo", "--data", str(data_with_free_ports(tmp_path)), "--port", str(port), "--lively"]
        printed = tmp_path / "printed"
        with printed.open("wb") as output:
            started = subprocess.Popen(demo, stdout=output, stderr=output, env={**os.environ, MARK: mark})
        try:
            eventually(lambda: "dashboard  http" in printed.read_text() or started.poll() is not None)
            running = processes_of(mark)
            assert len(running) >= 6, printed.read_text()
            assert any(" generate " in command and " --users " in command for command in running.values())
            started.send_signal(signal.SIGINT)
            assert started.wait(60) == 0
        finally:
            started.kill()
            started.wait()
    assert f"port {port} is in use; page listens on " in printed.read_text()
    assert "Traceback" not in printed.read_text()
    assert not processes_of(mark)


@pytest.mark.timeout(900)
def test_demo_counts_stops_and_resumes(tmp_path: Path) -> None:
    mark = f"demo-{uuid.uuid4()}"
    environment = {**os.environ, MARK: mark}
    demo = [*ONCEFLOW, "demo", "--data", str(data_with_free_ports(tmp_path)), "--port", "0"]
    printed = tmp_path / "printed"
    with printed.open("wb") as output:
        first = subprocess.Popen(demo, stdout=output, stderr=output, env=environment)
    try:
        eventually(lambda: "first micro-batch committed" in printed.read_text() or first.poll() is not None)
        assert first.poll() is None, printed.read_text()
        second = subprocess.run(demo, capture_output=True, text=True, env=environment, check=False, timeout=30)
        assert (second.returncode, f"pid {first.pid}" in second.stderr) == (1, True)
        shown = printed.read_text()
        ports = json.loads((tmp_path / "data" / "demo.json").read_text())["ports"]
        assert f"redis-cli -p {ports['redis']} -n 1 HGETALL app::users::click" in shown
        assert f"dashboard  http://127.0.0.1:{ports['page']}" in shown
        assert minutes(ports["page"]), "the page has no numbers over time"
        assert "/logs/{broker,redis,generator,page,spark,jvm}.log" in shown
        assert "WARN" not in shown, "Spark's output belongs in its log"
        assert retention_ms(json.loads((tmp_path / "data" / "demo.json").read_text())["ports"]["broker"]) == "-1"
        kill_spark_as_printed(shown, mark, ports["page"])
        assert "Spark's JVM ended: restart 1 of at most" in printed.read_text()
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    eventually(lambda: not processes_of(mark))

    # Spark runs with all of its defaults, generated code included.
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    again = subprocess.run(
        [*demo, "--seconds", "2", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=WITHIN_S,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    verified = json.loads(again.stdout)
    assert verified["events"] > 0
    assert verified["differences"] == []
    assert "(resumed)" in again.stderr
    assert not processes_of(mark)
