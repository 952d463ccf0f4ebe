"""Errors of Redis: which are temporary, and what to do about the others.

Every script is fenced by the marker and refused as a whole before its first write, so any call can be repeated.
"""

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis

from onceflow.errors import OnceflowError
from onceflow.redis.address import shown
from onceflow.redis.route import is_refused, is_routed
from onceflow.remedies import Remedy

TEMPORARY_WAIT_S = 30.0
"""Time to wait for the end of a temporary error, such as another client's script."""
FAILOVER_WAIT_S = 60.0
"""Time to wait for a Sentinel's master or a cluster's node; by default both fail over within it."""
_PAUSE_S = 0.2

_T = TypeVar("_T")

_BY_CLASS = {
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterCrossSlotError: "CROSSSLOT",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
}
"""redis-py removes these codes from the message. A class stands before the class it is derived from."""

REMEDIES = {
    "LOADING": f"it is still loading its data from disk: {Remedy.WAIT_UNTIL_UP}",
    "BUSY": f"another client's script does not end: {Remedy.KILL_SCRIPT}",
    "MASTERDOWN": f"it is a replica that has lost its master: {Remedy.START_MASTER}",
    "NOREPLICAS": f"it has fewer replicas than its min-replicas-to-write requires: {Remedy.START_REPLICAS}",
    "READONLY": f"it is a replica: {Remedy.NAME_MASTER}",
    "OOM": f"its maxmemory is full: {Remedy.MORE_MAXMEMORY}",
    "MOVED": f"another node of this cluster has the counts: {Remedy.CLUSTER_ADDRESS}",
    "ASK": f"the slot of the counts is being moved to another node: {Remedy.WAIT_FOR_SLOT}",
    "TRYAGAIN": f"the slot of the counts is being moved to another node: {Remedy.WAIT_FOR_SLOT}",
    "CLUSTERDOWN": f"no node serves the slot of the counts: {Remedy.START_NODE}",
    "CROSSSLOT": f"the sink's keys are in several slots of the cluster: {Remedy.HASH_KEY_IN_BRACES.format()}",
    "NOPERM": Remedy.ALLOW_COMMANDS,
    "WRONGPASS": Remedy.REDIS_PASSWORD,
    "TLS": Remedy.REDIS_CERTIFICATES,
    "MISCONF": f"it cannot write its data to disk: {Remedy.REDIS_DISK}",
    "UNKNOWN": f"it lacks this command: {Remedy.KEEP_COMMAND}",
}
TEMPORARY = ("LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "READONLY", "ASK", "TRYAGAIN", "CLUSTERDOWN")
"""Temporary errors: the server is starting, is blocked or fails over, or its slot is being moved."""
AWAY = ("LOADING", "MASTERDOWN", "CLUSTERDOWN")
"""Temporary errors that last until this server, or another one, is up."""
_LOST = (redis.ConnectionError, redis.TimeoutError)
_BY_TEXT = {
    # A script reads a key that does not exist while its slot is being moved.
    "ttempted to access a non local key in a cluster node": "ASK",
    # redis-py's error for a forbidden MULTI.
    "EXEC without MULTI": "NOPERM",
    "unknown command": "UNKNOWN",
    "Unknown Redis command called from": "UNKNOWN",
}
UNREACHABLE = f"{Remedy.START_REDIS}, or {Remedy.NAME_REDIS}"
REFUSED = f"Redis runs and refuses this with a reply that onceflow does not know; {Remedy.FOLLOW_REPLY}"


class RedisFailed(OnceflowError):
    """Redis did not reply, or replied with an error, after all attempts."""


class RedisAway(RedisFailed):
    """Redis is unreachable or not up yet; it may return without any change to the query."""


def code_of(error: redis.RedisError) -> str | None:
    """Return the error's code in `REMEDIES`; None for any other error."""
    for kind, code in _BY_CLASS.items():
        if isinstance(error, kind):
            return code
    if is_refused(error):
        return "TLS" if "[SSL:" in str(error) else "WRONGPASS"
    for text, code in _BY_TEXT.items():
        if text in str(error):
            return code
    # A pipeline puts the command and a colon before the error.
    return next((code for code in REMEDIES if re.search(rf"(?:^|: ){code} ", str(error))), None)


def failed(url: str, when: str, error: redis.RedisError) -> RedisFailed:
    """Return the error to raise after all attempts; `when` names the step."""
    code = code_of(error)
    is_away = code in AWAY or (code is None and isinstance(error, _LOST))
    return (RedisAway if is_away else RedisFailed)(
        f"Redis at {shown(url)} failed {when} ({error}): no data was lost, and the next start finishes the batch; "
        f"{remedy_for(error)}, then {Remedy.START_AGAIN}"
    )


def failed_outside(url: str, doing: str, error: redis.RedisError) -> RedisFailed:
    """Return the error of a command that reads or resets a sink."""
    return RedisFailed(f"Redis at {shown(url)} failed {doing} ({error}): {remedy_for(error)}")


def remedy_for(error: redis.RedisError) -> str:
    """Return the remedy for an error of Redis."""
    code = code_of(error)
    if code is not None:
        return REMEDIES[code]
    return REFUSED if isinstance(error, redis.ResponseError) else UNREACHABLE


def is_absent(error: redis.ResponseError) -> bool:
    """Return whether a command is missing, renamed or forbidden to this user."""
    return code_of(error) in ("NOPERM", "UNKNOWN")


def patiently(
    call: Callable[[], _T],
    *,
    pool: Any = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _T:
    """Return the result of `call`, repeated for a limited time while Redis has a temporary error.

    The connections of `pool` are closed before another attempt, since its address may lead to another server by then.
    Behind Sentinels and in a cluster, a lost connection counts as temporary.
    """
    fails_over = pool is not None and is_routed(pool)
    started = monotonic()
    while True:
        try:
            return call()
        except redis.RedisError as error:
            wait_s = _wait_s(error, fails_over=fails_over)
            if monotonic() >= started + wait_s:
                raise
        if pool is not None:
            pool.disconnect()
        sleep(_PAUSE_S)


def _wait_s(error: redis.RedisError, *, fails_over: bool) -> float:
    """Return for how long after the first attempt to retry."""
    code = code_of(error)
    if fails_over and (code in (*TEMPORARY, "MOVED") or (code is None and isinstance(error, _LOST))):
        return FAILOVER_WAIT_S
    return TEMPORARY_WAIT_S if code in TEMPORARY else 0.0
