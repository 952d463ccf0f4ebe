"""Events per second, from batches that finished at known times."""

from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onceflow.dashboard.rates import SHOWN_MS_MAX, STEP_MS, rates, usual_gap_ms

NOON_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Batch:
    finished_ms: int
    events: int


def steady(count: int, *, gap_ms: int = 5_000, events: int = 50, end_ms: int = NOON_MS) -> list[Batch]:
    return [Batch(end_ms - number * gap_ms, events) for number in range(count)]


def test_nothing_counted_is_unknown_and_not_zero() -> None:
    empty = rates([], NOON_MS)
    assert empty.last_minute is None
    assert set(empty.per_second) == {None}


@pytest.mark.parametrize("gap_ms", [500, 5_000, 17_000])
def test_a_steady_stream_has_its_rate_whatever_its_trigger(gap_ms: int) -> None:
    series = rates(steady(40, gap_ms=gap_ms, events=gap_ms // 100), NOON_MS + 900)
    assert {value for value in series.per_second if value is not None} == {10.0}
    assert series.last_minute == 10.0


def test_one_batch_alone_spans_the_default_trigger() -> None:
    assert rates([Batch(NOON_MS, 40)], NOON_MS).last_minute == 8.0


def test_the_series_ends_with_the_newest_batch_until_the_next_is_overdue() -> None:
    series = rates(steady(30), NOON_MS + 9_000)
    assert series.begin_ms + len(series.per_second) * STEP_MS == NOON_MS
    assert series.per_second[-1] == 10.0


def test_a_silence_after_the_newest_batch_is_zero() -> None:
    series = rates(steady(30), NOON_MS + 60_000)
    assert series.last_minute == 0.0
    assert series.per_second[-12:] == [0.0] * 12


def test_the_batch_after_a_silence_does_not_spread_over_it() -> None:
    series = rates([Batch(NOON_MS, 100), *steady(30, end_ms=NOON_MS - 300_000)], NOON_MS)
    assert series.per_second[-3:] == [0.0, 10.0, 10.0]


def test_ten_minutes_are_shown_at_most() -> None:
    series = rates(steady(600), NOON_MS)
    assert len(series.per_second) * series.step_ms == SHOWN_MS_MAX


def test_batches_that_finish_in_the_same_millisecond_are_all_there() -> None:
    batches = [Batch(NOON_MS, 30), Batch(NOON_MS, 20), Batch(NOON_MS - 5_000, 0)]
    total = sum((value or 0) * STEP_MS / 1_000 for value in rates(batches, NOON_MS + 1).per_second)
    assert total == pytest.approx(50)


@given(st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 10**9)), min_size=1, max_size=25))
def test_no_event_is_lost_or_made_up(steps: list[tuple[int, int]]) -> None:
    finished_ms = NOON_MS
    batches = []
    for gap_ms, events in steps:
        finished_ms += gap_ms
        batches.append(Batch(finished_ms, events))
    gap_ms = usual_gap_ms([batch.finished_ms for batch in batches])
    known_begin_ms = batches[0].finished_ms - gap_ms
    # Long after the newest batch the series goes on to now, so that no batch lies in a bucket still open.
    series = rates(list(reversed(batches)), finished_ms + 2 * gap_ms + 2 * STEP_MS)
    assume(known_begin_ms >= series.begin_ms)
    total = 0.0
    for number, value in enumerate(series.per_second):
        bucket_end_ms = series.begin_ms + (number + 1) * STEP_MS
        known_ms = min(STEP_MS, bucket_end_ms - known_begin_ms)
        assert (value is None) == (known_ms <= 0)
        total += (value or 0) * known_ms / 1_000
    assert total == pytest.approx(sum(batch.events for batch in batches), rel=1e-4, abs=1)
