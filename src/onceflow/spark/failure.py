"""What a failed query says, out of the pages that Spark wraps around it."""

import re

_OURS = re.compile(r"^(?:\S+: )?onceflow(?:\.\w+)+: (?P<sentence>.+?)(?: SQLSTATE: \w+)*$", re.MULTILINE)


def sentence(error: BaseException) -> str:
    """The one sentence of ours in an error that Spark raises, else the first line of what Spark says.

    Spark hands an exception of a Python worker, or of a foreachBatch function, on as text: a traceback, with stack
    traces of the JVM around it. The last line of the last such traceback is what went wrong.
    """
    return own_sentence(error) or str(error).strip().partition("\n")[0] or type(error).__name__


def own_sentence(error: BaseException) -> str | None:
    """The last sentence of ours in an error that Spark raises, None where there is none."""
    ours = _OURS.findall(str(error))
    return str(ours[-1]) if ours else None
