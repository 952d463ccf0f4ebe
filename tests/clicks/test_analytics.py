"""Windows, top lists and sessions of a counted topic, compared with plain Python over the single events."""

import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from onceflow.clicks.analytics import Analytics, Session
from onceflow.clicks.counted import NotCounted, Removed
from onceflow.clicks.measures import RETENTION_MS, MeasureSettings
from onceflow.clicks.moments import iso_text
from onceflow.clicks.windows import DAY, HOUR, MINUTE, WindowCounts
from onceflow.remedies import Remedy
from tests import remedies
from tests.clicks import counted
from tests.clicks.counting_run import CountingRun
from tests.conftest import RedisProcess

FIRST_MS = 1_430_204_612_405
GAP_MS = 30 * MINUTE.ms
SETTINGS = MeasureSettings(
    dimensions={"os": "os_type", "page": "url"},
    over_time=True,
    sessions=True,
    retention_ms={**RETENTION_MS, "minute": None, "minute-users": None},
    exact_users_max=30,
)

Event = tuple[str, int, str, str, int]
"""uid, clicks, os, page, ms."""


def events(seed: int, count: int) -> list[Event]:
    """Return events of two days with pauses that make sessions, in any order."""
    chance = random.Random(seed)
    made = [
        (
            f"user-{int(chance.paretovariate(1)) % 60}",
            chance.randrange(10),
            chance.choice(("Linux", "iOS", "ü:x")),
            chance.choice(("/", "/a=b", "/c d")),
            FIRST_MS + chance.randrange(48 * 60) * MINUTE.ms + chance.randrange(MINUTE.ms),
        )
        for _ in range(count)
    ]
    chance.shuffle(made)
    return made


def values(some: Iterable[Event]) -> list[bytes | None]:
    return [
        json.dumps(
            {"uid": uid, "click_count": clicks, "os_type": system, "url": page, "event_time": str(at_ms)}
        ).encode()
        for uid, clicks, system, page, at_ms in some
    ]


def sessions_of(some: Sequence[Event]) -> list[Session]:
    by_user = defaultdict(list)
    for uid, clicks, _, _, at_ms in some:
        by_user[uid].append((at_ms, clicks))
    result = []
    for uid, mine in by_user.items():
        mine.sort()
        starts = [0, *(at for at in range(1, len(mine)) if mine[at][0] - mine[at - 1][0] > GAP_MS), len(mine)]
        for first, end in itertools.pairwise(starts):
            part = mine[first:end]
            clicks = sum(clicks for _, clicks in part)
            result.append(Session(uid, part[0][0], part[-1][0], len(part), clicks))
    return sorted(result, key=lambda session: (session.started_ms, session.uid))


def windows_of(some: Sequence[Event], length_ms: int, slide_ms: int, by: int | None) -> dict[Any, tuple[int, int, int]]:
    """Return (start, value) → events, clicks, users."""
    groups = defaultdict(list)
    for event in some:
        start = event[4] // slide_ms * slide_ms
        while start + length_ms > event[4]:
            groups[start, None if by is None else event[by]].append(event)
            start -= slide_ms
    return {
        key: (len(group), sum(event[1] for event in group), len({event[0] for event in group}))
        for key, group in groups.items()
    }


@pytest.fixture
def run(bootstrap: str, topic: str, redis_server: RedisProcess, tmp_path: Path) -> CountingRun:
    return CountingRun(bootstrap, topic, redis_server, tmp_path)


@pytest.fixture
def analytics(run: CountingRun) -> Any:
    with Analytics(run.url, run.hash_key) as reader:
        yield reader


def test_numbers_equal_plain_python(run: CountingRun, analytics: Analytics, spark: SparkSession) -> None:
    made = events(1, 600)
    bad: list[bytes | None] = [b"nonsense", b'{"uid":"user-1","click_count":1,"event_time":"soon"}', None]
    for part in (made[:300], made[300:301], made[301:]):
        counted.write(run.bootstrap, run.topic, {0: values(part[::2]), 1: values(part[1::2])})
        run.count(spark, measures=SETTINGS)
    assert run.verify()["equal"]

    end_ms = max(event[4] for event in made) + 1
    times: Any = {"begin_ms": FIRST_MS, "end_ms": end_ms}
    for length_ms, slide_ms, by in (
        (HOUR.ms, HOUR.ms, None),
        (90 * MINUTE.ms, 45 * MINUTE.ms, "page"),
        (26 * HOUR.ms, 2 * HOUR.ms, "os"),
        (7 * MINUTE.ms, 7 * MINUTE.ms, None),
    ):
        result = analytics.windows(length_ms, slide_ms, by=by, **times)
        check_windows(result, windows_of(made, length_ms, slide_ms, {None: None, "os": 2, "page": 3}[by]))

    assert analytics.sessions(**times) == sessions_of(made)
    uid = made[0][0]
    assert analytics.sessions(uid, **times) == [one for one in sessions_of(made) if one.uid == uid]
    summary = analytics.sessions_summary(**times)
    expected = sessions_of(made)
    assert (summary.sessions, summary.users) == (len(expected), len({one.uid for one in expected}))
    assert summary.mean_events == pytest.approx(600 / len(expected))
    newest = max(one.ended_ms for one in expected)
    assert summary.active == len({one.uid for one in expected if one.ended_ms >= newest - GAP_MS})

    day = DAY.start_of(end_ms)
    clicks = Counter[str]()
    for name, amount, *_, at_ms in made:
        clicks[name] += amount if at_ms >= day else 0
    top = analytics.top("uid", DAY, count=3)
    assert [one.clicks for one in top] == sorted(clicks.values(), reverse=True)[:3]
    pages = Counter(event[3] for event in made if event[4] >= day)
    assert [(one.value, one.events) for one in analytics.top("page", DAY)] == pages.most_common()
    user = analytics.user(uid)
    assert user is not None
    assert user.clicks == sum(event[1] for event in made if event[0] == uid)

    counted.write(run.bootstrap, run.topic, {0: bad})
    run.count(spark, measures=SETTINGS)
    with run.redis() as client:
        totals = {name.decode(): int(number) for name, number in client.hgetall(run.keys.totals).items()}
    assert totals["events"] == 603 and totals["bad"] == 2 and totals["no-time"] == 1 and totals["future"] == 0


@pytest.mark.remedy(Remedy.COUNT_OVER_TIME)
def test_job_without_time_is_refused(
    run: CountingRun, analytics: Analytics, spark: SparkSession, redis_server: RedisProcess, tmp_path: Path
) -> None:
    counted.write(run.bootstrap, run.topic, {0: values(events(3, 5))})
    run.count(spark)
    with pytest.raises(NotCounted) as refused:
        analytics.windows(HOUR.ms)
    remedies.find(Remedy.COUNT_OVER_TIME, refused.value)
    other = CountingRun(run.bootstrap, run.topic, redis_server, tmp_path / "other")
    other.hash_key += "-over-time"
    other.count(spark, measures=SETTINGS)
    with Analytics(other.url, other.hash_key) as reader:
        assert sum(one.events for one in reader.windows(DAY.ms, begin_ms=FIRST_MS)) == 5


@pytest.mark.remedy(Remedy.WHOLE_HOURS)
def test_removed_minutes_are_not_guessed(run: CountingRun, analytics: Analytics, spark: SparkSession) -> None:
    made = events(4, 60)
    settings = replace(SETTINGS, retention_ms={**RETENTION_MS, "minute": HOUR.ms, "hour-users": HOUR.ms})
    counted.write(run.bootstrap, run.topic, {0: values(made)})
    run.count(spark, measures=settings)
    assert run.verify()["equal"]
    times: Any = {"begin_ms": FIRST_MS, "end_ms": FIRST_MS + 2 * DAY.ms}
    with pytest.raises(Removed) as refused:
        analytics.windows(7 * MINUTE.ms, **times)
    remedies.find(Remedy.WHOLE_HOURS, refused.value)
    assert f"needs the minute from {iso_text(MINUTE.start_of(FIRST_MS))} on" in str(refused.value)
    hours = analytics.windows(HOUR.ms, **times)
    assert sum(one.events for one in hours) == 60 and hours[0].users is None
    late = analytics.windows(7 * MINUTE.ms, begin_ms=max(event[4] for event in made) - 30 * MINUTE.ms)
    assert late and all(one.users for one in late)
    with pytest.raises(NotCounted, match="does not count by 'country', only by os, page"):
        analytics.windows(HOUR.ms, by="country")


def check_windows(result: list[WindowCounts], expected: dict[Any, tuple[int, int, int]]) -> None:
    shown = {(one.start_ms, one.value): (one.events, one.clicks, one.users) for one in result if one.users_exact}
    estimates = {(one.start_ms, one.value): one for one in result if not one.users_exact}
    assert shown.keys() | estimates.keys() == expected.keys()
    assert all(shown[key] == expected[key] for key in shown)
    for key, one in estimates.items():
        events_of, clicks, users = expected[key]
        assert (one.events, one.clicks) == (events_of, clicks)
        assert one.users is not None and 0.95 * one.users < users < 1.05 * one.users


def test_verify_finds_each_wrong_measure(run: CountingRun, spark: SparkSession) -> None:
    counted.write(run.bootstrap, run.topic, {0: values(events(2, 50))})
    run.count(spark, measures=SETTINGS)
    assert run.verify()["equal"]
    with run.redis() as client:
        minute = int(client.zrange(run.keys.beside("minute"), 0, 0)[0])
        member = client.zrange(run.keys.beside("hour-users"), 0, 0)[0].decode()
        uid = client.zrange(run.keys.beside("sessions"), 0, 0)[0].decode()
        client.hincrby(f"{run.keys.beside('minute')}:{minute}", "clicks", 1)
        client.sadd(f"{run.keys.beside('hour-users')}:{member}", "nobody")
        client.zpopmin(f"{run.keys.beside('sessions')}:{uid}")
        client.hincrby(run.keys.beside("page"), "/", -1)
        hour = client.zrange(run.keys.beside("sessions-hour"), 0, 0)[0].decode()
        client.hincrby(f"{run.keys.beside('sessions-hour')}:{hour}", "length_ms", 1)
        day = client.zrange(run.keys.beside("sessions-day"), 0, 0)[0].decode()
        client.zrem(run.keys.beside("sessions-day"), day)
    wrong = {difference["key"].removeprefix(run.keys.beside("")) for difference in run.verify(code=1)["differences"]}
    counted_sessions = {f"sessions:{uid}", f"sessions-hour:{hour}", f"sessions-day:{day}"}
    assert wrong == {f"minute:{minute}", f"hour-users:{member}", "page"} | counted_sessions
