"""Failures after which the query is restarted, and the limits of the restarts.

| failure | recognized by | restarted |
|---|---|---|
| a Python worker of Spark started too slowly | `TRANSIENT_IN_SPARK` | yes |
| the JVM ended | an error of py4j, and the end of its process | yes, with a new JVM |
| the broker is unreachable | the class: `TRANSIENT` | yes |
| Redis is unreachable | the class: `TRANSIENT` | yes |
| any other | | no: its message ends the run |

A failure in a worker reaches the driver as text in an error of Spark's, with the class's name in it.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from py4j.protocol import Py4JError, Py4JJavaError

from onceflow.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    CoordinatorUnavailable,
    LeaderUnavailable,
    RequestTimedOut,
)
from onceflow.errors import OnceflowError
from onceflow.redis.errors import RedisAway
from onceflow.spark import failure
from onceflow.spark.errors import SinkStopped
from onceflow.spark.redis_sink import RepairFailed
from onceflow.spark.session import is_jvm_lost

_log = logging.getLogger(__name__)

RESTARTS_MAX = 20
SECONDS_MAX = 600
PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
"""Maximum pause; the pause doubles with each restart."""
DOUBLINGS_MAX = 5


class QueryFailed(OnceflowError):
    """Failure of the streaming query."""


BROKER_UNREACHABLE = "the broker is unreachable"
TRANSIENT: dict[type[BaseException], str] = {
    BrokerUnreachable: BROKER_UNREACHABLE,
    ConnectionLost: BROKER_UNREACHABLE,
    RequestTimedOut: BROKER_UNREACHABLE,
    LeaderUnavailable: BROKER_UNREACHABLE,
    CoordinatorUnavailable: BROKER_UNREACHABLE,
    RedisAway: "Redis is unreachable",
}
TRANSIENT_IN_SPARK = {"Python worker failed to connect back": "a Python worker of Spark started too slowly"}
"""Spark allows a worker of a streaming source 10 s to start and has no setting for it."""
JVM_LOST = "Spark's JVM ended"
JVM_END_WAIT_S = 5
"""A JVM that is killed closes its connections shortly before its process ends."""

_CARRIERS = (QueryFailed, SinkStopped, RepairFailed)
"""Errors whose cause decides."""
_BY_NAME = {f"{kind.__module__}.{kind.__qualname__}": reason for kind, reason in TRANSIENT.items()}


def restart_reason(error: BaseException) -> str | None:
    """Return the reason to restart the query after `error`; None if a restart does not help."""
    while type(error) in _CARRIERS and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, (Py4JError, ConnectionError)) and not isinstance(error, Py4JJavaError):
        return JVM_LOST if is_jvm_lost(within_s=JVM_END_WAIT_S) else None
    if isinstance(error, OnceflowError):
        return TRANSIENT.get(type(error))
    name = failure.own_class(error)
    if name is not None:
        return _BY_NAME.get(name)
    return next((reason for text, reason in TRANSIENT_IN_SPARK.items() if text in str(error)), None)


@dataclass(frozen=True)
class RestartLimits:
    """Limits of consecutive restarts without a completed micro-batch in between."""

    restarts_max: int = RESTARTS_MAX
    seconds_max: float = SECONDS_MAX
    """Time since the first of the consecutive failures."""


class Restarts:
    """The restarts of one run: their number, their pauses and their limits."""

    def __init__(
        self, limits: RestartLimits, query: str = "the query", *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._query = query
        self._monotonic = monotonic
        self._batch_done: int | None = None
        self._restarts = 0
        self._since_s = 0.0

    def wait(self, error: Exception, batch_done: int, stop: threading.Event) -> None:
        """Wait until the query may be restarted, or until `stop`. Raise `error` if it may not.

        A micro-batch completed since the last failure resets the limits.
        """
        reason = restart_reason(error)
        if reason is None:
            raise error
        now_s = self._monotonic()
        if self._batch_done is None or batch_done > self._batch_done:
            self._restarts, self._since_s, self._batch_done = 0, now_s, batch_done
        pause_s = min(PAUSE_FIRST_S * 2 ** min(self._restarts, DOUBLINGS_MAX), PAUSE_MAX_S)
        limits = self._limits
        if self._restarts >= limits.restarts_max or now_s + pause_s - self._since_s > limits.seconds_max:
            raise error
        self._restarts += 1
        _log.warning(
            "%s: restart %d of at most %d of %s in %g s (%s)",
            reason,
            self._restarts,
            limits.restarts_max,
            self._query,
            pause_s,
            failure.describe(error),
        )
        stop.wait(pause_s)
