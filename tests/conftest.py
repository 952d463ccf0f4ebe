"""Fixtures with real parts: a broker, a Valkey, a Java; each process is ended by its id."""

import gc
import io
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from _pytest.logging import DEFAULT_LOG_FORMAT
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from onceflow import services
from onceflow.cli import main
from onceflow.client.cluster import Cluster
from onceflow.client.producer import EventWriter
from onceflow.testing import BrokerProcess
from tests import campaigns, fork_server, process_logs, remedies
from tests.compat.java_programs import QUICK_JVM

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from pyspark.sql import SparkSession


CLASS_ARCHIVE = Path(sys.prefix, "spark.jsa")
"""Written by `make test` with tests/class_archive.py; without it, or if it is empty, a JVM starts more slowly."""

JAVA_OPTIONS = QUICK_JVM.split()
"""A short-lived JVM is faster without the optimizing compiler."""
if CLASS_ARCHIVE.exists() and CLASS_ARCHIVE.stat().st_size:
    JAVA_OPTIONS += [f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xlog:disable"]
os.environ.setdefault("JDK_JAVA_OPTIONS", " ".join(JAVA_OPTIONS))

INTERPRETED = "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN"
"""Code takes longer to generate and compile than the few rows of a test to interpret. The demo's test generates it."""

os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"{INTERPRETED} pyspark-shell")

# By default an example over 200 ms, or one that is slow to generate, is an error. Results must not depend on the load
# of the machine.
settings.register_profile("onceflow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("onceflow")

# Beside other test workers, a driver of low priority waits for minutes; and `run` in a worker lowers the worker's own.
os.environ["ONCEFLOW_NICE"] = "0"

WEEK_MS = str(7 * 24 * 3_600_000)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell script's background processes ignore interrupts; the children of a test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ports_of_worker(worker: str, workers: int) -> range:
    """Return the ports for servers of one xdist worker, such as `gw1`; it shares none with another worker.

    The port of a server that a test has stopped is free until the test starts it again. No other test may take it.
    """
    return services.PORTS[int(worker.removeprefix("gw")) :: workers]


services.PORTS = ports_of_worker(
    os.environ.get("PYTEST_XDIST_WORKER", "gw0"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
)

FIRST = (
    "end_to_end/test_restarts.py",
    "end_to_end/test_demo.py",
    "dashboard/test_views.py",
    "clicks/test_event_ids.py",
    "cli/kafka/test_cluster_up.py",
    "clicks/test_live.py",
    "dashboard/test_page.py",
    "clicks/test_rebuild.py",
    "spark/redis/test_cluster.py",
    "broker/storage/test_full_disk.py",
    "broker/groups/test_clients.py",
    "redis/test_errors.py",
    "testing/test_pytest_plugin.py",
)
"""Modules of long tests and of tests that wait, for the workers beside those with Spark, which need the processors."""


SHARED_SPARK = "shared_spark"
"""Part of the id of every test on a shared Spark session; the scheduler uses it."""


SPARK_GROUPS = {
    "sinks": ("tests/spark/exactly_once/", "tests/spark/redis/", "tests/spark/test_redis"),
    "connector": ("tests/spark/",),
}
"""Groups of tests that share a Spark session, about as long as each other; all others are the group `pipeline`."""


ON_ZOOKEEPER = "tests/broker/cluster/"
"""Modules that share one ZooKeeper."""

APART = ("tests/broker/simulation/", "tests/end_to_end/", "tests/spark/test_crash_points.py")
"""Modules of long tests, each of which goes to any worker."""


class SparkTogether(LoadScopeScheduling):
    """Each module on one worker, since its tests share fixtures; three shared Spark sessions, each on one worker.

    It stands in for xdist's own `loadgroup`, which finds no groups under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        if SHARED_SPARK in nodeid:
            groups = (group for group, beginnings in SPARK_GROUPS.items() if nodeid.startswith(beginnings))
            return next(groups, "pipeline")
        if nodeid.startswith(ON_ZOOKEEPER):
            return "zookeeper"
        return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkTogether:
    return SparkTogether(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures of the campaigns' runs."""
    reports = [report for report in terminalreporter.getreports("passed") if "campaign" in report.keywords]
    figures = [report.capstdout.strip() for report in reports if report.when == "call" and report.capstdout.strip()]
    if figures:
        terminalreporter.section("figures")
        terminalreporter.write_line("\n".join(figures))
    campaigns.finish(terminalreporter)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the test's processes with a failure; the directory may be deleted later."""
    report = yield
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and directory is not None:
        report.sections += [(f"end of {name}", text) for name, text in process_logs.ends_of_logs(directory)]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collections, and exclude them from later ones: they live until the end."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests that wait beside those that compute, so that no worker waits for another at the end."""
    campaigns.note_all(config, items)
    items.sort(key=_place)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that is marked with a remedy and did not find it in a message.

    Records of the log are in pytest's format: PySpark's logger has just changed that of pytest's handler.
    """
    caplog = getattr(item, "funcargs", {}).get("caplog")
    if caplog is not None:
        caplog.handler.setFormatter(logging.Formatter(DEFAULT_LOG_FORMAT))
    remedies.found_remedies.clear()
    result = yield
    marked = {remedy for mark in item.iter_markers("remedy") for remedy in mark.args}
    assert not marked - remedies.found_remedies, "these were not found in a message by tests.remedies.find"
    return result


def _place(item: pytest.Item) -> int:
    """Return the order: tests on a shared Spark session, then those of `FIRST`, then the others."""
    if SHARED_SPARK in item.nodeid:
        return 0
    path = item.path.as_posix()
    return next((1 + place for place, name in enumerate(FIRST) if path.endswith(name)), 1 + len(FIRST))


WITHIN_S = 240
"""Limit for a start, with other tests keeping processors and disk busy."""


class RedisProcess:
    """Redis-compatible server of one test, with its data in `directory`."""

    def __init__(
        self,
        directory: Path,
        *,
        appendfsync: str = "always",
        appendonly: bool = True,
        arguments: Sequence[str] = (),
    ) -> None:
        """Configure a server; `arguments` are added to the command line of every start."""
        self.directory = directory
        self._arguments = arguments
        self.port = services.free_port()
        self._appendfsync = appendfsync
        self._appendonly = appendonly
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address of database 1, as in the article."""
        return f"redis://127.0.0.1:{self.port}/1"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server was started and not ended since."""
        return self._process is not None

    def start(self, *, wait: bool = True, arguments: Sequence[str] = ()) -> "RedisProcess":
        self.directory.mkdir(parents=True, exist_ok=True)
        command = services.redis_arguments(
            services.find_redis_server(), self.directory, self.port, appendfsync=self._appendfsync
        )
        command += [*([] if self._appendonly else ["--appendonly", "no"]), *self._arguments, *arguments]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        if wait:
            self._wait()
        return self

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + WITHIN_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if services.redis_is_ready(self.port):
                return
            time.sleep(0.02)
        raise AssertionError((self.directory / "server.log").read_text())

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=WITHIN_S)
            self._process = None


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One real broker process for all tests that do not kill it.

    Its retention is off, because many tests write records of 1970.
    """
    data = tmp_path_factory.mktemp("broker")
    never = ("--log-initial-task-delay-ms", WEEK_MS, "--log-retention-check-interval-ms", WEEK_MS)
    with BrokerProcess(data, 0, *never) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the broker, or of the Kafka in ONCEFLOW_TEST_BOOTSTRAP: one test checks both."""
    address = os.environ.get("ONCEFLOW_TEST_BOOTSTRAP")
    return address or str(request.getfixturevalue("broker").bootstrap)


_topic_numbers = itertools.count()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses; the test creates the topic."""
    return f"{request.node.originalname or 'topic'}-{os.getpid()}-{next(_topic_numbers)}"[:200]


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    with Cluster(bootstrap) as connected:
        yield connected


@pytest.fixture
def filled(bootstrap: str, cluster: Cluster, topic: str) -> Callable[..., str]:
    """A function that creates the test's topic and writes values with timestamps 1000, 1001 … to one partition."""

    def fill(values: list[bytes], *, partitions: int = 1, partition: int = 0) -> str:
        cluster.create_topic(topic, partitions)
        # librdkafka waits up to 0.5 s for a producer id, which these tests do not need.
        with EventWriter(bootstrap, topic, **cast(Any, {"enable.idempotence": False})) as writer:
            for number, value in enumerate(values):
                writer.write(None, value, 1000 + number, partition)
        return topic

    return fill


@pytest.fixture
def run(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs the command line in this process, with `main`'s exit codes and messages."""

    def run(*words: str, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
        given = io.TextIOWrapper(io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin), "utf-8")
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setenv("ONCEFLOW_BOOTSTRAP", bootstrap)
            patch.setattr(sys, "argv", ["onceflow", *words])
            for name, stream in (("stdin", given), ("stdout", out), ("stderr", err)):
                patch.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as ended:
                main()
        texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
        return subprocess.CompletedProcess(list(words), int(ended.value.code or 0), *texts)

    return run


MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""Directory in memory (Linux); None: temporary files are in the ordinary one."""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The test's own directory, in memory if possible: a simulated disk, or the order of syncs, needs no real one."""
    with tempfile.TemporaryDirectory(prefix="onceflow-", dir=MEMORY) as name:
        yield Path(name)


@pytest.fixture
def new_redis(tmp_path: Path) -> Iterator[Callable[..., RedisProcess]]:
    """A factory of started Redis servers; all are ended after the test."""
    servers: list[RedisProcess] = []

    def make(**settings: Any) -> RedisProcess:
        servers.append(RedisProcess(tmp_path / f"redis-{len(servers)}", **settings).start())
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """One Redis for all tests that do not kill it; each test uses its own hash key."""
    server = RedisProcess(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def java_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Java that Spark can use."""
    return str(services.find_java(tmp_path_factory.mktemp("java")))


@pytest.fixture(scope="session")
def spark_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Python for Spark's workers that starts ten times as fast (tests/fork_server.py), for `PYSPARK_PYTHON`."""
    with fork_server.forking_python(tmp_path_factory.mktemp("python")) as python:
        yield python


@pytest.fixture(scope="session", params=[None], ids=[SHARED_SPARK])
def spark(java_home: str, spark_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """One Spark session for all tests, because its start takes longer than most of them."""
    from onceflow.spark.session import build_session

    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(spark_python))
        session = build_session("onceflow-tests", "local[2]", java_home=java_home, log_file=log_file)
    yield session
    session.stop()


CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """One chromium for the tests of a module; until it is closed, its event loop is the main thread's."""
    from playwright.sync_api import expect, sync_playwright

    # The first one is Debian's build without windows: a page takes a third of the processor time.
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip("no chromium on PATH")
    expect.set_options(timeout=WITHIN_S * 1_000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium, args=CHROMIUM_ARGUMENTS, timeout=WITHIN_S * 1_000
        )
        yield running
        running.close()


@pytest.fixture
def page(browser: "Browser") -> Iterator["Page"]:
    """A fresh tab; the test fails if a script fails or the content security policy blocks anything."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
    tab = context.new_page()
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("console", lambda message: errors.append(message.text) if "Security Policy" in message.text else None)
    yield tab
    context.close()
    assert errors == []
