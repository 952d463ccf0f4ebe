"""A file with what most commands would otherwise have to be told each time: where the broker and Redis are.

    bootstrap=kafka.example.org:9092
    redis=redis://kafka.example.org:6379/1

Options beat the environment, which beats the file.
"""

import difflib
import os
from pathlib import Path

import click

VARIABLES = {"bootstrap": "ONCEFLOW_BOOTSTRAP", "redis": "ONCEFLOW_REDIS"}
"""Name in the file → variable of the environment, by which the commands get it."""


def default_path() -> Path:
    """Where the file is looked for if no other is named."""
    return Path(click.get_app_dir("onceflow"), "onceflow.conf")


def use(path: Path | None) -> None:
    """Let the commands find what the file says; one that is not named need not be there. Raises click.UsageError,
    since a 1 of `verify` means "different"."""
    chosen = path or default_path()
    if path is None and not chosen.exists():
        return
    from onceflow.broker.properties import parse_properties

    try:
        given = parse_properties(chosen.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the file of settings {chosen} cannot be read: {error}") from error
    for name, value in given.items():
        if name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, 1)
            remedy = f"did you mean {near[0]}?" if near else f"it may have {' and '.join(VARIABLES)}"
            raise click.UsageError(f"{chosen} has {name}={value}, which no command knows: {remedy}")
        # An empty variable counts as none, as click has it.
        if not os.environ.get(VARIABLES[name]):
            os.environ[VARIABLES[name]] = value
