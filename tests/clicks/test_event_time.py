"""The time of an event, by field and by record."""

import pytest

from onceflow.clicks.event_time import FUTURE_MS, TIME_MS_MAX, EventTime, event_time, time_ms

ARTICLE_MS = 1_430_204_612_405


@pytest.mark.parametrize(
    ("raw", "ms"),
    [
        (b"1430204612405", ARTICLE_MS),
        (b'"1430204612405"', ARTICLE_MS),
        (b"1.430204612405e12", ARTICLE_MS),
        (b"1430204612405.0", ARTICLE_MS),
        (b'"2015-04-28T07:03:32.405Z"', ARTICLE_MS),
        (b'"2015-04-28 07:03:32.4059"', ARTICLE_MS),
        (b'"2015-04-28T09:03:32.405+02:00"', ARTICLE_MS),
        (b'"2015-04-28"', 1_430_179_200_000),
        (b'"2015"', 2015),
        (b"0", 0),
        (b"-0", 0),
        (b'"9999-12-31T23:59:59.999Z"', TIME_MS_MAX),
        (b"253402300800000", None),
        (b"-1", None),
        (b'"1969-12-31T23:59:59Z"', None),
        (b"1430204612405.5", None),
        (b"1e400", None),
        (b'" 1430204612405"', None),
        (b'"2015-04-31"', None),
        (b'"2015-04-28T24:00"', None),
        (b'"2015-04-28T09:03:32+02:60"', None),
        (b'"yesterday"', None),
        (b"true", None),
        (b"null", None),
        (b"[1430204612405]", None),
        (b"", None),
    ],
)
def test_time_of_a_field(raw: bytes, ms: int | None) -> None:
    assert time_ms(raw) == ms


def test_missing_and_future_times() -> None:
    assert event_time(b"", ARTICLE_MS) == EventTime(ARTICLE_MS, no_time=True)
    at_the_limit = ARTICLE_MS + FUTURE_MS
    assert event_time(b"%d" % at_the_limit, ARTICLE_MS) == EventTime(at_the_limit)
    assert event_time(b"%d" % (at_the_limit + 1), ARTICLE_MS) == EventTime(ARTICLE_MS, future=True)
    assert event_time(b"5", ARTICLE_MS) == EventTime(5)
