"""The documented metrics are those that the programs export."""

import re
from pathlib import Path

import pytest

from tests.broker.metrics.metered_broker import MeteredBroker
from tests.broker.raw_client import batch_of, connected
from tests.scrapes import Scraped

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "monitoring.md"


@pytest.fixture(scope="module")
def of_broker(tmp_path_factory: pytest.TempPathFactory) -> Scraped:
    with MeteredBroker(tmp_path_factory.mktemp("data")) as broker, connected(broker.bootstrap) as client:
        client.create_topic("visits")
        client.produce("visits", 0, batch_of(b"x"))
        client.produce("unknown", 0, batch_of(b"x"))
        return broker.scrape()


def documented(prefix: str) -> set[str]:
    return set(re.findall(rf"`({prefix}\w+)", PAGE.read_text()))


def test_the_page_lists_the_broker(of_broker: Scraped) -> None:
    exported = {name for name in of_broker.names if name.startswith("onceflow_")}
    assert documented("onceflow_broker_") == exported
