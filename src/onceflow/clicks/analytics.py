"""Numbers over time from Redis: windows, top lists, sessions and users.

Every result belongs to one complete micro-batch. Times are event times in ms since 1970. `onceflow.clicks.measures`
describes the read model; a job counts only the measures of its plan.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceflow.clicks.measures import CLICKS, EVENTS, SESSIONS, UID, MeasureSettings
from onceflow.clicks.plan import parse_plan
from onceflow.clicks.results import MarkerView, Results
from onceflow.clicks.windows import HOUR, MINUTE, Bucket, Width, Window, windows_between
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

KEYS_AT_ONCE = 1_000
"""Keys read by one pipeline, so that Redis can serve others in between."""
DEFAULT_RANGE_MS = 24 * HOUR.ms
"""Time before the newest event that is shown if none is given."""


class NotCounted(OnceflowError):
    """A number that the job does not count, or not yet."""


class Removed(OnceflowError):
    """A number that needs buckets which retention has deleted."""


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """Counts of one window, in total or of one value of a dimension."""

    start_ms: int
    end_ms: int
    value: str | None
    events: int
    clicks: int
    users: int | None
    """None if retention has removed users of the window."""
    users_exact: bool
    """Whether `users` is exact; otherwise it is a HyperLogLog's estimate, with a standard error of 0.81 %."""


@dataclass(frozen=True, slots=True)
class TopValue:
    """A value of a dimension in one bucket; a user has no number of events."""

    start_ms: int
    end_ms: int
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
class UserSummary:
    """One user: the sum of clicks, and the newest sessions, newest first."""

    uid: str
    clicks: int
    sessions: tuple[Session, ...]


class Analytics(Results):
    """Reader of the numbers over time; use it as a context manager or call `close`.

    Methods raise RedisUnreachable, NothingCounted, NoConsistentSnapshot and NotCounted.
    """

    def windows(
        self,
        length_ms: int,
        slide_ms: int | None = None,
        *,
        by: str | None = None,
        begin_ms: int | None = None,
        end_ms: int | None = None,
    ) -> list[WindowCounts]:
        """Return the windows that overlap [begin_ms, end_ms) and have events, in the order of time.

        With a dimension `by` a window has an entry for each value, most events first. The default range is the 24 hours
        up to the newest event. Raises WrongWindow, and Removed for a time that is not kept.
        """

        def read(marker: MarkerView) -> list[WindowCounts]:
            counted = Counted(marker)
            counted.require("over_time", by)
            times = self._range(marker, begin_ms, end_ms)
            chosen = list(windows_between(times.start_ms, times.end_ms, length_ms, slide_ms or length_ms))
            return list(self._windows(counted, chosen, by))

        return self.at_one_batch(read)

    def _windows(self, counted: "Counted", chosen: Sequence[Window], by: str | None) -> Iterator[WindowCounts]:
        buckets = list(dict.fromkeys(bucket for window in chosen for bucket in window.buckets()))
        removed = [bucket for bucket in buckets if bucket.start_ms < counted.floor_ms(bucket.width.name)]
        if removed:
            raise Removed(
                f"these windows need the {removed[0].width.name} from {removed[0].start_ms} ms on, and retention keeps "
                f"those from {counted.floor_ms(removed[0].width.name)} ms on: {Remedy.WHOLE_HOURS}"
            )
        sums = dict(zip(buckets, self._sums(buckets, by), strict=True))
        users = UsersOfWindows(self._redis, self.keys.beside, by)
        for window in chosen:
            totals: Counter[tuple[str, str]] = Counter()
            for bucket in window.buckets():
                totals.update(sums[bucket])
            values = sorted({value for _, value in totals}, key=lambda value: (-totals[EVENTS, value], value))
            for value in values:
                kept = [bucket for bucket in window.buckets() if (EVENTS, value) in sums[bucket]]
                has_users = all(bucket.start_ms >= counted.floor_ms(f"{bucket.width.name}-users") for bucket in kept)
                count, is_exact = self._ask(users.count, kept, value) if has_users else (None, False)
                shown = None if by is None else value
                events, clicks = totals[EVENTS, value], totals[CLICKS, value]
                yield WindowCounts(window.start_ms, window.end_ms, shown, events, clicks, count, is_exact)

    def top(self, dimension: str, width: Width = HOUR, *, at_ms: int | None = None, count: int = 10) -> list[TopValue]:
        """Return the values of a dimension with most events, or for `uid` the users with most clicks, in one bucket.

        The bucket is an hour or a day, by default that of the newest event.
        """

        def read(marker: MarkerView) -> list[TopValue]:
            Counted(marker).require("over_time", None if dimension == UID else dimension)
            start_ms = width.start_of(newest_ms(marker) if at_ms is None else at_ms)
            bucket = Bucket(start_ms, width)
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

    def sessions(
        self, uid: str | None = None, *, begin_ms: int | None = None, end_ms: int | None = None
    ) -> list[Session]:
        """Return the sessions that started in [begin_ms, end_ms), in the order of their start and user."""

        def read(marker: MarkerView) -> list[Session]:
            Counted(marker).require("sessions")
            times = self._range(marker, begin_ms, end_ms)
            return sorted(self._sessions(times, uid), key=lambda session: (session.started_ms, session.uid))

        return self.at_one_batch(read)

    def sessions_summary(self, *, begin_ms: int | None = None, end_ms: int | None = None) -> SessionsSummary:
        """Return number and means of the sessions that started in [begin_ms, end_ms)."""

        def read(marker: MarkerView) -> SessionsSummary:
            counted = Counted(marker)
            counted.require("sessions")
            sessions = list(self._sessions(self._range(marker, begin_ms, end_ms), None))
            count = len(sessions)
            events = sum(session.events for session in sessions)
            length_ms = sum(session.ended_ms - session.started_ms for session in sessions)
            return SessionsSummary(
                count,
                len({session.uid for session in sessions}),
                events / count if count else None,
                length_ms / count / 1000 if count else None,
                self._active(counted.session_gap_ms),
            )

        return self.at_one_batch(read)

    def user(self, uid: str, *, sessions: int = 20) -> UserSummary | None:
        """Return a user's clicks and newest sessions; None for a user without events."""

        def read(_: MarkerView) -> UserSummary | None:
            clicks = self.clicks_of(uid)
            if clicks is None:
                return None
            key = f"{self.keys.beside(SESSIONS)}:{uid}"
            newest = self._ask(self._redis.zrevrange, key, 0, max(sessions, 1) - 1)
            return UserSummary(uid, clicks, tuple(_session(uid, member) for member in newest[:sessions]))

        return self.at_one_batch(read)

    def _range(self, marker: MarkerView, begin_ms: int | None, end_ms: int | None) -> Window:
        end = newest_ms(marker) + MINUTE.ms if end_ms is None else end_ms
        return Window(end - DEFAULT_RANGE_MS if begin_ms is None else begin_ms, end)

    def _sums(self, buckets: Sequence[Bucket], by: str | None) -> list[dict[tuple[str, str], int]]:
        """Return the sums of each bucket by (events or clicks, value); the value is "" in total."""
        keys = [f"{self.keys.beside(_key(bucket, by))}:{bucket.start_ms}" for bucket in buckets]
        return [_named(fields) for fields in self._each(keys, lambda pipe, key: pipe.hgetall(key))]

    def _sessions(self, times: Window, uid: str | None) -> Iterator[Session]:
        index = self.keys.beside(SESSIONS)
        uids = (
            [uid.encode()] if uid is not None else self._ask(self._redis.zrangebyscore, index, times.start_ms, "+inf")
        )
        keys = [index.encode() + b":" + one for one in uids]
        first, last = times.start_ms, f"({times.end_ms}"
        replies = self._each(keys, lambda pipe, key: pipe.zrangebyscore(key, first, last))
        for one, members in zip(uids, replies, strict=True):
            yield from (_session(one.decode(), member) for member in members)

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


class Counted:
    """Counted parts of a marker's job, and the buckets that retention keeps."""

    def __init__(self, marker: MarkerView) -> None:
        plan = parse_plan(marker.plan)
        self._measures = MeasureSettings() if plan is None else plan.measures
        self._marker = marker

    def require(self, part: str, dimension: str | None = None) -> None:
        """Raise NotCounted if the job does not count `over_time`, `sessions` or a dimension."""
        if not getattr(self._measures, part) or not self._marker.fields.get("newest_ms"):
            raise NotCounted(f"the job counts no {part.replace('over_time', 'time')} yet: {Remedy.COUNT_OVER_TIME}")
        if dimension is not None and dimension not in self._measures.dimensions:
            known = ", ".join(self._measures.dimensions)
            raise NotCounted(f"the job does not count by {dimension!r}, only by {known}: {Remedy.COUNT_OVER_TIME}")

    @property
    def session_gap_ms(self) -> int:
        return self._measures.session_gap_ms

    def floor_ms(self, target: str) -> int:
        """Return the start of the oldest bucket that retention keeps."""
        retention_ms = self._measures.retention_of(target)
        return 0 if retention_ms is None else newest_ms(self._marker) - retention_ms


class UsersOfWindows:
    """Numbers of distinct users in windows; the members of a window's buckets are kept for the next window."""

    def __init__(self, client: Any, key_of: Callable[[str], str], by: str | None) -> None:
        self._redis = client
        self._key_of = key_of
        self._by = by
        self._buckets: dict[str, set[Bucket]] = {}
        self._members: dict[str, Counter[bytes]] = {}

    def count(self, buckets: Collection[Bucket], value: str) -> tuple[int, bool]:
        """Return the number of users in the buckets, and whether it is exact. Raises redis-py's errors."""
        keys = [self._key(bucket, value) for bucket in buckets]
        pipe = self._redis.pipeline(transaction=False)
        for key in keys:
            pipe.type(key)
        kinds = pipe.execute()
        if b"string" in kinds:
            return self._estimate(keys, kinds), False
        if len(keys) == 1:
            return self._redis.scard(keys[0]), True
        return self._union(set(buckets), value), True

    def _union(self, buckets: set[Bucket], value: str) -> int:
        """Return the size of the union: only buckets that entered or left since the last window are read."""
        members, before = self._members.setdefault(value, Counter()), self._buckets.get(value, set())
        for bucket in before - buckets:
            members.subtract(self._redis.smembers(self._key(bucket, value)))
        for bucket in buckets - before:
            members.update(self._redis.smembers(self._key(bucket, value)))
        self._buckets[value] = buckets
        self._members[value] = members = +members
        return len(members)

    def _estimate(self, keys: Sequence[str], kinds: Sequence[bytes]) -> int:
        """Merge the HyperLogLogs, and one of the sets' members, in a key that no other client sees."""
        if len(keys) == 1:
            return int(self._redis.pfcount(keys[0]))
        sets = [key for key, kind in zip(keys, kinds, strict=True) if kind == b"set"]
        estimates = [key for key, kind in zip(keys, kinds, strict=True) if kind == b"string"]
        merged = self._key_of(f"merged-{uuid.uuid4().hex}")
        pipe = self._redis.pipeline(transaction=True)
        pipe.pfmerge(merged, *estimates)
        for key in sets:
            members = list(self._redis.smembers(key))
            for first in range(0, len(members), KEYS_AT_ONCE):
                pipe.pfadd(merged, *members[first : first + KEYS_AT_ONCE])
        pipe.pfcount(merged)
        pipe.unlink(merged)
        return int(pipe.execute()[-2])

    def _key(self, bucket: Bucket, value: str) -> str:
        group = "" if self._by is None else f"{self._by}={value}"
        return f"{self._key_of(f'{bucket.width.name}-users')}:{bucket.start_ms}:{group}"


def newest_ms(marker: MarkerView) -> int:
    """Return the newest time of an event, at least to the minute, of a job that counts time."""
    return int(marker.fields["newest_ms"])


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
