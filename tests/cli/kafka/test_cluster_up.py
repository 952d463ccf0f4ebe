"""`onceflow cluster up`: brokers and a ZooKeeper on this machine, all ended by Ctrl-C."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onceflow import services
from onceflow.cli import onceflow
from onceflow.remedies import Remedy
from tests import remedies
from tests.broker.cluster.zookeeper_process import jars
from tests.broker.driven_broker import eventually


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "onceflow", "cluster", *arguments]


@pytest.fixture
def libraries() -> Path:
    """The directory of ZooKeeper's jars."""
    libraries = jars() if shutil.which("java") else None
    if libraries is None:
        pytest.skip("no Java or no jars of ZooKeeper: apt install default-jre-headless maven")
    return libraries


@contextmanager
def terminated(words: list[str], **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command, and end it with the test, also with one that fails."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **streams) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_a_cluster_runs_until_ctrl_c(tmp_path: Path, libraries: Path) -> None:
    """A second one in the same directory is refused; all processes end."""
    data = tmp_path / "cluster"
    where = ["--zookeeper-jars", str(libraries), "--data", str(data), "--port", str(services.free_port())]
    with terminated(command("up", "-n", "2", *where)) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        match = re.fullmatch(r"bootstrap servers (127\.0\.0\.1:(\d+),127\.0\.0\.1:(\d+))\n", line)
        assert match is not None, line
        status = command("status", "--json", "--bootstrap", match[1])
        shown = json.loads(subprocess.run(status, capture_output=True, text=True, check=True, timeout=60).stdout)
        assert [broker["broker"] for broker in shown["brokers"]] == [1, 2]
        second = subprocess.run(command("up", *where), capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode == 1
        assert "a cluster is already running in" in second.stderr
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    assert not any(services.is_listening(int(port)) for port in match.groups()[1:])


@pytest.mark.remedy(Remedy.START_ENDED_BROKER)
def test_a_killed_broker_leaves_the_others(tmp_path: Path, libraries: Path) -> None:
    """The message has the command that starts it again; without any broker the command ends."""
    data, errors = tmp_path / "cluster", tmp_path / "errors.txt"
    where = ["--zookeeper-jars", str(libraries), "--data", str(data), "--port", str(services.free_port())]
    with errors.open("w") as file, terminated(command("up", "-n", "2", *where), stderr=file) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(3)]
        pids = re.findall(r"^broker \d   127\.0\.0\.1:\d+   pid (\d+)$", "".join(lines), re.MULTILINE)
        assert len(pids) == 2, lines
        os.kill(int(pids[1]), signal.SIGKILL)
        eventually(lambda: "\n" in errors.read_text(), "a message")
        message = errors.read_text()
        assert message.startswith("broker-2 exited with code -9, and the others continue; ")
        assert message.count("\n") == 1
        words = remedies.command(Remedy.START_ENDED_BROKER, message, "command")
        with terminated([sys.executable, "-m", *words]) as again:
            assert again.stdout is not None
            assert again.stdout.readline().startswith("listening on ")
        os.kill(int(pids[0]), signal.SIGKILL)
        assert running.wait(60) == 1
    assert "broker-1 exited with code -9" in errors.read_text()


def test_a_broker_that_ends_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here because what listens does not respond."""
    monkeypatch.setenv("ONCEFLOW_BROKER_ZOOKEEPER_CONNECTION_TIMEOUT_MS", "100")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        where = ["--zookeeper", address, "--data", str(tmp_path), "--port", str(services.free_port())]
        done = CliRunner().invoke(onceflow, ["cluster", "up", "-n", "1", *where])
    assert done.exit_code == 1
    assert "broker-1 exited with code" in str(done.exception) + done.output


def test_nothing_starts_without_zookeeper(tmp_path: Path) -> None:
    """Neither with a wrong address nor with a directory without its jars."""
    data = tmp_path / "cluster"
    address = f"127.0.0.1:{services.free_port()}/test"
    done = CliRunner().invoke(onceflow, ["cluster", "up", "--zookeeper", address, "--data", str(data)])
    remedies.find(Remedy.START_ZOOKEEPER, done.exception)
    (tmp_path / "zookeeper-jute-3.8.4.jar").touch()
    done = CliRunner().invoke(onceflow, ["cluster", "up", "--zookeeper-jars", str(tmp_path), "--data", str(data)])
    assert "has no zookeeper-VERSION.jar" in str(done.exception)
    assert not (data / "logs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a cluster needs one ZooKeeper: specify either --zookeeper HOST:PORT"),
        (["--zookeeper", "a:1", "--zookeeper-jars", "."], "specify either --zookeeper"),
        (["-n", "0", "--zookeeper", "a:1"], "0 is not in the range"),
        (["--zookeeper-jars", "./nowhere"], "does not exist"),
        (["--port", "70000", "--zookeeper", "a:1"], "is not in the range"),
    ],
)
def test_mistakes_are_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(onceflow, ["cluster", "up", *arguments])
    assert done.exit_code == 2
    assert message in done.output
