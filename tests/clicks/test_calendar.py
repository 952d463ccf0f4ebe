"""Local minutes, hours and days as windows, also where the clock changes."""

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.clicks.calendar import LOCAL_BUCKETS_MAX, day_until, hours_of_day, local_buckets
from onceflow.clicks.windows import DAY, HOUR, MINUTE, WIDTHS, TooMuch, Width, Window

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe", "Africa/Monrovia"]


def ms(text: str, zone: ZoneInfo = BERLIN) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


@given(st.sampled_from(ZONES), st.sampled_from(WIDTHS), st.integers(0, 4_000_000_000), st.integers(1, 100))
def test_buckets_follow_each_other(zone_name: str, width: Width, begin_s: int, count: int) -> None:
    """They begin where the zone's clock shows a whole minute, hour or day."""
    zone = ZoneInfo(zone_name)
    begin_ms, end_ms = begin_s * 1000, begin_s * 1000 + count * width.ms
    buckets = local_buckets(width, begin_ms, end_ms, zone)
    assert buckets[0].start_ms <= begin_ms < buckets[0].end_ms
    assert buckets[-1].start_ms < end_ms <= buckets[-1].end_ms
    assert all(one.end_ms == two.start_ms for one, two in itertools.pairwise(buckets))
    assert all(bucket.start_ms % MINUTE.ms == 0 for bucket in buckets)
    for bucket in buckets:
        local = datetime.fromtimestamp(bucket.start_ms / 1000, UTC).astimezone(zone)
        if width is DAY:
            # The minute before belongs to another day; a day may begin at 01:00 where the clock changes at midnight.
            # Windows begin at whole minutes, half a minute early where the zone's offset has seconds.
            assert (local - timedelta(minutes=1)).date() < (local + timedelta(seconds=30)).date()
        elif width is HOUR and zone_name != "Africa/Monrovia":
            assert local.minute == 0 or zone_name == "Australia/Lord_Howe"


def test_days_of_an_offset_with_seconds() -> None:
    """Until 1972 Monrovia was 44 minutes and 30 seconds behind; each day must still end after it begins."""
    monrovia = ZoneInfo("Africa/Monrovia")
    days = local_buckets(DAY, 30 * DAY.ms, 40 * DAY.ms, monrovia)
    assert len(days) == 11 and {day.end_ms - day.start_ms for day in days} == {DAY.ms}
    midnight = days[1].start_ms
    assert [local_buckets(DAY, at_ms, at_ms + 1, monrovia) for at_ms in (midnight - 1, midnight)] == [
        [days[0]],
        [days[1]],
    ]


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)])
def test_days_when_the_clock_changes(day: str, hours: int) -> None:
    noon = ms(f"{day}T12:00")
    assert local_buckets(DAY, noon, noon + 1, BERLIN)[0].end_ms - ms(day) == hours * HOUR.ms
    pairs = hours_of_day(noon, BERLIN)
    assert len(pairs) == hours
    for now, before in pairs:
        shown, compared = (datetime.fromtimestamp(window.start_ms / 1000, BERLIN).hour for window in (now, before))
        # On the day before, the clock did not skip or repeat an hour.
        assert shown == compared


def test_today_ends_with_its_minute() -> None:
    at_ms = ms("2026-06-02T10:30:20")
    pairs = hours_of_day(at_ms, BERLIN)
    assert pairs[10] == (
        Window(ms("2026-06-02T10:00"), ms("2026-06-02T10:31")),
        Window(ms("2026-06-01T10:00"), ms("2026-06-01T10:31")),
    )
    assert pairs[11].now == Window(ms("2026-06-02T11:00"), ms("2026-06-02T11:00"))
    assert pairs[11].before == Window(ms("2026-06-01T11:00"), ms("2026-06-01T12:00"))
    assert day_until(at_ms, BERLIN) == (
        Window(ms("2026-06-02"), ms("2026-06-02T10:31")),
        Window(ms("2026-06-01"), ms("2026-06-01T10:31")),
    )


def test_too_many_buckets_are_refused() -> None:
    with pytest.raises(TooMuch):
        local_buckets(MINUTE, 0, 10**15, BERLIN)
    assert len(local_buckets(MINUTE, 0, LOCAL_BUCKETS_MAX * MINUTE.ms, ZoneInfo("UTC"))) == LOCAL_BUCKETS_MAX
