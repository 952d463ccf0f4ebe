"""Processes of `onceflow cluster up`: brokers on this machine, and a ZooKeeper if none is given.

The cluster's directory:

| path | content |
|---|---|
| `cluster.lock` | locked until the last process has ended |
| `broker-N/` | the log of broker N |
| `zookeeper/` | data and configuration of the ZooKeeper |
| `logs/` | one log per process |
"""

import contextlib
import fcntl
import importlib.util
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from onceflow import services
from onceflow.cli.stop_signals import interrupts_ignored, signals_as_interrupt
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

READY_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05
REPLICATION_FACTOR_MAX = 3
CHROOT = "/onceflow"
HEAP = "-Xmx128m"
ZOOKEEPER_JAR = re.compile(r"zookeeper(-\d.*)?\.jar")
ZOOKEEPER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
ZOOKEEPER_CONFIG = """\
tickTime=2000
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
"""


class NoJars(OnceflowError):
    """A directory without the jars of ZooKeeper."""


class LocalCluster:
    """Context of the cluster's processes: entering locks the directory, leaving ends every process."""

    def __init__(self, directory: Path, brokers: int, port: int) -> None:
        """The brokers use `port` and those after it; others if these are not free."""
        self._directory = directory
        self._count = brokers
        self._port = port
        self._ports: dict[int, int] = {}
        self._restarts: dict[str, str] = {}
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> "LocalCluster":
        with contextlib.ExitStack() as exits:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = exits.enter_context((self._directory / "cluster.lock").open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OnceflowError(
                    f"a cluster is already running in {self._directory}; {Remedy.STOP_DEMO}, or {Remedy.OTHER_DEMO}"
                ) from error
            exits.enter_context(signals_as_interrupt())
            self._supervisor = exits.enter_context(services.Supervisor(hold=[lock.fileno()]))
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with interrupts_ignored():
            self._exits.close()

    @property
    def bootstrap(self) -> str:
        """HOST:PORT,HOST:PORT of the brokers."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def start_zookeeper(self, jars: Path) -> str:
        """Start a ZooKeeper from the jars in a directory; return its address with a chroot. Raises NoJars, NoJava."""
        if not any(ZOOKEEPER_JAR.fullmatch(jar.name) for jar in jars.iterdir()):
            raise NoJars(
                f"--zookeeper-jars {jars} has no zookeeper-VERSION.jar; expected libs of Apache Kafka up to 3.9, lib "
                f"of Apache ZooKeeper, or /usr/share/java of Debian"
            )
        directory = (self._directory / "zookeeper").resolve()
        directory.mkdir(exist_ok=True)
        port = services.free_port()
        config = directory / "zoo.cfg"
        config.write_text(ZOOKEEPER_CONFIG.format(data=directory / "data", port=port))
        java = services.find_java(directory / "java") / "bin" / "java"
        self._start("zookeeper", [str(java), HEAP, "-cp", f"{jars.resolve()}/*", ZOOKEEPER_MAIN, str(config)])
        self._await("zookeeper", lambda: services.is_listening(port, b"srvr", b"Zookeeper version"))
        return f"127.0.0.1:{port}{CHROOT}"

    def start_brokers(self, zookeeper: str) -> None:
        """Start all brokers, and return when they are registered and serve clients."""
        if importlib.util.find_spec("kazoo") is None:
            raise ModuleNotFoundError("No module named 'kazoo'", name="kazoo")
        from onceflow.zookeeper.reach import require_listening

        require_listening(zookeeper)
        taken = [services.free_port(self._port + number) for number in range(self._count)]
        self._ports = dict(enumerate(taken, 1))
        printed: dict[str, services.NewLines] = {}
        for broker_id, port in self._ports.items():
            name = f"broker-{broker_id}"
            where = ["--data", str(self._directory.resolve() / name), "--listen", f"127.0.0.1:{port}"]
            cluster = ["--zookeeper-connect", zookeeper, "--broker-id", str(broker_id)]
            factor = ["--default-replication-factor", str(min(self._count, REPLICATION_FACTOR_MAX))]
            arguments = ["broker", *where, *cluster, *factor]
            self._restarts[name] = shlex.join(["onceflow", *arguments])
            printed[name] = services.NewLines(self._log(name))
            self._start(name, [sys.executable, "-m", "onceflow", *arguments])
        for name, lines in printed.items():
            self._await(name, lambda: any("listening on " in line for line in lines.read()))  # noqa: B023

    def processes(self) -> list[str]:
        """Return a line for each broker with its address and its process, for instance to kill it."""
        children = self._supervisor.children
        return [
            f"broker {broker_id}   127.0.0.1:{port}   pid {children[f'broker-{broker_id}'].pid}"
            for broker_id, port in self._ports.items()
        ]

    def watch(self, report: Callable[[str], None]) -> None:
        """Report each broker that ends. Raises ChildFailed if ZooKeeper or the last broker ends; Ctrl-C raises too."""
        reported: set[str] = set()
        while True:
            ended = {child.name: child for child in self._supervisor.ended()}
            if "zookeeper" in ended or ended.keys() >= self._restarts.keys():
                self._check()
            for name in sorted(ended.keys() - reported):
                reported.add(name)
                restart = Remedy.START_ENDED_BROKER.format(command=self._restarts[name])
                report(f"{name} exited with code {ended[name].code}, and the others continue; {restart}")
            time.sleep(LOOK_SECONDS)

    def _log(self, name: str) -> Path:
        return self._directory.resolve() / "logs" / f"{name}.log"

    def _start(self, name: str, arguments: list[str]) -> None:
        self._supervisor.start(name, arguments, self._log(name))

    def _await(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not is_ready():
            self._check()
            if time.monotonic() > deadline:
                raise services.ChildFailed(
                    f"{name} did not start within {READY_SECONDS_MAX:g} s; see its log {self._log(name)}"
                )
            time.sleep(LOOK_SECONDS)

    def _check(self) -> None:
        for child in self._supervisor.ended():
            raise services.ChildFailed(
                f"{child.name} exited with code {child.code}; last lines of {child.log}:\n{child.last_lines()}"
            )
