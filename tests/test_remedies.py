"""Each remedy of the table is in a message, and a test does what it says."""

import ast
from pathlib import Path

import pytest

from onceflow.remedies import Remedy
from tests import remedies

SOURCE = Path(__file__).parents[1] / "src" / "onceflow"


@pytest.fixture(scope="module")
def executed() -> dict[Remedy, list[str]]:
    tests: dict[Remedy, list[str]] = {}
    for remedy, test in remedies.marks():
        tests.setdefault(remedy, []).append(test)
    return tests


@pytest.mark.parametrize("remedy", Remedy, ids=lambda remedy: remedy.name)
def test_a_test_executes_it(remedy: Remedy, executed: dict[Remedy, list[str]]) -> None:
    assert executed.get(remedy), f"mark the test that does it with @pytest.mark.remedy(Remedy.{remedy.name})"


def uses() -> list[str]:
    """Return the name of the remedy for each place that uses one."""
    trees = (ast.parse(path.read_text()) for path in SOURCE.rglob("*.py"))
    return [
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Remedy"
    ]


def test_a_message_has_it() -> None:
    assert {remedy.name for remedy in Remedy} == set(uses())


def test_find_returns_the_fields() -> None:
    message = "x is 'no'; set it with 'CONFIG SET appendfsync always', then start the query again"
    assert remedies.find(Remedy.CONFIG_SET, message) == {"name": "appendfsync", "value": "always"}
    assert remedies.find(Remedy.RESTORE_TARGET, "a; restore Redis, or b") == {"target": "Redis"}
    assert remedies.find(Remedy.HASH_KEY_IN_BRACES, Remedy.HASH_KEY_IN_BRACES.format()) == {}
    with pytest.raises(AssertionError, match="not in the message"):
        remedies.find(Remedy.START_AGAIN, message.partition(",")[0])


def test_marks_of_campaigns_do_not_count() -> None:
    text = "@pytest.mark.remedy(Remedy.START_REDIS)\ndef test_a(): ...\n"
    path = remedies.TESTS / "test_a.py"
    assert list(remedies._marks_of(path, ast.parse(text))) == [(Remedy.START_REDIS, "test_a.py::test_a")]
    assert not list(remedies._marks_of(path, ast.parse(f"@pytest.mark.campaign\n{text}")))
