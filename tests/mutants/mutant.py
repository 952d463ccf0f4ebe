"""One mutation of the source, and a copy of the source to apply it to."""

import contextlib
import importlib.util
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
EXPECTED_SOURCE = "ONCEFLOW_MUTATED_SOURCE"
"""Names the copy for `tests.mutants.expected_source`, which refuses to test another one."""
TEST_SECONDS_MAX = 120
"""Limit of a test, which a mutation may block."""
RUN_SECONDS_MAX = 300


class Mutant(NamedTuple):
    """Defect that a test must catch."""

    file: str
    """Below src/onceflow."""
    before: str
    """Occurs exactly once in the file."""
    after: str
    test: str
    """Path and name of the test that must fail, below tests/; without parameters, any of its cases."""

    def __str__(self) -> str:
        return f"{self.file}: {self.before!r} -> {self.after!r}"

    @property
    def node_id(self) -> str:
        return f"tests/{self.test}"

    @property
    def path(self) -> Path:
        return Path("onceflow", self.file)


class Outcome(Enum):
    """The end of one mutant's test run."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    ANOTHER_FAILURE = "failed, but not the named test"
    HUNG = "did not end"


@dataclass(frozen=True)
class Tried:
    """A mutant, how its test ended, and the end of the output."""

    mutant: Mutant
    outcome: Outcome
    output: str

    def __str__(self) -> str:
        return f"{self.outcome.value}: {self.mutant}\n  {self.mutant.node_id}\n{self.output}"


def stale_reason(mutant: Mutant) -> str | None:
    """Return why the mutant does not fit today's source and tests, or None if it fits."""
    source = SOURCE / mutant.path
    if not source.exists():
        return f"{mutant}: no such file"
    count = source.read_text().count(mutant.before)
    if count != 1:
        return f"{mutant}: `before` occurs {count} times"
    if mutant.before == mutant.after:
        return f"{mutant}: changes nothing"
    path, _, name = mutant.node_id.partition("::")
    function = name.partition("[")[0]
    if not (ROOT / path).exists() or not re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(), re.M):
        return f"{mutant}: there is no test {mutant.node_id}"
    return None


class SourceCopy:
    """A copy of src/ that one mutant at a time is applied to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(SOURCE, directory)

    def try_out(self, mutant: Mutant) -> Tried:
        """Apply the mutant, run its test, restore the source."""
        path = self.directory / mutant.path
        original = path.read_text()
        self._write(path, original.replace(mutant.before, mutant.after))
        try:
            code, output = self.run_tests(mutant.node_id)
        except subprocess.TimeoutExpired:
            return Tried(mutant, Outcome.HUNG, "")
        finally:
            self._write(path, original)
        return Tried(mutant, _outcome(mutant, code, output), "\n".join(output.splitlines()[-15:]))

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """Write a source and its byte code; Python would use the old byte code after a change in the same second."""
        path.write_text(text)
        if path.suffix == ".py":
            cached = Path(importlib.util.cache_from_source(str(path)))
            cached.unlink(missing_ok=True)
            with contextlib.suppress(py_compile.PyCompileError):  # The run reports the syntax error.
                py_compile.compile(str(path), doraise=True)

    def run_tests(
        self, *node_ids: str, seconds_max: float = RUN_SECONDS_MAX, test_seconds_max: float = TEST_SECONDS_MAX
    ) -> tuple[int, str]:
        """Run tests on the copy, in this process's children too. Raises subprocess.TimeoutExpired."""
        command = [sys.executable, "-m", "pytest", "-o", "addopts=--strict-markers", "-x", "-q", "-rfE", "--tb=line"]
        command += ["-p", "tests.mutants.expected_source", "-p", "no:cacheprovider", f"--timeout={test_seconds_max}"]
        # Rewritten asserts would be compiled again in each run, which takes longer than most tests.
        command += ["--assert=plain"]
        environment = os.environ | {
            "PYTHONPATH": str(self.directory),
            "PYTHONDONTWRITEBYTECODE": "1",
            EXPECTED_SOURCE: str(self.directory),
        }
        process = subprocess.Popen(
            [*command, *node_ids],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds_max)
        except subprocess.TimeoutExpired:
            # This also ends the servers that the tests have started.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return process.returncode, output


def _outcome(mutant: Mutant, code: int, output: str) -> Outcome:
    """Return CAUGHT only if pytest reports that the named test itself failed."""
    if code == 0:
        return Outcome.SURVIVED
    failed = re.search(rf"^FAILED {re.escape(mutant.node_id)}(\[| |$)", output, re.M)
    return Outcome.CAUGHT if code == 1 and failed else Outcome.ANOTHER_FAILURE
