"""What Redis answers instead of serving: which of it passes by itself, and what to do about the rest.

Every script is fenced by the marker and refused as a whole, before its first write, so each call can be sent again.
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

PASSING_WAIT_S = 30.0
"""How long an answer that passes by itself is waited for, such as the end of another client's script."""
FAILOVER_WAIT_S = 60.0
"""How long a Sentinel's master or a cluster's node is waited for: as delivered, both take a new one within that."""
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
"""redis-py takes these codes off the message. A class stands before the one that it is derived from."""

REMEDIES = {
    "LOADING": f"it still reads its data from disk: {Remedy.WAIT_UNTIL_UP}",
    "BUSY": f"another client's script runs without an end: {Remedy.KILL_SCRIPT}",
    "MASTERDOWN": f"it is a replica that has lost its master: {Remedy.START_MASTER}",
    "NOREPLICAS": f"it has fewer replicas than its min-replicas-to-write asks for: {Remedy.START_REPLICAS}",
    "READONLY": f"it is a replica: {Remedy.NAME_MASTER}",
    "OOM": f"its maxmemory is full: {Remedy.MORE_MAXMEMORY}",
    "MOVED": f"another node of this cluster has the counts: {Remedy.CLUSTER_ADDRESS}",
    "ASK": f"the slot of the counts is being moved to another node: {Remedy.WAIT_FOR_SLOT}",
    "TRYAGAIN": f"the slot of the counts is being moved to another node: {Remedy.WAIT_FOR_SLOT}",
    "CLUSTERDOWN": f"no node serves the slot of the counts: {Remedy.START_NODE}",
    "CROSSSLOT": f"its keys lie in several slots of the cluster: {Remedy.HASH_KEY_IN_BRACES.format()}",
    "NOPERM": Remedy.ALLOW_COMMANDS,
    "WRONGPASS": Remedy.REDIS_PASSWORD,
    "TLS": Remedy.REDIS_CERTIFICATES,
    "MISCONF": f"it cannot write its data to disk: {Remedy.REDIS_DISK}",
    "UNKNOWN": f"it lacks this command: {Remedy.KEEP_COMMAND}",
}
PASSING = ("LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "READONLY", "ASK", "TRYAGAIN", "CLUSTERDOWN")
"""Answers of a server that is starting, is held up, whose failover is not over or whose slot is being moved."""
AWAY = ("LOADING", "MASTERDOWN", "CLUSTERDOWN")
"""Those of them that a server gives until it, or another server, is up."""
_LOST = (redis.ConnectionError, redis.TimeoutError)
_BY_TEXT = {
    # What a script is told of a key that is not there while its slot is being moved.
    "ttempted to access a non local key in a cluster node": "ASK",
    # What redis-py leaves of a MULTI that was forbidden.
    "EXEC without MULTI": "NOPERM",
    "unknown command": "UNKNOWN",
    "Unknown Redis command called from": "UNKNOWN",
}
UNREACHABLE = f"{Remedy.START_REDIS}, or {Remedy.NAME_REDIS}"
REFUSED = f"Redis runs and refuses this with a reply that onceflow does not know; {Remedy.FOLLOW_REPLY}"


class RedisFailed(OnceflowError):
    """Redis did not answer, or answered with an error, after all attempts."""


class RedisAway(RedisFailed):
    """Redis cannot be reached or is not up yet; it may come back without any change to the query."""


def code_of(error: redis.RedisError) -> str | None:
    """The code of an answer that `REMEDIES` knows; None for any other error."""
    for kind, code in _BY_CLASS.items():
        if isinstance(error, kind):
            return code
    if is_refused(error):
        return "TLS" if "[SSL:" in str(error) else "WRONGPASS"
    for text, code in _BY_TEXT.items():
        if text in str(error):
            return code
    # A pipeline puts its command before the answer, with a colon.
    return next((code for code in REMEDIES if re.search(rf"(?:^|: ){code} ", str(error))), None)


def failed(url: str, when: str, error: redis.RedisError) -> RedisFailed:
    """The sentence for what is left after all attempts; `when` says in which step."""
    code = code_of(error)
    is_away = code in AWAY or (code is None and isinstance(error, _LOST))
    return (RedisAway if is_away else RedisFailed)(
        f"Redis at {shown(url)} failed {when} ({error}): nothing is lost, what is unfinished is finished at the next "
        f"start; {remedy_for(error)}, then {Remedy.START_AGAIN}"
    )


def failed_outside(url: str, doing: str, error: redis.RedisError) -> RedisFailed:
    """The sentence for a command that looks at a sink or forgets it, while no batch is written."""
    return RedisFailed(f"Redis at {shown(url)} failed {doing} ({error}): {remedy_for(error)}")


def remedy_for(error: redis.RedisError) -> str:
    """Return what to do about an error of Redis, for the end of a message."""
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
    """What `call` returns, made again for a while as long as Redis gives an answer that passes by itself.

    The connections of `pool` are dropped before another attempt: its address may lead to another server by then. Where
    one server takes another's place, lost connections are waited for too.
    """
    fails_over = pool is not None and is_routed(pool)
    began = monotonic()
    while True:
        try:
            return call()
        except redis.RedisError as error:
            wait_s = _wait_s(error, fails_over=fails_over)
            if monotonic() >= began + wait_s:
                raise
        if pool is not None:
            pool.disconnect()
        sleep(_PAUSE_S)


def _wait_s(error: redis.RedisError, *, fails_over: bool) -> float:
    """For how long after the first attempt it is worth while to try again."""
    code = code_of(error)
    if fails_over and (code in (*PASSING, "MOVED") or (code is None and isinstance(error, _LOST))):
        return FAILOVER_WAIT_S
    return PASSING_WAIT_S if code in PASSING else 0.0
