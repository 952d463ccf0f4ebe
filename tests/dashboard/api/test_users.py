"""Users, sessions and timelines of the API, compared with plain Python over the same events."""

import itertools
from collections import Counter
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.dashboard.api.conftest import Api
from tests.dashboard.events_of_two_days import FIRST_MS, HOUR_MS, HOURS, Event

GAP_MS = HOUR_MS // 2
MARKUP = "<img src=x onerror=alert(1)>"


def sessions_of(events: list[Event]) -> list[dict[str, Any]]:
    """Return the sessions of all users, newest first."""
    sessions = []
    key = lambda event: event["uid"]  # noqa: E731
    for uid, group in itertools.groupby(sorted(events, key=key), key):
        mine = sorted(group, key=lambda event: event["event_time"])
        starts = [0, *(n for n in range(1, len(mine)) if mine[n]["event_time"] - mine[n - 1]["event_time"] > GAP_MS)]
        for first, end in zip(starts, [*starts[1:], len(mine)], strict=True):
            part = mine[first:end]
            times = {"started_ms": part[0]["event_time"], "ended_ms": part[-1]["event_time"]}
            clicks = sum(event["click_count"] for event in part)
            sessions.append({"uid": uid, **times, "events": len(part), "clicks": clicks})
    return sorted(sessions, key=lambda one: (-one["started_ms"], one["uid"]))


def pages(api: Api, path: str, **parameters: Any) -> list[Any]:
    """Return the rows of all pages, by the Link header."""
    rows: list[Any] = []
    while True:
        status, headers, content = api.get(path, **parameters)
        assert status == 200, content
        rows += content
        if "link" not in headers:
            return rows
        target, _, relation = headers["link"].partition("; ")
        assert relation == 'rel="next"'
        parameters["cursor"] = parse_qs(urlsplit(target.strip("<>")).query)["cursor"][0]


def by_user(api: Api) -> Counter[str]:
    clicks: Counter[str] = Counter()
    for event in api.events:
        clicks[event["uid"]] += event["click_count"]
    return clicks


def test_users_by_clicks(api: Api) -> None:
    rows = pages(api, "users", limit=7)
    assert {row["uid"]: row["clicks"] for row in rows} == by_user(api)
    assert [row["clicks"] for row in rows] == sorted(by_user(api).values(), reverse=True)


@pytest.mark.parametrize("text", ["user-1", "<img src=x", "*", "[a-z]", "\\", "no such"])
def test_search_finds_parts_literally(api: Api, text: str) -> None:
    rows = pages(api, "users", search=text, limit=1)
    assert {row["uid"]: row["clicks"] for row in rows} == {u: n for u, n in by_user(api).items() if text in u}


def test_one_user(api: Api) -> None:
    assert api.rows("user", uid=MARKUP) == {
        "uid": MARKUP,
        "clicks": by_user(api)[MARKUP],
        "live": True,
        "active": True,
        "last_ms": FIRST_MS + HOURS * HOUR_MS - 1,
        "sessions": 1,
    }
    status, _, content = api.get("user", uid="no such")
    assert (status, content["code"]) == (404, "no-user")


def test_sessions_newest_first(api: Api) -> None:
    expected = sessions_of(api.events)
    times = {"since": FIRST_MS, "to": FIRST_MS + HOURS * HOUR_MS}
    assert pages(api, "sessions", limit=50, **times) == expected
    mine = [one for one in expected if one["uid"] == "user-1"]
    assert pages(api, "sessions", uid="user-1", limit=2) == mine
    part = {"since": FIRST_MS + 10 * HOUR_MS, "to": FIRST_MS + 20 * HOUR_MS}
    chosen = [one for one in expected if part["since"] <= one["started_ms"] < part["to"]]
    assert api.rows("sessions", limit=1000, **part) == chosen
    summary = api.rows("sessions/summary", **part)
    assert (summary["sessions"], summary["users"]) == (len(chosen), len({one["uid"] for one in chosen}))
    rows = api.rows("sessions/series", per="hour", **part)
    assert sum(row["sessions"] for row in rows) == len(chosen)


def test_timeline_pages_through_archive_and_log(api: Api) -> None:
    mine = sorted((event for event in api.events if event["uid"] == "user-1"), key=lambda one: -one["event_time"])
    rows = pages(api, "timeline", uid="user-1", limit=15)
    assert [(row["time_ms"], row["clicks"], row["os"]) for row in rows] == [
        (event["event_time"], event["click_count"], event["os_type"]) for event in mine
    ]
    chosen = [event for event in mine if event["geo"] == "DE"]
    assert len(api.rows("timeline", uid="user-1", where=["country=DE"], limit=1000)) == len(chosen)
    assert api.rows("timeline", uid="no such") == []
