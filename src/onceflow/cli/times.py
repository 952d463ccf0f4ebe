"""Times and durations of the command line."""

import click

from onceflow.clicks import moments
from onceflow.clicks.moments import WrongTime, duration_ms

__all__ = ["duration_ms", "moment_ms", "refuse_reversed"]


def moment_ms(text: str, now_ms: int) -> int:
    """Return a time in ms since 1970, as `onceflow.clicks.moments` parses it. Raises click.BadParameter."""
    try:
        return moments.moment_ms(text, now_ms)
    except WrongTime as error:
        raise click.BadParameter(str(error)) from None


def refuse_reversed(begin_ms: int | None, end_ms: int | None) -> None:
    """Raise click.UsageError for a range that ends before it begins."""
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise click.UsageError("--from is after --to: exchange them")
