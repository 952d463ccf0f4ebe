"""The words of code, messages and documents: the field's, one for each thing."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
PATTERN = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b")
"""Matches text in lower case: ignoring case takes ten times as long."""

STRING_OR_COMMENT = re.compile(
    r""""{3}(?:[^\\]|\\.)*?"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(#[^\n]*)""", re.DOTALL
)
"""A string, or a comment as the group; `tokenize` takes fifteen times as long."""

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


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a module; lines that follow each other are one."""
    first, line, counted = 1, 1, 0
    held: list[str] = []
    for match in STRING_OR_COMMENT.finditer(text):
        if match[1] is None:
            continue
        previous, line = line, line + text.count("\n", counted, match.start())
        counted = match.start()
        if held and line != previous + 1:
            yield first, " ".join(held)
            held = []
        first = first if held else line
        held.append(match[1].lstrip("# "))
    if held:
        yield first, " ".join(held)


class Name(NamedTuple):
    """A name in a module, and how it is used there."""

    line: int
    name: str
    is_bound: bool
    is_function: bool


class Module(NamedTuple):
    """Texts and names of a module; all syntax trees at once would take most of the time for garbage collection."""

    names: list[Name]
    docstrings: list[tuple[int, str]]
    """Docstrings of modules, classes and functions, and the strings below constants."""
    strings: list[tuple[int, str]]


@cache
def read(path: Path) -> Module:
    module = Module([], [], [])
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                module.docstrings.append((node.value.lineno, text))
            case ast.Constant(value=str(text)):
                module.strings.append((node.lineno, text))
            case _:
                name = name_of(node)
                if name is not None:
                    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                    module.names.append(Name(getattr(node, "lineno", 0), name, is_bound(node), is_function))
    return module


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of what people read in a file: all of it, or the docstrings, comments and strings of code.

    The strings of tests are left out: they hold data.
    """
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1) if path.suffix != ".md" else paragraphs(text)
        return
    yield from comments(text)
    yield from read(path).strings if path.is_relative_to(ROOT / "src") else read(path).docstrings


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a page with the number of their first line; a phrase may go over a line's end."""
    number = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        yield number, paragraph
        number += paragraph.count("\n")


@pytest.mark.parametrize("folder", [*CODE, "docs", "."])
def test_words_of_the_field(folder: str) -> None:
    wrong = [
        f"{named(path)}:{line}: {words!r}: write {replacement(words)}"
        for path in files(folder, ".py", ".md", ".lua", ".toml", ".html", ".js", "")
        for line, text in texts(path)
        for words in wrong_words(text)
    ]
    assert not wrong, "\n".join(wrong)


def wrong_words(text: str) -> list[str]:
    return [match[0] for match in PATTERN.finditer(" ".join(text.lower().split()))]


def replacement(words: str) -> str:
    return next(replacement for pattern, replacement in INSTEAD.items() if re.fullmatch(pattern, words))


@pytest.mark.parametrize("folder", CODE)
def test_names(folder: str) -> None:
    wrong = {
        f"{named(path)}:{name.line}: {name.name}"
        for path in files(folder, ".py")
        for name in read(path).names
        if NAMES.search(name.name) or (name.name in LOCALS and name.is_bound)
    }
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
        for line, text in read(path).docstrings
        if text.strip() and re.split(r"\W", text.strip())[0] in OPENINGS
    ]
    assert not wrong, "\n".join(wrong)


def test_names_of_tests_are_short() -> None:
    long = [
        f"{named(path)}:{name.line}: {name.name}"
        for path in files("tests", ".py")
        for name in read(path).names
        if name.is_function and name.name.startswith("test_") and name.name.count("_") > TEST_NAME_WORDS_MAX
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
    assert wrong_words(text) == ([] if wrong is None else [wrong])
