"""The shape of the code: import rules, and the length of functions and modules."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 600

CHAINS = (
    ("dashboard", "clicks", "spark", "client", "wire"),
    ("dashboard", "clicks", "spark", "redis"),
    ("dashboard", "clicks", "http_server"),
    ("dashboard", "clicks", "listening"),
    ("dashboard", "clicks", "metrics_server", "listening"),
    ("mirror", "client", "wire"),
    ("services", "broker", "log", "wire"),
    ("testing", "broker", "log", "wire"),
    ("broker", "metrics_server", "listening"),
    ("dashboard", "clicks", "spark", "client", "zookeeper"),
    ("services", "broker", "zookeeper"),
    ("testing", "broker", "zookeeper"),
)
"""A package may import the packages to its right in its chain, as in docs/architecture.md."""

INSIDE = {
    "broker": (
        {"offline", "server"},
        {"handlers", "metrics"},
        {"node"},
        {"coordinators"},
        {"cluster", "groups", "transactions"},
        {"topics"},
        {"storage"},
        {"network"},
        {"loop"},
        {"settings"},
        {"security"},
        {"config"},
    ),
    "spark": (
        {"testing"},
        {"avro", "dead_letters", "load", "read_again", "redis_tags", "serialization", "windows"},
        {"kafka_sink", "redis_sink", "lag_listener", "source", "two_phase_sink"},
        {"kafka", "redis"},
        {"sink"},
        {"reader"},
        {"connections", "exactly_once", "pushdown"},
        {"errors", "failure", "offsets", "session"},
    ),
    "cli": ({"clicks", "demo", "kafka", "log", "sinks"},),
}
"""The layers of a package, highest first: a part imports only lower layers.

Modules of `cli` without a layer are shared.
"""

EVERYWHERE = {"errors", "private_files", "properties", "remedies"}
COLUMNS = (["wire", "columns"], ["wire", "column_batches"])
HEAVY = {"numpy", "kio", "redis", "pyarrow"}
"""Libraries that modules for other people's programs (testing, pyspark_onceflow) do not load by themselves."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def package_of(path: Path) -> str:
    """Return `log` for `onceflow/log/index.py`, `services` for `onceflow/services.py`, else the top-level package."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[1] if parts[0] == "onceflow" else parts[0]


def may_import(package: str) -> set[str]:
    if package == "cli":
        return {name for chain in CHAINS for name in chain} | EVERYWHERE | {"cli"}
    allowed = {package} | EVERYWHERE
    for chain in CHAINS:
        if package in chain:
            allowed |= set(chain[chain.index(package) + 1 :])
    if package == "pyspark_onceflow":
        allowed |= {"spark"}
    return allowed


@cache
def imports_of(path: Path) -> list[tuple[int, str]]:
    """Return line and name of all imports of a module."""
    return list(imported(parsed(path)))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)


def test_imports_follow_the_chains() -> None:
    wrong = [text for path in modules() for text in wrong_imports(path)]
    assert not wrong, "\n".join(wrong)


def wrong_imports(path: Path) -> Iterator[str]:
    package = package_of(path)
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] != "onceflow" or len(parts) < 2 or not is_package(parts[1]):
            continue
        if package not in {"__init__", "__main__"} and parts[1] not in may_import(package):
            yield f"{named(path)}:{line}: {package} → {name}"
        if package in {"log", "broker"} and parts[1:3] in COLUMNS:
            yield f"{named(path)}:{line}: {package} → {name}, which loads numpy and pyarrow"


def part_of(name: str) -> tuple[str, str] | None:
    """Return (`broker`, `storage`) for `onceflow.broker.storage.partitions`; None for packages without layers."""
    parts = name.split(".")
    if len(parts) < 3 or parts[0] != "onceflow" or parts[1] not in INSIDE:
        return None
    return parts[1], parts[2]


def layer_of(package: str, part: str) -> int | None:
    return next((depth for depth, parts in enumerate(INSIDE[package]) if part in parts), None)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def test_imports_inside_packages_go_down() -> None:
    wrong = [text for path in modules() for text in imports_that_go_up(path)]
    assert not wrong, "\n".join(wrong)


def imports_that_go_up(path: Path) -> Iterator[str]:
    own = part_of(name_of(path))
    if own is None:
        return
    package, part = own
    depth = layer_of(package, part)
    assert depth is not None or package == "cli", f"{part} has no layer"
    for line, name in imports_of(path):
        other = part_of(name)
        if depth is None or other is None or other[0] != package or other[1] == part:
            continue
        below = layer_of(*other)
        if below is not None and below <= depth:
            yield f"{named(path)}:{line}: {part} → {name}"


def test_no_modules_import_each_other() -> None:
    """Includes TYPE_CHECKING; imports through a package's __init__ are not followed."""
    names = {name_of(path): path for path in modules() if path.name != "__init__.py"}
    graph = {
        name: {other for _, other in imports_of(path) if other in names and other != name}
        for name, path in names.items()
    }
    cycles: list[str] = []
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            cycles.append(" → ".join([*path[path.index(name) :], name]))
        elif name not in finished:
            for other in sorted(graph[name]):
                visit(other, [*path, name])
            finished.add(name)

    for name in sorted(graph):
        visit(name, [])
    assert not cycles


def test_every_module_is_used() -> None:
    """A use is an import, a command, pyproject.toml, the command line, or a program in docs and examples."""
    root = SOURCE.parent
    pages = (root / "pyproject.toml", *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.py"))
    texts = [path.read_text() for path in pages]
    used = {name for path in modules() for name in used_names(path)}
    unused = [
        name
        for path in modules()
        if not path.stem.startswith("__") and (name := name_of(path)) not in used and "__main__" not in path.read_text()
        if not any(shown in text for text in texts for shown in (f'"{name}"', f"from {name} import", f"`{name}`"))
    ]
    assert not unused, "delete them, or show in docs how to import them"


def used_names(path: Path) -> Iterator[str]:
    """Yield the modules that a module imports, or names in a table as `module:attribute`."""
    yield from (name for _, name in imports_of(path) if name != name_of(path))
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]


def is_package(name: str) -> bool:
    return (SOURCE / "onceflow" / name).is_dir() or (SOURCE / "onceflow" / f"{name}.py").is_file()


def test_nothing_is_too_long() -> None:
    long = [text for path in modules() for text in lengths_over_the_limit(path)]
    assert not long, "\n".join(long)


def lengths_over_the_limit(path: Path) -> Iterator[str]:
    lines = len(path.read_text().splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{named(path)}: {lines} lines; split it by a word of the domain"
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{named(path)}: {node.name}: {length} lines"


def test_every_module_has_a_docstring() -> None:
    missing = [named(path) for path in modules() if not ast.get_docstring(parsed(path))]
    assert not missing, "a module starts with a docstring"


@pytest.mark.parametrize(
    "path",
    [*sorted(SOURCE.glob("onceflow/testing/*.py")), SOURCE / "pyspark_onceflow" / "__init__.py"],
    ids=named,
)
def test_modules_for_other_programs_are_light(path: Path) -> None:
    tree = parsed(path)
    at_module_level = {
        module.split(".")[0]
        for node in tree.body
        for _, module in imported(node)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert not at_module_level & HEAVY


def test_module_names_are_specific() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}
    assert not [path for path in modules() if path.stem in vague]


@pytest.mark.parametrize("package", INSIDE)
def test_the_architecture_page_lists_the_layers(package: str) -> None:
    layers = " · ".join(", ".join(f"`{part}`" for part in sorted(layer)) for layer in INSIDE[package])
    assert f"| `{package}` | {layers}" in (SOURCE.parent / "docs" / "architecture.md").read_text()
