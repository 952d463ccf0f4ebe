"""What a failed query says, out of the pages that Spark wraps around it."""

import re

_OURS = re.compile(r"^(?:\S+: )?(?P<class>onceflow(?:\.\w+)+): (?P<sentence>.+?)(?: SQLSTATE: \w+)*$", re.MULTILINE)


def sentence(error: BaseException) -> str:
    """The one sentence of ours in an error that Spark raises, else the first line of what Spark says.

    Spark hands an exception of a Python worker, or of a foreachBatch function, on as text: a traceback, with stack
    traces of the JVM around it. The last line of the last such traceback is what went wrong.
    """
    return own_sentence(error) or str(error).strip().partition("\n")[0] or type(error).__name__


def own_sentence(error: BaseException) -> str | None:
    """The last sentence of ours in an error that Spark raises, None where there is none."""
    found = _last_own(error)
    return found["sentence"] if found else None


def own_class(error: BaseException) -> str | None:
    """Return the class of that last sentence, with its module; None if there is none."""
    found = _last_own(error)
    return found["class"] if found else None


def _last_own(error: BaseException) -> re.Match[str] | None:
    found = None
    for found in _OURS.finditer(str(error)):  # noqa: B007 - the last one counts
        pass
    return found
