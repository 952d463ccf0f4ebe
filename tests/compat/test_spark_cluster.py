"""A Spark Standalone cluster of one worker: the wheel as a file, a packed environment, and `onceflow run`."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from onceflow.cli import submit
from tests.end_to_end.pipeline import TOPIC, Pipeline

SPARK_HOME = Path(pyspark.__file__).parent
EVENTS = 3_000
UP_WITHIN_S = 120
SUBMIT_S = 900

pytestmark = pytest.mark.timeout(1200)

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from onceflow.spark.source import register

spark = SparkSession.builder.getOrCreate()
register(spark)
source = spark.read.format("onceflow").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
print("records:", source.load().count())
"""


@pytest.fixture(scope="module")
def python_without_onceflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return this Python with the wheel's dependencies. With -S it ignores the `.pth` file with the path of src/."""
    directory = tmp_path_factory.mktemp("python")
    program = directory / "python"
    path = f'PYTHONPATH="$PYTHONPATH:{SPARK_HOME.parent}"'
    program.write_text(f'#!/bin/sh\nexport {path}\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [str(program), "-c", "import onceflow"]
    missing = subprocess.run(command, cwd=directory, env=environment, capture_output=True, check=False)
    assert b"No module named 'onceflow'" in missing.stderr
    return program


class Standalone:
    """Spark's own master and one worker of two cores on 127.0.0.1; use as a context."""

    def __init__(self, directory: Path, java_home: str) -> None:
        self.work = directory / "work"
        self.url = ""
        self._directory = directory
        self._environment = {
            **os.environ,
            "JAVA_HOME": java_home,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        self._running = contextlib.ExitStack()

    def __enter__(self) -> "Standalone":
        with contextlib.ExitStack() as started:
            master = started.enter_context(self._daemon("master.Master"))
            self.url = self._printed(master, r"Starting Spark master at (spark://\S+)")
            worker = ("--cores", "2", "--memory", "1G", "--work-dir", str(self.work), self.url)
            started.enter_context(self._daemon("worker.Worker", *worker))
            self._printed(master, r"Registering worker (\S+)")
            self._running = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def executors(self) -> set[Path]:
        """Return the directories of the executors that have run."""
        return set(self.work.glob("app-*/*"))

    @contextlib.contextmanager
    def _daemon(self, name: str, *arguments: str) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
        spark_class = (str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}")
        command = [*spark_class, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
        log = self._directory / f"{name}.log"
        with (
            log.open("wb") as output,
            subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent, env=self._environment) as process,
        ):
            try:
                yield process, log
            finally:
                process.terminate()

    def _printed(self, daemon: "tuple[subprocess.Popen[bytes], Path]", pattern: str) -> str:
        """Wait for a line in a daemon's log, and return the group of the pattern."""
        process, log = daemon
        deadline = time.monotonic() + UP_WITHIN_S
        while (match := re.search(pattern, log.read_text())) is None:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return match[1]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory, java_home: str) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone"), java_home) as running:
        yield running


@pytest.fixture
def pipeline(tmp_path: Path, java_home: str) -> Iterator[Pipeline]:
    """A broker with EVENTS events, and a Redis."""
    with Pipeline(tmp_path, java_home) as running:
        running.onceflow(
            *("generate", "--bootstrap", running.broker.bootstrap, "--topic", TOPIC, "--users", "500"),
            *("--interval-ms", "0", "--count", str(EVENTS)),
        )
        yield running


def spark_submit(directory: Path, java_home: str, *arguments: str, **environment: str) -> str:
    """Run spark-submit in a directory without onceflow, and return what it has printed."""
    done = subprocess.run(
        [str(SPARK_HOME / "bin" / "spark-submit"), *arguments],
        env={**os.environ, "PYTHONPATH": "", "JAVA_HOME": java_home, "SPARK_HOME": str(SPARK_HOME), **environment},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SUBMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return done.stdout


def entry_file(directory: Path) -> str:
    """Return a copy of the entry file, away from the package."""
    return str(shutil.copy(submit.__file__, directory / "submit.py"))


def assert_counted(pipeline: Pipeline, printed: str) -> None:
    counted = json.loads(printed.splitlines()[-1])
    assert (counted["events"], counted["complete"]) == (EVENTS, True)
    verified = pipeline.verify()
    assert (verified["events"], verified["not_yet_counted"], verified["differences"]) == (EVENTS, 0, [])


def test_spark_submit_takes_the_wheel_itself(
    standalone: Standalone,
    pipeline: Pipeline,
    wheel: Path,
    python_without_onceflow: Path,
    tmp_path: Path,
    java_home: str,
) -> None:
    before = standalone.executors()
    printed = spark_submit(
        tmp_path,
        java_home,
        *("--master", standalone.url, "--executor-memory", "1G", "--total-executor-cores", "2"),
        *("--py-files", str(wheel), entry_file(tmp_path), *pipeline.where()),
        *("--checkpoint", str(pipeline.checkpoint), "--trigger", "available-now", "--json"),
        PYSPARK_PYTHON=str(python_without_onceflow),
    )
    assert_counted(pipeline, printed)
    assert standalone.executors() > before, "the cluster's executors did the work"


def test_a_program_registers_the_source(
    standalone: Standalone,
    pipeline: Pipeline,
    wheel: Path,
    python_without_onceflow: Path,
    tmp_path: Path,
    java_home: str,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    printed = spark_submit(
        tmp_path,
        java_home,
        *("--master", standalone.url, "--py-files", str(wheel), str(program), pipeline.broker.bootstrap, TOPIC),
        PYSPARK_PYTHON=str(python_without_onceflow),
    )
    assert f"records: {EVENTS}\n" in printed


def test_onceflow_run_on_a_standalone_master(standalone: Standalone, pipeline: Pipeline) -> None:
    before = standalone.executors()
    done = pipeline.onceflow(
        *("run", standalone.url, *pipeline.where(), "--checkpoint", str(pipeline.checkpoint)),
        *("--trigger", "available-now", "--json"),
    )
    assert_counted(pipeline, done.stdout)
    assert standalone.executors() > before, "the cluster's executors did the work"


def packed_environment(directory: Path, wheel: Path) -> Path:
    """Pack an environment of the wheel and its dependencies, without the PySpark that the cluster has."""
    environment, archive = directory / "environment", directory / "environment.tar.gz"
    uv, into = (sys.executable, "-m", "uv"), ("--quiet", "--python", str(environment / "bin" / "python"))
    for command in (
        ("venv", "--quiet", "--python", sys.executable, str(environment)),
        ("pip", "install", *into, f"{wheel}[client,spark]"),
        ("pip", "uninstall", *into, "pyspark", "py4j"),
    ):
        subprocess.run([*uv, *command], check=True, timeout=300)
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(environment, ".")
    return archive


def test_packed_environment_replaces_the_wheel(
    standalone: Standalone, pipeline: Pipeline, wheel: Path, tmp_path: Path, java_home: str
) -> None:
    before = standalone.executors()
    archive = packed_environment(tmp_path, wheel)
    printed = spark_submit(
        tmp_path,
        java_home,
        *("--master", standalone.url, "--executor-memory", "1G", "--total-executor-cores", "2"),
        *("--archives", f"{archive}#environment", entry_file(tmp_path), *pipeline.where()),
        *("--checkpoint", str(pipeline.checkpoint), "--trigger", "available-now", "--json"),
        PYSPARK_PYTHON="./environment/bin/python",
    )
    assert_counted(pipeline, printed)
    (executor,) = standalone.executors() - before
    assert (executor / "environment" / "bin" / "python").exists(), "the executors' Python is the archive's"
