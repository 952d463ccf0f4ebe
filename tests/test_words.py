"""The words of code, messages and documents: the field's, one for each thing."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("src", "tests", "benchmarks", "examples")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")

INSTEAD = {
    r"(un)?answer(s|ed|ing|able)?": "response, respond; result, reply of Redis",
    r"told|tells": "reported, logged, printed, shown",
    r"gone": "deleted, removed, closed, lost",
    r"(take|takes|taken|took) (away|back)": "remove, delete, roll back",
    r"(go|goes|going|went) on": "continue, resume",
    r"anew": "again, recreated",
    r"for ever": "indefinitely, no limit",
    r"(?<!there )(?<!there, )(is|are|was|were) (no(?! longer\b| more\b)|none of)": "is not a valid",
    r"whoever|nobody|somebody|anybody|who waits?": "the client, the caller, no client",
    r"mend(s|ed|ing)?": "fix, repair",
    r"made(?! (durable|visible)\b)": "created, built, written, done",
    r"rooms?": "package, space",
    r"(?<!`)sentences?": "message",
    r"in all(?! (the|of|its|their|three|four|cases|modes|versions|partitions|topics|places)\b)": "total",
    r"so (many|much)": "N, that number of",
    r"look(s|ed|ing)? (after|for)": "check, search, find",
}
"""Pattern of words, and what to write in their place."""
PATTERN = re.compile("|".join(rf"(\b(?:{words})\b)" for words in INSTEAD), re.IGNORECASE)

NAMES = re.compile(r"(^|_)(answer|told|sentence|anew|nobody|somebody|whoever|mended|gone)s?(_|$)|answer", re.IGNORECASE)
LOCALS = {"each", "found"}
OPENINGS = {"What", "Of", "As", "Who", "Whose", "In", "For", "After", "Before", "At", "By", "With", "From", "To", "On"}
"""How a docstring does not begin: it names the thing, or says in the imperative what the function does."""
TEST_NAME_WORDS_MAX = 7
THIS = Path(__file__)

GENERATED = {"docs/campaigns.md"}
"""Pages whose words come from elsewhere: this one from docstrings and figures at the time of the last campaigns."""


def files(folder: str, *endings: str) -> list[Path]:
    """Return the files of a folder that people read; those of the root for "."."""
    paths = (ROOT / name for name in PAGES) if folder == "." else (ROOT / folder).rglob("*")
    chosen = sorted(
        path
        for path in paths
        if path.suffix in endings
        and path.is_file()
        and path != THIS
        and "__pycache__" not in path.parts
        and named(path) not in GENERATED
    )
    assert chosen, f"no file in {folder}"
    return chosen


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a module; lines that follow each other are one."""
    lines: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            first = line - 1 if line - 1 in lines else line
            while first - 1 in lines:
                first -= 1
            lines[line] = token.string.lstrip("# ")
    for line, comment in lines.items():
        if line - 1 not in lines:
            end = line
            while end + 1 in lines:
                end += 1
            yield line, " ".join(lines[number] for number in range(line, end + 1)) if end > line else comment


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield docstrings: of modules, classes and functions, and the strings below constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of what people read in a file: all of it, or the docstrings, comments and strings of code.

    The strings of tests are left out: they hold data.
    """
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1) if path.suffix != ".md" else paragraphs(text)
        return
    tree = parsed(path)
    yield from comments(text)
    if path.is_relative_to(ROOT / "src"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.lineno, node.value
    else:
        yield from docstrings(tree)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a page with the number of their first line; a phrase may go over a line's end."""
    number = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        yield number, paragraph
        number += paragraph.count("\n")


@pytest.mark.parametrize("folder", [*CODE, "docs", "."])
def test_words_of_the_field(folder: str) -> None:
    wrong = []
    for path in files(folder, ".py", ".md", ".lua", ".toml", ".html", ".js", ""):
        for line, text in texts(path):
            for match in PATTERN.finditer(re.sub(r"\s+", " ", text)):
                index = next(number for number, group in enumerate(match.groups()) if group == match[0])
                wrong.append(f"{named(path)}:{line}: {match[0]!r}: write {list_of_replacements()[index]}")
    assert not wrong, "\n".join(wrong)


def list_of_replacements() -> list[str]:
    """Return the replacement for each group of the pattern, nested groups included."""
    replacements: list[str] = []
    for words, replacement in INSTEAD.items():
        replacements += [replacement] * (1 + re.compile(words).groups)
    return replacements


@pytest.mark.parametrize("folder", CODE)
def test_names(folder: str) -> None:
    wrong = set()
    for path in files(folder, ".py"):
        for node in ast.walk(parsed(path)):
            name = name_of(node)
            if name is not None and (NAMES.search(name) or (name in LOCALS and is_bound(node))):
                wrong.add(f"{named(path)}:{getattr(node, 'lineno', 0)}: {name}")
    assert not wrong, "\n".join(sorted(wrong))


def name_of(node: ast.AST) -> str | None:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.keyword(arg=name):
            return name
    return None


def is_bound(node: ast.AST) -> bool:
    return isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


@pytest.mark.parametrize("folder", CODE)
def test_docstrings_name_the_thing(folder: str) -> None:
    wrong = [
        f"{named(path)}:{line}: {text.splitlines()[0]}"
        for path in files(folder, ".py")
        for line, text in docstrings(parsed(path))
        if text.strip() and re.split(r"\W", text.strip())[0] in OPENINGS
    ]
    assert not wrong, "\n".join(wrong)


def test_names_of_tests_are_short() -> None:
    long = [
        f"{named(path)}:{node.lineno}: {node.name}"
        for path in files("tests", ".py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name.split("_")) - 1 > TEST_NAME_WORDS_MAX
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Its answer is sent.", "answer"),
        ("The topic is gone.", "gone"),
        ("'x' is no duration", "is no"),
        ("there is no partition 7", None),
        ("it is no longer served", None),
        ("it goes\non", "goes on"),
        ("replayed in all partitions", None),
        ("made durable before it is visible", None),
        ("the topic is made", "made"),
        ("the response", None),
        ("`reason` (was `sentence`)", None),
    ],
)
def test_pattern_finds_words(text: str, wrong: str | None) -> None:
    match = PATTERN.search(re.sub(r"\s+", " ", text))
    assert (match and match[0]) == wrong
