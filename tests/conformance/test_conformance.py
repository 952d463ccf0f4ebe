"""Each case runs on Apache Kafka and on ours, and every field of every answer is compared."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from onceflow.wire.apis import API_VERSIONS, APIS
from tests.broker.raw_client import connected
from tests.conformance.cases import CASES
from tests.conformance.comparison import Figures, differences, idle, unlisted
from tests.conformance.right import RIGHT
from tests.conformance.side import Side
from tests.conformance.wanted import patterns

Scenario = Callable[[Side], None]


class Compared:
    """Runs a case on both brokers and holds what differs against the wanted differences."""

    def __init__(self, theirs: str, ours: str, figures: Figures) -> None:
        self._bootstraps = theirs, ours
        self._figures = figures

    def __call__(self, case: str, scenario: Scenario) -> None:
        theirs, ours = (_played(bootstrap, case, scenario) for bootstrap in self._bootstraps)
        differing = differences(theirs.steps, ours.steps)
        self._figures.count(ours.steps, differing)
        allowed = patterns(case)
        new, gone = unlisted(differing, allowed), idle(differing, allowed)
        told = [f"not wanted: {line}" for line in new] + [f"gone, take it from the list: {line}" for line in gone]
        if told:
            pytest.fail("\n".join(told), pytrace=False)


def _played(bootstrap: str, case: str, scenario: Scenario) -> Side:
    side = Side(bootstrap, case)
    try:
        scenario(side)
    finally:
        side.close()
    return side


@pytest.fixture
def compared(theirs: str, ours: str, figures: Figures) -> Compared:
    return Compared(theirs, ours, figures)


VERSIONS = [(api.key, version) for api in APIS.values() for version in range(api.version_min, api.version_max + 1)]


@pytest.mark.parametrize(("api_key", "version"), VERSIONS, ids=[f"{APIS[key].name} {at}" for key, at in VERSIONS])
def test_right_requests_in_every_version(compared: Compared, api_key: int, version: int) -> None:
    compared(f"{APIS[api_key].name} {version}", lambda side: RIGHT[api_key](side, version))


@pytest.mark.parametrize("case", CASES)
def test_wrong_requests_and_edges(compared: Compared, case: str) -> None:
    compared(case, CASES[case])


def test_no_version_is_above_kafkas(ours: str, theirs: str) -> None:
    """Clients infer the broker's release from the highest versions that it offers."""
    offered = [{api.api_key: api.max_version for api in _offered(where)} for where in (ours, theirs)]
    above = {APIS[key].name: version for key, version in offered[0].items() if version > offered[1].get(key, -1)}
    assert not above


def _offered(bootstrap: str) -> Sequence[Any]:
    with connected(bootstrap) as client:
        apis: Sequence[Any] = client.ask(API_VERSIONS, 0).api_keys
        return apis
