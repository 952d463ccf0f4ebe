"""Queries about a time in one form, for the read model and the archive.

`Numbers` is either of them. A time is rounded out to what it can count: the read model has whole minutes, and before
its retention whole hours or days; the archive has single events.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Protocol

from onceflow.clicks.analytics import DEFAULT_RANGE_MS, ValueCounts
from onceflow.clicks.calendar import Compared, day_until, hours_of_day, local_buckets
from onceflow.clicks.windows import MINUTE, Width, Window, WindowCounts


class Numbers(Protocol):
    """The read model or the archive, the latter perhaps restricted to some events."""

    def newest_ms(self) -> int:
        """Return the newest time of an event."""

    def oldest_ms(self) -> int:
        """Return the oldest time that can be asked about."""

    def rounded(self, begin_ms: int, end_ms: int) -> Window:
        """Return the time rounded out to what can be counted."""

    def count_windows(
        self, chosen: Sequence[Window], *, by: str | None = None, values: int | None = None, users: bool = False
    ) -> list[WindowCounts]:
        """Return the counts of windows that have events."""

    def top_between(self, dimension: str, window: Window, count: int) -> list[ValueCounts]:
        """Return the values with most clicks in a time."""

    def top_of_all(self, dimension: str, count: int) -> list[ValueCounts]:
        """Return the values with most clicks of all time."""


@dataclass(frozen=True, slots=True)
class Range:
    """Time that is asked about; None is the default, 24 hours up to the newest event."""

    begin_ms: int | None = None
    end_ms: int | None = None
    from_oldest: bool = False
    """Whether it begins with the oldest event, in place of `begin_ms`."""

    def window(self, numbers: Numbers) -> Window:
        """Return the time in the numbers."""
        end_ms = MINUTE.end_of(numbers.newest_ms()) if self.end_ms is None else self.end_ms
        if self.from_oldest:
            return Window(min(numbers.oldest_ms(), end_ms), end_ms)
        return Window(end_ms - DEFAULT_RANGE_MS if self.begin_ms is None else self.begin_ms, end_ms)


@dataclass(frozen=True, slots=True)
class TodayCounts:
    """Counts of an hour or a part of a day beside those of the same time the day before; None if it is to come."""

    start_ms: int
    end_ms: int
    before_start_ms: int
    before_end_ms: int
    events: int | None
    clicks: int | None
    users: int | None
    before_events: int
    before_clicks: int
    before_users: int | None


def totals(numbers: Numbers, asked: Range, *, users: bool) -> WindowCounts:
    """Return the sums of a time."""
    times = asked.window(numbers)
    window = numbers.rounded(times.start_ms, times.end_ms)
    return _counts_of(numbers, [window], users=users)[window]


def series(
    numbers: Numbers,
    width: Width,
    asked: Range,
    zone: tzinfo,
    *,
    by: str | None = None,
    values: int | None = None,
    users: bool = False,
) -> list[WindowCounts]:
    """Return the counts of each minute, hour or day of a time zone that has events."""
    times = asked.window(numbers)
    chosen = local_buckets(width, times.start_ms, times.end_ms, zone)
    return numbers.count_windows(chosen, by=by, values=values, users=users)


def today(numbers: Numbers, at_ms: int | None, zone: tzinfo, *, users: bool) -> list[TodayCounts]:
    """Return each hour of the day of `at_ms`, by default of the newest event, beside that of the day before."""
    hours = hours_of_day(numbers.newest_ms() if at_ms is None else at_ms, zone)
    return _compared(numbers, hours, users=users)


def today_total(numbers: Numbers, at_ms: int | None, zone: tzinfo, *, users: bool) -> TodayCounts:
    """Return the day up to `at_ms` beside the day before up to the same time."""
    day = day_until(numbers.newest_ms() if at_ms is None else at_ms, zone)
    return _compared(numbers, [day], users=users)[0]


def top(numbers: Numbers, dimension: str, asked: Range, count: int) -> list[ValueCounts]:
    """Return the values of a dimension with most clicks in a time."""
    if asked.from_oldest and asked.end_ms is None:
        return numbers.top_of_all(dimension, count)
    times = asked.window(numbers)
    return numbers.top_between(dimension, numbers.rounded(times.start_ms, times.end_ms), count)


def _compared(numbers: Numbers, pairs: Sequence[Compared], *, users: bool) -> list[TodayCounts]:
    counts = _counts_of(numbers, [pair.before for pair in pairs] + [pair.now for pair in pairs], users=users)
    rows = []
    for now, before in pairs:
        is_known = now.start_ms < now.end_ms
        this, other = counts[now], counts[before]
        rows.append(
            TodayCounts(
                now.start_ms,
                # An hour that is to come shows its length by the one before.
                now.end_ms if is_known else now.start_ms + before.end_ms - before.start_ms,
                before.start_ms,
                before.end_ms,
                this.events if is_known else None,
                this.clicks if is_known else None,
                this.users if is_known else None,
                other.events,
                other.clicks,
                other.users,
            )
        )
    return rows


def _counts_of(numbers: Numbers, windows: Sequence[Window], *, users: bool) -> dict[Window, WindowCounts]:
    """Return the counts of every window, also of those without events."""
    nothing = 0 if users else None
    counts = {window: WindowCounts(window.start_ms, window.end_ms, None, 0, 0, nothing, users) for window in windows}
    for one in numbers.count_windows(windows, users=users):
        counts[Window(one.start_ms, one.end_ms)] = one
    return counts
