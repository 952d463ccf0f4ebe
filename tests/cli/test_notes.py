"""Notes and progress: what is shown when, and what `--quiet` leaves out."""

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from onceflow.cli import notes
from onceflow.cli.notes import ProgressBar, note, progress_bar, quiet_option


@click.command()
@quiet_option
def two_lines() -> None:
    note("a note")
    with progress_bar("events") as advance:
        advance(1, 2)
    click.echo("a result")


def test_quiet_leaves_out_notes() -> None:
    shown = CliRunner().invoke(two_lines, [])
    assert (shown.stdout, shown.stderr) == ("a result\n", "a note\n")
    shown = CliRunner().invoke(two_lines, ["-q"])
    assert (shown.stdout, shown.stderr) == ("a result\n", "")


@pytest.fixture(autouse=True)
def capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def shown_by(steps: Callable[[ProgressBar, Clock], None]) -> str:
    """Return what a bar has written to a terminal, without its colours."""
    written, clock = io.StringIO(), Clock()
    bar = ProgressBar("events", Console(file=written, force_terminal=True, width=100), monotonic=clock)
    steps(bar, clock)
    bar.end()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.getvalue())


def test_bar_has_rate_and_remaining_time() -> None:
    """A resumed command finds 1,000 done: they do not count into the rate."""

    def steps(bar: ProgressBar, clock: Clock) -> None:
        for second in range(6):
            clock.seconds = second
            bar.advance(1_000 + second * 2_000, 21_000)

    shown = shown_by(steps)
    assert "11,000 of 21,000 events" in shown
    assert "2,000/s" in shown and "0:00:05" in shown


def test_what_is_short_shows_nothing() -> None:
    def steps(bar: ProgressBar, clock: Clock) -> None:
        bar.advance(0, 100)
        clock.seconds = notes.SHOWN_AFTER_S - 0.1
        bar.advance(100, 100)

    assert shown_by(steps).strip() == ""


LATE = """
import sys
from onceflow.cli import notes
notes.SHOWN_AFTER_S = 0
with notes.progress_bar("events") as advance:
    advance(1, 2)
    advance(2, 2)
"""


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "file"])
def test_only_a_terminal_shows_a_bar(is_terminal: bool) -> None:
    reader, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", LATE],
            stderr=terminal if is_terminal else subprocess.PIPE,
            env={**os.environ, "TERM": "xterm"},
            check=True,
        )
        os.write(terminal, b"end")
        shown = os.read(reader, 65536) if is_terminal else done.stderr
    finally:
        os.close(reader)
        os.close(terminal)
    assert (b"2 of 2 events" in shown) == is_terminal
