"""The algebra of windows over buckets, compared with plain arithmetic."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.clicks.windows import DAY, HOUR, MINUTE, WIDTHS, Bucket, Window, WrongWindow, windows_between

minutes = st.integers(-3 * 1440, 40 * 1440)


@given(minutes, st.integers(1, 5 * 1440))
def test_buckets_are_exactly_the_window(begin: int, length: int) -> None:
    window = Window(begin * MINUTE.ms, (begin + length) * MINUTE.ms)
    buckets = window.buckets()
    assert buckets[0].start_ms == window.start_ms and buckets[-1].end_ms == window.end_ms
    assert all(one.end_ms == two.start_ms for one, two in itertools.pairwise(buckets))
    assert all(bucket.width.start_of(bucket.start_ms) == bucket.start_ms for bucket in buckets)


@given(minutes, st.integers(1, 5 * 1440))
def test_no_bucket_could_be_larger(begin: int, length: int) -> None:
    window = Window(begin * MINUTE.ms, (begin + length) * MINUTE.ms)
    for bucket in window.buckets():
        for width in WIDTHS[WIDTHS.index(bucket.width) + 1 :]:
            start_ms = width.start_of(bucket.start_ms)
            assert start_ms < window.start_ms or start_ms + width.ms > window.end_ms


@given(minutes, st.integers(1, 2000), st.integers(1, 600), st.integers(1, 600))
def test_windows_are_those_that_overlap(begin: int, size: int, length: int, slide: int) -> None:
    length = max(length, slide)
    begin_ms, end_ms = begin * MINUTE.ms + 1, (begin + size) * MINUTE.ms
    result = list(windows_between(begin_ms, end_ms, length * MINUTE.ms, slide * MINUTE.ms))
    starts = range(begin - length - slide, begin + size + slide)
    expected = [
        Window(start * MINUTE.ms, (start + length) * MINUTE.ms)
        for start in starts
        if start % slide == 0 and start * MINUTE.ms < end_ms and (start + length) * MINUTE.ms > begin_ms
    ]
    assert result == expected


def test_a_window_uses_each_width() -> None:
    window = Window(DAY.ms - HOUR.ms - MINUTE.ms, 2 * DAY.ms + MINUTE.ms)
    assert window.buckets() == (
        Bucket(DAY.ms - HOUR.ms - MINUTE.ms, MINUTE),
        Bucket(DAY.ms - HOUR.ms, HOUR),
        Bucket(DAY.ms, DAY),
        Bucket(2 * DAY.ms, MINUTE),
    )


@pytest.mark.parametrize(
    ("length_ms", "slide_ms", "message"),
    [
        (90_001, 60_000, "length of windows: 90001 ms, expected one or more whole minutes"),
        (0, 60_000, "length of windows: 0 ms, expected one or more whole minutes"),
        (60_000, -60_000, "slide of windows: -60000 ms, expected one or more whole minutes"),
        (60_000, 120_000, "slide of windows: 2 minutes, expected at most their length, 1"),
    ],
)
def test_wrong_lengths_are_refused(length_ms: int, slide_ms: int, message: str) -> None:
    with pytest.raises(WrongWindow) as refused:
        list(windows_between(0, 1, length_ms, slide_ms))
    assert str(refused.value) == message
