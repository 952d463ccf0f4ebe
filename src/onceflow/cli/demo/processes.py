"""Processes of `onceflow demo`: their order, readiness and output.

The demo's directory:

| path | content |
|---|---|
| `demo.json` | the ports of the last start, used again if free |
| `demo.lock` | the pid of the running demo; locked until its last child has ended |
| `broker/` | the log |
| `redis/` | the counts, an append-only file synced before each reply |
| `measures.toml` | what is counted over time; the counts belong to it |
| `checkpoint/` | Spark's checkpoint of the counts |
| `archive/` | the events as Parquet files, with their own checkpoint |
| `logs/` | one log per child, and `jvm.log`, Spark's own log |
| `checkpoints/` | checkpoints of `onceflow run`, not of the demo |
"""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from rich.console import Console

from onceflow import services
from onceflow.cli.options import BROKER_PORT, DEMO_DIRECTORY, REDIS_PORT
from onceflow.cli.output import counted
from onceflow.cli.stop_signals import interrupts_ignored, signals_as_interrupt
from onceflow.clicks.results import RedisUnreachable, Results, Snapshot, lag
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

TOPIC = "user_events"
HASH_KEY = "app::users::click"
TRIGGER = "1 second"
MEASURES = "over_time = true\nsessions = true\n"
USERS_LIVELY = 5_000
INTERVAL_MS = 200
INTERVAL_LIVELY_MS = 2
READY_WAIT_S = 60.0
SLOW_START_S = 30.0
FIRST_COUNT_WAIT_S = 600.0
DRAIN_WAIT_S = 180.0
RESTART_LINE = re.compile(r" \d+ of at most \d+ of ")
"""Part of the line that `onceflow.clicks.restarts` logs for each restart."""
PREFERRED_PORTS = {"broker": BROKER_PORT, "redis": REDIS_PORT}


class DemoRuns(OnceflowError):
    """Another demo uses the directory."""


class Laptop:
    """Context of the demo's processes: entering locks the directory, leaving ends every child."""

    def __init__(self, directory: Path, *, lively: bool, max_bytes: int, page_port: int, quiet: bool) -> None:
        self.directory = directory
        self.lively = lively
        self.max_bytes = max_bytes
        self.console = Console(stderr=quiet, highlight=False, soft_wrap=True)
        self.ports = {**PREFERRED_PORTS, "page": page_port}
        self.batch_before = -1
        self._spark_log = services.NewLines(self._log("spark"))
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> "Laptop":
        with contextlib.ExitStack() as exits:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = exits.enter_context(lock_directory(self.directory))
            exits.enter_context(signals_as_interrupt())
            self._take_ports()
            self.supervisor = exits.enter_context(services.Supervisor(hold=[lock.fileno()]))
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with interrupts_ignored(), self._step("stopping"):
            self._exits.close()

    @property
    def bootstrap(self) -> str:
        """Address of the broker."""
        return f"127.0.0.1:{self.ports['broker']}"

    @property
    def measures(self) -> Path:
        """File of measures, written by the first start."""
        return self.directory / "measures.toml"

    @property
    def archive(self) -> Path:
        """Directory of the events' Parquet files."""
        return self.directory / "archive"

    @property
    def redis_url(self) -> str:
        """Address of Redis, database 1 as in the article."""
        return f"redis://127.0.0.1:{self.ports['redis']}/1"

    # Start

    def start(self) -> None:
        """Start all children and print their addresses. Raises ChildFailed if one does not start."""
        self._print_directory()
        with self._step("broker"):
            data = str(self.directory / "broker")
            # Without an age limit: verify needs the log from its first record, however old.
            self._onceflow("broker", "broker", "--data", data, "--listen", self.bootstrap, "--log-retention-ms", "-1")
            self._ready("broker", lambda: services.is_listening(self.ports["broker"]))
        with self._step("redis"):
            self._start_redis()
            self._ready("redis", lambda: services.redis_is_ready(self.ports["redis"]))
        self.batch_before = _batch(self._snapshot())
        with self._step("generator"):
            self._start_generator()
        with self._step("page"):
            archive = ("--archive", str(self.archive))
            self._onceflow("page", "dashboard", "--port", str(self.ports["page"]), *archive, *self._where())
            self._ready("page", lambda: services.is_listening(self.ports["page"]))
        with self._step("spark"):
            self._start_spark()
        self._print_next_steps()

    def _start_redis(self) -> None:
        directory = self.directory / "redis"
        directory.mkdir(exist_ok=True)
        server = services.find_redis_server()
        self._child("redis", services.redis_arguments(server, directory.resolve(), self.ports["redis"]))

    def _start_generator(self) -> None:
        arguments = ["generate", "--bootstrap", self.bootstrap, "--topic", TOPIC, "--max-bytes", str(self.max_bytes)]
        if self.lively:
            arguments += ["--users", str(USERS_LIVELY), "--interval-ms", str(INTERVAL_LIVELY_MS)]
        else:
            arguments += ["--interval-ms", str(INTERVAL_MS)]
        self._onceflow("generator", *arguments)

    def _start_spark(self) -> None:
        if not self.measures.exists():
            self.measures.write_text(MEASURES)
        java_home = services.find_java((self.directory / "java").resolve())
        checkpoint, log = str(self.directory / "checkpoint"), str(self._log("jvm"))
        self._onceflow(
            "spark",
            *("run", *self._where(), "--checkpoint", checkpoint, "--spark-log", log),
            *("--trigger", TRIGGER, "--master", "local[2]"),
            *("--measures", str(self.measures), "--archive", str(self.archive)),
            environment={"JAVA_HOME": str(java_home)},
        )

    def _where(self) -> list[str]:
        return ["--bootstrap", self.bootstrap, "--topic", TOPIC, "--redis", self.redis_url, "--hash-key", HASH_KEY]

    def _onceflow(self, name: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._child(name, [sys.executable, "-m", "onceflow", *arguments], environment)

    def _child(self, name: str, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        self.supervisor.start(name, arguments, self._log(name), environment)

    def _log(self, name: str) -> Path:
        return self.directory.resolve() / "logs" / f"{name}.log"

    def _ready(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_WAIT_S
        while not is_ready():
            self._check_children()
            if time.monotonic() > deadline:
                log = self.supervisor.children[name].log
                raise services.ChildFailed(f"{name} did not start within {READY_WAIT_S:.0f} s; see its log {log}")
            time.sleep(0.05)

    def _check_children(self) -> None:
        for child in self.supervisor.ended():
            if not (child.name == "generator" and child.code == 0):
                raise services.ChildFailed(
                    f"{child.name} exited with code {child.code}; last lines of {child.log}:\n{child.last_lines()}"
                )

    # While it runs

    def watch(self, seconds: int | None = None) -> None:
        """Show the counts until Ctrl-C, or until `seconds` after the first counted events."""
        first_counted: float | None = None
        started, is_slow = time.monotonic(), False
        with self.console.status("Spark is starting (usually 10 to 20 seconds)") as status:
            while True:
                self._check_children()
                self._print_restarts()
                snapshot = self._snapshot()
                if first_counted is None:
                    waited_s = time.monotonic() - started
                    if _batch(snapshot) > self.batch_before and snapshot.events > 0:
                        first_counted = time.monotonic()
                        self.console.print(f"first micro-batch committed after {waited_s:.0f} s")
                    elif self._is_over(snapshot):
                        first_counted = time.monotonic()
                        limit = f"{self.max_bytes / (1 << 20):.0f} MiB (--max-bytes)"
                        self.console.print(
                            f"the log has reached its {limit} and is counted; no more events are generated"
                        )
                    elif waited_s > FIRST_COUNT_WAIT_S:
                        raise self._nothing_counted()
                    elif waited_s > SLOW_START_S and not is_slow:
                        is_slow = True
                        self.console.print(
                            f"Spark has been starting for {waited_s:.0f} s; this machine is slow or busy"
                        )
                else:
                    status.update(f"{_totals(snapshot)} · batch {_batch(snapshot)}")
                    if seconds is not None and time.monotonic() - first_counted >= seconds:
                        return
                time.sleep(0.25)

    def _print_restarts(self) -> None:
        """Print what Spark's driver has logged about restarts of the query."""
        for line in self._spark_log.read():
            if RESTART_LINE.search(line):
                self.console.print(line, markup=False)

    def _is_over(self, snapshot: Snapshot) -> bool:
        """Whether the generator has reached its limit and all events are counted."""
        return self.supervisor.children["generator"].code == 0 and snapshot.events > 0 and self._lag() == 0

    def _nothing_counted(self) -> OnceflowError:
        return OnceflowError(
            f"nothing was counted within {FIRST_COUNT_WAIT_S:.0f} s, although Spark is running; "
            f"see {self.supervisor.children['spark'].log} and jvm.log next to it; {Remedy.DEMO_AGAIN}"
        )

    def conclude(self, *, as_json: bool) -> int:
        """Stop the generator, count the rest and verify; return 0 only if events were counted and all are equal."""
        self.supervisor.stop("generator")
        with self._step("counting the rest"):
            self._drain()
        self.supervisor.stop("spark")
        options = ["--record", "--json"] if as_json else ["--record"]
        verified = subprocess.run([sys.executable, "-m", "onceflow", "verify", *self._where(), *options], check=False)
        snapshot = self._snapshot()
        batches = _batch(snapshot) - self.batch_before
        self.console.print(f"{_totals(snapshot)} in Redis · {counted(batches, 'micro-batch')} in this run")
        if verified.returncode == 0 and (snapshot.events == 0 or batches < 2 or snapshot.clicks == 0):
            raise OnceflowError("too little was counted to verify: events, clicks and 2 micro-batches are needed")
        if verified.returncode == 0:
            self.console.print("equal: every event in the log is counted exactly once")
        return verified.returncode

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_WAIT_S
        while self._lag() > 0:
            self._check_children()
            if time.monotonic() > deadline:
                raise OnceflowError(f"the stream did not reach the log's end within {DRAIN_WAIT_S:.0f} s")
            time.sleep(0.2)

    def _lag(self) -> int:
        """Return the number of uncounted events in the log."""
        from onceflow.client.cluster import Cluster

        with Cluster(self.bootstrap) as cluster, self._reading() as results:
            return lag(cluster, results.require_marker()).messages

    def _snapshot(self) -> Snapshot:
        with self._reading() as results:
            return results.snapshot(top=1, history=1)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Results]:
        """Open the counts. An error of Redis is that of the demo's own: it has ended, or this machine is slow."""
        try:
            with Results(self.redis_url, HASH_KEY) as results:
                yield results
        except RedisUnreachable as error:
            self._check_children()
            raise OnceflowError(
                f"the demo's Redis is running but did not respond: {error.__cause__}; {Remedy.DEMO_AGAIN}"
            ) from error

    # Output

    def _print_directory(self) -> None:
        # Only the partitions' directories: beside them is the broker's reserve of disk space.
        log_bytes = sum(path.stat().st_size for path in (self.directory / "broker").glob("*/*"))
        size = f"{log_bytes / (1 << 20):.1f} of at most {self.max_bytes / (1 << 20):.0f} MiB"
        origin = "resumed" if log_bytes else "new"
        self.console.print(f"onceflow demo · data in {self.directory}/ ({origin}) · log {size}")

    def _print_next_steps(self) -> None:
        say = self.console.print
        say(f"  logs       {self.directory}/logs/{{{','.join([*self.supervisor.children, 'jvm'])}}}.log")
        say()
        say(f"  dashboard  http://127.0.0.1:{self.ports['page']}")
        onceflow = _command()
        say(f"  Redis      redis-cli -p {self.ports['redis']} -n 1 HGETALL {HASH_KEY}")
        if shutil.which("redis-cli") is None:
            say(f"             (without redis-cli: {onceflow} clicks --redis {self.redis_url})")
        say(f"  log        {onceflow} consume {TOPIC} --bootstrap {self.bootstrap} --count 5")
        say(f"  verify     {onceflow} verify --bootstrap {self.bootstrap} --redis {self.redis_url}")
        archive = shlex.quote(str(self.archive))
        say(f"  query      {onceflow} query top os --archive {archive} --bootstrap {self.bootstrap}")
        # Spark's JVM is a child of the driver, which starts another one.
        say(f"  kill Spark pkill -9 -P {self.supervisor.children['spark'].pid} java")
        reset = reset_command(onceflow, self.directory)
        say(f"  Ctrl-C     stops everything; the next start resumes from here; '{reset}' deletes it")
        say()

    @contextlib.contextmanager
    def _step(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        with self.console.status(what):
            yield
        port = f"127.0.0.1:{self.ports[what]}" if what in self.ports else ""
        self.console.print(f"  {what:<10} {port:<16} {time.monotonic() - started:.1f} s")

    # Ports and signals

    def _take_ports(self) -> None:
        state = self.directory / "demo.json"
        last = _last_ports(state)
        wanted = PREFERRED_PORTS | {name: last[name] for name in PREFERRED_PORTS if name in last}
        for name, port in {**wanted, "page": self.ports["page"]}.items():
            self.ports[name] = services.free_port(port)
            if port and self.ports[name] != port:
                self.console.print(f"port {port} is in use; {name} listens on {self.ports[name]}")
        fresh = state.with_suffix(".new")
        fresh.write_text(json.dumps({"ports": self.ports}) + "\n")
        fresh.replace(state)


def _last_ports(state: Path) -> dict[str, int]:
    """Return the ports of the last start; none if the file is missing or incomplete."""
    try:
        return {str(name): int(port) for name, port in json.loads(state.read_text())["ports"].items()}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _totals(snapshot: Snapshot) -> str:
    return f"{counted(snapshot.events, 'event')} · {counted(snapshot.clicks, 'click')}"


def _batch(snapshot: Snapshot) -> int:
    """Return the last complete micro-batch; -1 if there is none."""
    marker = snapshot.marker
    if marker is None:
        return -1
    return marker.batch if marker.complete else marker.batch - 1


def _command() -> str:
    """Return how to call this program: its name if the shell finds it, else the path it was started with."""
    path = shutil.which("onceflow")
    if path and Path(path).resolve() == Path(sys.argv[0]).resolve():
        return "onceflow"
    return f"{Path(sys.executable).name} -m onceflow" if sys.argv[0].endswith("__main__.py") else sys.argv[0]


def reset_command(onceflow: str, directory: Path) -> str:
    """Return the command that deletes the demo in `directory`."""
    return f"{onceflow} reset" + ("" if directory == Path(DEMO_DIRECTORY) else f" --data {shlex.quote(str(directory))}")


def running_demo(directory: Path) -> int | None:
    """Return the pid of the demo that uses this directory, or None."""
    lock = directory / "demo.lock"
    if not lock.exists():
        return None
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read() or 0)
    return None


@contextlib.contextmanager
def lock_directory(directory: Path) -> Iterator[TextIO]:
    """Hold the directory's lock. Waits for the children of a killed demo, which still hold it.

    Raises DemoRuns with the pid of a running demo.
    """
    with (directory / "demo.lock").open("a+") as file:
        deadline = time.monotonic() + services.STOP_WAIT_S * 2
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                pid = int(file.read() or 0)
                if _is_alive(pid) or time.monotonic() > deadline:
                    raise DemoRuns(
                        f"a demo is already running in {directory}, pid {pid}; "
                        f"{Remedy.STOP_DEMO}, or {Remedy.OTHER_DEMO}"
                    ) from None
                time.sleep(0.2)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
