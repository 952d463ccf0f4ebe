"""The script for web pages, in a real chromium, on pages of another origin."""

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from onceflow.clicks.ingest import endpoint
from onceflow.clicks.ingest.access import Access, ApiKey
from onceflow.clicks.ingest.appender import Appender, Unwritten
from tests.clicks.ingest.conftest import Ingestion, request
from tests.dashboard.conftest import wait_until

AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36"
"""Chromium's own says HeadlessChrome, which is a bot."""
PAGE = """<!doctype html><title>shop</title>
<button id="buy" data-onceflow="buy">Buy <b>now</b></button> <button id="other">Other</button>
<script src="{url}/onceflow.js" data-key="pub"></script>
"""

Ingest = Callable[..., Ingestion]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a web server for the test's pages, in tmp_path."""
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A tab of a browser that does not call itself a bot; the test fails if a script fails."""
    context = browser.new_context(user_agent=AGENT)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


def access(site: str) -> Access:
    return Access({"pub": ApiKey("shop", (site,))})


def write_page(directory: Path, server: Ingestion) -> None:
    (directory / "index.html").write_text(PAGE.format(url=server.url))


def names(server: Ingestion) -> list[str]:
    return sorted(event["event"] for event in server.events())


def queue(page: Page) -> list[Any]:
    """Return the events that the page has not got rid of."""
    events = page.evaluate("JSON.parse(localStorage.onceflow || '[]')")
    assert isinstance(events, list)
    return events


def test_script_is_small_and_may_be_loaded(ingest: Ingest) -> None:
    response = request(ingest().url, path="/onceflow.js", method="GET")
    assert (response.status, response.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert 0 < len(response.body) <= endpoint.SCRIPT_BYTES_MAX
    assert response.headers["cross-origin-resource-policy"] == "cross-origin"


def test_view_click_and_custom_event(ingest: Ingest, site: str, tmp_path: Path, tab: Page) -> None:
    server = ingest(access=access(site))
    write_page(tmp_path, server)
    tab.goto(f"{site}/?token=secret#part")
    wait_until(lambda: names(server) == ["view"], "the page view")
    tab.locator("#other").click()
    tab.locator("#buy b").click()
    tab.evaluate("onceflow('signup', {plan: 'free', uid: 'forged'})")
    wait_until(lambda: len(names(server)) == 3, "three events")
    wait_until(lambda: queue(tab) == [], "acknowledgements")
    view, click, signup = sorted(server.events(), key=lambda event: ["view", "click", "signup"].index(event["event"]))
    assert (click["name"], click["click_count"], view["click_count"]) == ("buy", 1, 0)
    assert signup["plan"] == "free"
    assert {event["url"] for event in (view, click, signup)} == {f"{site}/"}, "no query, which may hold secrets"
    assert {event["os_type"] for event in (view, click, signup)} == {"Linux"}
    assert len({event["uid"] for event in (view, click, signup)}) == 1
    assert len({event["event_id"] for event in (view, click, signup)}) == 3
    tab.reload()
    wait_until(lambda: len(names(server)) == 4, "the second view")
    assert {event["uid"] for event in server.events()} == {view["uid"]} != {"forged"}


@pytest.mark.parametrize("setting", ["doNotTrack", "globalPrivacyControl"])
def test_do_not_track(ingest: Ingest, site: str, tmp_path: Path, tab: Page, setting: str) -> None:
    server = ingest(access=access(site))
    write_page(tmp_path, server)
    sent: list[str] = []
    tab.on("request", lambda request: sent.append(request.url) if "/events" in request.url else None)
    tab.add_init_script(f"Object.defineProperty(navigator, '{setting}', {{value: '1'}})")
    tab.goto(site)
    tab.evaluate("onceflow('signup')")
    tab.locator("#buy").click()
    assert tab.evaluate("localStorage.length") == 0
    tab.wait_for_load_state("networkidle")
    assert (sent, server.values()) == ([], [])


def test_retries_have_the_same_ids(
    ingest: Ingest, site: str, tmp_path: Path, tab: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server writes the first events, but responds that it does not know."""
    server = ingest(access=access(site))
    write_page(tmp_path, server)
    append = Appender.append

    async def unsure(*arguments: Any) -> Any:
        return [Unwritten.NOT_ACKNOWLEDGED for _ in await append(*arguments)]

    monkeypatch.setattr(Appender, "append", unsure)
    tab.goto(site)
    wait_until(lambda: len(server.events()) >= 2, "a retry")
    kept = queue(tab)
    assert [event["event"] for event in kept] == ["view"]
    monkeypatch.undo()
    wait_until(lambda: queue(tab) == [], "the acknowledgement")
    assert {event["event_id"] for event in server.events()} == {kept[0]["event_id"]}


def test_events_wait_for_the_next_page(ingest: Ingest, site: str, tmp_path: Path, tab: Page) -> None:
    server = ingest(access=access(site))
    write_page(tmp_path, server)
    tab.goto(site)
    wait_until(lambda: queue(tab) == [] and names(server) == ["view"], "the page view")
    tab.context.set_offline(True)
    tab.evaluate("onceflow('signup'); onceflow('bought')")
    waiting = {event["event_id"] for event in queue(tab)}
    assert len(waiting) == 2
    tab.context.set_offline(False)
    tab.goto(site)
    wait_until(lambda: queue(tab) == [], "acknowledgements")
    assert {"signup", "bought"} <= set(names(server))
    assert {event["event_id"] for event in server.events() if event["event"] in ("signup", "bought")} == waiting


def test_beacon_when_the_page_is_left(ingest: Ingest, site: str, tmp_path: Path, tab: Page) -> None:
    """One request hangs, so that the second event is still waiting when the page closes.

    A beacon of a closed page has chromium's own user agent, a bot's.
    """
    server = ingest(access=access(site), keep_bots=True)
    write_page(tmp_path, server)
    (tmp_path / "other.html").write_text("<!doctype html><title>other</title>")
    tab.goto(site)
    wait_until(lambda: queue(tab) == [] and names(server) == ["view"], "the page view")
    tab.evaluate("window.fetch = () => new Promise(() => {}); onceflow('hangs'); onceflow('left')")
    tab.goto(f"{site}/other.html")
    wait_until(lambda: names(server) == ["left", "view"], "the beacon")


def test_page_without_storage(ingest: Ingest, site: str, tmp_path: Path, tab: Page) -> None:
    server = ingest(access=access(site))
    write_page(tmp_path, server)
    tab.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }})"
    )
    tab.goto(site)
    wait_until(lambda: names(server) == ["view"], "the page view")
    expect(tab).to_have_title("shop")
