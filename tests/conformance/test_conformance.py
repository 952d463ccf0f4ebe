"""Each case runs on Apache Kafka and on Onceflow's broker, and every field of every response is compared."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from onceflow.wire.apis import API_VERSIONS, APIS
from tests.broker.raw_client import connected
from tests.conformance.cases import CASES
from tests.conformance.comparison import Figures, differences, unlisted, unneeded
from tests.conformance.expected_differences import patterns
from tests.conformance.side import Side
from tests.conformance.valid_requests import VALID_REQUESTS

Scenario = Callable[[Side], None]


class Compared:
    """Run a case on both brokers and compare the differences with the expected ones."""

    def __init__(self, theirs: str, ours: str, figures: Figures) -> None:
        self._bootstraps = theirs, ours
        self._figures = figures

    def __call__(self, case: str, scenario: Scenario) -> None:
        theirs, ours = (_played(bootstrap, case, scenario) for bootstrap in self._bootstraps)
        differing = differences(theirs.steps, ours.steps)
        self._figures.count(ours.steps, differing)
        allowed = patterns(case)
        new, obsolete = unlisted(differing, allowed), unneeded(differing, allowed)
        lines = [f"unexpected: {line}" for line in new] + [f"obsolete, remove it: {line}" for line in obsolete]
        if lines:
            pytest.fail("\n".join(lines), pytrace=False)


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
def test_valid_requests_in_every_version(compared: Compared, api_key: int, version: int) -> None:
    compared(f"{APIS[api_key].name} {version}", lambda side: VALID_REQUESTS[api_key](side, version))


@pytest.mark.parametrize("case", CASES)
def test_invalid_requests_and_edge_cases(compared: Compared, case: str) -> None:
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
