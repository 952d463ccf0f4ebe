"""The list of known differences: the page that shows it, and its conformance cases."""

from fnmatch import fnmatchcase
from pathlib import Path

from onceflow.wire.apis import APIS
from tests.compat.known_differences import KNOWN_DIFFERENCES, table
from tests.conformance.cases import CASES
from tests.conformance.right import RIGHT
from tests.conformance.wanted import WANTED

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"


def test_the_page_shows_the_list() -> None:
    assert table() in PAGE.read_text(), "run: .venv/bin/python -m tests.compat.known_differences, and paste it there"


def test_each_wanted_difference_has_a_case() -> None:
    right = [f"{api.name} {at}" for api in APIS.values() for at in range(api.version_min, api.version_max + 1)]
    assert {difference.why for difference in WANTED} <= KNOWN_DIFFERENCES.keys()
    assert [
        difference for difference in WANTED if not any(fnmatchcase(case, difference.cases) for case in (*CASES, *right))
    ] == []


def test_each_api_has_its_right_request() -> None:
    assert APIS.keys() == RIGHT.keys()
