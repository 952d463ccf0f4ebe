"""Minutes, hours and days of a time zone as windows, for questions about local time; no I/O.

Hours and days begin where the zone's clock shows a whole one, so a day has 23 or 25 hours when the clock changes. All
windows begin and end at whole minutes of UTC, so that buckets are exactly these windows.
"""

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

from onceflow.clicks.windows import DAY, HOUR, MINUTE, Width, Window, refuse_more_windows

LOCAL_BUCKETS_MAX = 3_000


def local_buckets(width: Width, begin_ms: int, end_ms: int, zone: tzinfo) -> list[Window]:
    """Return the minutes, hours or days that overlap [begin_ms, end_ms). Raises TooMuch."""
    refuse_more_windows(max(0, end_ms - begin_ms) // width.ms, LOCAL_BUCKETS_MAX)
    windows = []
    start_ms = _start_of(width, begin_ms, zone)
    while start_ms < end_ms:
        windows.append(Window(start_ms, _next(width, start_ms, zone)))
        start_ms = windows[-1].end_ms
    return windows


class Compared(NamedTuple):
    """An hour or a part of the day, and the same one of the day before."""

    now: Window
    before: Window


def hours_of_day(at_ms: int, zone: tzinfo) -> list[Compared]:
    """Return the hours of the day of `at_ms`, and the same hours of the day before.

    The hour of `at_ms` ends with its minute, and so does the one compared with it. Later hours have no length.
    """
    start_ms = _start_of(DAY, at_ms, zone)
    until_ms = MINUTE.end_of(at_ms)
    hours = []
    for hour in local_buckets(HOUR, start_ms, _next(DAY, start_ms, zone), zone):
        before_ms = _a_day_before(hour.start_ms, zone)
        end_ms = max(hour.start_ms, min(hour.end_ms, until_ms))
        whole_ms = hour.end_ms - hour.start_ms
        compared_ms = end_ms - hour.start_ms or whole_ms
        hours.append(Compared(Window(hour.start_ms, end_ms), Window(before_ms, before_ms + compared_ms)))
    return hours


def day_until(at_ms: int, zone: tzinfo) -> Compared:
    """Return the day of `at_ms` up to its minute, and the day before up to the same time of day."""
    start_ms, end_ms = _start_of(DAY, at_ms, zone), MINUTE.end_of(at_ms)
    return Compared(Window(start_ms, end_ms), Window(_a_day_before(start_ms, zone), _a_day_before(end_ms, zone)))


def _start_of(width: Width, at_ms: int, zone: tzinfo) -> int:
    """Return the start of the minute, hour or day that a time is in."""
    if width is DAY:
        return _ms(datetime.combine(_date(at_ms, zone), time(), zone))
    offset_ms = _offset_ms(at_ms, zone)
    return width.start_of(at_ms + offset_ms) - offset_ms


def _next(width: Width, start_ms: int, zone: tzinfo) -> int:
    """Return the start of the next minute, hour or day."""
    if width is DAY:
        return _ms(datetime.combine(_date(start_ms, zone) + timedelta(days=1), time(), zone))
    # Where the clock changes by half an hour, a local hour has another length.
    next_ms = _start_of(width, start_ms + width.ms, zone)
    return next_ms if next_ms > start_ms else start_ms + width.ms


def _a_day_before(at_ms: int, zone: tzinfo) -> int:
    local = _local(at_ms, zone)
    return _ms(local - timedelta(days=1))


def _date(at_ms: int, zone: tzinfo) -> date:
    """Return the local date, by the same whole minutes as the starts of days."""
    return datetime.fromtimestamp((at_ms + _offset_ms(at_ms, zone)) / 1000, UTC).date()


def _local(at_ms: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone)


def _offset_ms(at_ms: int, zone: tzinfo) -> int:
    offset = _local(at_ms, zone).utcoffset() or timedelta()
    return round(offset / timedelta(minutes=1)) * MINUTE.ms


def _ms(local: datetime) -> int:
    """Return a local time in ms, to the minute: early offsets of some zones have seconds."""
    return MINUTE.start_of(round(local.timestamp()) * 1000)
