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
    ("dashboard", "clicks", "spark", "redis"),
    ("services", "broker", "log", "wire"),
    ("testing", "broker", "log", "wire"),
)
"""A package may import the packages to its right in its chain; docs/architecture.md draws the same."""

INSIDE = {
    "broker": (
        {"server"},
        {"handlers"},
        {"node"},
        {"groups", "transactions"},
        {"topics"},
        {"storage"},
        {"network"},
        {"loop"},
        {"settings"},
        {"config"},
    ),
    "spark": (
        {"testing"},
        {"dead_letters", "read_again", "redis_tags"},
        {"kafka_sink", "redis_sink", "lag_listener", "source"},
        {"kafka", "redis"},
        {"sink"},
        {"reader"},
        {"connections", "exactly_once", "pushdown"},
        {"offsets", "session", "wrong_option"},
    ),
    "cli": ({"clicks", "demo", "kafka", "log", "sinks"},),
}
"""The layers of a package, highest first: a part imports those below it, and not another one of its own layer.

What is beside the layers of `cli` is shared by all of them.
"""

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


def part_of(name: str) -> tuple[str, str] | None:
    """`onceflow.broker.storage.partitions` → (`broker`, `storage`); None for what has no layers."""
    parts = name.split(".")
    if len(parts) < 3 or parts[0] != "onceflow" or parts[1] not in INSIDE:
        return None
    return parts[1], parts[2]


def layer_of(package: str, part: str) -> int | None:
    return next((depth for depth, parts in enumerate(INSIDE[package]) if part in parts), None)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_inside_packages_go_down(path: Path) -> None:
    own = part_of(name_of(path))
    if own is None:
        return
    package, part = own
    depth = layer_of(package, part)
    assert depth is not None or package == "cli", f"{part} has no layer"
    wrong = []
    for line, name in imported(ast.parse(path.read_text())):
        other = part_of(name)
        if depth is None or other is None or other[0] != package or other[1] == part:
            continue
        below = layer_of(*other)
        if below is not None and below <= depth:
            wrong.append(f"line {line}: {part} → {name}")
    assert not wrong


def test_no_modules_import_each_other() -> None:
    """TYPE_CHECKING included; what a package exports by its __init__ is not followed."""
    names = {name_of(path): path for path in modules() if path.name != "__init__.py"}
    graph = {
        name: {other for _, other in imported(ast.parse(path.read_text())) if other in names and other != name}
        for name, path in names.items()
    }
    cycles: list[str] = []
    finished: set[str] = set()

    def visit(name: str, way: list[str]) -> None:
        if name in way:
            cycles.append(" → ".join([*way[way.index(name) :], name]))
        elif name not in finished:
            for other in sorted(graph[name]):
                visit(other, [*way, name])
            finished.add(name)

    for name in sorted(graph):
        visit(name, [])
    assert not cycles


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
