"""The list of known differences: the page that shows it, and its conformance cases."""

from fnmatch import fnmatchcase
from pathlib import Path

from onceflow.wire.apis import APIS
from tests.compat.known_differences import KNOWN_DIFFERENCES, table
from tests.conformance.cases import CASES
from tests.conformance.expected_differences import EXPECTED, GUARDED
from tests.conformance.valid_requests import VALID_REQUESTS

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"


def test_the_page_shows_the_list() -> None:
    assert table() in PAGE.read_text(), "run: .venv/bin/python -m tests.compat.known_differences, and paste it there"


def test_each_expected_difference_has_a_case() -> None:
    valid = [f"{api.name} {at}" for api in APIS.values() for at in range(api.version_min, api.version_max + 1)]
    assert {difference.why for difference in (*EXPECTED, *GUARDED)} <= KNOWN_DIFFERENCES.keys()
    assert [
        difference
        for difference in EXPECTED
        if not any(fnmatchcase(case, difference.cases) for case in (*CASES, *valid))
    ] == []


def test_each_api_has_a_valid_request() -> None:
    assert APIS.keys() == VALID_REQUESTS.keys()
