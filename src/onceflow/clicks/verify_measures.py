"""A job's measures in Redis, and their comparison with a recount, for `verify`.

Only what retention must have kept is compared: buckets and sessions that begin at or after the marker's `newest_ms`
minus their retention. Estimates of distinct users may differ by 3 %, more than three standard errors of a HyperLogLog.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceflow.clicks.recount_measures import RANKED, WIDTH_MS, MeasureRecount

ESTIMATE_ERROR_MAX = 0.03
KEYS_AT_ONCE = 1_000
SESSION_SUMS = {f"sessions-{width}": width for width in RANKED}
"""Target of the sums over sessions by their start → width of its buckets."""

Found = tuple[str, str, int | str | None, str | None]
"""Target, field, value in the log, value in Redis."""


@dataclass
class MeasureCounts:
    """Everything in Redis at one complete batch; the members of each index are those of its buckets."""

    dimensions: dict[str, dict[str, int]] = field(default_factory=dict)
    sums: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    users: dict[tuple[str, int, str], set[str] | int] = field(default_factory=dict)
    """The members, or the estimate of their number."""
    sessions: set[tuple[str, str]] = field(default_factory=set)
    """User, and `started,ended,events,clicks`."""
    session_sums: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)


def read_measures(client: Any, key_of: Callable[[str], str], plan: Mapping[str, Any]) -> MeasureCounts:
    """Read the measures of a plan. Raises redis-py's errors."""
    reader = _Reader(client, key_of)
    counts = MeasureCounts()
    for name in plan["dimensions"]:
        if name != "os":
            counts.dimensions[name] = _amounts(client.hscan_iter(key_of(name), count=KEYS_AT_ONCE))
    if plan["over_time"]:
        for width in WIDTH_MS:
            for target in (width, *(f"{width}:{name}" for name in plan["dimensions"])):
                for member, fields in reader.buckets(target, "hgetall"):
                    counts.sums[target, int(member)] = _amounts(fields.items())
            for member, users in reader.users(f"{width}-users"):
                start, _, group = member.partition(":")
                counts.users[f"{width}-users", int(start), group] = users
        for width in RANKED:
            for member, scores in reader.buckets(f"{width}-top", "zrange", 0, -1, withscores=True):
                counts.sums[f"{width}-top", int(member)] = _amounts(scores)
    if plan["sessions"]:
        for uid, sessions in reader.buckets("sessions", "zrange", 0, -1):
            counts.sessions.update((uid, _text(session)) for session in sessions)
        for target in SESSION_SUMS:
            for member, fields in reader.buckets(target, "hgetall"):
                counts.session_sums[target, int(member)] = _amounts(fields.items())
    return counts


class _Reader:
    def __init__(self, client: Any, key_of: Callable[[str], str]) -> None:
        self._redis = client
        self._key_of = key_of

    def buckets(self, target: str, command: str, *arguments: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        """Yield each member of the index, and the reply to a command for its key."""
        index = self._key_of(target)
        members = [_text(member) for member, _ in self._redis.zscan_iter(index, count=KEYS_AT_ONCE)]
        for first in range(0, len(members), KEYS_AT_ONCE):
            some = members[first : first + KEYS_AT_ONCE]
            pipe = self._redis.pipeline(transaction=False)
            for member in some:
                getattr(pipe, command)(f"{index}:{member}", *arguments, **options)
            yield from zip(some, pipe.execute(), strict=True)

    def users(self, target: str) -> Iterator[tuple[str, set[str] | int]]:
        for member, kind in self.buckets(target, "type"):
            key = f"{self._key_of(target)}:{member}"
            if kind == b"string":
                yield member, int(self._redis.pfcount(key))
            else:
                yield member, {_text(user) for user in self._redis.smembers(key)}


def compare_measures(
    counts: MeasureCounts, recount: MeasureRecount, plan: Mapping[str, Any], newest_ms: int
) -> Iterator[Found]:
    """Yield everything that differs."""

    def floor(target: str) -> int:
        retention_ms = plan["retention_ms"][target.partition(":")[0]]
        return 0 if retention_ms is None else newest_ms - int(retention_ms)

    for name in counts.dimensions.keys() | recount.dimensions.keys():
        yield from _compare(name, recount.dimensions.get(name, {}), counts.dimensions.get(name, {}))
    for target, start in sorted(counts.sums.keys() | recount.sums.keys()):
        if start >= floor(target):
            amounts: Mapping[str, int] = recount.sums.get((target, start), {})
            yield from _compare(f"{target}:{start}", amounts, counts.sums.get((target, start), {}))
    for target, start, group in sorted(counts.users.keys() | recount.users.keys()):
        if start >= floor(target):
            expected_users = recount.users.get((target, start, group), set())
            stored_users = counts.users.get((target, start, group), set())
            yield from _compare_users(f"{target}:{start}:{group}", expected_users, stored_users, plan)
    yield from _compare_sessions(counts, recount, floor)


def _compare_sessions(counts: MeasureCounts, recount: MeasureRecount, floor: Callable[[str], int]) -> Iterator[Found]:
    floor_ms = floor("sessions")
    expected_sessions: set[tuple[str, str]] = set()
    expected_sums: dict[tuple[str, int], Counter[str]] = {}
    for uid, started, ended, events, clicks in recount.sessions():
        if started >= floor_ms:
            expected_sessions.add((uid, f"{started},{ended},{events},{clicks}"))
        for target, width in SESSION_SUMS.items():
            sums = expected_sums.setdefault((target, started // WIDTH_MS[width] * WIDTH_MS[width]), Counter())
            sums.update(intervals=1, events=events, length_ms=ended - started)
    stored_sessions = {one for one in counts.sessions if int(one[1].partition(",")[0]) >= floor_ms}
    yield from ((f"sessions:{uid}", session, "a session", None) for uid, session in expected_sessions - stored_sessions)
    yield from ((f"sessions:{uid}", session, None, "a session") for uid, session in stored_sessions - expected_sessions)
    for target, start in sorted(counts.session_sums.keys() | expected_sums.keys()):
        # A sum has all its sessions if none of them may have been removed.
        if start >= max(floor_ms, floor(SESSION_SUMS[target])):
            amounts: Mapping[str, int] = expected_sums.get((target, start), {})
            yield from _compare(f"{target}:{start}", amounts, counts.session_sums.get((target, start), {}))


def _compare_users(key: str, users: set[str], stored: set[str] | int, plan: Mapping[str, Any]) -> Iterator[Found]:
    if isinstance(stored, set):
        yield from ((key, user, "a member", None) for user in sorted(users - stored))
        yield from ((key, user, None, "a member") for user in sorted(stored - users))
    elif len(users) <= plan["exact_users_max"] or abs(stored - len(users)) > ESTIMATE_ERROR_MAX * len(users):
        yield key, "users", len(users), f"about {stored}"


def _compare(key: str, expected: Mapping[str, int], stored: Mapping[str, int]) -> Iterator[Found]:
    for name in sorted(expected.keys() | stored.keys()):
        if expected.get(name) != stored.get(name):
            value = stored.get(name)
            yield key, name, expected.get(name), None if value is None else str(value)


def _amounts(pairs: Any) -> dict[str, int]:
    pairs_of: Sequence[tuple[bytes, Any]] = list(pairs)
    return {_text(name): int(amount) for name, amount in pairs_of}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
