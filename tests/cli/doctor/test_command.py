"""The command `onceflow doctor`: options, output and exit code."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from onceflow.cli.doctor.command import expected_ports
from onceflow.cli.doctor.findings import State
from tests.conftest import RedisProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_everything_that_is_checked(run: Run, bootstrap: str, redis_server: RedisProcess, tmp_path: Path) -> None:
    ended = run("doctor", "--redis", redis_server.url, "--data", str(tmp_path), "--json")
    assert ended.returncode == 0, ended.stdout
    shown = json.loads(ended.stdout)
    assert shown["ok"] is True
    checks = {check["check"]: check for check in shown["checks"]}
    assert {"python", "packages", "extra spark", "java", "port 9092", "disk", "kafka", "redis clock"} <= set(checks)
    assert {check["state"] for check in shown["checks"]} <= set(State)
    assert bootstrap in checks["kafka"]["message"]
    assert str(tmp_path) in checks["disk"]["message"]


def test_a_failed_check_fails_the_command(run: Run, tmp_path: Path) -> None:
    ended = run("doctor", "--redis", "redis://:secret@127.0.0.1:1/1", "--data", str(tmp_path))
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    (number,) = [number for number, line in enumerate(lines) if line.startswith("failed       redis ")]
    assert lines[number + 1].strip() == "→ start Redis, or use the address of a running one"
    assert lines[-1].startswith("1 failure, ")
    assert "secret" not in ended.stdout


def test_ports_of_the_given_servers() -> None:
    assert expected_ports("localhost:9092,kafka.example:9093", "redis://u:p@127.0.0.1/1") == {
        9092: "--bootstrap",
        6379: "--redis",
    }
    assert expected_ports("[::1]:9092", "redis+cluster://127.0.0.1:7000,127.0.0.1:7001") == {9092: "--bootstrap"}
