"""Shell completion, set up by the line of docs/install.md in an interactive bash."""

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
WAIT_SECONDS = 60


class Bash:
    """An interactive bash on a terminal of its own."""

    def __init__(self, directory: Path) -> None:
        command = directory / "onceflow"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m onceflow "$@"\n')
        command.chmod(0o755)
        self._terminal, inner = pty.openpty()
        environment = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", "PS1": "ready>", "TERM": "dumb"}
        words = ["bash", "--norc", "--noprofile", "-i"]
        self._process = subprocess.Popen(
            words, stdin=inner, stdout=inner, stderr=inner, env=environment, start_new_session=True
        )
        os.close(inner)
        self.read_until("ready>")

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read_until(self, expected: str) -> str:
        """Return the output up to the expected text; fail with it after a minute."""
        shown, deadline = "", time.monotonic() + WAIT_SECONDS
        os.set_blocking(self._terminal, False)
        while expected not in shown:
            assert time.monotonic() < deadline, shown
            try:
                shown += os.read(self._terminal, 4096).decode()
            except BlockingIOError:
                time.sleep(0.05)
        return shown

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[Bash]:
    shell = Bash(tmp_path)
    yield shell
    shell.close()


def test_bash_completes_commands_options_and_values(bash: Bash) -> None:
    (line,) = re.findall(r"^\$ (eval .*bash_source.*)$", (DOCS / "install.md").read_text(), re.MULTILINE)
    bash.type(f"{line}\n")
    bash.read_until("ready>")
    for typed, completed in (
        ("onceflow repl", "onceflow replay "),
        ("onceflow topic desc", "onceflow topic describe "),
        ("onceflow dead --hash", "onceflow dead --hash-key "),
        ("onceflow replay --input-format jso", "onceflow replay --input-format jsonl "),
    ):
        bash.type(f"{typed}\t")
        bash.read_until(completed)
        bash.type("\x15")
