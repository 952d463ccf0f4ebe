"""A pytest plugin: end the run at once unless the copy with the mutation is the source that is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import onceflow
from tests.mutants.mutant import EXPECTED_SOURCE

_PRINT_SOURCE = "import onceflow, pathlib; print(pathlib.Path(onceflow.__file__).parents[1])"


def pytest_configure() -> None:
    child = subprocess.run([sys.executable, "-c", _PRINT_SOURCE], capture_output=True, text=True, check=True)
    for imported in (Path(onceflow.__file__).parents[1], Path(child.stdout.strip())):
        if imported != Path(os.environ[EXPECTED_SOURCE]):
            pytest.exit(f"{imported} is tested or used by a child process, not the mutated source", returncode=4)
