"""Numbers of the API, from the counts and from the archive, compared with plain Python over the same events."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.dashboard.api.conftest import Api
from tests.dashboard.events_of_two_days import FIRST_MS, HOUR_MS, HOURS, NAMES, Event

END_MS = FIRST_MS + HOURS * HOUR_MS
SOURCES = ["counts", "archive"]


def summed(events: Iterable[Event]) -> dict[str, int]:
    events = list(events)
    clicks = sum(event["click_count"] for event in events)
    return {"events": len(events), "clicks": clicks, "users": len({event["uid"] for event in events})}


def between(events: Iterable[Event], begin_ms: int, end_ms: int) -> list[Event]:
    return [event for event in events if begin_ms <= event["event_time"] < end_ms]


def having(events: Iterable[Event], where: list[str]) -> list[Event]:
    wanted = defaultdict(set)
    for condition in where:
        name, _, value = condition.partition("=")
        wanted[NAMES.get(name, name)].add(value)
    return [event for event in events if all(str(event[name]) in values for name, values in wanted.items())]


@pytest.mark.parametrize("source", SOURCES)
def test_totals(api: Api, source: str) -> None:
    begin, end = FIRST_MS + 3 * HOUR_MS + 60_000, FIRST_MS + 30 * HOUR_MS
    status, headers, row = api.get("totals", since=begin, to=end, source=source)
    assert (status, headers["onceflow-source"]) == (200, source)
    numbers = summed(between(api.events, begin, end))
    assert row == {"start_ms": begin, "end_ms": end, "value": None, **numbers, "users_exact": True}
    last_day = between(api.events, END_MS - 24 * HOUR_MS, END_MS)
    assert api.rows("totals", source=source)["events"] == len(last_day)
    assert api.rows("totals", since="all", source=source)["events"] == len(api.events)
    nothing = api.rows("totals", since=FIRST_MS - HOUR_MS, to=FIRST_MS, source=source)
    assert (nothing["events"], nothing["users"]) == (0, 0)


def start_of(per: str, at_ms: int, zone: ZoneInfo) -> int:
    local = datetime.fromtimestamp(at_ms / 1000, zone).replace(second=0, microsecond=0)
    zero = {"minute": {}, "hour": {"minute": 0}, "day": {"minute": 0, "hour": 0}}[per]
    return int(local.replace(**zero).timestamp() * 1000)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("per", "zone"),
    [("minute", "UTC"), ("hour", "UTC"), ("day", "UTC"), ("day", "America/New_York"), ("hour", "Asia/Kolkata")],
)
def test_series(api: Api, source: str, per: str, zone: str) -> None:
    groups = defaultdict(list)
    for event in api.events:
        groups[start_of(per, event["event_time"], ZoneInfo(zone))].append(event)
    rows = api.rows("series", per=per, since=FIRST_MS, to=END_MS, tz=zone, source=source, users="true")
    assert {row["start_ms"]: row["events"] for row in rows} == {start: len(group) for start, group in groups.items()}
    assert [summed(group) for _, group in sorted(groups.items())] == [
        {name: row[name] for name in ("events", "clicks", "users")} for row in rows
    ]


@pytest.mark.parametrize("source", SOURCES)
def test_series_of_the_largest_values(api: Api, source: str) -> None:
    rows = api.rows("series", per="day", since=FIRST_MS, to=END_MS, by="page", values=2, source=source)
    urls = {event["url"] for event in api.events}
    sums = {url: summed(event for event in api.events if event["url"] == url) for url in urls}
    largest = sorted(sums, key=lambda url: (-sums[url]["clicks"], -sums[url]["events"], url))[:2]
    assert {row["value"] for row in rows} == set(largest)
    for row in rows:
        day = between(api.events, row["start_ms"], row["end_ms"])
        numbers = summed(event for event in day if event["url"] == row["value"])
        assert (row["events"], row["clicks"], row["users"]) == (numbers["events"], numbers["clicks"], None)


@pytest.mark.parametrize(
    "where", [["os=iOS"], ["os=iOS", "os=Linux", "country=DE"], ["page==1+1"], ["price=7"], ["uid=user-1"]]
)
def test_filters_restrict_everything(api: Api, where: list[str]) -> None:
    chosen = having(api.events, where)
    assert chosen
    status, headers, row = api.get("totals", since=FIRST_MS, to=END_MS, where=where)
    assert (status, headers["onceflow-source"]) == (200, "archive")
    assert {name: row[name] for name in ("events", "clicks", "users")} == summed(chosen)
    rows = api.rows("series", per="hour", since=FIRST_MS, to=END_MS, where=where)
    assert sum(row["events"] for row in rows) == len(chosen)
    for dimension, field in (*NAMES.items(), ("uid", "uid")):
        top = api.rows("top", dimension=dimension, since="all", where=where, limit=1000)
        clicks: Counter[str] = Counter()
        for event in chosen:
            clicks[event[field]] += event["click_count"]
        assert {row["value"]: row["clicks"] for row in top} == clicks


@pytest.mark.parametrize("source", SOURCES)
def test_top_values(api: Api, source: str) -> None:
    begin, end = FIRST_MS + 20 * HOUR_MS, FIRST_MS + 40 * HOUR_MS
    for dimension, field in (*NAMES.items(), ("uid", "uid")):
        times: dict[str, Any]
        for times, chosen in (
            ({"since": begin, "to": end}, between(api.events, begin, end)),
            ({"since": "all"}, api.events),
        ):
            clicks: Counter[str] = Counter()
            for event in chosen:
                clicks[event[field]] += event["click_count"]
            rows = api.rows("top", dimension=dimension, source=source, limit=3, **times)
            expected = sorted(clicks, key=lambda value: (-clicks[value], value))[:3]
            assert [row["clicks"] for row in rows] == [clicks[value] for value in expected]
            assert all(clicks[row["value"]] == row["clicks"] for row in rows)


@pytest.mark.parametrize("source", SOURCES)
def test_today_beside_yesterday(api: Api, source: str) -> None:
    """The newest event is in the last minute before 20:00."""
    rows = api.rows("today", source=source, users="true")
    day = FIRST_MS + 24 * HOUR_MS
    assert [row["start_ms"] for row in rows] == [day + hour * HOUR_MS for hour in range(24)]
    for row in rows:
        before = between(api.events, row["before_start_ms"], row["before_end_ms"])
        assert row["before_start_ms"] == row["start_ms"] - 24 * HOUR_MS
        assert (row["before_events"], row["before_users"]) == (len(before), summed(before)["users"])
        if row["start_ms"] < END_MS:
            assert row["events"] == len(between(api.events, row["start_ms"], row["end_ms"]))
        else:
            assert (row["events"], row["clicks"], row["users"]) == (None, None, None)
    total = api.rows("today/total", source=source)
    assert total["events"] == len(between(api.events, day, END_MS))
    assert total["before_events"] == len(between(api.events, FIRST_MS, END_MS - 24 * HOUR_MS))
    cut = api.rows("today", at=day + 90 * 60_000, source=source)[1]
    assert (cut["end_ms"], cut["before_end_ms"]) == (day + 91 * 60_000, FIRST_MS + 91 * 60_000)
    assert cut["before_events"] == len(between(api.events, FIRST_MS + HOUR_MS, cut["before_end_ms"]))


def test_filtered_dimension_keeps_its_largest_value(api: Api) -> None:
    chosen = having(api.events, ["os=iOS", "os=Linux"])
    clicks: Counter[str] = Counter()
    for event in chosen:
        clicks[event["os_type"]] += event["click_count"]
    where = {"since": FIRST_MS, "to": END_MS, "where": ["os=iOS", "os=Linux"]}
    rows = api.rows("series", per="day", by="os", values=1, **where)
    assert {row["value"] for row in rows} == {clicks.most_common(1)[0][0]}
