"""Times and durations of the command line."""

import click

from onceflow.clicks import moments
from onceflow.clicks.moments import WrongTime, duration_ms

__all__ = ["duration_ms", "moment_ms"]


def moment_ms(text: str, now_ms: int) -> int:
    """Return a time in ms since 1970, as `onceflow.clicks.moments` parses it. Raises click.BadParameter."""
    try:
        return moments.moment_ms(text, now_ms)
    except WrongTime as error:
        raise click.BadParameter(str(error)) from None
