"""Checks of the documents: the generated page of commands, shown commands, links, quoted messages."""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

from onceflow.cli import onceflow, reference
from onceflow.dashboard.api import reference as api_reference

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_page_of_commands_is_current() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == reference.page(), (
        "run: .venv/bin/python -m onceflow.cli.reference > docs/cli.md"
    )


def test_the_page_of_the_api_is_current() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == api_reference.page(), (
        "run: .venv/bin/python -m onceflow.dashboard.api.reference > docs/api.md"
    )


@pytest.mark.parametrize("words", [path for path, _ in reference.commands(onceflow, ())], ids=" ".join)
def test_every_option_has_help(words: tuple[str, ...]) -> None:
    command = dict(reference.commands(onceflow, ()))[words]
    assert command.help
    without = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
    assert not without


PRINT_NO_RESULT = {("broker",), ("cluster", "up"), ("dashboard",), ("produce",), ("serve",)}
PRINT_RECORDS = {("consume",)}
"""Their --format has json."""


def test_every_result_is_available_as_json() -> None:
    without = {
        path[1:]
        for path, command in reference.commands(onceflow, ("onceflow",))
        if not isinstance(command, click.Group) and not any("--json" in option.opts for option in command.params)
    }
    assert without == PRINT_NO_RESULT | PRINT_RECORDS


def shown_commands(page: Path) -> list[str]:
    """Return the `onceflow …` lines of a page's code blocks, with continued lines joined."""
    blocks = re.findall(r"```(?:console|sh|bash|shell)\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    typed = [re.sub(r"^\$ ", "", line.strip()) for line in lines]
    return [line for line in typed if re.match(r"(\.venv/bin/)?onceflow ", line)]


SHOWN = [(page, line) for page in PAGES for line in shown_commands(page)]


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=lambda value: str(getattr(value, "name", value))[:60])
def test_shown_commands_can_be_parsed(page: Path, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zookeeper").mkdir()
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line, comments=True)[1:]
    if "|" in words:
        words = words[: words.index("|")]
    words = [word for word in words if not re.match(r"[<>&]", word)]
    command: click.Command = onceflow
    context = click.Context(command, info_name="onceflow", **onceflow.context_settings)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        child = command.get_command(context, words.pop(0))
        assert child is not None, line
        command, context = child, click.Context(child, parent=context, info_name=child.name)
    if not {"--help", "--version"} & set(words):
        command.parse_args(context, words)


def headings_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_exist() -> None:
    broken = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
            if target.startswith("http"):
                continue
            linked = page.parent / target if target else page
            if not linked.exists() or (anchor and anchor not in headings_of(linked)):
                broken.append(f"{page.relative_to(ROOT)} → {target}#{anchor}")
    assert not broken


def test_the_index_has_every_page() -> None:
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"README.md"}
    assert not [page for page in sorted(pages) if f"]({page})" not in (docs / "README.md").read_text()]


def test_quoted_messages_exist() -> None:
    """The headings of the troubleshooting page quote messages of the source; `…` stands for values."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    texts = "\n".join(
        node.value
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    quoted = re.findall(r"^### `(.*)`$", page, re.MULTILINE)
    assert quoted
    parts = [part.strip() for message in quoted for part in message.split("…") if part.strip()]
    assert [part for part in parts if part not in texts] == []
