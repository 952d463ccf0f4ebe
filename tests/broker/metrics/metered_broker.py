"""A broker in this process with metrics."""

from pathlib import Path
from typing import Any

from onceflow import services
from onceflow.log.disk import RealDisk
from tests.broker.driven_broker import InnerBroker
from tests.scrapes import Scraped, scrape


class MeteredBroker(InnerBroker):
    """A broker with metrics."""

    def __init__(self, data: Path, **settings: Any) -> None:
        port = services.free_port()
        self.url = f"http://127.0.0.1:{port}/metrics"
        super().__init__(data, disk=RealDisk(), metrics_port=port, **settings)

    def scrape(self) -> Scraped:
        return scrape(self.url)
