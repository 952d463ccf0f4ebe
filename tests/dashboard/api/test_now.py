"""Responses of the API about now: live numbers, latest and bad events, health, and what the server can be asked."""

from tests.dashboard.api.conftest import Api
from tests.dashboard.conftest import wait_until
from tests.dashboard.events_of_two_days import BAD, FIRST_MS, HOUR_MS, HOURS, SETTINGS, Counted

NEWEST_MS = FIRST_MS + HOURS * HOUR_MS - 1


def test_now_counts_everything(api: Api) -> None:
    wait_until(lambda: api.rows("now")["live"], "live numbers")
    row = api.rows("now")
    users = {event["uid"] for event in api.events}
    active = {event["uid"] for event in api.events if event["event_time"] >= NEWEST_MS - HOUR_MS // 2}
    assert (row["live"], row["events"], row["users"], row["bad"]) == (True, len(api.events) + 2, len(users), 2)
    assert (row["active"], row["active_gap_ms"]) == (len(active), HOUR_MS // 2)
    assert NEWEST_MS - 60_000 < row["newest_ms"] <= NEWEST_MS


def test_latest_events_and_bad_ones(api: Api) -> None:
    rows = api.rows("latest", limit=5)
    assert [row["offset"] for row in rows] == list(range(len(api.events) + 1, len(api.events) - 4, -1))
    assert [row["reason"] for row in rows] == ["uid-empty", "not-json", None, None, None]
    shown, event = rows[2], api.events[-1]
    assert (shown["uid"], shown["clicks"], shown["time_ms"]) == (
        event["uid"],
        event["click_count"],
        event["event_time"],
    )
    assert f'"price":{event["price"]}' in shown["extra"].replace(" ", "")


def test_bad_events_by_reason(api: Api) -> None:
    assert api.rows("bad") == [{"reason": "not-json", "events": 1}, {"reason": "uid-empty", "events": 1}]
    records = api.rows("bad/records")
    assert [record["value"].encode() for record in records] == [BAD[1], BAD[0]]
    assert api.rows("quality") == {"events": len(api.events) + 2, "bad": 2, "late": 0, "no_time": 0, "future": 0}


def test_health_has_archive_and_lag(api: Api, two_days_counted: Counted) -> None:
    row = api.rows("health")
    assert row["ok"] is True and row["lag"]["messages"] == 0
    archived = two_days_counted.counted * 3 // 4
    assert (row["archive"]["events"], row["archive"]["error"]) == (archived, None)
    assert row["archive"]["behind_messages"] == len(api.events) + 2 - archived


def test_capabilities_of_a_full_job(api: Api) -> None:
    row = api.rows("capabilities")
    assert (row["over_time"], row["sessions"], row["archive"], row["unavailable"]) == (True, True, True, [])
    assert {one["name"]: one["field"] for one in row["dimensions"]} == SETTINGS.dimensions
    assert row["kept_from_ms"]["minute"] == row["newest_ms"] - 48 * HOUR_MS
    assert row["kept_from_ms"]["day"] is None
