"""Messages of failed queries, out of the pages of text that Spark wraps around them.

    with onceflow.spark.messages():
        query.awaitTermination()

Spark passes an exception of a Python worker, or of a foreachBatch function, on as text: a traceback, with stack traces
of the JVM around it. The last line of the last such traceback is the cause.
"""

import contextlib
import re
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from onceflow.errors import OnceflowError

_OURS = re.compile(r"^(?:\S+: )?(?P<class>onceflow(?:\.\w+)+): (?P<message>.+?)(?: SQLSTATE: \w+)*$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:Caused by: )?([\w.]*(?:Error|Exception): .+)$", re.MULTILINE)
REASON_CHARACTERS_MAX = 300


class SparkFailed(OnceflowError):
    """A failure of the connector in Spark: its own message, without the text that Spark wraps around it."""


@contextlib.contextmanager
def messages() -> Iterator[None]:
    """Raise the connector's own message alone, as an OnceflowError, for a failure in this block.

    A failure without such a message, as of a program's own code, is raised unchanged.
    """
    try:
        yield
    except OnceflowError as error:
        raise error from None
    except Exception as error:
        message = own_message(error)
        if message is None:
            raise
        raise SparkFailed(message) from None


def install_excepthook() -> None:
    """Let a script that ends with a failure of the connector print its message alone, without traceback.

    Other failures are printed as before.
    """
    previous = sys.excepthook

    def print_message(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        message = own_message(error)
        if message is None:
            previous(kind, error, trace)
        else:
            print(f"onceflow: {message}", file=sys.stderr)

    sys.excepthook = print_message


def describe(error: BaseException) -> str:
    """Return our own message in an error of Spark, else the first line of the error."""
    return own_message(error) or str(error).strip().partition("\n")[0] or type(error).__name__


def describe_stop(error: BaseException) -> str:
    """Return our own message in the error that stopped a query, else Spark's innermost cause."""
    message = own_message(error)
    if message is not None:
        return message
    causes = _CAUSE.findall(str(error))
    reason = causes[-1] if causes else str(error).strip().partition("\n")[0] or "it gave no reason"
    return f"Spark stopped the query ({type(error).__name__}): {reason[:REASON_CHARACTERS_MAX]}"


def own_message(error: BaseException) -> str | None:
    """Return our own error's message, or the last one in an error of Spark; None if there is none."""
    if isinstance(error, OnceflowError):
        return str(error)
    match = _last_own(error)
    return _with_written_names(match["message"], error) if match else None


def own_class(error: BaseException) -> str | None:
    """Return the class of that last message, with its module; None if there is none."""
    match = _last_own(error)
    return match["class"] if match else None


def _last_own(error: BaseException) -> re.Match[str] | None:
    return max(_OURS.finditer(str(error)), key=re.Match.start, default=None)


def _with_written_names(message: str, error: BaseException) -> str:
    """Return the message with the name of an option as the program wrote it: Spark passes names in lower case."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        reader = getattr(frame.f_locals.get("self"), "_jreader", None)
        for name in () if reader is None else _option_names(reader):
            message = re.sub(rf"(?<=option ){re.escape(name.lower())}(?=[ =])", name, message)
    return message


def _option_names(reader: Any) -> list[str]:
    """Return the names of the options of a reader in the JVM, which keeps them in a private field."""
    kind = reader.getClass()
    for field in (*kind.getDeclaredFields(), *kind.getSuperclass().getDeclaredFields()):
        if field.getName() == "extraOptions":
            field.setAccessible(True)
            return str(field.get(reader).originalMap().keys().mkString("\n")).splitlines()
    return []
