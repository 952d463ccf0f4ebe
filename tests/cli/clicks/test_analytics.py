"""Output of `onceflow windows`, `top`, `sessions` and `user`, over numbers written as the pipeline does."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from onceflow.cli import onceflow
from onceflow.clicks.measures import MeasureSettings
from onceflow.clicks.plan import Plan
from onceflow.clicks.results import Keys
from onceflow.remedies import Remedy
from tests import remedies
from tests.conftest import RedisProcess

HOUR_MS = 3_600_000
START_MS = 1_430_204_400_000
"""2015-04-28T07:00Z."""


@pytest.fixture
def numbers(redis_server: RedisProcess) -> Iterator[list[str]]:
    """Yield the options of numbers with two events of ada and one of bob, whose users are an estimate by hour."""
    keys = Keys("cli::analytics")
    plan = Plan(keys.count, "uid", "click_count", measures=MeasureSettings(over_time=True, sessions=True))
    with redis.Redis.from_url(redis_server.url) as client:
        fields = {"format": "4", "query": "q", "batch": "1", "complete": "1", "newest_ms": START_MS + 60_000}
        client.hset(keys.marker, mapping={**fields, "plan": plan.text})
        client.hset(keys.count, mapping={"ada": 5, "bob": 1})
        hour = f"{keys.beside('hour')}:{START_MS}"
        client.hset(hour, mapping={"events": 3, "clicks": 6})
        client.hset(
            f"{keys.beside('hour:os')}:{START_MS}",
            mapping={"events:iOS": 1, "clicks:iOS": 1, "events:Linux": 2, "clicks:Linux": 5},
        )
        client.pfadd(f"{keys.beside('hour-users')}:{START_MS}:", "ada", "bob")
        client.sadd(f"{keys.beside('hour-users')}:{START_MS}:os=Linux", "ada")
        client.sadd(f"{keys.beside('hour-users')}:{START_MS}:os=iOS", "bob")
        client.zadd(f"{keys.beside('hour-top')}:{START_MS}", {"ada": 5, "bob": 1})
        client.zadd(keys.beside("sessions"), {"ada": START_MS + 60_000, "bob": START_MS})
        client.zadd(f"{keys.beside('sessions')}:ada", {f"{START_MS},{START_MS + 60_000},2,5": START_MS})
        client.zadd(f"{keys.beside('sessions')}:bob", {f"{START_MS},{START_MS},1,1": START_MS})
        yield ["--redis", redis_server.url, "--hash-key", keys.count]
        client.flushdb()


def call(numbers: list[str], *arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(onceflow, [*arguments, *numbers])
    assert done.exit_code == code, done.output
    return done


def as_json(numbers: list[str], *arguments: str) -> Any:
    return json.loads(call(numbers, *arguments, "--json").stdout)


def test_windows_in_each_layout(numbers: list[str]) -> None:
    window = {"start_ms": START_MS, "end_ms": START_MS + HOUR_MS, "value": None, "events": 3, "clicks": 6}
    assert as_json(numbers, "windows", "--length", "1h") == [{**window, "users": 2, "users_exact": False}]
    shown = call(numbers, "windows", "--length", "1h").stdout.splitlines()
    assert [line.split() for line in shown] == [
        ["start", "end", "events", "clicks", "users"],
        ["2015-04-28", "07:00:00Z", "2015-04-28", "08:00:00Z", "3", "6", "~2"],
    ]
    by_os = call(numbers, "windows", "--length", "1h", "--by", "os", "--csv").stdout.splitlines()
    assert by_os == [
        "start_ms,end_ms,value,events,clicks,users,users_exact",
        f"{START_MS},{START_MS + HOUR_MS},Linux,2,5,1,True",
        f"{START_MS},{START_MS + HOUR_MS},iOS,1,1,1,True",
    ]


def test_top_of_a_dimension_and_of_users(numbers: list[str]) -> None:
    assert [(one["value"], one["events"]) for one in as_json(numbers, "top", "os")] == [("Linux", 2), ("iOS", 1)]
    (first,) = as_json(numbers, "top", "uid", "--count", "1")
    assert (first["value"], first["events"], first["clicks"]) == ("ada", None, 5)


def test_sessions_and_their_summary(numbers: list[str]) -> None:
    assert [one["uid"] for one in as_json(numbers, "sessions")] == ["ada", "bob"]
    assert [one["uid"] for one in as_json(numbers, "sessions", "--user", "bob")] == ["bob"]
    (summary,) = as_json(numbers, "sessions", "--summary")
    assert summary == {"sessions": 2, "users": 2, "mean_events": 1.5, "mean_seconds": 30.0, "active": 2}
    assert "nothing in this time range" in call(numbers, "sessions", "--from", "-1h").stderr


@pytest.mark.remedy(Remedy.LATER_FROM, Remedy.LATER_AT)
def test_removed_numbers_are_refused(numbers: list[str], redis_server: RedisProcess) -> None:
    """Without a day before the sessions' retention, there were none to remove."""
    long_ago = ["--from", "2014-12-01"]
    for command in (["sessions", *long_ago], ["sessions", "--summary", *long_ago]):
        remedies.find(Remedy.LATER_FROM, call(numbers, *command, code=1).exception)
    remedies.find(Remedy.LATER_AT, call(numbers, "top", "uid", "--at", "2015-04-20", code=1).exception)
    call(numbers, "top", "uid", "--at", "2015-04-20", "--per", "day")
    assert len(as_json(numbers, "sessions", "--from", "2015-04-20")) == 2
    assert as_json(numbers, "top", "uid", "--at", "2015-04-28T07:30:00Z")
    with redis.Redis.from_url(redis_server.url) as client:
        client.zadd(Keys("cli::analytics").beside("day"), {str(START_MS): START_MS})
    assert len(as_json(numbers, "sessions", *long_ago)) == 2


def test_numbers_before_the_first_event(numbers: list[str], redis_server: RedisProcess) -> None:
    """The job counts over time; its first micro-batch had no events."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.hdel(Keys("cli::analytics").marker, "newest_ms")
    for command in (["windows", "--length", "1h"], ["top", "os"], ["sessions"], ["sessions", "--summary"]):
        assert str(call(numbers, *command, code=1).exception) == "no event is counted yet"
    with redis.Redis.from_url(redis_server.url) as client:
        client.hset(Keys("cli::analytics").marker, "complete", "0")
    assert "micro-batch 1 of 'cli::analytics' is being written" in str(call(numbers, "top", "os", code=1).exception)


def test_sessions_of_the_last_24_hours(numbers: list[str], redis_server: RedisProcess) -> None:
    """They begin with a whole minute, so that those of a whole day are all there."""
    newest_ms = START_MS + 86_400_000 - 1_500
    with redis.Redis.from_url(redis_server.url) as client:
        client.hset(Keys("cli::analytics").marker, "newest_ms", newest_ms)
    assert [one["uid"] for one in as_json(numbers, "sessions")] == ["ada", "bob"]
    assert as_json(numbers, "sessions", "--summary")[0]["sessions"] == 2


def test_one_user(numbers: list[str]) -> None:
    result = as_json(numbers, "user", "ada")
    assert (result["clicks"], [one["events"] for one in result["sessions"]]) == (5, [2])
    assert "eve has no counted event" in call(numbers, "user", "eve", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["windows", "--length", "90s"], "'90s' is not a duration of whole minutes"),
        (
            ["windows", "--length", "1h", "--slide", "2h"],
            "slide of windows: 120 minutes, expected at most their length, 60",
        ),
        (["windows", "--length", "1h", "--from", "noon"], "'noon' is not a valid time"),
        (["sessions", "--summary", "--user", "ada"], "--summary covers all users"),
    ],
)
def test_mistakes_are_named(numbers: list[str], arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(onceflow, [*arguments, *numbers])
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)
