"""Fixtures of several of the broker's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.testing import FaultyDisk
from tests.broker.driven_broker import PoweredBroker


@pytest.fixture
def powered(tmp_path: Path) -> Iterator[PoweredBroker]:
    """Start a broker on a disk that can lose its power."""
    data = tmp_path / "disk"
    data.mkdir()
    with PoweredBroker(FaultyDisk(data), data) as broker:
        yield broker
