"""The documents cannot drift: the commands' page is generated, and what README shows can be typed."""

import re
import shlex
from pathlib import Path

import click
import pytest

from onceflow.cli import onceflow, reference

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_page_of_commands_is_what_help_prints() -> None:
    said = (ROOT / "docs" / "cli.md").read_text()
    assert said == reference.page(), "run: .venv/bin/python -m onceflow.cli.reference > docs/cli.md"


@pytest.mark.parametrize("words", [path for path, _ in reference.commands(onceflow, ())], ids=" ".join)
def test_every_option_says_what_it_is_for(words: tuple[str, ...]) -> None:
    command = dict(reference.commands(onceflow, ()))[words]
    assert command.help
    silent = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
    assert not silent


PRINT_NO_RESULT = {("broker",), ("dashboard",), ("produce",)}
PRINT_RECORDS = {("consume",)}
"""Their --format has json."""


def test_every_result_can_be_had_as_json() -> None:
    without = {
        path[1:]
        for path, command in reference.commands(onceflow, ("onceflow",))
        if not isinstance(command, click.Group) and not any("--json" in option.opts for option in command.params)
    }
    assert without == PRINT_NO_RESULT | PRINT_RECORDS


def shown_commands(page: Path) -> list[str]:
    """The `onceflow …` lines of a page's code blocks, continued lines joined, comments and pipes cut away."""
    blocks = re.findall(r"```(?:console|sh|bash|shell)\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    typed = [re.sub(r"^\$ ", "", line.strip()) for line in lines]
    return [line for line in typed if re.match(r"(\.venv/bin/)?onceflow ", line)]


SHOWN = [(page, line) for page in PAGES for line in shown_commands(page)]


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=lambda value: str(getattr(value, "name", value))[:60])
def test_a_shown_command_exists_with_its_options(page: Path, line: str) -> None:
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


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http") and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} → {target}")
    assert not broken
