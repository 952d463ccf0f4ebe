"""User-facing errors for refused requests, and the confirmation prompt."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode


class NotConfirmed(OnceflowError):
    """A prompt was not confirmed."""


class Refused(OnceflowError):
    """Request refused by the cluster, with a remedy."""


@contextmanager
def explaining(messages: Mapping[ErrorCode, str]) -> Iterator[None]:
    """Raise a refusal that has one of these codes with its message; others pass through."""
    from onceflow.client.errors import RequestRefused

    try:
        yield
    except RequestRefused as error:
        if error.error_code not in messages:
            raise
        raise Refused(messages[error.error_code]) from error


def confirm(question: str, undone: str) -> None:
    """Ask on standard error. Raises NotConfirmed, "nothing was `undone`", unless the user confirms."""
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort as aborted:
        # click raises the same exception for Ctrl-C, which interrupts, and for the end of input, which declines.
        if not isinstance(aborted.__context__, EOFError):
            raise
        click.echo(err=True)
    raise NotConfirmed(f"nothing was {undone}; {Remedy.SKIP_QUESTION}")
