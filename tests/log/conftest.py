"""A log with its clock, and a directory in memory, if possible, for tests of the order of syncs and not of the disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.log.partition import PartitionLog
from onceflow.testing import ManualClock
from tests.conftest import MEMORY
from tests.log.partition_logs import NOW_MS, open_log


@pytest.fixture(scope="session")
def memory_directory() -> Iterator[Path]:
    """A directory in memory (Linux), or an ordinary temporary one."""
    with tempfile.TemporaryDirectory(prefix="onceflow-log-", dir=MEMORY) as name:
        yield Path(name)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> PartitionLog:
    return open_log(tmp_path / "clicks-0", clock=clock)
