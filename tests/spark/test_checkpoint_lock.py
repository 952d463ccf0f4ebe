"""One driver per checkpoint: the lock lives as long as the JVM that may still write, not as its Python."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from onceflow.spark import checkpoint_lock
from onceflow.spark.checkpoint_lock import FILE_NAME, CheckpointInUse, take_lock, without_driver

DRIVER = Path(__file__).with_name("driver_whose_python_dies.py")


@pytest.fixture
def driver(checkpoint: Path, java_home: str) -> Iterator[subprocess.Popen[str]]:
    """Another driver, which holds the checkpoint."""
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
    found = re.match(r"JVM with pid (\d+) on ", (checkpoint / FILE_NAME).read_text())
    assert found
    return int(found[1])


def wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} goes on")


def test_a_jvm_that_outlives_its_python_keeps_the_checkpoint(
    spark: SparkSession, checkpoint: Path, driver: subprocess.Popen[str]
) -> None:
    jvm = jvm_of(checkpoint)
    os.kill(jvm, signal.SIGSTOP)
    driver.kill()
    driver.wait()
    try:
        with pytest.raises(CheckpointInUse, match=f"in use by JVM with pid {jvm} on .*waited 0.5 s"):
            take_lock(spark, checkpoint, "a", wait_ms=500)
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


def test_a_second_query_of_one_jvm_is_refused_and_the_first_keeps_its_lock(
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
