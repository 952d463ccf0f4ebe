"""Notes and progress on standard error, which `--quiet` leaves out."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from onceflow.cli.logs import is_json, print_line

_META = "onceflow.quiet"
"""Key in click's context."""
SHOWN_AFTER_S = 2.0
"""Time after which a command shows its progress."""

_Command = TypeVar("_Command", bound=Callable[..., Any])
Advance = Callable[[int, int], None]
"""Takes what is done, and the total."""


def quiet_option(command: _Command) -> _Command:
    """Add `-q`, which `note` and `progress_bar` obey."""
    return click.option(
        "-q",
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=_store,
        help="Print no notes and no progress on standard error; warnings and errors remain.",
    )(command)


def _store(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_META] = value


def _is_quiet() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_META))


def note(text: str) -> None:
    """Print a line on standard error, unless the command is quiet."""
    if not _is_quiet():
        print_line(text)


@contextmanager
def progress_bar(noun: str) -> Iterator[Advance]:
    """Yield a function that shows the progress of what takes longer than two seconds, with rate and remaining time.

    Shows nothing if standard error is not a terminal, or if the command is quiet or logs JSON.
    """
    if _is_quiet() or is_json() or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console

    bar = ProgressBar(noun, Console(stderr=True))
    try:
        yield bar.advance
    finally:
        bar.end()


def _ignore(done: int, total: int) -> None:
    pass


class ProgressBar:
    """A bar on a console."""

    def __init__(self, noun: str, console: Any, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._monotonic = monotonic
        self._started_s = monotonic()
        self._first: int | None = None
        self._progress = Progress(
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + noun),
            BarColumn(),
            TextColumn("{task.fields[rate]:,.0f}/s"),
            TimeRemainingColumn(),
            console=console,
            get_time=monotonic,
            transient=True,
        )
        self._task = self._progress.add_task(noun, total=1, visible=False, rate=0.0)

    def advance(self, done: int, total: int) -> None:
        """Show this progress. The rate begins at the first call: a resumed command finds some of it done."""
        if self._first is None:
            self._first, self._started_s = done, self._monotonic()
        seconds = self._monotonic() - self._started_s
        if seconds < SHOWN_AFTER_S:
            return
        self._progress.start()
        rate = (done - self._first) / seconds
        self._progress.update(self._task, completed=done, total=total, visible=True, rate=rate)

    def end(self) -> None:
        """Remove the bar."""
        self._progress.stop()
