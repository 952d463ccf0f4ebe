"""`/metrics` of the page: the counts, their lag, and what is down."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.metrics_core import Metric
from starlette.requests import Request

from onceflow.dashboard.metrics import WAITING_MAX, PageMetrics
from onceflow.dashboard.sources import Addresses
from tests.conftest import WITHIN_S, RedisProcess
from tests.dashboard.conftest import UNREACHABLE, Counted, RunningPage
from tests.scrapes import Scraped, scrape

ServePage = Callable[..., RunningPage]
PREFIX = "onceflow_dashboard_"


def scraped(page: RunningPage) -> Scraped:
    return scrape(f"{page.url}/metrics")


def test_counts_and_lag(serve_page: ServePage, counted: Counted, filled: Callable[..., str], bootstrap: str) -> None:
    filled([json.dumps({"uid": "ann"}).encode()] * 10)
    finished_ms = int(time.time() * 1_000) - 60_000
    counted.micro_batch(
        {("ann", "iOS"): 6}, bad={"not-json": 2}, offsets={0: 3}, finished_ms=finished_ms, duration_ms=1500
    )
    page = serve_page(counted.addresses(bootstrap))
    now = scraped(page)
    values = {name.removeprefix(PREFIX): value for (name, labels), value in now.values.items() if not labels}
    assert (values["events_total"], values["clicks_total"], values["users"]) == (3, 6, 1)
    assert now.value(f"{PREFIX}bad_events_total", reason="not-json") == 2
    assert (values["batch"], values["batch_seconds"]) == (0, 1.5)
    assert values["marker_age_seconds"] >= 60
    assert values["lag_messages"] == 7
    # The records of `filled` are of 1970.
    assert values["lag_seconds"] > 1_000_000
    assert (values["redis_up"], values["broker_up"], values["open_pages"]) == (1, 1, 0)
    assert not page.feed.polling, "a scrape opens no page"


def test_broker_that_is_down(serve_page: ServePage, counted: Counted) -> None:
    counted.micro_batch({("ann", "iOS"): 6})
    now = scraped(serve_page(counted.addresses(UNREACHABLE)))
    assert (now.value(f"{PREFIX}redis_up"), now.value(f"{PREFIX}broker_up")) == (1, 0)
    assert now.value(f"{PREFIX}clicks_total") == 6
    assert f"{PREFIX}lag_messages" not in now.names


def test_redis_that_is_down(serve_page: ServePage, bootstrap: str, new_redis: Callable[..., RedisProcess]) -> None:
    server = new_redis()
    page = serve_page(Addresses(server.url, "clicks", bootstrap, "user_events"))
    assert scraped(page).value(f"{PREFIX}redis_up") == 1
    server.stop()
    now = scraped(page)
    assert (now.value(f"{PREFIX}redis_up"), now.value(f"{PREFIX}broker_up")) == (0, 1)
    assert not {f"{PREFIX}events_total", f"{PREFIX}lag_messages"} & now.names


def test_waiting_scrapes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()

    def collect(_: PageMetrics) -> Iterator[Metric]:
        may_end.wait(WITHIN_S)
        return iter(())

    async def statuses() -> list[int]:
        request = Request({"type": "http", "headers": []})
        scrapes = [asyncio.ensure_future(metrics.respond(request)) for _ in range(WAITING_MAX + 5)]
        await asyncio.wait(scrapes, return_when=asyncio.FIRST_COMPLETED)
        may_end.set()
        return [response.status_code for response in await asyncio.gather(*scrapes)]

    monkeypatch.setattr(PageMetrics, "_collect", collect)
    metrics = PageMetrics(Addresses(f"redis://{UNREACHABLE}", "clicks", UNREACHABLE, "user_events"), lambda: 0)
    assert asyncio.run(statuses()) == [200] * (WAITING_MAX + 1) + [503] * 4
    metrics.close()
