"""Directories of the log's tests: in memory if possible, because they test the order of syncs, not the disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def memory_directory() -> Iterator[Path]:
    """A directory in memory (Linux), or an ordinary temporary one."""
    with tempfile.TemporaryDirectory(prefix="onceflow-log-", dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def scratch(memory_directory: Path) -> Iterator[Path]:
    """The test's own directory in memory."""
    with tempfile.TemporaryDirectory(dir=memory_directory) as name:
        yield Path(name)
