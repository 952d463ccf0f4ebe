"""Remedies in messages, and the tests that are marked with them."""

import ast
import re
import shlex
import string
from collections.abc import Iterator
from pathlib import Path

from onceflow.remedies import Remedy

TESTS = Path(__file__).parent
NOT_IN_MAKE_TEST = ("mark.campaign", "mark.compat", "mark.conformance")

found_remedies: set[Remedy] = set()
"""Remedies that the running test has found."""


def find(remedy: Remedy, message: object) -> dict[str, str]:
    """Return the values of the remedy's fields in the message; fail if the remedy is not in it."""
    match = re.search(_pattern(remedy), str(message))
    assert match is not None, f"not in the message: {remedy}\n{message}"
    found_remedies.add(remedy)
    return match.groupdict()


def command(remedy: Remedy, message: object, field: str) -> list[str]:
    """Return the words of the command that stands in a field of the remedy."""
    return shlex.split(find(remedy, message)[field])


def _pattern(remedy: Remedy) -> str:
    """Return the remedy as a regular expression; each field is a group that ends before the text after it."""
    parts = list(string.Formatter().parse(remedy.value))
    texts = [re.escape(text) for text, *_ in parts] + [""]
    groups = [f"(?P<{name}>.+?)" if name else "" for _, name, *_ in parts] + [""]
    if groups[-2]:
        texts[-1] = "(?=[,:;](?: |$)| or |$)"
    return "".join(text + group for text, group in zip(texts, groups, strict=True))


def marks() -> Iterator[tuple[Remedy, str]]:
    """Yield each remedy that a test of `make test` is marked with, and the test."""
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text()
        if "mark.remedy" in text:
            yield from _marks_of(path, ast.parse(text))


def _marks_of(path: Path, tree: ast.Module) -> Iterator[tuple[Remedy, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        if any(word in decorator for decorator in decorators for word in NOT_IN_MAKE_TEST):
            continue
        for call in (part for decorator in node.decorator_list for part in ast.walk(decorator)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.remedy":
                for argument in call.args:
                    assert isinstance(argument, ast.Attribute), f"{path}:{call.lineno}: write Remedy.NAME"
                    yield Remedy[argument.attr], f"{path.relative_to(TESTS)}::{node.name}"
