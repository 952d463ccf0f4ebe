"""Decisions of retention; the broker's part is in tests/broker/storage/test_housekeeping.py."""

from pathlib import Path

import pytest

from onceflow.log.disk import RealDisk
from onceflow.log.offset_checkpoint import OffsetCheckpoint
from onceflow.log.partition import PartitionLog
from onceflow.log.retention import by_age_and_size, decide
from tests.log.partition_logs import NOW_MS, batch, open_log, sync, values

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Four segments of one record each, an hour apart; the first two are durable."""
    log = open_log(tmp_path / "clicks-0", segment_bytes=110, retention_ms=DAY_MS)
    for hour in range(4):
        log.append(batch(b"x" * 31, timestamp_ms=NOW_MS - (4 - hour) * 3600_000))
        if hour == 1:
            sync(log)
    return log


def test_rule_11_retention_stops_at_high_watermark(log: PartitionLog) -> None:
    decision = decide(log, by_age_and_size, NOW_MS + 10 * DAY_MS)
    assert (decision.log_start_offset, decision.needs_roll) == (2, False)
    log.segments.start_offset = decision.log_start_offset
    assert [segment.base_offset for segment in log.drop_segments_below_start()] == [0]
    assert log.segments.bases == [1, 2, 3], "the second one's seal is not finished"
    sync(log)
    assert [segment.base_offset for segment in log.drop_segments_below_start()] == [1]
    assert len(values(log)) == 2
    assert decide(log, by_age_and_size, NOW_MS + 10 * DAY_MS).needs_roll


def test_newest_record_is_segment_age(log: PartitionLog) -> None:
    sync(log)
    for hours, start in ((24, 0), (24.5, 1), (25.5, 2), (26.5, 3), (27.5, 4)):
        assert decide(log, by_age_and_size, NOW_MS + int((hours - 4) * 3600_000)).log_start_offset == start


def test_rule_11_checkpoint_offsets_never_decrease(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    offsets = OffsetCheckpoint(RealDisk(), path)
    for asked, kept in ((5, 5), (3, 5), (6, 6)):
        offsets.advance({("t", 0): asked})
        assert OffsetCheckpoint(RealDisk(), path).get("t", 0) == offsets.get("t", 0) == kept
