"""Each remedy of the table is in a message, and a test does what it says."""

import ast
import re
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


COVERED = "spark"
"""The package whose remedies are all in the table."""
USAGE = [
    "accepted_losses",
    "aggregate_plan",
    "dead_letters",
    "decode_schema",
    "kafka_encode",
    "kafka_rows",
    "kafka_sink",
    "offsets",
    "options",
    "position_options",
    "positions",
    "pushdown_options",
    "redis_address",
    "redis_sink",
    "redis_tags",
    "source",
    "subscription",
]
"""Modules that say how options and columns are written."""
TELLS = re.compile(
    r"(?:[;:,] |\bor |\bthen )(?:allow|begin|call|close|correct|delete|end|forget|give|grant|let|look|lower|mend|name"
    r"|put|raise|rename|restart|restore|set|start|stop|take|try|use|wait|write)\b(?! as )"
)


def test_no_message_has_its_own() -> None:
    own = []
    for path in sorted((SOURCE / COVERED).glob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
        found = [node for node in texts if isinstance(node.value, str) and TELLS.search(node.value)]
        own += [f"{path.name}:{node.lineno}: {node.value}" for node in found if path.stem not in USAGE]
    assert not own, "put it into onceflow.remedies"
