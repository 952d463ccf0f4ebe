"""Numbers over time from Redis: windows, top lists, sessions and users.

Every result belongs to one complete micro-batch. Times are event times in ms since 1970. `onceflow.clicks.measures`
describes the read model; a job counts only the measures of its plan.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceflow.clicks.counted import Counted, Removed, newest_ms
from onceflow.clicks.distinct_users import UsersOfWindows
from onceflow.clicks.last_verify import LastVerify, parse_last_verify
from onceflow.clicks.measures import CLICKS, EVENTS, FUTURE, NO_TIME, SESSIONS, UID
from onceflow.clicks.moments import iso_text
from onceflow.clicks.results import MarkerView, Results, refuse_other_job
from onceflow.clicks.windows import (
    DAY,
    HOUR,
    MINUTE,
    Bucket,
    TooMuch,
    Width,
    Window,
    WindowCounts,
    refuse_more_buckets,
    refuse_more_rows,
    windows_between,
)
from onceflow.remedies import Remedy

KEYS_AT_ONCE = 1_000
"""Keys read by one pipeline, so that Redis can serve others in between."""
DEFAULT_RANGE_MS = 24 * HOUR.ms
"""Time before the newest event that is shown if none is given."""
FIELDS_MAX = 1_000_000
"""Maximum of the values and ranked users that one query reads."""
SESSION_USERS_MAX = 250_000
"""Maximum of the users whose sessions one query reads."""
JOB = f"numbers over time are only those of 'onceflow run'; {Remedy.NAME_HASH_KEY}"


@dataclass(frozen=True, slots=True)
class TopValue:
    """A value of a dimension in one bucket; a user has no number of events."""

    start_ms: int
    end_ms: int
    value: str
    events: int | None
    clicks: int


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """Sums of one value of a dimension; `events` is None where only clicks are counted."""

    value: str
    events: int | None
    clicks: int


@dataclass(frozen=True, slots=True)
class Session:
    """A user's events without a pause longer than the gap; `ended_ms` is the time of the last one."""

    uid: str
    started_ms: int
    ended_ms: int
    events: int
    clicks: int


@dataclass(frozen=True, slots=True)
class SessionsSummary:
    """Numbers of the sessions that started in a range of time."""

    sessions: int
    users: int
    mean_events: float | None
    mean_seconds: float | None
    active: int
    """Sessions whose last event is at most a gap before the newest event of all; the range does not matter."""


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """Sessions that started in one bucket."""

    start_ms: int
    end_ms: int
    sessions: int
    mean_events: float
    mean_seconds: float


@dataclass(frozen=True, slots=True)
class Quality:
    """Numbers of all events, and of those with a defect; None for what the job does not count."""

    events: int
    bad: int
    late: int | None
    no_time: int | None
    future: int | None


@dataclass(frozen=True, slots=True)
class UserSummary:
    """One user: the sum of clicks, and the newest sessions, newest first."""

    uid: str
    clicks: int
    sessions: tuple[Session, ...]


class Analytics(Results):
    """Reader of the numbers over time; use it as a context manager or call `close`.

    Methods raise RedisUnreachable, NothingCounted, NoConsistentSnapshot, OtherJob, NotCounted, and TooMuch before they
    read more than one query may.
    """

    def windows(
        self,
        length_ms: int,
        slide_ms: int | None = None,
        *,
        by: str | None = None,
        values: int | None = None,
        begin_ms: int | None = None,
        end_ms: int | None = None,
    ) -> list[WindowCounts]:
        """Return the windows that overlap [begin_ms, end_ms) and have events, in the order of time.

        With a dimension `by` a window has an entry for each value, or for the `values` with most clicks, most events
        first. The default range is the 24 hours up to the newest event. Raises WrongWindow, and Removed for a time
        that is not kept.
        """

        def read(marker: MarkerView) -> list[WindowCounts]:
            counted = self._counted(marker)
            counted.require("over_time", by)
            times = self._range(marker, begin_ms, end_ms)
            chosen = windows_between(times.start_ms, times.end_ms, length_ms, slide_ms or length_ms)
            refuse_more_rows(chosen, None if by is None else values)
            return list(self._windows(counted, chosen, by, values=values))

        return self.at_one_batch(read)

    def count_windows(
        self, chosen: Sequence[Window], *, by: str | None = None, values: int | None = None, users: bool = False
    ) -> list[WindowCounts]:
        """Return the counts of these windows of whole minutes, without those that have no events.

        With a dimension `by` a window has an entry for each value, or for the `values` with most clicks of all windows.
        Raises Removed.
        """

        def read(marker: MarkerView) -> list[WindowCounts]:
            counted = self._counted(marker)
            counted.require("over_time", by)
            refuse_more_buckets(chosen)
            refuse_more_rows(chosen, None if by is None else values)
            return list(self._windows(counted, chosen, by, values=values, users=users))

        return self.at_one_batch(read)

    def _windows(
        self,
        counted: Counted,
        chosen: Sequence[Window],
        by: str | None,
        *,
        values: int | None = None,
        users: bool = True,
    ) -> Iterator[WindowCounts]:
        buckets = list(dict.fromkeys(bucket for window in chosen for bucket in window.buckets()))
        counted.refuse_removed(buckets, "{}")
        sums = dict(zip(buckets, self._sums(buckets, by), strict=True))
        shown_values = None if values is None else _most_clicks(sums.values(), values)
        distinct = UsersOfWindows(self._redis, self.keys.beside, by)
        for window in chosen:
            totals: Counter[tuple[str, str]] = Counter()
            for bucket in window.buckets():
                totals.update(sums[bucket])
            for value in sorted({value for _, value in totals}, key=lambda value: (-totals[EVENTS, value], value)):
                if shown_values is not None and value not in shown_values:
                    continue
                kept = [bucket for bucket in window.buckets() if (EVENTS, value) in sums[bucket]]
                has_users = users and all(
                    bucket.start_ms >= counted.floor_ms(f"{bucket.width.name}-users") for bucket in kept
                )
                count, is_exact = self._ask(distinct.count, kept, value) if has_users else (None, False)
                shown = None if by is None else value
                events, clicks = totals[EVENTS, value], totals[CLICKS, value]
                yield WindowCounts(window.start_ms, window.end_ms, shown, events, clicks, count, is_exact)

    def top(self, dimension: str, width: Width = HOUR, *, at_ms: int | None = None, count: int = 10) -> list[TopValue]:
        """Return the values of a dimension with most events, or for `uid` the users with most clicks, in one bucket.

        The bucket is an hour or a day, by default that of the newest event. Raises Removed.
        """

        def read(marker: MarkerView) -> list[TopValue]:
            counted = self._counted(marker)
            counted.require("over_time", None if dimension == UID else dimension)
            start_ms = width.start_of(newest_ms(marker) if at_ms is None else at_ms)
            bucket = Bucket(start_ms, width)
            counted.refuse_removed([bucket], "{}-top" if dimension == UID else "{}", Remedy.LATER_AT)
            if dimension == UID:
                key = f"{self.keys.beside(f'{width.name}-top')}:{start_ms}"
                ranking = self._ask(lambda: self._redis.zrevrange(key, 0, count - 1, withscores=True))
                return [TopValue(start_ms, bucket.end_ms, uid.decode(), None, int(clicks)) for uid, clicks in ranking]
            (sums,) = self._sums([bucket], dimension)
            values = sorted({value for _, value in sums}, key=lambda value: (-sums[EVENTS, value], value))[:count]
            return [
                TopValue(start_ms, bucket.end_ms, value, sums[EVENTS, value], sums.get((CLICKS, value), 0))
                for value in values
            ]

        return self.at_one_batch(read)

    def top_between(self, dimension: str, window: Window, count: int) -> list[ValueCounts]:
        """Return the values of a dimension, or for `uid` the users, with most clicks in a window of whole minutes.

        For users the window is rounded out to whole hours. Raises Removed.
        """

        def read(marker: MarkerView) -> list[ValueCounts]:
            counted = self._counted(marker)
            counted.require("over_time", None if dimension == UID else dimension)
            if dimension == UID:
                sums = self._ranked(counted, window)
                return [ValueCounts(uid, None, sums[uid]) for uid in heapq.nsmallest(count, sums, _by_clicks(sums))]
            refuse_more_buckets([window])
            counts = list(self._windows(counted, [window], dimension, users=False))
            most = heapq.nsmallest(count, counts, lambda one: (-one.clicks, -one.events, one.value))
            return [ValueCounts(one.value or "", one.events, one.clicks) for one in most]

        return self.at_one_batch(read)

    def _ranked(self, counted: Counted, window: Window) -> Counter[str]:
        """Return the clicks of each user in the hours of a window."""
        start_ms, end_ms = HOUR.start_of(window.start_ms), -(-window.end_ms // HOUR.ms) * HOUR.ms
        buckets = Window(start_ms, end_ms).buckets()
        refuse_more_buckets([Window(start_ms, end_ms)])
        counted.refuse_removed(buckets, "{}-top")
        keys = [f"{self.keys.beside(f'{bucket.width.name}-top')}:{bucket.start_ms}" for bucket in buckets]
        self._refuse_more(sum(self._each(keys, lambda pipe, key: pipe.zcard(key))), "ranked users")
        sums: Counter[str] = Counter()
        for key in keys:
            first = 0
            while ranking := self._ask(self._redis.zrange, key, first, first + KEYS_AT_ONCE - 1, False, True):
                sums.update({uid.decode(): int(clicks) for uid, clicks in ranking})
                first += KEYS_AT_ONCE
        return sums

    def top_of_all(self, dimension: str, count: int) -> list[ValueCounts]:
        """Return the values of a dimension, or for `uid` the users, with most clicks of all time."""

        def read(marker: MarkerView) -> list[ValueCounts]:
            counted = self._counted(marker)
            if dimension == UID:
                ranking = self._ask(lambda: self._redis.zrevrange(self.keys.top, 0, count - 1, withscores=True))
                return [ValueCounts(uid.decode(), None, int(clicks)) for uid, clicks in ranking]
            counted.require_dimension(dimension)
            key = self.keys.beside(dimension)
            self._refuse_more(self._ask(self._redis.hlen, key), f"values of {dimension}")
            fields = self._ask(self._redis.hgetall, key)
            sums = Counter({value.decode("utf-8", "replace"): int(clicks) for value, clicks in fields.items()})
            return [ValueCounts(value, None, sums[value]) for value in heapq.nsmallest(count, sums, _by_clicks(sums))]

        return self.at_one_batch(read)

    def sessions(
        self, uid: str | None = None, *, begin_ms: int | None = None, end_ms: int | None = None
    ) -> list[Session]:
        """Return the sessions that started in [begin_ms, end_ms), in the order of start and user. Raises Removed."""

        def read(marker: MarkerView) -> list[Session]:
            counted = self._counted(marker)
            counted.require("sessions")
            times = self._session_times(counted, marker, begin_ms, end_ms)
            return sorted(self._sessions(counted, times, uid), key=lambda session: (session.started_ms, session.uid))

        return self.at_one_batch(read)

    def newest_sessions(
        self,
        uid: str | None = None,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        count: int,
        before: tuple[int, str] | None = None,
    ) -> list[Session]:
        """Return the newest sessions that started in [begin_ms, end_ms), newest first.

        `before` is the start and the user of the last session of the page before. Of one user the default range is
        everything that is kept. Raises Removed.
        """

        def read(marker: MarkerView) -> list[Session]:
            counted = self._counted(marker)
            counted.require("sessions")
            times = self._session_times(counted, marker, begin_ms, end_ms)
            if uid is not None and begin_ms is None:
                times = Window(0, times.end_ms)
            if before is not None:
                times = Window(times.start_ms, min(times.end_ms, before[0] + 1))
            # Of one user these may include the session before.
            every = self._sessions(counted, times, uid, newest=count + 1)
            later = (one for one in every if before is None or (-one.started_ms, one.uid) > (-before[0], before[1]))
            return heapq.nsmallest(count, later, lambda session: (-session.started_ms, session.uid))

        return self.at_one_batch(read)

    def sessions_per(
        self, width: Width, *, begin_ms: int | None = None, end_ms: int | None = None
    ) -> list[SessionCounts]:
        """Return the sessions of each hour or day in which any started; the first and the last one are whole."""

        def read(marker: MarkerView) -> list[SessionCounts]:
            counted = self._counted(marker)
            counted.require("sessions")
            times = self._range(marker, begin_ms, end_ms)
            starts = range(width.start_of(times.start_ms), times.end_ms, width.ms)
            refuse_more_buckets([Window(width.start_of(times.start_ms), times.end_ms)])
            counted.refuse_removed([Bucket(start_ms, width) for start_ms in starts[:1]], "{}")
            keys = [f"{self.keys.beside(f'{SESSIONS}-{width.name}')}:{start_ms}" for start_ms in starts]
            sums = self._each(keys, lambda pipe, key: pipe.hmget(key, "intervals", "events", "length_ms"))
            return [
                SessionCounts(
                    start_ms, start_ms + width.ms, int(count), int(events) / int(count), int(length) / int(count) / 1000
                )
                for start_ms, (count, events, length) in zip(starts, sums, strict=True)
                if count
            ]

        return self.at_one_batch(read)

    def sessions_summary(self, *, begin_ms: int | None = None, end_ms: int | None = None) -> SessionsSummary:
        """Return number and means of the sessions that started in [begin_ms, end_ms). Raises Removed."""

        def read(marker: MarkerView) -> SessionsSummary:
            counted = self._counted(marker)
            counted.require("sessions")
            count = events = length_ms = 0
            uids = set()
            times = self._session_times(counted, marker, begin_ms, end_ms)
            for session in self._sessions(counted, times, None):
                count += 1
                events += session.events
                length_ms += session.ended_ms - session.started_ms
                uids.add(session.uid)
            return SessionsSummary(
                count,
                len(uids),
                events / count if count else None,
                length_ms / count / 1000 if count else None,
                self._active(counted.session_gap_ms),
            )

        return self.at_one_batch(read)

    def user(self, uid: str, *, sessions: int = 20) -> UserSummary | None:
        """Return a user's clicks and newest sessions; None for a user without events."""

        def read(marker: MarkerView) -> UserSummary | None:
            floor_ms = self._counted(marker).floor_ms(SESSIONS)
            clicks = self.clicks_of(uid)
            if clicks is None:
                return None
            key = f"{self.keys.beside(SESSIONS)}:{uid}"
            newest = self._ask(self._redis.zrevrange, key, 0, max(sessions, 1) - 1)
            kept = (_session(uid, member) for member in newest[:sessions])
            return UserSummary(uid, clicks, tuple(one for one in kept if one.ended_ms >= floor_ms))

        return self.at_one_batch(read)

    def active(self) -> int | None:
        """Return the number of users whose last event is at most a gap before the newest one; None without sessions."""
        marker = self.marker()
        if marker is None:
            return None
        counted = self._counted(marker)
        return self._active(counted.session_gap_ms) if counted.has_sessions else None

    def session_count(self, uid: str) -> tuple[int, int | None]:
        """Return the number of a user's kept sessions, and the time of the last event in them."""
        ended_ms = self._ask(self._redis.zscore, self.keys.beside(SESSIONS), uid)
        count = self._ask(self._redis.zcard, f"{self.keys.beside(SESSIONS)}:{uid}")
        return int(count), None if ended_ms is None else int(ended_ms)

    def quality(self) -> Quality:
        """Return the numbers of all events, and of those that are bad, late, or without a time of their own."""

        def read(marker: MarkerView) -> Quality:
            is_timed = self._counted(marker).is_timed
            names = ("events", "bad", "late", NO_TIME.replace("_", "-"), FUTURE)
            events, bad, *timed = [int(one or 0) for one in self._ask(self._redis.hmget, self.keys.totals, names)]
            late, no_time, future = timed if is_timed else (None, None, None)
            return Quality(events, bad, late, no_time, future)

        return self.at_one_batch(read)

    def last_verify(self) -> LastVerify | None:
        """Return the last recorded verification of these counts."""
        marker = self.marker()
        if marker is None:
            return None
        return parse_last_verify(self._ask(self._redis.hgetall, self.keys.verified), marker.query)

    def settings(self) -> Counted | None:
        """Return what the job counts; None before its first micro-batch."""
        marker = self.marker()
        return None if marker is None else self._counted(marker)

    def newest_ms(self) -> int:
        """Return the newest time of an event, at least to the minute."""
        counted = self._counted(self.require_marker())
        counted.require_time()
        return counted.newest_ms or 0

    def oldest_ms(self) -> int:
        """Return the start of the oldest day that is kept, or the newest time if there is none."""
        newest_ms, oldest_ms = self.newest_ms(), self._oldest_day_ms()
        return newest_ms if oldest_ms is None else oldest_ms

    def rounded(self, begin_ms: int, end_ms: int) -> Window:
        """Return a time rounded out to whole minutes; to whole hours or days before retention keeps smaller buckets."""
        counted = self._counted(self.require_marker())
        start_ms, last_ms = counted.rounded_down(begin_ms), counted.rounded_down(end_ms - 1)
        width = counted.smallest_kept(end_ms - 1)
        return Window(start_ms, max(last_ms + width.ms, start_ms))

    def _counted(self, marker: MarkerView) -> Counted:
        refuse_other_job(self.hash_key, marker, JOB)
        return Counted(marker)

    def _refuse_more(self, count: int, what: str) -> None:
        if count > FIELDS_MAX:
            raise TooMuch(
                f"this time has {count:,} {what}, and one query reads at most {FIELDS_MAX:,}: {Remedy.ASK_LESS}"
            )

    def _range(self, marker: MarkerView, begin_ms: int | None, end_ms: int | None) -> Window:
        end = MINUTE.end_of(newest_ms(marker)) if end_ms is None else end_ms
        return Window(end - DEFAULT_RANGE_MS if begin_ms is None else begin_ms, end)

    def _oldest_day_ms(self) -> int | None:
        oldest = self._ask(lambda: self._redis.zrange(self.keys.beside(DAY.name), 0, 0, withscores=True))
        return int(oldest[0][1]) if oldest else None

    def _session_times(self, counted: Counted, marker: MarkerView, begin_ms: int | None, end_ms: int | None) -> Window:
        """Return the range of a query for sessions. Raises Removed if retention may have removed some of them."""
        floor_ms = counted.floor_ms(SESSIONS)
        if begin_ms is not None and begin_ms < floor_ms:
            oldest_ms = self._oldest_day_ms()
            if oldest_ms is None or oldest_ms < floor_ms:
                kept = f"retention keeps the sessions that end from {iso_text(floor_ms)} on"
                raise Removed(f"{kept}: {Remedy.LATER_FROM}")
        return self._range(marker, begin_ms, end_ms)

    def _sums(self, buckets: Sequence[Bucket], by: str | None) -> list[dict[tuple[str, str], int]]:
        """Return the sums of each bucket by (events or clicks, value); the value is "" in total."""
        keys = [f"{self.keys.beside(_key(bucket, by))}:{bucket.start_ms}" for bucket in buckets]
        if by is not None:
            self._refuse_more(sum(self._each(keys, lambda pipe, key: pipe.hlen(key))), f"values of {by} in its buckets")
        return [_named(fields) for fields in self._each(keys, lambda pipe, key: pipe.hgetall(key))]

    def _sessions(
        self, counted: Counted, times: Window, uid: str | None, *, newest: int | None = None
    ) -> Iterator[Session]:
        """Yield the kept sessions that started in a time, of each user at most the `newest`."""
        index, floor_ms = self.keys.beside(SESSIONS), counted.floor_ms(SESSIONS)
        first, last = times.start_ms, f"({times.end_ms}"
        if uid is not None:
            uids = [uid.encode()]
        else:
            count = self._ask(self._redis.zcount, index, first, "+inf")
            if count > SESSION_USERS_MAX:
                raise TooMuch(
                    f"{count:,} users have sessions since then, and one query reads those of at most "
                    f"{SESSION_USERS_MAX:,}: {Remedy.ASK_LESS}"
                )
            uids = self._ask(self._redis.zrangebyscore, index, first, "+inf")
        keys = [index.encode() + b":" + one for one in uids]

        def command(pipe: Any, key: bytes) -> None:
            if newest is None:
                pipe.zrangebyscore(key, first, last)
            else:
                pipe.zrevrangebyscore(key, last, first, 0, newest)

        for one, members in zip(uids, self._each(keys, command), strict=True):
            sessions = (_session(one.decode(), member) for member in members)
            yield from (session for session in sessions if session.ended_ms >= floor_ms)

    def _active(self, gap_ms: int) -> int:
        index = self.keys.beside(SESSIONS)
        newest = self._ask(lambda: self._redis.zrevrange(index, 0, 0, withscores=True))
        return int(self._ask(self._redis.zcount, index, newest[0][1] - gap_ms, "+inf")) if newest else 0

    def _each(self, keys: Sequence[Any], command: Callable[[Any, Any], Any]) -> Iterator[Any]:
        """Yield the reply to a command for each key, many at once."""
        for first in range(0, len(keys), KEYS_AT_ONCE):
            pipe = self._redis.pipeline(transaction=False)
            for key in keys[first : first + KEYS_AT_ONCE]:
                command(pipe, key)
            yield from self._ask(pipe.execute)


def _most_clicks(parts: Collection[Mapping[tuple[str, str], int]], count: int) -> set[str]:
    """Return the values with most clicks in the sums of buckets."""
    sums: Counter[tuple[str, str]] = Counter()
    for part in parts:
        sums.update(part)
    values = {value for _, value in sums}
    return set(heapq.nsmallest(count, values, lambda value: (-sums[CLICKS, value], -sums[EVENTS, value], value)))


def _by_clicks(sums: Mapping[str, int]) -> Callable[[str], tuple[int, str]]:
    return lambda value: (-sums[value], value)


def _key(bucket: Bucket, by: str | None) -> str:
    return bucket.width.name if by is None else f"{bucket.width.name}:{by}"


def _named(fields: Mapping[bytes, bytes]) -> dict[tuple[str, str], int]:
    """Return the sums by (events or clicks, value)."""
    sums = {}
    for field, amount in fields.items():
        name, _, value = field.decode("utf-8", "replace").partition(":")
        sums[name, value] = int(amount)
    return sums


def _session(uid: str, member: bytes) -> Session:
    started_ms, ended_ms, events, clicks = map(int, member.split(b","))
    return Session(uid, started_ms, ended_ms, events, clicks)
