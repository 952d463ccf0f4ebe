"""The shape of the code, held by a test: arrows between rooms, and the length of functions and modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 600

CHAINS = (
    ("dashboard", "clicks", "spark", "client", "wire"),
    ("services", "broker", "log", "wire"),
    ("testing", "broker", "log", "wire"),
)
"""A room may import the rooms to its right in its chain; docs/architecture.md draws the same."""

EVERYWHERE = {"errors", "remedies"}
COLUMNS = (["wire", "columns"], ["wire", "column_batches"])
NOT_IN_A_PROGRAM_THAT_LOADS_US = {"numpy", "kio", "redis", "pyarrow"}
"""What other people's processes import (the testing module, pyspark_onceflow) loads none of these by itself."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    """`onceflow/log/index.py` → `log`; `onceflow/services.py` → `services`, and `pyspark_onceflow/…` → itself."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[1] if parts[0] == "onceflow" else parts[0]


def may_import(room: str) -> set[str]:
    if room == "cli":
        return {name for chain in CHAINS for name in chain} | EVERYWHERE | {"cli"}
    allowed = {room} | EVERYWHERE
    for chain in CHAINS:
        if room in chain:
            allowed |= set(chain[chain.index(room) + 1 :])
    if room == "pyspark_onceflow":
        allowed |= {"spark"}
    return allowed


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    room = room_of(path)
    wrong = []
    for line, name in imported(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] != "onceflow" or len(parts) < 2 or not is_room(parts[1]):
            continue
        if room not in {"__init__", "__main__"} and parts[1] not in may_import(room):
            wrong.append(f"line {line}: {room} → {name}")
        if room in {"log", "broker"} and parts[1:3] in COLUMNS:
            wrong.append(f"line {line}: {room} → {name}, which loads numpy and pyarrow")
    assert not wrong


def is_room(name: str) -> bool:
    return (SOURCE / "onceflow" / name).is_dir() or (SOURCE / "onceflow" / f"{name}.py").is_file()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_is_too_long(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES_MAX, "split it by a word of the domain"
    long = [
        f"{node.name}: {length} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module begins with a sentence"


@pytest.mark.parametrize(
    "path",
    [*sorted(SOURCE.glob("onceflow/testing/*.py")), SOURCE / "pyspark_onceflow" / "__init__.py"],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_what_strangers_import_is_light(path: Path) -> None:
    tree = ast.parse(path.read_text())
    at_module_level = {
        module.split(".")[0]
        for node in tree.body
        for _, module in imported(node)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert not at_module_level & NOT_IN_A_PROGRAM_THAT_LOADS_US


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}
    assert not [path for path in modules() if path.stem in empty]
