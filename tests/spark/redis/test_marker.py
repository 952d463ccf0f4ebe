"""The marker's format in Redis."""

import pytest

from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.redis.marker import MarkerUnreadable, begun_fields, first_fields, parse, same_slot

KEY = "{h}:onceflow"
BATCH = Batch("query-1", 0, (OffsetRange("clicks", 0, 100, 110),), "clicks", 1, {"clicks": "id-1"})


def test_begun_batch_has_chunks_and_offsets() -> None:
    fields = first_fields(BATCH) | begun_fields(None, BATCH, chunks=4, started_ms=1)
    marker = parse(KEY, fields | {"chunk:0": "1", "chunk:2": "1"})
    assert marker is not None
    assert (marker.batch, marker.complete, marker.chunks_missing) == (0, False, (1, 3))
    assert marker.parts == BATCH.ranges
    assert (marker.offsets, marker.since) == ({"clicks": {"0": 110}}, {"clicks": {"0": 100}})


@pytest.mark.parametrize("damage", [{"format": "5"}, {"batch": "x"}, {"complete": "2"}, {"since": "{"}])
def test_damaged_marker_is_refused(damage: dict[str, str]) -> None:
    fields = first_fields(BATCH) | damage
    with pytest.raises(MarkerUnreadable, match=r"\{h\}:onceflow"):
        parse(KEY, fields)


def test_no_marker() -> None:
    assert parse(KEY, {}) is None


def test_keys_share_the_slot() -> None:
    assert same_slot("app::users::click", "onceflow") == "{app::users::click}:onceflow"
    assert same_slot("app::{users}", "onceflow") == "app::{users}:onceflow"
