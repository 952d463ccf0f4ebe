"""Effects of a start on its process."""

import gc
from pathlib import Path

import pytest

from onceflow.log.partition import PartitionLog
from tests.broker.driven_broker import InnerBroker


def test_garbage_collection_pauses_during_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    opened = PartitionLog.open

    def watched(*arguments: object, **named: object) -> PartitionLog:
        seen.append(gc.isenabled())
        return opened(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionLog, "open", watched)
    broker = InnerBroker(tmp_path / "data", disk=None)
    broker.start()
    broker.stop()
    assert seen and not any(seen)
    assert gc.isenabled()


def test_garbage_collection_resumes_after_a_failed_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_arguments: object, **_named: object) -> PartitionLog:
        raise OSError("no space left")

    monkeypatch.setattr(PartitionLog, "open", failing)
    with pytest.raises(OSError, match="no space left"):
        InnerBroker(tmp_path / "data", disk=None).start()
    assert gc.isenabled()
