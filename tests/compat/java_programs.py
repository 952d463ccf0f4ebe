"""The Java programs beside this file: compiled once, run in one JVM for each test, with JSON lines as output."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).with_name("java")
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Without its file of counters a JVM has no reason to print a warning about it among a tool's output."""


def environment() -> dict[str, str]:
    """The JVM of the tests, with options for a quick start instead of Spark's."""
    return {**os.environ, "JDK_JAVA_OPTIONS": QUICK_JVM}


class JavaPrograms:
    """Programs compiled against `jars` into `classes`."""

    def __init__(self, bootstrap: str, jars: Path, classes: Path) -> None:
        self.bootstrap = bootstrap
        self.version = jars.name.rpartition("-")[2]
        self._jars = jars
        self._classes = classes

    def compile(self, javac: str) -> None:
        """Compile all; deprecated calls are allowed, since two versions are supported."""
        sources = [str(path) for path in sorted(SOURCES.glob("*.java"))]
        command = [javac, "-nowarn", "-cp", f"{self._jars}/*", "-d", str(self._classes), *sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *arguments: str, timeout_seconds: float = 90) -> list[dict[str, Any]]:
        """Return the lines that `program BOOTSTRAP arguments…` prints; its failure, with its output, fails the test."""
        classpath = f"{self._classes}:{self._jars}/*"
        command = ["java", "-cp", classpath, program, self.bootstrap, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(), timeout=timeout_seconds, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
