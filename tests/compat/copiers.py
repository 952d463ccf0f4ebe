"""Kafka's TransactionalMessageCopier in processes that a test may bounce, and how its tools are run for a while."""

import json
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.compat.java_programs import environment

PACKAGE = "org.apache.kafka.tools"
END_SECONDS = 60


class JavaTool:
    """One of Kafka's tools in a process of its own; each start appends what it says to `directory`."""

    def __init__(self, name: str, jars: Path, directory: Path, tool: str, *arguments: str) -> None:
        self.name = name
        self.printed = directory / f"{name}.out"
        self.log = directory / f"{name}.err"
        self._command = ["java", "-cp", f"{jars}/*", f"{PACKAGE}.{tool}", *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.printed.open("ab") as out, self.log.open("ab") as errors:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=errors, env=environment())

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def end(self, number: signal.Signals) -> None:
        """Send the signal and wait; nothing if it has ended."""
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise


@dataclass(frozen=True)
class Progress:
    """What a copier says at the beginning of each transaction: since its start, or its group's last rebalance."""

    stage: str
    consumed: int
    remaining: int

    @property
    def share(self) -> float:
        """Between 0 and 1; 1 where there was nothing to do."""
        return self.consumed / (self.consumed + self.remaining) if self.consumed + self.remaining else 1.0


class Copier(JavaTool):
    """Copies an input partition, or its group's share of the topic, to the output topic in transactions."""

    _begun_at = 0

    def start(self) -> None:
        self._begun_at = self.printed.stat().st_size if self.printed.exists() else 0
        super().start()

    @property
    def progress(self) -> Progress | None:
        """The last that it said since its last start."""
        with self.printed.open("rb") as file:
            file.seek(self._begun_at)
            lines = [line for line in file.read().split(b"\n")[:-1] if line.startswith(b"{")]
        if not lines:
            return None
        said = json.loads(lines[-1])
        return Progress(said["stage"], said["consumed"], said["remaining"])

    @property
    def is_done(self) -> bool:
        """It shut down because nothing remained; one that ended otherwise without being told fails the test."""
        code, progress = self.code, self.progress
        if code is None:
            return False
        assert code == 0 and progress is not None, (self.name, code, self.log.read_text()[-3000:])
        return progress.stage == "ShutdownComplete" and progress.remaining == 0

    def restart(self, number: signal.Signals) -> None:
        self.end(number)
        self.start()
