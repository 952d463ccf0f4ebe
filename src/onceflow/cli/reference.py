"""Generator of docs/cli.md from `--help`: `python -m onceflow.cli.reference > docs/cli.md`."""

from collections.abc import Iterator

import click

from onceflow.cli import onceflow

INTRODUCTION = """\
# Commands

This page is generated from `--help` (`python -m onceflow.cli.reference > docs/cli.md`); a test compares the two.

Exit codes:

- 0: success, or equal; also an empty list, such as no topics or no bad events.
- 1: failure or a negative result, with one message on standard error; also if the topic, group, user or the counts that
  the command names do not exist.
- 2: wrong usage, such as a partition that the topic does not have; for `verify` also inconclusive.
- 130: interrupted.
"""


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield `command` and every command below it, with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, (*path, name))


def help_text(path: tuple[str, ...], command: click.Command) -> str:
    """Return what `--help` prints, 100 columns wide."""
    context = click.Context(
        command,
        info_name=" ".join(path),
        max_content_width=100,
        terminal_width=100,
        help_option_names=onceflow.context_settings["help_option_names"],
    )
    return command.get_help(context)


def page() -> str:
    """Return the page."""
    sections = [INTRODUCTION]
    for path, command in commands(onceflow, ("onceflow",)):
        sections.append(f"## {' '.join(path)}\n\n```text\n{help_text(path, command).rstrip()}\n```\n")
    return "\n".join(sections)


if __name__ == "__main__":
    print(page(), end="")
