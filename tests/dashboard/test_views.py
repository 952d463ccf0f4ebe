"""Actions of a person on the page, in a real chromium, over one set of counted and archived events."""

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error, Locator, Page, Route, expect

from onceflow.client.producer import EventWriter
from tests.conftest import RedisProcess
from tests.dashboard.conftest import RunningPage, running_page, wait_until
from tests.dashboard.events_of_two_days import BAD, HOUR_MS, Counted, Event, count_and_archive
from tests.dashboard.shown_numbers import NEWEST_MS, chosen, numbers, top

DAY_MS = 24 * HOUR_MS
HOUR_STARTS_MS = NEWEST_MS // HOUR_MS * HOUR_MS
LAST_DAY_MS = HOUR_STARTS_MS - DAY_MS + HOUR_MS
"""Start of the range of 24 hours, which ends with the newest hour."""
LAST_HOUR_MS = HOUR_STARTS_MS
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def counted_days(bootstrap: str, redis_server: RedisProcess, tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """The events, for all tests."""
    return count_and_archive(bootstrap, redis_server.url, "views", tmp_path_factory.mktemp("views"))


@pytest.fixture(scope="module")
def events(counted_days: Counted) -> Sequence[Event]:
    """All valid events."""
    return counted_days.events


@pytest.fixture(scope="module")
def base(counted_days: Counted) -> Iterator[str]:
    """The address of one server for all tests."""
    with running_page(counted_days.addresses, archive=counted_days.archive) as running:
        yield running.url


@pytest.fixture
def shown(base: str, page: Page) -> Page:
    """The page with its numbers."""
    page.goto(base)
    expect(page.locator("#series")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#metric .amount").first).not_to_have_text("\N{EN DASH}")
    return page


def amounts_are(page: Page, expected: list[str]) -> None:
    expect(page.locator("#metric .amount")).to_have_text(expected)


def list_of(page: Page, dimension: str) -> Locator:
    return page.locator(f"[data-dimension={dimension}] li")


def list_is(page: Page, dimension: str, expected: dict[str, str]) -> None:
    expect(list_of(page, dimension)).to_have_count(len(expected))
    for value, clicks in expected.items():
        row = list_of(page, dimension).filter(has=page.get_by_text(value, exact=True))
        expect(row.locator("b")).to_have_text(clicks)


def choose(page: Page, name: str) -> None:
    """Choose a radio button as a pointer does: its label covers it."""
    page.get_by_role("radio", name=name, exact=True).check(force=True)


def table_of(page: Page) -> list[list[str]]:
    """Open the table below the chart and return its rows."""
    if not page.locator("#table").evaluate("details => details.open"):
        page.get_by_text("Table", exact=True).click()
    expect(page.locator("#table-rows tr").first).to_be_visible()
    return [row.split("\t") for row in page.locator("#table-rows").inner_text().splitlines()]


def filter_by(page: Page, dimension: str, value: str) -> None:
    list_of(page, dimension).get_by_role("button").filter(has=page.get_by_text(value, exact=True)).click()


# Range


def test_the_last_day_by_hour(shown: Page, events: Sequence[Event]) -> None:
    day = chosen(events, LAST_DAY_MS)
    amounts_are(shown, numbers(day))
    rows = table_of(shown)
    assert len(rows) == 24
    assert sum(int(row[1]) for row in rows) == len(day)
    assert rows[-1][1] == str(len(chosen(events, HOUR_STARTS_MS)))
    list_is(shown, "os", top(day, "os"))
    list_is(shown, "page", top(day, "page"))
    peak = max(int(row[1]) for row in rows)
    label = f"Events per hour, 27 Apr 2015, 20:00 \N{EN DASH} 28 Apr 2015, 20:00: peak {peak}"
    expect(shown.locator("#chart")).to_have_attribute("aria-label", label)


def test_another_range_and_the_back_button(shown: Page, events: Sequence[Event]) -> None:
    choose(shown, "1 h")
    amounts_are(shown, numbers(chosen(events, LAST_HOUR_MS)))
    assert shown.url.endswith("/?range=1h")
    choose(shown, "7 d")
    amounts_are(shown, numbers(events))
    shown.go_back()
    expect(shown.get_by_role("radio", name="1 h", exact=True)).to_be_checked()
    amounts_are(shown, numbers(chosen(events, LAST_HOUR_MS)))
    shown.reload()
    amounts_are(shown, numbers(chosen(events, LAST_HOUR_MS)))


def test_custom_range(shown: Page, events: Sequence[Event]) -> None:
    choose(shown, "Custom")
    shown.get_by_label("From", exact=True).fill("2015-04-27T20:00")
    shown.get_by_label("to", exact=True).fill("2015-04-27T19:00")
    shown.get_by_role("button", name="Show", exact=True).click()
    expect(shown.get_by_role("alert")).to_have_text("The end must be after the start.")
    shown.get_by_label("to", exact=True).fill("2015-04-28T03:00")
    shown.get_by_role("button", name="Show", exact=True).click()
    begin_ms, end_ms = 1_430_164_800_000, 1_430_190_000_000
    amounts_are(shown, numbers(chosen(events, begin_ms, end_ms)))
    expect(shown.get_by_role("alert")).to_have_text("")


def test_days_of_a_time_zone(shown: Page, events: Sequence[Event]) -> None:
    choose(shown, "7 d")
    choose(shown, "Day")
    shown.get_by_label("Time zone").select_option("Asia/Katmandu")
    expect(shown.locator("#chart-title")).to_have_text("Events per day")
    days = [datetime.fromtimestamp(event["event_time"] / 1_000, ZoneInfo("Asia/Katmandu")).date() for event in events]
    expected = [str(days.count(day)) for day in sorted(set(days))]
    wait_until(lambda: [row[1] for row in table_of(shown) if row[1] != "0"] == expected, "days of the zone")
    assert "zone=Asia%2FKatmandu" in shown.url


def test_today_beside_yesterday(shown: Page, events: Sequence[Event]) -> None:
    midnight_ms = NEWEST_MS // DAY_MS * DAY_MS
    today = chosen(events, midnight_ms)
    before = chosen(events, midnight_ms - DAY_MS, NEWEST_MS + 1 - DAY_MS)
    expect(shown.locator("#today")).to_have_text(str(len(today)))
    expect(shown.locator("#today-note")).to_contain_text(f"on yesterday until 20:00 ({len(before)})")
    choose(shown, "Today")
    expect(shown.locator("#chart-note")).to_contain_text("dashed: yesterday")
    amounts_are(shown, numbers(today))
    assert sum(int(row[1]) for row in table_of(shown)) == len(today)


def test_line_of_users(shown: Page, events: Sequence[Event]) -> None:
    shown.get_by_role("radio", name="Users").check(force=True)
    choose(shown, "Line")
    expect(shown.locator("#chart-title")).to_have_text("Users per hour")
    last = chosen(events, HOUR_STARTS_MS)
    wait_until(lambda: table_of(shown)[-1][3] == numbers(last)[2], "the users of an hour")
    assert shown.url.endswith("?metric=users&chart=line")


def test_live_totals_of_all_time(shown: Page, events: Sequence[Event]) -> None:
    choose(shown, "Live")
    expect(shown.locator("#chart-title")).to_have_text("Events counted per second")
    list_is(shown, "country", top(events, "country"))
    list_is(shown, "os", top(events, "os"))
    assert shown.locator("#clicks").inner_text() == numbers(events)[1]


# Filters


def test_a_click_filters_everything_else(shown: Page, events: Sequence[Event]) -> None:
    filter_by(shown, "os", "iOS")
    one = chosen(events, LAST_DAY_MS, os="iOS")
    amounts_are(shown, numbers(one))
    list_is(shown, "country", top(one, "country"))
    list_is(shown, "os", top(chosen(events, LAST_DAY_MS), "os"))
    expect(shown.locator("#chart-note")).to_contain_text("from the archive")
    filter_by(shown, "country", "DE")
    both = chosen(events, LAST_DAY_MS, os="iOS", country="DE")
    amounts_are(shown, numbers(both))
    list_is(shown, "page", top(both, "page"))
    list_is(shown, "uid", top(both, "uid"))
    assert sum(int(row[1]) for row in table_of(shown)) == len(both)
    shown.reload()
    amounts_are(shown, numbers(both))
    shown.go_back()
    amounts_are(shown, numbers(one))
    expect(shown.locator("#filters li")).to_have_text(["os is iOS\N{MULTIPLICATION SIGN}"])
    shown.get_by_role("button", name="Clear all").click()
    amounts_are(shown, numbers(chosen(events, LAST_DAY_MS)))
    expect(shown.locator("#filter-bar")).to_be_hidden()


def test_filters_do_not_apply_to_sessions(shown: Page) -> None:
    expect(shown.locator("#sessions dd")).to_have_count(4)
    filter_by(shown, "os", "iOS")
    expect(shown.locator("#sessions-note")).to_contain_text("clear the filters")
    expect(shown.locator("#sessions dd")).to_have_count(0)
    shown.get_by_role("button", name="Clear all").click()
    expect(shown.locator("#sessions-note")).to_have_text("started in this range")
    expect(shown.locator("#sessions dd").first).not_to_have_text("0")


def test_two_values_are_alternatives(shown: Page, events: Sequence[Event]) -> None:
    filter_by(shown, "country", "DE")
    filter_by(shown, "country", "FR")
    amounts_are(shown, numbers(chosen(events, LAST_DAY_MS)))
    expect(shown.locator("#filters li")).to_have_count(2)
    shown.get_by_role("button", name="Remove filter country DE").click()
    amounts_are(shown, numbers(chosen(events, LAST_DAY_MS, country="FR")))
    filter_by(shown, "country", "FR")
    amounts_are(shown, numbers(chosen(events, LAST_DAY_MS)))


def test_hostile_value_filters_and_stays_text(shown: Page, events: Sequence[Event]) -> None:
    filter_by(shown, "page", HOSTILE)
    amounts_are(shown, numbers(chosen(events, LAST_DAY_MS, page=HOSTILE)))
    shown.reload()
    expect(shown.locator("#filters .name")).to_have_text(HOSTILE)
    amounts_are(shown, numbers(chosen(events, LAST_DAY_MS, page=HOSTILE)))
    assert shown.locator("main img, main script").count() == 0
    assert shown.evaluate("window.hacked") is None


def test_late_response_to_an_old_choice(shown: Page, events: Sequence[Event]) -> None:
    """The response to the first choice arrives after that to the second."""
    held: list[Route] = []
    shown.route("**/api/v1/totals*os%3DiOS*", lambda route: held.append(route))
    filter_by(shown, "os", "iOS")
    wait_until(lambda: bool(shown.evaluate("true")) and bool(held), "the request")
    shown.get_by_role("button", name="Clear all").click()
    amounts_are(shown, numbers(chosen(events, LAST_DAY_MS)))
    with contextlib.suppress(Error):  # The browser has cancelled the request.
        held[0].fulfill(json={"start_ms": 0, "end_ms": 1, "events": 999, "clicks": 999, "users": 999})
    shown.evaluate("fetch('/health').then((response) => response.text())")
    amounts_are(shown, numbers(chosen(events, LAST_DAY_MS)))


def test_page_without_an_archive(
    counted_days: Counted, events: Sequence[Event], page: Page, serve_page: Callable[..., RunningPage]
) -> None:
    running = serve_page(counted_days.addresses)
    page.goto(running.url)
    amounts_are(page, numbers(chosen(events, LAST_DAY_MS)))
    expect(page.locator("#limits")).to_contain_text("Filters are not available.")
    expect(page.locator("#limits")).to_contain_text("--archive")
    expect(list_of(page, "os").first).to_be_visible()
    assert list_of(page, "os").get_by_role("button").count() == 0
    page.goto(f"{running.url}/?filter=os:iOS")
    expect(page.locator("#chart-none")).to_contain_text("--archive")
    page.goto(f"{running.url}/?view=users&user=user-1")
    expect(page.locator("#timeline-none")).to_contain_text("--archive")
    expect(page.locator("#user-sessions-rows tr").first).to_be_visible()


def test_redis_away_and_back_in_a_range(
    bootstrap: str, new_redis: Callable[..., RedisProcess], topic: str, tmp_path: Path, page: Page
) -> None:
    """The archive has the numbers of the range; each panel says or shows by its colour where they come from."""
    server = new_redis()
    days = count_and_archive(bootstrap, server.url, topic, tmp_path, events=60, counted=60)
    with running_page(days.addresses, archive=days.archive) as running:
        page.goto(f"{running.url}/?range=7d")
        amounts_are(page, numbers(days.events))
        expect(page.locator("#chart-note")).to_contain_text("as of the last micro-batch")
        server.kill()
        expect(page.locator("#chart-note")).to_contain_text("from the archive")
        amounts_are(page, numbers(days.events))
        list_is(page, "country", top(days.events, "country"))
        list_is(page, "os", top(days.events, "os"))
        server.start()
        expect(page.locator("#chart-note")).to_contain_text("as of the last micro-batch")
        expect(page.locator("#banners .bad")).to_have_count(0)


# Export


@pytest.mark.parametrize("layout", ["CSV", "JSON"])
def test_export_of_the_chart_and_a_list(shown: Page, events: Sequence[Event], layout: str) -> None:
    filter_by(shown, "os", "iOS")
    filtered = chosen(events, LAST_DAY_MS, os="iOS")
    amounts_are(shown, numbers(filtered))
    expect(shown.locator("#series")).to_have_attribute("aria-busy", "false")
    rows = exported(shown, shown.locator("#series-exports"), layout)
    assert sum(int(row["events"]) for row in rows) == len(filtered)
    rows = exported(shown, shown.locator("[data-dimension=country]"), layout)
    assert {row["value"]: f"{int(row['clicks']):,}" for row in rows} == top(filtered, "country")


def exported(page: Page, place: Locator, layout: str) -> list[dict[str, Any]]:
    with page.expect_download() as download:
        place.get_by_role("link", name=layout).click()
    text = Path(download.value.path()).read_text()
    assert download.value.suggested_filename.endswith(f".{layout.lower()}")
    rows: list[dict[str, Any]] = json.loads(text) if layout == "JSON" else list(csv.DictReader(io.StringIO(text)))
    return rows


# Users


def test_longer_list_of_users(shown: Page, events: Sequence[Event]) -> None:
    users = top(chosen(events, LAST_DAY_MS), "uid")
    expect(list_of(shown, "uid")).to_have_count(10)
    more = shown.locator("[data-dimension=uid]").get_by_role("button")
    more.click()
    expect(list_of(shown, "uid")).to_have_count(len(users))
    expect(more).to_have_text("Show fewer")
    more.click()
    expect(list_of(shown, "uid")).to_have_count(10)


def test_users_are_found_by_a_part(shown: Page, events: Sequence[Event]) -> None:
    shown.get_by_role("link", name="Users", exact=True).click()
    clicks = top(events, "uid")
    expect(shown.locator("#found li").first).to_contain_text("user-1")
    expect(shown.locator("#found li").first).to_contain_text(clicks["user-1"])
    shown.get_by_label("Find a user").press_sequentially("er-2")
    expected = {uid for uid in clicks if "er-2" in uid}
    expect(shown.locator("#found li")).to_have_count(len(expected))
    assert set(shown.locator("#found .name").all_text_contents()) == expected
    assert {row["uid"] for row in exported(shown, shown.locator("#found-exports"), "CSV")} == expected
    shown.get_by_label("Find a user").fill("zoe")
    expect(shown.locator("#found-none")).to_have_text("No user's uid contains zoe.")


def test_sessions_and_timeline_of_a_user(shown: Page, events: Sequence[Event]) -> None:
    shown.locator("[data-dimension=uid]").get_by_text("user-1", exact=True).click()
    mine = sorted((event for event in events if event["uid"] == "user-1"), key=lambda event: -event["event_time"])
    expect(shown.locator("#user-title")).to_have_text("user-1")
    times = [event["event_time"] for event in mine]
    starts = [at for at, before in pairwise([*times, 0]) if at - before > HOUR_MS // 2]
    expect(shown.locator("#user-sessions-rows th")).to_have_text([moment(at) for at in starts[:20]])
    lines = shown.locator("#timeline li")
    expect(lines).to_have_count(50)
    shown.get_by_role("button", name="Older events").click()
    expect(lines).to_have_count(100)
    expect(lines.locator(".when")).to_have_text([moment(at) for at in times[:100]])
    expect(lines.first.locator(".values")).to_contain_text(f"geo {mine[0]['geo']}")
    expect(lines.first.locator(".values")).to_contain_text(f"url {mine[0]['url']}")
    rows = exported(shown, shown.locator("#timeline-exports"), "JSON")
    assert [row["time_ms"] for row in rows] == times
    shown.go_back()
    expect(shown.locator("#overview")).to_be_visible()


def moment(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return f"{at.day} {at:%b %Y, %H:%M:%S}"


# Events


def test_stream_of_events_pauses(counted_days: Counted, base: str, page: Page) -> None:
    page.goto(f"{base}/?view=events")
    rows = page.locator("#stream-rows tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("bad: uid-empty")
    page.get_by_role("button", name="Pause").click()
    with EventWriter(counted_days.addresses.bootstrap, counted_days.addresses.topic) as writer:
        writer.write(None, b"[]", partition=0)
    expect(page.locator("#stream-note")).to_contain_text("paused, 1 new event")
    expect(rows.first).to_contain_text("bad: uid-empty")
    page.get_by_role("button", name="Continue").click()
    expect(rows.first).to_contain_text("bad: not-object")
    expect(rows).to_have_count(50)


def test_bad_events_with_their_reason(base: str, page: Page) -> None:
    page.goto(f"{base}/?view=events")
    rows = page.locator("#dead-rows tr")
    expect(rows).to_have_count(len(BAD))
    expect(rows.last).to_contain_text("not-json")
    expect(rows.last).to_contain_text(BAD[0].decode())
    expect(page.locator("#late-pairs")).to_contain_text("Without a time")


# Health, keyboard, assistive technology, sizes


def test_health_drawer_by_keyboard(shown: Page) -> None:
    button = shown.get_by_role("button", name="show health")
    button.focus()
    shown.keyboard.press("Enter")
    drawer = shown.get_by_role("dialog", name="Health")
    expect(drawer).to_be_visible()
    expect(drawer.locator("#places")).to_contain_text("Archive 300 events")
    expect(drawer.locator("#batch-number")).not_to_have_text("\N{EN DASH}")
    expect(drawer.locator("#lag-trend-note")).to_contain_text("at most")
    shown.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(button).to_be_focused()


def test_filter_by_keyboard_alone(shown: Page, events: Sequence[Event]) -> None:
    shown.get_by_role("radio", name="24 h", exact=True).focus()
    shown.keyboard.press("ArrowRight")
    expect(shown.get_by_role("radio", name="7 d", exact=True)).to_be_focused()
    amounts_are(shown, numbers(events))
    country = max(top(events, "country").items(), key=lambda entry: int(entry[1]))[0]
    first = list_of(shown, "country").get_by_role("button").first
    expect(first).to_contain_text(country)  # The list arrives apart from the totals; it may still be the last range's.
    expect(first).to_contain_text(top(events, "country")[country])
    first.focus()
    shown.keyboard.press("Space")
    amounts_are(shown, numbers([event for event in events if event["geo"] == country]))
    expect(list_of(shown, "country").get_by_role("button").first).to_have_attribute("aria-pressed", "true")


VIEWS = {
    "overview": "/",
    "today": "/?range=today",
    "filtered": "/?filter=os:iOS&filter=country:DE",
    "custom": "/?range=custom&from=1430164800000&to=1430190000000",
    "user": "/?view=users&user=user-1",
    "events": "/?view=events",
}


def settled(page: Page) -> None:
    """Wait until the view shows its numbers."""
    expect(page.locator("#series")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#metric .amount:visible, #timeline li:visible, #dead-rows tr:visible").first).not_to_have_text(
        "\N{EN DASH}"
    )


@pytest.mark.parametrize("view", VIEWS)
def test_views_suit_everybody(base: str, page: Page, view: str) -> None:
    """A phone's width, the rules of axe-core, and the contrast of dark colours."""
    wide = page.viewport_size
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(reduced_motion="reduce")
    page.goto(base + VIEWS[view])
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert wide is not None
    page.set_viewport_size(wide)
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, "color-contrast") == []


def violations(page: Page, *rules: str) -> list[tuple[str, list[str]]]:
    """Return what axe-core finds, by default by all of its rules."""
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    response = Axe().run(page, options=options).response
    return [(one["id"], [node["target"] for node in one["nodes"]]) for one in response["violations"]]
