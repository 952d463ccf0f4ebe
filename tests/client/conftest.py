"""A faulty network in front of the broker that the whole suite uses."""

from collections.abc import Iterator

import pytest

from onceflow.client.addresses import parse_address
from tests.client.proxy import FaultyProxy


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(parse_address(bootstrap)) as running:
        yield running
