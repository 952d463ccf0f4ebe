"""The entry file on a Spark Standalone cluster, in Pythons with only the wheel (mission A5 and A9)."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from onceflow import services
from onceflow.cli import submit
from tests.campaigns import RecordProperty
from tests.end_to_end.pipeline import TOPIC, Pipeline

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
EVENTS = 3_000
UP_WITHIN_S = 60


def wheel(directory: Path) -> Path:
    """Build the wheel, with the file name that Spark passes to the executors' Python."""
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(directory), str(ROOT)]
    subprocess.run([sys.executable, *command], check=True, timeout=120)
    (built,) = directory.glob("onceflow-*.whl")
    return built.rename(directory / "onceflow.zip")


def python_without_onceflow(directory: Path) -> Path:
    """Return this Python with the wheel's dependencies. With -S it ignores the `.pth` file with the path of src/."""
    path = f'PYTHONPATH="$PYTHONPATH:{sysconfig.get_path("purelib")}"'
    program = directory / "python"
    program.write_text(f'#!/bin/sh\nexport {path}\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    missing = subprocess.run(
        [program, "-c", "import onceflow"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        check=False,
    )
    assert b"No module named 'onceflow'" in missing.stderr
    return program


@contextlib.contextmanager
def daemon(java_home: str, name: str, log: Path, *arguments: str) -> Iterator[int]:
    """Run one of Spark's own daemons, and wait for its port."""
    port = services.free_port()
    spark_class = (SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}")
    command = [*spark_class, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0", *arguments]
    environment = {**os.environ, "JAVA_HOME": java_home, "SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m"}
    with (
        log.open("ab") as output,
        subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent, env=environment) as process,
    ):
        try:
            deadline = time.monotonic() + UP_WITHIN_S
            while not services.is_listening(port):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_spark_submit_on_standalone_cluster(tmp_path: Path, java_home: str, record_property: RecordProperty) -> None:
    archive, python = wheel(tmp_path), python_without_onceflow(tmp_path)
    environment = {
        **os.environ,
        "JAVA_HOME": java_home,
        "SPARK_HOME": str(SPARK_HOME),
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": str(archive),
    }
    entry = tmp_path / "submit.py"
    shutil.copy(submit.__file__, entry)
    log = tmp_path / "spark.log"
    with contextlib.ExitStack() as running:
        pipeline = running.enter_context(Pipeline(tmp_path, java_home))
        pipeline.onceflow(
            *("generate", "--bootstrap", pipeline.broker.bootstrap, "--topic", TOPIC, "--users", "500"),
            *("--interval-ms", "0", "--count", str(EVENTS)),
        )
        master = running.enter_context(daemon(java_home, "master.Master", log))
        url = f"spark://127.0.0.1:{master}"
        worker = ("--cores", "2", "--memory", "1G", "--work-dir", str(tmp_path / "work"), url)
        running.enter_context(daemon(java_home, "worker.Worker", log, *worker))
        done = subprocess.run(
            [
                *(SPARK_HOME / "bin" / "spark-submit", "--master", url, "--executor-memory", "1G"),
                *("--total-executor-cores", "2", "--py-files", archive, entry, *pipeline.where()),
                *("--checkpoint", pipeline.checkpoint, "--trigger", "available-now", "--json"),
            ],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-6000:]
        counted = json.loads(done.stdout.splitlines()[-1])
        assert (counted["events"], counted["complete"]) == (EVENTS, True)
        verified = pipeline.verify()
        assert (verified["events"], verified["not_yet_counted"], verified["differences"]) == (EVENTS, 0, [])
        executors = list((tmp_path / "work").glob("app-*/*"))
        assert executors, "the work was done by the cluster's executors"
        record_property("events, 0 differences", EVENTS)
        record_property("executors", len(executors))
