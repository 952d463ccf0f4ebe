"""Contender in a process of its own that does one task after the other, and the processor time of its process tree.

A task is a line of JSON, `{"work": name, …}`, and so is its result. The processor time is that of the process and all
its descendants (driver, JVM, Python workers), including those that have ended and were waited for.
"""

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STOP_SECONDS = 30.0


class ChildFailed(Exception):
    """A child did not respond; the message has the end of its log."""


class Child:
    """Process that `__init__` starts; use as a context, or end it with `kill`."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **(environment or {})},
            )

    def ask(self, work: str, *, timeout_s: float = 300.0, **arguments: Any) -> dict[str, Any]:
        """Send a task and return its result. Raises ChildFailed after the timeout."""
        self.tell(work, **arguments)
        return self.respond(timeout_s)

    def tell(self, work: str, **arguments: Any) -> None:
        """Send a task without waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"work": work, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def respond(self, timeout_s: float = 300.0) -> dict[str, Any]:
        """Return the result of the last task. Raises ChildFailed."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            logged = self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""
            raise ChildFailed(f"no result within {timeout_s:g} s ({self.log}): {logged}")
        result: dict[str, Any] = json.loads(line)
        return result

    def cpu_seconds(self) -> float:
        """Return user and kernel time of the process tree since its start."""
        return sum(processor_seconds(pid) for pid in tree(self._process.pid))

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Send SIGKILL to every process of the tree, as in a crash of the machine."""
        for pid in tree(self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # It ended by itself.
        self._process.wait()
        self._close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self.has_ended:
            self._close()
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def tree(root: int) -> list[int]:
    """Return the process and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for pid, fields in _processes():
        children.setdefault(int(fields[1]), []).append(pid)
    pids = [root]
    for pid in pids:
        pids += children.get(pid, [])
    return pids


def processor_seconds(pid: int) -> float:
    """Return the time of a process and of its children that it has waited for; 0 if it has ended."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / TICKS_PER_SECOND if fields else 0.0


def _processes() -> Iterator[tuple[int, list[str]]]:
    for name in os.listdir("/proc"):
        if name.isdecimal() and (fields := _stat(int(name))):
            yield int(name), fields


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
