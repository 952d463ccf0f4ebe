"""Merged intervals in Redis against one pass over the sorted events, in any order, any batches, with any repetition."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from onceflow.redis import pool as redis_pool
from onceflow.spark.errors import IncompatibleData
from onceflow.spark.redis.marker import same_slot
from onceflow.spark.redis.scripts import Keys, MarkerMoved
from onceflow.spark.redis.targets import IntervalBuckets, Intervals
from tests.spark.redis.test_buckets import Row, Writer, new_keys, state
from tests.spark.redis_steps import batch_of

GAP, KEPT = 30, 1_000
Event = tuple[str, int, int]
"""User, time, clicks."""
Session = tuple[int, int, int, int]
"""First event, last event, events, clicks."""


@pytest.fixture
def url(redis_server: Any) -> Iterator[str]:
    yield redis_server.url
    redis_pool.close(redis_server.url)


def keys_with(retention_ms: int | None = None) -> Keys:
    keys = new_keys()
    name = keys.marker[1:].partition("}")[0]
    buckets = (
        IntervalBuckets(same_slot(name, "hour"), 60, retention_ms),
        IntervalBuckets(same_slot(name, "day"), 300),
    )
    return replace(keys, buckets=(Intervals("visits", same_slot(name, "visits"), GAP, retention_ms, buckets),))


def sessions_of(events: Sequence[Event]) -> dict[str, list[Session]]:
    """Return each user's sessions, by one pass over the sorted events."""
    sessions: dict[str, list[Session]] = {}
    for user, time, clicks in sorted(events):
        known = sessions.setdefault(user, [])
        if known and time - known[-1][1] <= GAP:
            started, _, count, clicked = known.pop()
            known.append((started, time, count + 1, clicked + clicks))
        else:
            known.append((time, time, 1, clicks))
    return sessions


def rows_of(events: Sequence[Event]) -> list[Row]:
    """Return the intervals of one task's events."""
    return [
        ("visits", user.encode(), 0, b"%d,%d,%d,%d" % one)
        for user, sessions in sessions_of(events).items()
        for one in sessions
    ]


def session_in(member: bytes) -> Session:
    started, ended, events, clicks = map(int, member.split(b","))
    return started, ended, events, clicks


def stored(driver: Writer) -> dict[str, list[Session]]:
    key = driver.keys.indexes[0].key
    users: dict[str, list[Session]] = {}
    for user, last in driver.client.zrange(key, 0, -1, withscores=True):
        members = driver.client.zrange(key.encode() + b":" + user, 0, -1, withscores=True)
        users[user.decode()] = [session_in(member) for member, _ in members]
        assert [score for _, score in members] == [one[0] for one in users[user.decode()]]
        assert last == users[user.decode()][-1][1]
    return users


def counted(sessions: dict[str, list[Session]], width: int) -> dict[bytes, dict[bytes, int]]:
    """Return the counts of the buckets in which the sessions start."""
    buckets: dict[bytes, dict[bytes, int]] = {}
    for started, ended, events, _ in (one for known in sessions.values() for one in known):
        bucket = buckets.setdefault(b"%d" % (started // width * width), dict.fromkeys(NAMES, 0))
        for name, amount in zip(NAMES, (1, ended - started, events), strict=True):
            bucket[name] += amount
    return buckets


NAMES = (b"intervals", b"length_ms", b"events")


def written(driver: Writer, batches: Sequence[Sequence[Event]], randomly: random.Random) -> None:
    """Write the batches, each the intervals of up to three tasks."""
    for number, batch in enumerate(batches):
        tasks = [batch[task::3] for task in range(3)]
        rows = [row for events in tasks for row in rows_of(events)]
        randomly.shuffle(rows)
        driver.write(number, rows, chunks=randomly if randomly.random() < 0.5 else None)


def split(events: Sequence[Event], randomly: random.Random) -> list[list[Event]]:
    ends = sorted(randomly.sample(range(len(events)), min(len(events) - 1, randomly.randrange(1, 8))))
    return [list(events[begin:end]) for begin, end in zip([0, *ends], [*ends, len(events)], strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_intervals_follow_from_the_events(url: str, seed: int) -> None:
    randomly = random.Random(seed)
    span = randomly.choice([100, 600, 5_000])
    events = [
        (randomly.choice(["ada", "bob", "", "\x00é"]), randomly.randrange(span), randomly.randrange(3))
        for _ in range(randomly.choice([3, 40, 150]))
    ]
    for _ in range(3):
        driver = Writer(url, keys_with())
        written(driver, split(events, randomly), randomly)
        assert stored(driver) == sessions_of(events)
        buckets = state_of_counts(driver)
        assert buckets == {"hour": counted(stored(driver), 60), "day": counted(stored(driver), 300)}
        randomly.shuffle(events)


def state_of_counts(driver: Writer) -> dict[str, Any]:
    return {name: content for name, content in state(driver).items() if name != "visits"}


@pytest.mark.parametrize("seed", range(10))
def test_sessions_after_the_retained_time_are_exact(url: str, seed: int) -> None:
    """One that begins before may lack events, which came when they were no longer kept."""
    randomly = random.Random(seed)
    events = [("ada" if randomly.random() < 0.8 else "bob", randomly.randrange(4_000), 1) for _ in range(120)]
    driver = Writer(url, keys_with(KEPT))
    written(driver, split(events, randomly), randomly)
    floor = max(time for _, time, _ in events) - KEPT

    users = stored(driver)
    for user, sessions in sessions_of(events).items():
        known, kept = users.get(user, []), [one for one in sessions if one[0] >= floor]
        assert known[len(known) - len(kept) :] == kept
        crossing = [one for one in sessions if one[0] < floor <= one[1]]
        for started, ended, *_ in known[: len(known) - len(kept)]:
            assert ended < floor or crossing[0][0] <= started <= ended <= crossing[0][1]
    assert all(known[-1][1] >= floor for known in users.values())
    assert min(map(int, state(driver)["hour"])) >= floor


def test_retained_sessions_in_order(url: str) -> None:
    """Events in the order of their times give the sessions of one pass; a user's old ones are removed with new ones."""
    events = [("ada", time, 1) for time in (0, 10, 100, 500, 510, 1_020, 1_600)]
    driver = Writer(url, keys_with(KEPT))
    written(driver, [[event] for event in events], random.Random(1))
    assert stored(driver) == {"ada": [(100, 100, 1, 1), (500, 510, 2, 2), (1_020, 1_020, 1, 1), (1_600, 1_600, 1, 1)]}
    driver.write(len(events), rows_of([("ada", 1_610, 1)]))
    assert stored(driver)["ada"] == [(1_020, 1_020, 1, 1), (1_600, 1_610, 2, 2)]
    driver.write(len(events) + 1, rows_of([("bob", 2_700, 1)]))
    assert stored(driver) == {"bob": [(2_700, 2_700, 1, 1)]}


def test_bridge_joins_two_intervals(url: str) -> None:
    driver = Writer(url, keys_with())
    driver.write(0, rows_of([("ada", 0, 1), ("ada", 60, 1)]))
    assert len(stored(driver)["ada"]) == 2
    assert state(driver)["hour"] == {
        b"0": {b"intervals": 1, b"length_ms": 0, b"events": 1},
        b"60": {b"intervals": 1, b"length_ms": 0, b"events": 1},
    }
    driver.write(1, rows_of([("ada", 30, 1)]))
    assert stored(driver) == {"ada": [(0, 60, 3, 3)]}
    assert state(driver)["hour"] == {b"0": {b"intervals": 1, b"length_ms": 60, b"events": 3}}


@pytest.mark.parametrize(("distance", "intervals"), [(GAP, 1), (GAP + 1, 2)])
def test_gap_itself_is_within(url: str, distance: int, intervals: int) -> None:
    driver = Writer(url, keys_with())
    driver.write(0, rows_of([("ada", 100, 1)]))
    driver.write(1, rows_of([("ada", 100 + distance, 1)]))
    driver.write(2, rows_of([("bob", 100 + distance, 1)]))
    driver.write(3, rows_of([("bob", 100, 1)]))
    assert [len(stored(driver)[user]) for user in ("ada", "bob")] == [intervals, intervals]


def test_equal_intervals_are_both_counted(url: str) -> None:
    """Two tasks may have an event of one user in the same millisecond."""
    driver = Writer(url, keys_with())
    driver.write(0, [*rows_of([("ada", 5, 1)]), *rows_of([("ada", 5, 1)])])
    assert stored(driver) == {"ada": [(5, 5, 2, 2)]}


def commands_of(client: Any) -> dict[str, int]:
    return {name: stats["calls"] for name, stats in client.info("commandstats").items()}


def test_merge_does_not_depend_on_sessions_stored(url: str) -> None:
    """The number of commands is the same for a user with 3 and with 20,000 sessions, at any place among them."""
    calls = []
    for sessions in (3, 20_000):
        driver = Writer(url, keys_with(KEPT * 1_000_000))
        driver.write(0, rows_of([("ada", 100 * number, 1) for number in range(sessions)]))
        batches = [[("ada", 100 * (sessions // 2) + 20, 1)], [("ada", 50, 1)], [("ada", 100 * sessions, 1)]]
        for number, batch in enumerate(batches, 1):
            before = commands_of(driver.client)
            driver.write(number, rows_of(batch))
            after = commands_of(driver.client)
            used = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
            calls.append({name: count for name, count in used.items() if name != "cmdstat_info"})
    assert calls[:3] == calls[3:]
    assert sum(calls[0].values()) < 200


@pytest.mark.parametrize("value", [b"", b"1,2,3", b"2,1,1,1", b"1,2,3,4,5", b"1,2,3,x", b"-1,2,3,4", b"01,2,3,4",
                                   b"1,1000000000000000,1,1"])  # fmt: skip
def test_value_without_interval_is_refused(url: str, value: bytes) -> None:
    driver = Writer(url, keys_with())
    driver.write(0, [])
    with pytest.raises(IncompatibleData, match="which is not STARTED,ENDED,EVENTS,CLICKS"):
        driver.whole(batch_of(1), [("visits", b"ada", 0, value)])


def test_foreign_member_stops_the_batch(url: str) -> None:
    driver = Writer(url, keys_with())
    driver.write(0, rows_of([("ada", 100, 1)]))
    key = f"{driver.keys.indexes[0].key}:ada"
    driver.client.zadd(key, {"x": 110})
    before = driver.client.dump(key)
    with pytest.raises(IncompatibleData, match="field 'x'"):
        driver.whole(batch_of(1), rows_of([("ada", 120, 1)]))
    assert driver.client.dump(key) == before


@pytest.mark.parametrize("lost", ["visits:ada", "hour:60"])
def test_lost_interval_or_count_is_refused(url: str, lost: str) -> None:
    driver = Writer(url, keys_with())
    driver.write(0, rows_of([("ada", 100, 1)]))
    name = driver.keys.marker[1:].partition("}")[0]
    assert driver.client.unlink(same_slot(name, lost)) == 1
    with pytest.raises(MarkerMoved, match=f"{lost}, and that key no longer exists"):
        driver.whole(batch_of(1), rows_of([("ada", 120, 1)]))
