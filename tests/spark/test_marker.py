"""The decision table, one case for each row, and the marker's format."""

from dataclasses import replace

import pytest

from onceflow.spark.marker import (
    Batch,
    Finish,
    Marker,
    MarkerUnreadable,
    Refuse,
    Skip,
    Write,
    begun_fields,
    completed_fields,
    decide,
    first_fields,
    parse,
    refusal_at_start,
    same_slot,
)
from onceflow.spark.offsets import OffsetRange

KEY = "{h}:onceflow"


def batch(number: int, *, begin: int = 100, end: int = 110, **changes: object) -> Batch:
    made = Batch("query-1", number, (OffsetRange("clicks", 0, begin, end),), "clicks", 1, {"clicks": "id-1"})
    return replace(made, **changes)  # type: ignore[arg-type]


def marker(of: Batch, *, chunks: int = 0, done: tuple[int, ...] = (), complete: bool = True) -> Marker:
    fields = first_fields(of) | begun_fields(None, of, chunks=chunks, started_ms=1)
    if complete:
        fields |= completed_fields(started_ms=1, finished_ms=2)
    fields |= {f"chunk:{number}": "1" for number in done}
    found = parse(KEY, fields)
    assert found is not None
    return found


ACQUIRED = parse(KEY, first_fields(batch(0)))
K_MINUS_1 = marker(batch(6, begin=90, end=100))
PARTIAL = marker(batch(7), chunks=4, done=(0, 2), complete=False)

ROWS = [
    pytest.param(K_MINUS_1, batch(7), False, Write(6), id="complete k-1"),
    pytest.param(
        marker(batch(6, begin=90, end=100, plan_version=9)), batch(7), True, Write(6), id="new version of plan"
    ),
    pytest.param(PARTIAL, batch(7), True, Finish(4, (1, 3)), id="partial k"),
    pytest.param(
        marker(batch(7), chunks=2, done=(0, 1), complete=False), batch(7), True, Finish(2, ()), id="all chunks"
    ),
    pytest.param(marker(batch(7)), batch(7), True, Skip(), id="complete k"),
    pytest.param(marker(batch(7)), batch(7, plan_version=2), True, Skip(), id="complete k, new version of plan"),
    pytest.param(None, batch(0), False, Write(-1), id="nothing there, batch 0"),
    pytest.param(ACQUIRED, batch(0), False, Write(-1), id="acquired, batch 0"),
    pytest.param(marker(batch(5)), batch(7), True, "lost batches.*batch 5.*committed batch 6", id="complete j < k-1"),
    pytest.param(
        marker(batch(6), complete=False), batch(7), True, "lost batches.*batch 5.*batch 6", id="partial j < k"
    ),
    pytest.param(ACQUIRED, batch(7), False, "lost batches.*none.*batch 6", id="acquired, batch > 0"),
    pytest.param(None, batch(7), False, "committed batch 6.*another hash key.*lost", id="nothing there, batch > 0"),
    pytest.param(None, batch(7), True, "no marker.*counts beside it.*batch 7", id="marker gone, data there"),
    pytest.param(None, batch(0), True, "no marker.*counts beside it.*reset", id="data there, batch 0"),
    pytest.param(K_MINUS_1, batch(7, query="query-2"), True, "query-1.*query-2.*reset", id="another query"),
    pytest.param(K_MINUS_1, batch(7, plan="by ip"), True, "counts 'clicks'.*counts 'by ip'", id="another plan"),
    pytest.param(marker(batch(8)), batch(7), True, "batch 8.*batch 7.*older", id="a higher k"),
    pytest.param(marker(batch(8), complete=False), batch(7), True, "batch 8.*batch 7.*older", id="a higher partial k"),
    pytest.param(PARTIAL, batch(7, end=111), True, r"\[100,110\].*\[100,111\]", id="partial k, other ranges"),
    pytest.param(PARTIAL, batch(7, plan_version=2), True, "version 1.*version 2", id="partial k, new version of plan"),
    pytest.param(PARTIAL, batch(7, topic_ids={"clicks": "id-2"}), True, "digest", id="partial k, topic made again"),
    pytest.param(marker(batch(7)), batch(7, end=111), True, r"\[100,110\].*\[100,111\]", id="complete k, other ranges"),
    pytest.param(K_MINUS_1, batch(7, begin=101), True, "offset 100.*at 101", id="a gap between batches"),
]


@pytest.mark.parametrize(("found", "wanted", "data_present", "expected"), ROWS)
def test_decision(found: Marker | None, wanted: Batch, data_present: bool, expected: object) -> None:
    decision = decide(found, wanted, key=KEY, data_present=data_present)
    if isinstance(expected, str):
        assert isinstance(decision, Refuse)
        with pytest.raises(AssertionError, match=expected):
            raise AssertionError(decision.sentence)
    else:
        assert decision == expected


@pytest.mark.parametrize(
    ("found", "query", "committed", "planned", "data_present", "expected"),
    [
        pytest.param(None, None, -1, -1, False, None, id="fresh"),
        pytest.param(None, "query-1", -1, 0, False, None, id="killed before batch 0 wrote"),
        pytest.param(marker(batch(7)), "query-1", 7, 7, True, None, id="stopped after a batch"),
        pytest.param(marker(batch(7)), "query-1", 6, 7, True, None, id="killed before the commit"),
        pytest.param(marker(batch(6)), "query-1", 6, 7, True, None, id="killed before the batch"),
        pytest.param(PARTIAL, "query-1", 6, 7, True, None, id="killed in the batch"),
        pytest.param(marker(batch(7)), "query-1", 5, 7, True, None, id="two commits not synced"),
        pytest.param(None, None, -1, -1, True, "no marker.*counts beside", id="counts without marker"),
        pytest.param(None, "query-1", 3, 3, False, "committed batch 3.*another hash key.*lost", id="all gone"),
        pytest.param(marker(batch(6)), "query-1", 7, 7, True, "lost batches.*6.*7", id="went back"),
        pytest.param(PARTIAL, "query-1", 7, 7, True, "lost batches.*6.*7", id="went back into a batch"),
        pytest.param(marker(batch(7)), "query-1", 6, 6, True, "older", id="older checkpoint"),
        pytest.param(marker(batch(7)), "query-2", 7, 7, True, "query-1.*query-2", id="another query"),
        pytest.param(marker(batch(7)), None, -1, -1, True, "query-1.*a new one", id="checkpoint deleted"),
    ],
)
def test_start(
    found: Marker | None, query: str | None, committed: int, planned: int, data_present: bool, expected: str | None
) -> None:
    refusal = refusal_at_start(
        found, query=query, committed=committed, planned=planned, key=KEY, data_present=data_present
    )
    if expected is None:
        assert refusal is None
    else:
        with pytest.raises(AssertionError, match=expected):
            raise AssertionError(refusal.sentence if refusal else None)


def test_since_keeps_the_first_offset_and_takes_in_new_partitions() -> None:
    first = batch(0, begin=5, end=5)
    found = marker(first)
    grown = replace(first, number=1, ranges=(OffsetRange("clicks", 0, 5, 9), OffsetRange("clicks", 1, 3, 3)))
    assert found.since_after(grown) == {"clicks": {"0": 5, "1": 3}}
    assert found.offsets_after(grown) == {"clicks": {"0": 9, "1": 3}}
    assert found.since_after(replace(first, number=1, ranges=(OffsetRange("clicks", 0, 7, 9),))) == {"clicks": {"0": 5}}


def test_a_partition_that_a_batch_does_not_name_keeps_its_offset() -> None:
    found = marker(batch(0))
    other = batch(1, ranges=(OffsetRange("views", 0, 1, 2),))
    assert found.offsets_after(other) == {"clicks": {"0": 110}, "views": {"0": 2}}


def test_digest_depends_on_ranges_ids_plan_and_version_and_not_on_order() -> None:
    parts = (OffsetRange("clicks", 0, 1, 2), OffsetRange("clicks", 1, 3, 4))
    one = batch(7, ranges=parts)
    assert one.digest == batch(7, ranges=parts[::-1]).digest
    others = [
        batch(7, ranges=parts[:1]),
        replace(one, plan="x"),
        replace(one, plan_version=2),
        replace(one, topic_ids={"clicks": "id-2"}),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5


@pytest.mark.parametrize("damage", [{"format": "2"}, {"batch": "x"}, {"complete": "2"}, {"since": "{"}])
def test_a_damaged_marker_is_refused(damage: dict[str, str]) -> None:
    fields = first_fields(batch(0)) | damage
    with pytest.raises(MarkerUnreadable, match=r"\{h\}:onceflow"):
        parse(KEY, fields)


def test_no_marker() -> None:
    assert parse(KEY, {}) is None


def test_keys_share_the_slot() -> None:
    assert same_slot("app::users::click", "onceflow") == "{app::users::click}:onceflow"
    assert same_slot("app::{users}", "onceflow") == "app::{users}:onceflow"
