"""Signals that stop a command with child processes."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

import click


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise click.Abort

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C: a second one must not interrupt the stop, whose children have their own time limit."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
