"""The documented metrics are those that the programs export."""

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from onceflow.clicks.ingest.traffic import collector
from onceflow.clicks.run_metrics import RunMetrics
from onceflow.client.cluster import Cluster
from onceflow.metrics_server import registry_of
from tests.broker.metrics.metered_broker import MeteredBroker
from tests.broker.raw_client import batch_of, connected
from tests.clicks.ingest.conftest import running_ingestion
from tests.clicks.test_run_metrics import progress
from tests.conftest import RedisProcess
from tests.dashboard.conftest import Counted, running_page
from tests.scrapes import Scraped, scrape

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "monitoring.md"


def of_broker(data: Path) -> Scraped:
    with MeteredBroker(data) as broker, connected(broker.bootstrap) as client:
        client.create_topic("visits")
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


def of_dashboard(bootstrap: str, topic: str, redis_url: str) -> Scraped:
    counted = Counted(redis_url, f"clicks::{topic}", topic)
    counted.micro_batch({("ann", "iOS"): 1}, bad={"no-uid": 1})
    with running_page(counted.addresses(bootstrap)) as page:
        return scrape(f"{page.url}/metrics")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, bootstrap: str, redis_server: RedisProcess) -> set[str]:
    """The names that the programs export, apart from those of the process."""
    topic = "monitored"
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 1)
    scrapes = (
        of_broker(tmp_path_factory.mktemp("data") / "broker"),
        of_run(bootstrap, topic),
        of_serve(bootstrap, topic),
        of_dashboard(bootstrap, topic, redis_server.url),
    )
    return {name for one in scrapes for name in one.names if name.startswith("onceflow_")}


def test_the_page_lists_all_metrics(exported: set[str]) -> None:
    assert set(re.findall(r"`(onceflow_\w+)", PAGE.read_text())) == exported
