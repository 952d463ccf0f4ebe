"""Kafka's TransactionalMessageCopier in processes that a test may bounce, and other tools of Kafka that run for a
while.
"""

import json
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.compat.java_programs import environment

PACKAGE = "org.apache.kafka.tools"
END_SECONDS = 90
"""A call of Java's producer that is overtaken by its own fatal error ends only after max.block.ms, 60 s."""


class JavaTool:
    """One of Kafka's tools in a process of its own; files in `directory` have its output since its last start."""

    def __init__(self, name: str, jars: Path, directory: Path, tool: str, *arguments: str) -> None:
        self.name = name
        self._directory = directory
        self._command = ["java", "-cp", f"{jars}/*", f"{PACKAGE}.{tool}", *arguments]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start one more process beside earlier ones that have not ended."""
        place = len(self._processes)
        with self._said(place, "out").open("wb") as out, self._said(place, "err").open("wb") as errors:
            self._processes.append(subprocess.Popen(self._command, stdout=out, stderr=errors, env=environment()))

    def _said(self, place: int, ending: str) -> Path:
        return self._directory / f"{self.name}-{place}.{ending}"

    @property
    def printed(self) -> bytes:
        return self._said(len(self._processes) - 1, "out").read_bytes()

    @property
    def log(self) -> str:
        """Return the end of the last process's errors."""
        return self._said(len(self._processes) - 1, "err").read_text()[-3000:]

    @property
    def code(self) -> int | None:
        """Return the last process's exit code, or None while it runs."""
        return self._processes[-1].poll()

    def send(self, number: signal.Signals) -> None:
        self._processes[-1].send_signal(number)

    def end(self, number: signal.Signals) -> None:
        """Send the signal to every process that has not ended, and wait."""
        for process in self._processes:
            process.send_signal(number)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


@dataclass(frozen=True)
class Progress:
    """Progress since the copier's start or its group's last rebalance, printed at the start of each transaction."""

    stage: str
    consumed: int
    remaining: int

    @property
    def share(self) -> float:
        """Completed share, between 0 and 1; 1 if there was nothing to do."""
        return self.consumed / (self.consumed + self.remaining) if self.consumed + self.remaining else 1.0


class Copier(JavaTool):
    """Copies an input partition, or its group's share of the topic, to the output topic in transactions."""

    @property
    def progress(self) -> Progress | None:
        """Return the last progress since its last start."""
        lines = [line for line in self.printed.split(b"\n")[:-1] if line.startswith(b"{")]
        if not lines:
            return None
        said = json.loads(lines[-1])
        return Progress(said["stage"], said["consumed"], said["remaining"])

    @property
    def is_done(self) -> bool:
        """Return whether it shut down because nothing remained; any other unrequested end fails the test."""
        code, progress = self.code, self.progress
        if code is None:
            return False
        assert code == 0 and progress is not None, (self.name, code, self.log)
        return progress.stage == "ShutdownComplete" and progress.remaining == 0

    def restart(self, number: signal.Signals) -> None:
        self.end(number)
        self.start()

    def end_of_the_one_before(self) -> tuple[int, str]:
        """Resume the process that was stopped (SIGSTOP) before the last start, and wait: (exit code, output)."""
        before = len(self._processes) - 2
        self._processes[before].send_signal(signal.SIGCONT)
        return self._processes[before].wait(END_SECONDS), self._said(before, "err").read_text()
