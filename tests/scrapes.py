"""Scrapes of `/metrics`, parsed as Prometheus does."""

import urllib.request
from urllib.error import HTTPError

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


class Scraped:
    """Samples of one scrape."""

    def __init__(self, text: str) -> None:
        self._families = list(text_string_to_metric_families(text))
        samples = [sample for family in self._families for sample in family.samples]
        self.values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(self.values) == len(samples), "a sample is there twice"

    @property
    def names(self) -> set[str]:
        """Names of the families as in a query; a counter's ends with _total, a histogram's has three suffixes."""
        names = set()
        for family in self._families:
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
            names |= {family.name + suffix for suffix in suffixes}
        return names

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one sample."""
        return self.values[name, frozenset(labels.items())]

    def labels(self, name: str, label: str) -> list[str]:
        """Return the values of one label of a metric."""
        return [dict(labels)[label] for sample, labels in self.values if sample == name]


def scrape(url: str) -> Scraped:
    """Read and parse the metrics."""
    status, text = get(url)
    assert status == 200, text
    return Scraped(text)


def get(url: str) -> tuple[int, str]:
    """Return status and text of a page, errors included."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
