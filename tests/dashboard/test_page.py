"""The page in a real chromium, with a real Redis and broker."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from playwright.sync_api import Page, expect

from onceflow.clicks.last_verify import LastVerify
from onceflow.clicks.measures import MeasureSettings
from onceflow.clicks.plan import Plan
from onceflow.client.cluster import Cluster
from onceflow.client.producer import EventWriter
from onceflow.dashboard import feed
from onceflow.dashboard.sources import Addresses
from onceflow.testing import BrokerProcess
from tests.conftest import RedisProcess
from tests.dashboard.conftest import Counted, RunningPage, running_page, wait_until

ServePage = Callable[[Addresses], RunningPage]
HOUR_MS = 3_600_000
"""Ages in whole hours do not change during a test."""


def now_ms() -> int:
    return int(time.time() * 1_000)


def text_of(page: Page, selector: str) -> str:
    return page.locator(selector).inner_text()


TOP = "[data-dimension=uid]"


def shown_list(page: Page, dimension: str) -> list[tuple[str, str]]:
    """Return the values of a top list with their clicks."""
    panel = page.locator(f"[data-dimension={dimension}]")
    names = panel.locator(".name").all_text_contents()
    return list(zip(names, panel.locator(".amount b").all_text_contents(), strict=True))


def body_is(page: Page, name: str, value: str) -> None:
    expect(page.locator("body")).to_have_attribute(f"data-{name}", value)


def test_the_numbers_are_those_of_redis(serve_page: ServePage, counted: Counted, page: Page) -> None:
    users = {(f"user{number:04}", ("iOS", "Android", "Linux")[number % 3]): number * 1_111 for number in range(1, 41)}
    newest_ms = now_ms()
    for batch in range(12):
        finished_ms = newest_ms - (11 - batch) * 60_000
        counted.micro_batch(users, bad={"not JSON": 2, "uid is empty": 1}, events=516, finished_ms=finished_ms)
    page.goto(serve_page(counted.addresses()).url)
    body_is(page, "view", "numbers")
    with redis.Redis.from_url(counted.redis_url, decode_responses=True) as client:
        totals = {name: int(value) for name, value in client.hgetall(counted.keys.totals).items()}
        ranking = [(uid, int(score)) for uid, score in client.zrevrange(counted.keys.top, 0, 9, withscores=True)]
        by_os = sorted(((int(value), name) for name, value in client.hgetall(counted.keys.os).items()), reverse=True)
        user_count = client.hlen(counted.keys.count)
    assert text_of(page, "#clicks") == f"{totals['clicks']:,}"
    assert text_of(page, "#events") == f"{totals['events']:,}"
    assert text_of(page, "#users") == f"{user_count}"
    assert page.title() == f"{totals['clicks']:,} clicks · Onceflow"
    expect(page.locator(f"{TOP} li")).to_have_count(10)
    assert shown_list(page, "uid") == [(uid, f"{clicks:,}") for uid, clicks in ranking]
    assert shown_list(page, "os") == [(name, f"{clicks:,}") for clicks, name in by_os]
    assert page.locator("#bad .amount b").all_inner_texts() == ["24", "12"]
    # 516 events every minute: the next batch is not overdue before two have passed.
    assert text_of(page, "#rate") == "8.6"
    assert "peak 51.6" in (page.locator("#chart").get_attribute("aria-label") or "")
    assert page.locator("#chart canvas").count() == 1
    page.locator("#pulse").click()
    expect(page.locator("#batch-number")).to_have_text("11")
    assert text_of(page, "#batch-duration") == "840 ms"
    expect(page.locator("#verify")).to_contain_text("No result is recorded")
    with redis.Redis.from_url(counted.redis_url) as client:
        query = client.hget(counted.keys.marker, "query")
    assert isinstance(query, bytes)
    LastVerify(query.decode(), 10, 0, 516, 2).record(counted.redis_url, counted.keys)
    expect(page.locator("#verify")).to_contain_text("Not equal in 2 fields, up to micro-batch 10, ")


def test_an_update_arrives_without_a_reload(serve_page: ServePage, counted: Counted, page: Page) -> None:
    counted.micro_batch({("ann", "iOS"): 1})
    page.goto(serve_page(counted.addresses()).url)
    expect(page.locator("#clicks")).to_have_text("1")
    expect(page.locator(f"{TOP} li")).to_have_count(1)
    page.evaluate(f"window.sameDocument = document.querySelector('{TOP} li')")
    counted.micro_batch({("bob", "iOS"): 1_233})
    expect(page.locator("#clicks")).to_have_text("1,234")
    expect(page).to_have_title("1,234 clicks · Onceflow")
    expect(page.locator(f"{TOP} li").first).to_contain_text("bob")
    assert page.evaluate(f"window.sameDocument === document.querySelector('{TOP} li')")


def test_live_numbers_and_their_age(serve_page: ServePage, counted: Counted, page: Page, tmp_path: Path) -> None:
    """Events are shown without a micro-batch; while the broker is away, the numbers stay and become older."""
    with BrokerProcess(tmp_path / "broker") as broker:
        with Cluster(broker.bootstrap) as cluster:
            cluster.create_topic(counted.topic, 1)
        counted.micro_batch({("ann", "iOS"): 1}, offsets={0: 0})
        page.goto(serve_page(counted.addresses(broker.bootstrap)).url)
        moment = page.locator("#moment")
        expect(moment).to_have_attribute("data-state", "now")
        expect(moment).to_contain_text("all are in a micro-batch")
        with EventWriter(broker.bootstrap, counted.topic) as writer:
            for _ in range(2):
                writer.write(None, b'{"uid":"ann","click_count":20}')
        expect(page.locator("#clicks")).to_have_text("41")
        expect(moment).to_contain_text("2 are not in a micro-batch yet")
        expect(page.locator("#moment-title")).to_contain_text("Now, ")
        broker.kill()
        expect(moment).to_have_attribute("data-state", "old")
        expect(page.locator("#moment-title")).to_contain_text("As of ")
        assert text_of(page, "#clicks") == "41"
        broker.start()
        expect(moment).to_have_attribute("data-state", "now")


def test_counted_numbers_are_labelled(serve_page: ServePage, counted: Counted, page: Page) -> None:
    counted.micro_batch({("ann", "iOS"): 1})
    page.goto(serve_page(counted.addresses()).url)
    expect(page.locator("#moment")).to_have_attribute("data-state", "counted")
    # The reason follows as soon as it is known.
    assert text_of(page, "#moment").startswith("Counted up to micro-batch 0. Later events are not included.")


def test_page_before_the_first_count(serve_page: ServePage, counted: Counted, page: Page, bootstrap: str) -> None:
    page.goto(serve_page(counted.addresses(bootstrap)).url)
    body_is(page, "view", "start")
    expect(page.locator("h1:visible")).to_have_text("No counts yet")
    assert text_of(page, "#command-events") == f"onceflow generate --bootstrap {bootstrap} --topic {counted.topic}"
    assert text_of(page, "#command-count") == (
        f"onceflow run --bootstrap {bootstrap} --topic {counted.topic} --redis {counted.redis_url} "
        f"--hash-key {counted.hash_key}"
    )
    expect(page.locator("#step-events-note")).to_contain_text("does not exist yet")
    counted.micro_batch({("ann", "iOS"): 7})
    expect(page.locator("#clicks")).to_have_text("7")
    expect(page.locator("h1:visible")).to_have_count(1)


def test_page_of_sessions_before_the_first_event(serve_page: ServePage, counted: Counted, page: Page) -> None:
    measures = MeasureSettings(over_time=True, sessions=True)
    counted.plan = Plan(counted.hash_key, "uid", "click_count", measures=measures).text
    counted.micro_batch({}, bad={"not-json": 1})
    page.goto(serve_page(counted.addresses()).url)
    expect(page.locator("#active-note")).to_have_text("no event is counted yet")


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "\"'><svg/onload=window.hacked=3>",
    "javascript:window.hacked=4//",
    "{{constructor.constructor('window.hacked=5')()}}",
    "\N{RIGHT-TO-LEFT OVERRIDE}abc\n\x00",
    "é" * 500,
]


def test_hostile_names_stay_text(serve_page: ServePage, counted: Counted, page: Page) -> None:
    clicks = {(uid, uid): 100 - number for number, uid in enumerate(HOSTILE)}
    counted.micro_batch(clicks, bad={uid: 100 - number for number, uid in enumerate(HOSTILE)})
    page.goto(serve_page(counted.addresses()).url)
    expect(page.locator(f"{TOP} li")).to_have_count(len(HOSTILE))
    shown = [uid.replace("\N{RIGHT-TO-LEFT OVERRIDE}", "\\u202e").replace("\n", "\\u000a") for uid in HOSTILE]
    shown = [uid.replace("\x00", "\\u0000") for uid in shown]
    assert [name for name, _ in shown_list(page, "uid")] == shown
    assert [name for name, _ in shown_list(page, "os")] == shown
    assert page.locator("#bad .name").all_text_contents() == shown
    page.get_by_role("link", name="Users").click()
    page.get_by_label("Find a user").fill(HOSTILE[0])
    page.get_by_label("Find a user").press("Enter")
    expect(page.locator("#user-title")).to_have_text(HOSTILE[0])
    expect(page.locator("#user-pairs")).to_contain_text("100")
    assert page.locator("main img, main script, main svg").count() == 0
    assert page.evaluate("window.hacked") is None


def test_user_search_is_kept_current(serve_page: ServePage, counted: Counted, page: Page) -> None:
    counted.micro_batch({(f"user{number}", "iOS"): number for number in range(30)})
    page.goto(f"{serve_page(counted.addresses()).url}/?view=users")
    search = page.get_by_label("Find a user")
    search.fill("user3")
    search.press("Enter")
    clicks = page.locator("#user-pairs dd").first
    expect(clicks).to_have_text("3")
    counted.micro_batch({("user3", "iOS"): 2**53})
    expect(clicks).to_have_text("9,007,199,254,740,995")
    search.fill("zoe")
    search.press("Enter")
    expect(page.locator("#found-none")).to_have_text("No user's uid contains zoe.")


def test_no_request_leaves_this_server(serve_page: ServePage, counted: Counted, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    counted.micro_batch({("ann", "iOS"): 1})
    base = serve_page(counted.addresses()).url
    page.goto(base)
    expect(page.locator("#clicks")).to_have_text("1")
    assert any(address.endswith("/events") for address in asked)
    assert [address for address in asked if not address.startswith(base + "/")] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_needs_no_sideways_scrolling(serve_page: ServePage, counted: Counted, page: Page, scheme: str) -> None:
    counted.micro_batch({("x" * 1_024, "o" * 300): 2**53, ("ann", "iOS"): 5}, bad={"r" * 300: 2**31})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(serve_page(counted.addresses()).url)
    body_is(page, "view", "numbers")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate(CONTRAST) == []


CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = (element) => {
    const [r, g, b, a = 1] = parse(getComputedStyle(element).backgroundColor);
    return a > 0.9 ? [r, g, b] : paper(element.parentElement);
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility()) continue;
    const [ink, back] = [light(parse(getComputedStyle(element).color)), light(paper(element))];
    const ratio = (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName}#${element.id}.${element.className}: ${ratio}`);
  }
  return poor;
}"""
"""Contrast of every visible text with its background: at least 4.5 to 1 (WCAG)."""


def test_redis_killed_and_back(
    serve_page: ServePage, new_redis: Callable[..., RedisProcess], page: Page, topic: str
) -> None:
    server = new_redis()
    counted = Counted(server.url, "clicks", topic)
    counted.micro_batch({("ann", "iOS"): 41})
    page.goto(serve_page(counted.addresses()).url)
    expect(page.locator("#clicks")).to_have_text("41")
    server.kill()
    expect(page.locator(".banner.bad strong")).to_contain_text("Redis has been down since")
    expect(page.locator("#clicks")).to_have_text("41")
    body_is(page, "stale", "counts lag")
    # Without pages the server does not poll, and keeps the last numbers.
    page.reload()
    expect(page.locator("#clicks")).to_have_text("41")
    server.start()
    expect(page.locator(".banner.bad")).to_have_count(0)
    counted.micro_batch({("ann", "iOS"): 1})
    expect(page.locator("#clicks")).to_have_text("42")


def test_redis_down_from_the_start(serve_page: ServePage, page: Page) -> None:
    page.goto(serve_page(Addresses("redis://127.0.0.1:1/1", bootstrap="127.0.0.1:1")).url)
    expect(page.locator("h1:visible")).to_have_text("Waiting for Redis")
    expect(page.locator(".banner")).to_have_count(2)
    expect(page.locator("#steps")).to_be_hidden()


def test_lag_stopped_stream_and_broker_restart(
    serve_page: ServePage, counted: Counted, page: Page, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Cluster(broker.bootstrap) as cluster:
            cluster.create_topic(counted.topic, 1)
        with EventWriter(broker.bootstrap, counted.topic) as writer:
            writer.write(None, b"{}", now_ms() - 36 * HOUR_MS)
        counted.micro_batch({("ann", "iOS"): 1}, offsets={0: 1}, finished_ms=now_ms() - HOUR_MS)
        page.goto(serve_page(counted.addresses(broker.bootstrap)).url)
        expect(page.locator("#lag-note")).to_have_text("all messages counted")
        expect(page.locator(".banner")).to_have_count(0)
        with EventWriter(broker.bootstrap, counted.topic) as writer:
            writer.write(None, b"{}", now_ms() - 36 * HOUR_MS)
        expect(page.locator("#lag-note")).to_have_text("1 message not counted yet")
        assert text_of(page, "#lag") == "1 d 12 h"
        expect(page.locator(".banner strong")).to_have_text("No micro-batch for 1 h.")
        expect(page.locator(".banner")).to_contain_text("has stopped or is restarting")
        broker.kill()
        expect(page.locator(".banner strong")).to_contain_text("The broker has been down since")
        expect(page.locator("#lag")).to_have_text("\N{EN DASH}")
        counted.micro_batch({("ann", "iOS"): 1}, offsets={0: 2})
        expect(page.locator("#clicks")).to_have_text("2")
        broker.start()
        expect(page.locator("#lag-note")).to_have_text("all messages counted")
        expect(page.locator(".banner")).to_have_count(0)


def test_the_page_finds_its_server_again(counted: Counted, page: Page) -> None:
    counted.micro_batch({("ann", "iOS"): 1})
    with running_page(counted.addresses()) as first:
        page.goto(first.url)
        expect(page.locator("#clicks")).to_have_text("1")
    expect(page.locator(".banner strong")).to_have_text("Connection to the server lost.")
    body_is(page, "stale", "counts lag")
    counted.micro_batch({("ann", "iOS"): 1})
    with running_page(counted.addresses(), port=int(first.url.rsplit(":", 1)[1])) as second:
        expect(page.locator("#clicks")).to_have_text("2")
        expect(page.locator(".banner.bad")).to_have_count(0)
        page.close()
        wait_until(lambda: not second.feed.polling, "the closed page to be noticed")


def test_a_page_that_is_refused_tries_again(
    serve_page: ServePage, counted: Counted, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.micro_batch({("ann", "iOS"): 1})
    monkeypatch.setattr(feed, "PAGES_MAX", 0)
    page.goto(serve_page(counted.addresses()).url)
    # A browser does not reconnect by itself after a response that is not a stream.
    expect(page.locator("#pulse-text")).to_contain_text("Connecting to the server")
    monkeypatch.setattr(feed, "PAGES_MAX", 1)
    expect(page.locator("#clicks")).to_have_text("1")
