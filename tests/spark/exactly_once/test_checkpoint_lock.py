"""One driver per checkpoint: the JVM that may still write holds the lock, even after its Python has ended."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from onceflow.remedies import Remedy
from onceflow.spark.exactly_once import checkpoint_lock
from onceflow.spark.exactly_once.checkpoint_lock import (
    FILE_NAME,
    CheckpointInUse,
    CheckpointLock,
    take_lock,
    without_driver,
)
from tests import remedies

DRIVER = Path(__file__).parents[1] / "driver_whose_python_dies.py"


@pytest.fixture
def driver(checkpoint: Path, java_home: str) -> Iterator[subprocess.Popen[str]]:
    """Start another driver, which holds the checkpoint's lock."""
    environment = os.environ | {"JAVA_HOME": java_home}
    process = subprocess.Popen(
        [sys.executable, str(DRIVER), str(checkpoint)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def locked_by_another_process(checkpoint: Path) -> bool:
    with (checkpoint / FILE_NAME).open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def jvm_of(checkpoint: Path) -> int:
    holder = re.match(r"JVM with pid (\d+) on ", (checkpoint / FILE_NAME).read_text())
    assert holder
    return int(holder[1])


def wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still runs")


@pytest.mark.remedy(Remedy.END_PROCESS)
def test_jvm_without_python_keeps_the_lock(
    spark: SparkSession, checkpoint: Path, driver: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    jvm = jvm_of(checkpoint)
    os.kill(jvm, signal.SIGSTOP)
    driver.kill()
    driver.wait()
    try:
        with pytest.raises(CheckpointInUse, match=f"in use by JVM with pid {jvm} on .*after 0.5 s") as raised:
            take_lock(spark, checkpoint, "a", wait_ms=500)
        remedies.find(Remedy.END_PROCESS, raised.value)
        (message,) = caplog.messages
        assert re.search(f"in use by JVM with pid {jvm} on .*; waiting up to 0.5 s for its end", message)
        with pytest.raises(CheckpointInUse, match=f"in use by JVM with pid {jvm} on "), without_driver(checkpoint):
            raise AssertionError("the JVM may still write")
    finally:
        os.kill(jvm, signal.SIGCONT)
    lock = take_lock(spark, checkpoint, "a")
    wait_until_ended(jvm)
    assert locked_by_another_process(checkpoint)
    lock.release()
    assert not locked_by_another_process(checkpoint)
    with without_driver(checkpoint):
        pass


def test_second_query_of_one_jvm_is_refused(
    spark: SparkSession, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock: Any = take_lock(spark, checkpoint, "a")
    with pytest.raises(CheckpointInUse, match="another sink of this process"):
        take_lock(spark, checkpoint, "a")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_lock, "_held", {})
        with pytest.raises(CheckpointInUse, match="another query of this JVM"):
            take_lock(spark, checkpoint, "a")
    assert locked_by_another_process(checkpoint)
    lock.release()


def test_lock_without_holder_is_released(
    spark: SparkSession, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(checkpoint_lock, "_write_holder", Mock(side_effect=Py4JError("No space left on device")))
        with pytest.raises(Py4JError, match="No space left"):
            take_lock(spark, checkpoint, "a")
    assert not locked_by_another_process(checkpoint)
    take_lock(spark, checkpoint, "a").release()


class Jvm:
    """A JVM that has ended: closing its files raises `error`."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        process = SimpleNamespace(current=lambda: SimpleNamespace(pid=lambda: 1))
        self._classes = {"java.io.RandomAccessFile": self._open, "java.lang.ProcessHandle": process}
        self.locked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return self._classes[name]

    def _open(self, path: str, _mode: str) -> Any:
        def close() -> None:
            raise self._error

        return SimpleNamespace(
            getChannel=lambda: SimpleNamespace(tryLock=lambda: self.locked.append(path) or path),
            close=close,
            setLength=lambda _size: None,
            writeBytes=lambda text: Path(path).write_text(text),
        )


@pytest.mark.parametrize("error", [Py4JNetworkError("answer is empty"), ConnectionRefusedError("connection refused")])
def test_dead_jvm_leaves_no_lock(error: Exception, checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    dead, alive = Jvm(error), Jvm(error)

    def take(jvm: Jvm, sink: str) -> CheckpointLock:
        session: Any = SimpleNamespace(_jvm=jvm)
        return take_lock(session, checkpoint, sink)

    first, second = take(dead, "a"), take(dead, "b")
    # The next session has its own JVM; the sinks of the former one are still open.
    third = take(alive, "a")
    assert (len(dead.locked), len(alive.locked)) == (1, 1)
    first.release()
    second.release()
    assert f"the JVM of lock {checkpoint / FILE_NAME} has ended" in caplog.text
    with pytest.raises(CheckpointInUse, match="another sink of this process"):
        take(alive, "a")
    third.release()
    take(alive, "a").release()
    assert len(alive.locked) == 2
