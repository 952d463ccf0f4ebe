"""Every remedy is in a message, and a test follows it."""

import ast
import re
from collections.abc import Collection, Iterator
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
    """Return the name of the remedy at every place that uses one."""
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
    message = "x is 'no'; set it with 'CONFIG SET appendfsync always', then restart the query"
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


USAGE = [
    "broker/security/principal_rules",
    "broker/settings/addresses",
    "broker/settings/connections",
    "broker/settings/kinds",
    "broker/settings/table",
    "broker/transactions/page",
    "client/classic/encoders",
    "client/classic/partitioners",
    "client/classic/producer",
    "client/settings",
    "client/classic/zookeeper_group",
    "redis/address",
    "spark/avro",
    "spark/dead_letters",
    "spark/kafka/encode",
    "spark/kafka/rows",
    "spark/kafka_sink",
    "spark/offsets",
    "spark/pushdown/aggregate_plan",
    "spark/pushdown/custom",
    "spark/pushdown/decode_schema",
    "spark/pushdown/options",
    "spark/reader/accepted_losses",
    "spark/reader/options",
    "spark/reader/position_options",
    "spark/reader/positions",
    "spark/reader/subscription",
    "spark/redis_sink",
    "spark/redis_tags",
    "spark/serialization",
    "spark/source",
]
"""Modules whose messages say how options, settings and columns are written."""
USAGE_ERRORS = {
    "BadParameter",
    "CorruptBatch",
    "EarlierBatchesAwaited",
    "InvalidAddress",
    "InvalidSecurity",
    "InvalidTransaction",
    "KitMisused",
    "NotOneBatch",
    "OutOfOrderSequence",
    "Refused",
    "RetentionPolicyUnusable",
    "UsageError",
    "WrongMapping",
    "option",
}
"""Errors, and click's help, whose text says how options and requests are written."""
NO_REMEDY = (
    "What happens to old records: ",
    "%s: restart %d of",
    "%s:%d is open to other machines",
    ": set ",
    "; give text, ",
    "; give Broker its path",
    "start, end, 47, ",
)
"""Beginnings of texts that only look like remedies, or are usage."""
ASKS = re.compile(
    r"(?:[;:,] |\bor |\bthen )(?:allow|begin|call|close|correct|delete|end|fix|forget|free|give|grant|let|look|lower"
    r"|mend|move|name|put|raise|rename|restart|restore|resume|send|set|specify|start|stop|take|try|use"
    r"|wait|write)\b(?! as )"
)


def messages(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the texts of a module that may belong to messages: neither docstrings nor usage."""
    left_out: list[ast.AST] = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and not _is_call(node.value)
    ]
    left_out += [node for node in ast.walk(tree) if _is_call(node, USAGE_ERRORS)]
    inside = {id(node) for part in left_out for node in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node


def _is_call(node: ast.AST, names: Collection[str] | None = None) -> bool:
    return isinstance(node, ast.Call) and (names is None or ast.unparse(node.func).rpartition(".")[2] in names)


def test_no_message_has_its_own() -> None:
    own = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name == "remedies.py":
            continue
        name = path.relative_to(SOURCE).with_suffix("").as_posix()
        texts = [node for node in messages(ast.parse(path.read_text())) if not str(node.value).startswith(NO_REMEDY)]
        remedies_inline = [node for node in texts if ASKS.search(str(node.value))]
        own += [f"{name}:{node.lineno}: {node.value!s}" for node in remedies_inline if name not in USAGE]
    assert not own, "put it into onceflow.remedies"
