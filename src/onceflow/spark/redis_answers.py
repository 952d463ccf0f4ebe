"""What Redis answers instead of serving: which of it passes by itself, and what to do about the rest.

Every script is fenced by the marker and refused as a whole, before its first write, so each call can be sent again.
"""

import re
import time
from collections.abc import Callable
from typing import TypeVar

import redis

from onceflow.errors import OnceflowError
from onceflow.spark.redis_address import shown

PASSING_WAIT_S = 30.0
"""How long an answer that passes by itself is waited for, such as the end of another client's script."""
_PAUSE_S = 0.2

_T = TypeVar("_T")

_BY_CLASS = {
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
}
"""redis-py takes these codes off the message."""

REMEDIES = {
    "LOADING": "it still reads its data from disk: wait until it is up",
    "BUSY": "another client's script runs without an end: end that with SCRIPT KILL",
    "MASTERDOWN": "it is a replica that has lost its master: start the master, or name its address",
    "NOREPLICAS": "it has fewer replicas than its min-replicas-to-write asks for: start them",
    "READONLY": "it is a replica: name the master's address",
    "OOM": "its maxmemory is full: give it more",
    "MISCONF": "it cannot write its data to disk: look at that disk and at Redis's log",
}
PASSING = ("LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "READONLY")
"""Answers of a server that is starting, is held up, or whose failover is not over."""


class RedisFailed(OnceflowError):
    """Redis did not answer, or answered with an error, after all attempts."""


def code_of(error: redis.RedisError) -> str | None:
    """The code of an answer that `REMEDIES` knows; None for any other error."""
    for kind, code in _BY_CLASS.items():
        if isinstance(error, kind):
            return code
    # A pipeline puts its command before the answer, with a colon.
    return next((code for code in REMEDIES if re.search(rf"(?:^|: ){code} ", str(error))), None)


def failed(url: str, when: str, error: redis.RedisError) -> RedisFailed:
    """The sentence for what is left after all attempts; `when` says in which step."""
    remedy = REMEDIES.get(code_of(error) or "")
    todo = "start Redis and the query again" if remedy is None else f"{remedy}, then start the query again"
    return RedisFailed(
        f"Redis at {shown(url)} failed {when} ({error}): nothing is lost, what is unfinished is finished at the next "
        f"start; {todo}"
    )


def patiently(
    call: Callable[[], _T],
    *,
    reconnect: Callable[[], None] = lambda: None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _T:
    """What `call` returns, made again for a while as long as Redis gives an answer that passes by itself.

    `reconnect` drops connections before another attempt: the address may lead to another server by then.
    """
    deadline = monotonic() + PASSING_WAIT_S
    while True:
        try:
            return call()
        except redis.RedisError as error:
            if code_of(error) not in PASSING or monotonic() >= deadline:
                raise
        reconnect()
        sleep(_PAUSE_S)
