"""Messages of failed queries, out of the pages of text that Spark wraps around them.

Spark passes an exception of a Python worker, or of a foreachBatch function, on as text: a traceback, with stack traces
of the JVM around it. The last line of the last such traceback is the cause.
"""

import re

_OURS = re.compile(r"^(?:\S+: )?(?P<class>onceflow(?:\.\w+)+): (?P<message>.+?)(?: SQLSTATE: \w+)*$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:Caused by: )?([\w.]*(?:Error|Exception): .+)$", re.MULTILINE)
REASON_CHARACTERS_MAX = 300


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
    """Return the last message of ours in an error of Spark; None if there is none."""
    match = _last_own(error)
    return match["message"] if match else None


def own_class(error: BaseException) -> str | None:
    """Return the class of that last message, with its module; None if there is none."""
    match = _last_own(error)
    return match["class"] if match else None


def _last_own(error: BaseException) -> re.Match[str] | None:
    return max(_OURS.finditer(str(error)), key=re.Match.start, default=None)
