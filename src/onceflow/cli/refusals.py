"""What a cluster's refusal means to who typed the command, and what a question that got no yes ends in."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode


class NotAgreed(OnceflowError):
    """A question was not answered with yes."""


class Refused(OnceflowError):
    """The cluster refused for a reason that the command can put in words, with a remedy."""


@contextmanager
def in_words(sentences: Mapping[ErrorCode, str]) -> Iterator[None]:
    """Give a refusal with one of these codes its sentence; any other goes on as it is."""
    from onceflow.client.errors import RequestRefused

    try:
        yield
    except RequestRefused as error:
        if error.error_code not in sentences:
            raise
        raise Refused(sentences[error.error_code]) from error


def require_yes(question: str, otherwise: str) -> None:
    """Ask on standard error; without a yes raises NotAgreed, which says that nothing was `otherwise`."""
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort as aborted:
        # click has one exception for Ctrl-C, which interrupts, and for an input that ended, which is no yes.
        if not isinstance(aborted.__context__, EOFError):
            raise
        click.echo(err=True)
    raise NotAgreed(f"nothing was {otherwise}; {Remedy.SKIP_QUESTION}")
