"""A directory that the tests of the log share, in memory if possible: they test the order of syncs, not the disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MEMORY


@pytest.fixture(scope="session")
def memory_directory() -> Iterator[Path]:
    """A directory in memory (Linux), or an ordinary temporary one."""
    with tempfile.TemporaryDirectory(prefix="onceflow-log-", dir=MEMORY) as name:
        yield Path(name)
