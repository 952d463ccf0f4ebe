"""A fork that stands for a new Python has its output, its environment, its status and its end."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import forking_python

PROGRAM = """
import os, sys, time
print(sys.argv[1:], os.environ["NAME"], hash("a"), os.getpid(), flush=True)
if sys.argv[1] == "wait":
    time.sleep(60)
if sys.argv[1] == "fail":
    raise RuntimeError("seen on standard error")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def python(tmp_path: Path) -> Iterator[list[str]]:
    (tmp_path / "program.py").write_text(PROGRAM)
    with forking_python(tmp_path) as python:
        yield [str(python), "-m", "program"]


def test_a_fork_ends_as_a_python(python: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NAME": "ann"}
    seeded = [sys.executable, "-c", "print(hash('a'))"]
    seed = subprocess.check_output(seeded, env={**os.environ, "PYTHONHASHSEED": "0"}, text=True).strip()
    for word, status in (("0", 0), ("3", 3), ("fail", 1)):
        done = subprocess.run([*python, word], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status
        assert done.stdout.startswith(f"['{word}'] ann {seed} ")
        assert ("RuntimeError: seen on standard error" in done.stderr) == (word == "fail"), done.stderr


def test_a_fork_ends_with_its_client(python: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NAME": "bob"}
    with subprocess.Popen([*python, "wait"], env=environment, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        forked = Path("/proc", client.stdout.readline().split()[-1])
        assert forked.exists()
        client.kill()
    deadline = time.monotonic() + 60
    while forked.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
