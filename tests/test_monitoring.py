"""The documented metrics are those that the programs export, and the examples use only these."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from onceflow.clicks.ingest.traffic import collector
from onceflow.clicks.run_metrics import RunMetrics
from onceflow.client.cluster import Cluster
from onceflow.metrics_server import registry_of
from onceflow.mirror.metrics import collector as mirror_collector
from onceflow.mirror.progress import Progress
from tests.broker.groups.raw_group import RawGroup
from tests.broker.metrics.metered_broker import MeteredBroker
from tests.broker.raw_client import batch_of, connected
from tests.clicks.ingest.conftest import running_ingestion
from tests.clicks.test_run_metrics import progress
from tests.conftest import RedisProcess
from tests.dashboard.conftest import Counted, running_page
from tests.scrapes import Scraped, scrape

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "monitoring.md"
EXAMPLES = ROOT / "examples" / "monitoring"
NAME = re.compile(r"\bonceflow_\w+")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
MATCHER = re.compile(r"[{,](\w+)(?:=~|!~|!=|=)")


def of_broker(data: Path) -> Scraped:
    with (
        MeteredBroker(data) as broker,
        connected(broker.bootstrap) as client,
        RawGroup(broker.bootstrap, "readers") as group,
    ):
        client.create_topic("visits")
        group.commit("visits")
        client.produce("visits", 0, batch_of(b"x"))
        client.produce("unknown", 0, batch_of(b"x"))
        return broker.scrape()


def of_run(bootstrap: str, topic: str) -> Scraped:
    metrics = RunMetrics(bootstrap)
    metrics.progressed(progress(topic, 0, None, 0))
    return Scraped(generate_latest(registry_of(metrics.collect)).decode())


def of_serve(bootstrap: str, topic: str) -> Scraped:
    with running_ingestion(bootstrap, topic) as server:
        server.post({"uid": "ann", "click_count": 1})
        return Scraped(generate_latest(registry_of(collector(server.endpoint))).decode())


def of_mirror(topic: str) -> Scraped:
    progress = Progress(lag={(topic, 0): 1})
    return Scraped(generate_latest(registry_of(mirror_collector(progress))).decode())


def of_dashboard(bootstrap: str, topic: str, redis_url: str) -> Scraped:
    counted = Counted(redis_url, f"clicks::{topic}", topic)
    counted.micro_batch({("ann", "iOS"): 1}, bad={"no-uid": 1})
    with running_page(counted.addresses(bootstrap)) as page:
        return scrape(f"{page.url}/metrics")


Exported = dict[str, set[str]]
"""Name of a metric as in a query → names of its labels."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, bootstrap: str, redis_server: RedisProcess) -> Exported:
    """Metrics of all programs, apart from those of the process."""
    topic = "monitored"
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 1)
    scrapes = (
        of_broker(tmp_path_factory.mktemp("data") / "broker"),
        of_run(bootstrap, topic),
        of_serve(bootstrap, topic),
        of_mirror(topic),
        of_dashboard(bootstrap, topic, redis_server.url),
    )
    metrics: Exported = {name: set() for one in scrapes for name in one.names if name.startswith("onceflow_")}
    for one in scrapes:
        for name, labels in one.values:
            if name in metrics:
                metrics[name] |= {label for label, _value in labels}
    return metrics


def test_the_page_lists_all_metrics(exported: Exported) -> None:
    assert set(NAME.findall(PAGE.read_text())) == set(exported)


def panels() -> list[dict[str, Any]]:
    document = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    """Return the expressions of the dashboard and of the alert rules."""
    rules = (EXAMPLES / "alerts.yml").read_text().split("- alert: ")[1:]
    of_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    return of_panels + [rule.partition("expr:")[2].partition("labels:")[0] for rule in rules]


@pytest.mark.parametrize("query", queries())
def test_queries_use_exported_metrics(query: str, exported: Exported) -> None:
    names = set(NAME.findall(query))
    assert names <= exported.keys()
    used = {label.strip() for group in GROUPING.findall(query) for label in group.split(",")}
    used |= set(MATCHER.findall(query))
    assert used <= {"job", "instance"}.union(*(exported[name] for name in names))


def test_panels_do_not_overlap() -> None:
    places: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & places and all(x < 24 for x, _y in cells), panel["title"]
        places |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_the_scraped_ports_are_the_documented() -> None:
    configured = re.findall(r'"(127\.0\.0\.1:\d+)"', (EXAMPLES / "prometheus.yml").read_text())
    assert len(configured) == 4
    assert all(f"http://{address}/metrics" in PAGE.read_text() for address in configured)
