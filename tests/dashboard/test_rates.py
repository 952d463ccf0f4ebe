"""Events counted per second in closed buckets, from batches that finished at known times."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.dashboard.rates import CLOSING_MS, SHOWN_MS_MAX, STEP_MS, Rates, rates, usual_gap_ms

NOON_MS = 1_700_000_000_000
HISTORY = 4
"""Number of batches in the history of the property test."""


@dataclass(frozen=True)
class Batch:
    finished_ms: int
    events: int


def steady(count: int, *, gap_ms: int = 5_000, events: int = 50, end_ms: int = NOON_MS) -> list[Batch]:
    return [Batch(end_ms - number * gap_ms - 1, events) for number in range(count)]


def closed(batches: Sequence[Batch], end_ms: int = NOON_MS) -> Rates:
    """Return the rates at the moment when the bucket before `end_ms` closes."""
    return rates(batches, end_ms + CLOSING_MS)


def test_nothing_counted_is_unknown_and_not_zero() -> None:
    empty = rates([], NOON_MS)
    assert empty.last_minute is None
    assert set(empty.per_second) == {None}


@pytest.mark.parametrize("gap_ms", [500, 2_000, 5_000])
def test_steady_stream_has_its_rate(gap_ms: int) -> None:
    series = closed(steady(1_000, gap_ms=gap_ms, events=gap_ms // 100))
    assert {value for value in series.per_second if value is not None} == {10.0}
    assert series.last_minute == 10.0


def test_long_trigger_fills_one_bucket_of_several() -> None:
    series = closed(steady(10, gap_ms=30_000, events=600))
    assert series.per_second[-6:] == [0.0, 0.0, 60.0, 0.0, 0.0, 60.0]
    assert series.last_minute == 20.0


def test_bucket_shows_once_it_is_closed() -> None:
    batches = steady(30)
    ends_ms = [
        series.begin_ms + len(series.per_second) * STEP_MS
        for series in (rates(batches, NOON_MS + CLOSING_MS - 1), closed(batches))
    ]
    assert ends_ms == [NOON_MS - STEP_MS, NOON_MS]


def test_rate_falls_after_the_last_batch() -> None:
    batches = steady(30)
    assert closed(batches, NOON_MS + 30_000).last_minute == 5.0
    assert closed(batches, NOON_MS + 60_000).last_minute == 0.0


def test_ten_minutes_are_shown_at_most() -> None:
    series = closed(steady(600))
    assert len(series.per_second) * series.step_ms == SHOWN_MS_MAX


def test_bucket_that_left_the_history_is_unknown() -> None:
    """Some of its batches have left the history, so its sum would be too low."""
    batches = steady(7)
    whole = rates(batches, NOON_MS + CLOSING_MS)
    cut = rates(batches, NOON_MS + CLOSING_MS, is_whole=False)
    assert [value for value in whole.per_second if value is not None] == [5.0, 10.0, 10.0, 10.0]
    assert [value for value in cut.per_second if value is not None] == [10.0, 10.0, 10.0]


def test_usual_gap_is_the_median() -> None:
    assert usual_gap_ms([0, 10, 20, 1_000]) == 10
    assert usual_gap_ms([0]) == 5_000


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 10**9)), min_size=1, max_size=120))
def test_a_shown_bucket_never_changes(steps: list[tuple[int, int]]) -> None:
    """Each later reading, after a batch or a pause, repeats or drops the values shown before."""
    shown: dict[int, float] = {}
    batches: list[Batch] = []
    now_ms = NOON_MS
    for gap_ms, events in steps:
        now_ms += gap_ms
        batches.append(Batch(now_ms, events))
        for look_ms in (now_ms + 1_000, now_ms + 2_500):
            arrived = [batch for batch in batches if batch.finished_ms <= look_ms][-HISTORY:]
            series = rates(arrived, look_ms, is_whole=len(arrived) < HISTORY)
            for number, value in enumerate(series.per_second):
                if value is not None:
                    assert shown.setdefault(series.begin_ms + number * STEP_MS, value) == value


@given(st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 10**9)), min_size=1, max_size=25))
def test_rates_conserve_events(steps: list[tuple[int, int]]) -> None:
    finished_ms = NOON_MS
    batches = []
    for gap_ms, events in steps:
        finished_ms += gap_ms
        batches.append(Batch(finished_ms, events))
    series = rates(batches, finished_ms + STEP_MS + CLOSING_MS)
    total = sum((value or 0) * STEP_MS / 1_000 for value in series.per_second)
    inside = sum(batch.events for batch in batches if batch.finished_ms >= series.begin_ms)
    assert total == pytest.approx(inside, abs=1)
