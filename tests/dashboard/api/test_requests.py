"""Requests and refusals of the API: each line of the table, parameters, limits, layouts, and what is missing."""

import csv
import html
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from onceflow.clicks import analytics
from onceflow.clicks.results import Keys
from onceflow.client.cluster import Cluster
from onceflow.dashboard import app
from onceflow.dashboard.api import openapi
from onceflow.dashboard.api.routes import PREFIX, ROUTES
from onceflow.dashboard.api.table import Route
from onceflow.dashboard.sources import Addresses
from onceflow.remedies import Remedy
from tests import remedies
from tests.clicks.archived import event, filled
from tests.conftest import RedisProcess
from tests.dashboard.api.conftest import Api
from tests.dashboard.conftest import UNREACHABLE, Counted, running_page
from tests.dashboard.events_of_two_days import FIRST_MS, HOUR_MS
from tests.dashboard.events_of_two_days import Counted as TwoDays
from tests.dashboard.test_app import get

EXAMPLES: dict[str, Any] = {
    "per": "hour",
    "since": FIRST_MS,
    "to": FIRST_MS + HOUR_MS,
    "at": FIRST_MS,
    "tz": "Europe/Berlin",
    "by": "os",
    "values": 3,
    "users": "true",
    "where": ["os=iOS"],
    "source": "auto",
    "length": "1h",
    "slide": "30m",
    "dimension": "page",
    "limit": 5,
    "uid": "user-1",
    "search": "user",
    "format": "json",
}
"""A value for each parameter; no row has a cursor without a page before."""
TYPES: dict[str, Any] = {"text": str, "bool": bool, "int": int, "count": int, "time": int, "number": (int, float)}


def example(name: str) -> Any:
    return EXAMPLES["since" if name == "from" else name]


def required(route: Route) -> dict[str, Any]:
    return {one.name: example(one.name) for one in route.parameters if one.required}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_route_is_as_documented(api: Api, route: Route) -> None:
    for parameter in route.accepted:
        if parameter.name != "cursor":
            status, _, content = api.get(route.path, **required(route) | {parameter.name: example(parameter.name)})
            assert status == 200, (parameter.name, content)
    status, headers, content = api.get(route.path, **required(route), format="csv")
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/csv")
    assert next(csv.reader(io.StringIO(content))) == [field.name for field in route.fields]
    content = api.rows(route.path, **required(route))
    rows = content if route.is_list else [content]
    assert isinstance(content, list) == route.is_list
    for row in rows:
        assert list(row) == [field.name for field in route.fields]
        for field in route.fields:
            is_null = field.nullable and row[field.name] is None
            assert is_null or field.kind == "object" or isinstance(row[field.name], TYPES[field.kind]), field


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_route_refuses_the_undocumented(api: Api, route: Route) -> None:
    status, _, content = api.get(route.path, **required(route), colour="red")
    assert (status, content["code"], content["parameter"]) == (400, "bad-parameter", "colour")
    for parameter in route.accepted:
        if not parameter.repeated:
            status, _, content = api.get(route.path, **required(route) | {parameter.name: ["", ""]})
            assert (status, content["parameter"]) == (400, parameter.name)
        if parameter.required:
            left = {name: value for name, value in required(route).items() if name != parameter.name}
            assert api.get(route.path, **left)[2]["parameter"] == parameter.name


def test_openapi_lists_every_route(api: Api) -> None:
    status, _, body = get(api.url, "/api/openapi.json")
    document = json.loads(body)
    assert (status, document["openapi"]) == (200, "3.1.0")
    assert document == openapi.document()
    for route in ROUTES:
        operation = document["paths"][PREFIX + route.path]["get"]
        assert [one["name"] for one in operation["parameters"]] == [one.name for one in route.accepted]
        content = operation["responses"]["200"]["content"]["application/json"]["schema"]
        row = content["items"] if route.is_list else content
        assert row["required"] == [field.name for field in route.fields]
    status, headers, page = get(api.url, "/api")
    assert (status, headers["content-security-policy"]) == (200, app.HEADERS["Content-Security-Policy"])
    assert all(html.escape(PREFIX + route.path) in page.decode() for route in ROUTES)
    assert "http://" not in page.decode() and "https://" not in page.decode()


WRONG: dict[str, list[Any]] = {
    "since": ["soon", "9" * 15, "-1x", "2026-13-01", "\x00"],
    "tz": ["Mars/Olympus", "../etc/passwd", ""],
    "values": [0, 51, "1e1", "-1", "٣"],
    "users": ["1", "TRUE"],
    "where": ["os", "=iOS", "x" * 1_025 + "=1", ["os=iOS"] * 21],
    "source": ["redis"],
    "per": ["second", ""],
    "format": ["xml"],
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_values_are_refused(api: Api, name: str) -> None:
    for value in WRONG[name]:
        status, _, content = api.get("series", **{"per": "day", name: value})
        shown = "from" if name == "since" else name
        assert (status, content["code"], content["parameter"]) == (400, "bad-parameter", shown), value
        assert len(content["error"]) < 1_000


def test_ranges_that_end_before_they_begin(api: Api) -> None:
    status, _, content = api.get("series", per="day", since=FIRST_MS + 1, to=FIRST_MS)
    assert (status, content["code"], content["parameter"]) == (400, "bad-parameter", "from")
    assert api.rows("series", per="day", since=FIRST_MS, to=FIRST_MS) == []


@pytest.mark.parametrize("cursor", ["x", "W10", "WzEsMl0", "Wy0xXQ", "WzFlOTk5XQ", "IiI", "W1tbW1tb" * 100])
def test_foreign_cursors_are_refused(api: Api, cursor: str) -> None:
    assert api.get("users", cursor=cursor)[2]["parameter"] == "cursor"


# Limits


@pytest.mark.remedy(Remedy.ASK_LESS)
def test_too_much_is_refused_before_work(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("it reads")

    monkeypatch.setattr(analytics.Analytics, "_each", unexpected)
    for path, parameters in (
        ("windows", {"length": "999999d", "slide": "1m"}),
        ("windows", {"length": "30d", "slide": "1m", "since": FIRST_MS, "to": FIRST_MS + 3_600_000 * 24}),
        ("series", {"per": "minute", "since": 0, "to": FIRST_MS}),
        ("series", {"per": "day", "since": 0, "to": 253_370_764_800_000}),
        ("totals", {"since": 0, "to": 253_370_764_800_000, "source": "counts"}),
        ("sessions/series", {"per": "hour", "since": 0, "to": 253_370_764_800_000}),
    ):
        status, _, content = api.get(path, **parameters)
        assert (status, content["code"]) == (400, "too-large"), content
        remedies.find(Remedy.ASK_LESS, content["error"])
    monkeypatch.undo()
    assert api.rows("series", per="day", since=FIRST_MS, to=FIRST_MS + HOUR_MS)


def test_many_values_and_users_are_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analytics, "FIELDS_MAX", 3)
    monkeypatch.setattr(analytics, "SESSION_USERS_MAX", 3)
    for path, parameters in (
        ("series", {"per": "day", "by": "page"}),
        ("top", {"dimension": "uid"}),
        ("top", {"dimension": "page", "since": "all"}),
        ("sessions", {}),
        ("sessions/summary", {}),
    ):
        counts = {} if path.startswith("sessions") else {"source": "counts"}
        status, _, content = api.get(path, **parameters, **counts)
        assert (status, content["code"]) == (400, "too-large"), path


# Layouts


def test_csv_cells_are_harmless(api: Api) -> None:
    rows = list(csv.DictReader(io.StringIO(api.rows("top", dimension="page", since="all", format="csv"))))
    values = {row["value"] for row in rows}
    assert "'=1+1" in values and "=1+1" not in values
    _, headers, _ = api.get("bad/records", format="csv")
    assert headers["content-disposition"] == 'attachment; filename="bad-records.csv"'


# What is missing or away


@pytest.fixture
def counted_users(counted: Counted) -> Counted:
    """A job that counts users and operating systems only."""
    counted.micro_batch({("ann", "iOS"): 6, ("bob", "Android"): 2})
    return counted


def refusal(base: str, path: str) -> tuple[int, str, str]:
    status, _, body = get(base, PREFIX + path)
    content = json.loads(body)
    return status, content["code"], content["error"]


@pytest.mark.remedy(Remedy.SHOW_ARCHIVE)
def test_job_without_time(
    counted_users: Counted, serve_page: Callable[..., Any], two_days_counted: TwoDays, bootstrap: str
) -> None:
    base = serve_page(counted_users.addresses()).url
    for path in ("series?per=hour", "totals", "today", "windows?length=1h", "top?dimension=os", "sessions"):
        assert refusal(base, path)[:2] == (404, "not-counted"), path
    for path in ("timeline?uid=ann", "totals?where=os%3DiOS", "series?per=day&source=archive"):
        status, code, error = refusal(base, path)
        assert (status, code) == (404, "no-archive")
        remedies.find(Remedy.SHOW_ARCHIVE, error)
    first = json.loads(get(base, f"{PREFIX}top?dimension=os&from=all")[2])[0]
    assert first == {"value": "iOS", "events": None, "clicks": 6}
    capabilities = json.loads(get(base, f"{PREFIX}capabilities")[2])
    assert {one["what"] for one in capabilities["unavailable"]} == {"filters", "timeline", "over_time", "sessions"}
    with running_page(two_days_counted.addresses, archive=two_days_counted.archive) as running:
        assert get(running.url, f"{PREFIX}totals?where=os%3DiOS")[0] == 200


@pytest.mark.remedy(Remedy.MATCHING_ARCHIVE)
def test_archive_of_other_events(two_days_counted: TwoDays, serve_page: Callable[..., Any], tmp_path: Path) -> None:
    filled(tmp_path, [[event("ann", FIRST_MS)]], topic="another")
    base = serve_page(two_days_counted.addresses, archive=tmp_path).url
    status, code, error = refusal(base, "totals?source=archive")
    assert (status, code) == (409, "other-archive")
    remedies.find(Remedy.MATCHING_ARCHIVE, error)
    right = serve_page(two_days_counted.addresses, archive=two_days_counted.archive).url
    assert get(right, f"{PREFIX}totals?source=archive")[0] == 200
    empty = serve_page(two_days_counted.addresses, archive=tmp_path / "none").url
    assert refusal(empty, "totals?source=archive")[:2] == (404, "no-archive")
    assert get(empty, f"{PREFIX}totals")[0] == 200


def test_archive_before_the_first_micro_batch(two_days_counted: TwoDays, serve_page: Callable[..., Any]) -> None:
    """The marker of a query that has just started has no offsets; the server has another topic by default."""
    counted = two_days_counted.addresses
    started = replace(counted, hash_key=f"started-{counted.hash_key}", topic="user_events")
    with redis.Redis.from_url(counted.redis_url) as client:
        marker = client.hgetall(Keys(counted.hash_key).marker)
        plan = marker[b"plan"].replace(counted.hash_key.encode(), started.hash_key.encode())
        nothing = {b"plan": plan, b"batch": -1, b"offsets": "{}", b"since": "{}"}
        client.hset(Keys(started.hash_key).marker, mapping={**marker, **nothing})
        base = serve_page(started, archive=two_days_counted.archive).url
        for topic, status in ((counted.topic, 200), ("another", 409)):
            client.hset(Keys(started.hash_key).announced, mapping={"plan": plan, "topic": topic})
            assert get(base, f"{PREFIX}totals?where=os%3DiOS")[0] == status


def test_topic_is_that_of_the_counts(two_days_counted: TwoDays, serve_page: Callable[..., Any]) -> None:
    base = serve_page(replace(two_days_counted.addresses, topic="user_events")).url
    assert json.loads(get(base, f"{PREFIX}capabilities")[2])["topic"] == two_days_counted.addresses.topic


def test_another_jobs_counts(counted: Counted, serve_page: Callable[..., Any]) -> None:
    counted.plan = '{"counts": "sums"}'
    counted.micro_batch({("ann", "iOS"): 1})
    base = serve_page(counted.addresses()).url
    for path in ("totals", "users", "sessions", "quality", "user?uid=ann", "now"):
        assert refusal(base, path)[:2] == (409, "other-job"), path
    with redis.Redis.from_url(counted.redis_url) as client:
        client.delete(counted.keys.marker)
    assert refusal(base, "totals")[:2] == (404, "nothing-counted")


def test_foreign_types_under_the_keys(counted: Counted, serve_page: Callable[..., Any]) -> None:
    counted.micro_batch({("ann", "iOS"): 1})
    with redis.Redis.from_url(counted.redis_url) as client:
        client.hset(counted.keys.totals, "events", "many")
        client.delete(counted.keys.os)
        client.set(counted.keys.os, "text")
    base = serve_page(counted.addresses()).url
    assert refusal(base, "quality")[:2] == (409, "other-job")
    assert refusal(base, "top?dimension=os&from=all")[:2] == (503, "redis")


def test_archive_stands_in_for_redis(
    new_redis: Callable[..., RedisProcess], two_days_counted: TwoDays, bootstrap: str
) -> None:
    """Redis is away: no password is shown, and what the archive has is shown from there."""
    where = two_days_counted.addresses
    addresses = Addresses("redis://:secret@127.0.0.1:1/1", where.hash_key, bootstrap, where.topic)
    with running_page(addresses, archive=two_days_counted.archive) as running:
        status, headers, body = get(running.url, f"{PREFIX}totals?from=all")
        assert (status, headers["onceflow-source"]) == (200, "archive")
        assert json.loads(body)["events"] == len(two_days_counted.events)
        status, code, error = refusal(running.url, "users")
        assert (status, code) == (503, "redis")
        assert "secret" not in error and "127.0.0.1:1" in error
        # The job's dimensions are unknown, because no marker was read.
        assert refusal(running.url, "top?dimension=page&from=all&source=archive")[:2] == (503, "redis")
        assert refusal(running.url, "totals?from=all&where=page%3D/")[:2] == (503, "redis")


def test_broker_is_away(counted_users: Counted, serve_page: Callable[..., Any]) -> None:
    base = serve_page(counted_users.addresses()).url
    assert refusal(base, "latest")[:2] == (503, "broker")
    assert UNREACHABLE in refusal(base, "latest")[2]
    now = json.loads(get(base, f"{PREFIX}now")[2])
    assert (now["live"], now["events"], now["active"]) == (False, 2, None)


def test_topic_is_missing(counted_users: Counted, serve_page: Callable[..., Any], bootstrap: str) -> None:
    base = serve_page(counted_users.addresses(bootstrap)).url
    assert refusal(base, "latest")[:2] == (404, "no-topic")
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(counted_users.topic, 1)
    assert json.loads(get(base, f"{PREFIX}latest")[2]) == []
