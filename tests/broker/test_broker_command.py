"""`onceflow broker`: its output, its errors, its end."""

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceflow.broker.config import BrokerConfig, Endpoint
from onceflow.cli import broker as broker_command
from onceflow.cli import onceflow
from onceflow.remedies import Remedy
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from tests import remedies
from tests.broker.raw_client import connected


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onceflow", "broker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "onceflow", "broker", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:")
        with connected(line.split()[-1]) as client:
            assert client.ask(apis.API_VERSIONS, 0).error_code == 0
            process.send_signal(number)
            assert process.wait(timeout=20) == 0
        assert process.stdout.read() == ""
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_repeated_signals_allow_a_clean_end(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "onceflow", "broker", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        while process.poll() is None:
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.005)
        assert process.returncode == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.remedy(Remedy.STOP_BROKER, Remedy.OTHER_DATA)
def test_a_second_broker_names_the_first(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as first:
        second = run("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
        assert second.returncode == 1
        assert second.stdout == ""
        assert f"pid {first.pid}" in second.stderr
        assert len(second.stderr.splitlines()) == 1
        remedies.find(Remedy.OTHER_DATA, second.stderr)
        with BrokerProcess(tmp_path / "other"):
            pass
    remedies.find(Remedy.STOP_BROKER, second.stderr)
    with BrokerProcess(tmp_path / "data"):
        pass


@pytest.mark.remedy(Remedy.OTHER_BROKER_PORT)
@pytest.mark.parametrize("by_variable", [False, True])
def test_a_taken_port_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run("--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"onceflow: the broker cannot listen: port {port} of 127.0.0.1 is taken")
    assert len(refused.stderr.splitlines()) == 1
    remedies.find(Remedy.OTHER_BROKER_PORT, refused.stderr)
    with BrokerProcess(tmp_path / "data") as another:
        if by_variable:
            monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", another.bootstrap)
        given = [] if by_variable else ["--bootstrap", another.bootstrap]
        done = CliRunner().invoke(onceflow, ["topic", "create", "clicks", *given])
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--listen", "0.0.0.0:0"), 1, "--advertise"),
        (("--listen", "9092"), 2, "not HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), 2, "not HOST:PORT"),
        (("--partitions", "0"), 2, "'0' is not a whole number from 1 to 1000"),
        (("--log-retention-hour", "1"), 2, "--log-retention-hours"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    refused = run("--data", str(tmp_path / "data"), *arguments)
    assert (refused.returncode, refused.stdout) == (code, "")
    assert message in refused.stderr


@pytest.mark.remedy(Remedy.ADVERTISE)
def test_every_address_with_one_for_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own address is left out: it would be open to other machines."""
    refused = run("--data", str(tmp_path / "data"), "--listen", "0.0.0.0:0")
    remedies.find(Remedy.ADVERTISE, refused.stderr)
    served: list[BrokerConfig] = []

    async def serve(config: BrokerConfig, _session: object) -> None:
        served.append(config)

    monkeypatch.setattr(broker_command, "_serve", serve)
    monkeypatch.setattr(broker_command, "_allow_many_files", lambda: None)
    monkeypatch.setattr(sys, "setswitchinterval", lambda _seconds: None)
    words = ["broker", "--data", str(tmp_path / "data"), "--listen", "0.0.0.0:0", "--advertise", "example.org:9092"]
    done = CliRunner().invoke(onceflow, words)
    assert done.exit_code == 0, done.output
    assert served[0].advertised == (Endpoint("example.org"),)


def test_options_of_topics_and_addresses(tmp_path: Path) -> None:
    options = ("--advertise", "example.org:1234", "--partitions", "3", "--auto-create-topics-enable", "false")
    with BrokerProcess(tmp_path / "data", 0, *options) as broker, connected(broker.bootstrap) as client:
        asked = client.ask(apis.METADATA, 4, topics=[{"name": "new"}], allow_auto_topic_creation=True)
        assert [(broker.host, broker.port) for broker in asked.brokers] == [("example.org", 1234)]
        assert asked.topics[0].error_code == 3
        client.create_topic("wanted", -1)
        (topic,) = client.ask(apis.METADATA, 4, topics=[{"name": "wanted"}], allow_auto_topic_creation=False).topics
        assert len(topic.partitions) == 3


def test_a_directory_of_another_cluster(tmp_path: Path) -> None:
    """A directory of another cluster is refused, and the id is kept (mission C13)."""
    data = tmp_path / "data"
    for options in (("--cluster-id", "clicks-of_2026"), ()):
        with BrokerProcess(data, 0, *options) as broker, connected(broker.bootstrap) as client:
            metadata = client.ask(apis.METADATA, 4, topics=[], allow_auto_topic_creation=False)
            assert metadata.cluster_id == "clicks-of_2026"
    refused = run("--data", str(data), "--listen", "127.0.0.1:0", "--cluster-id", "another")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert "belongs to cluster clicks-of_2026, not to another" in refused.stderr
    wrong = run("--data", str(data), "--cluster-id", "23-characters-are-too-many")
    assert (wrong.returncode, "is not 1 to 22 of the characters" in wrong.stderr) == (2, True)


@pytest.mark.remedy(Remedy.OTHER_DATA)
def test_an_impossible_data_directory_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for data in (tmp_path / "file", tmp_path / "file" / "data"):
        refused = run("--data", str(data), "--listen", "127.0.0.1:0")
        assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
        assert refused.stderr.startswith(f"onceflow: {tmp_path / 'file'} is a file, not a directory; ")
        remedies.find(Remedy.OTHER_DATA, refused.stderr)
    with BrokerProcess(tmp_path / "other"):
        pass


@pytest.mark.remedy(Remedy.OTHER_DATA)
def test_a_read_only_data_directory() -> None:
    """`/proc` accepts no directories, not even from root."""
    refused = run("--data", "/proc/onceflow", "--listen", "127.0.0.1:0")
    assert "cannot use --data /proc/onceflow: " in refused.stderr
    remedies.find(Remedy.OTHER_DATA, refused.stderr)
