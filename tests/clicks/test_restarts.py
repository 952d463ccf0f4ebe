"""Restarts of a query: the failures that cause one, and their limits."""

import logging
import threading
from itertools import pairwise
from typing import Any

import pytest
import redis
from py4j.protocol import Py4JError, Py4JNetworkError

from onceflow.cli.demo.processes import RESTART_LINE
from onceflow.clicks import restarts
from onceflow.clicks.restarts import QueryFailed, RestartLimits, Restarts, restart_reason
from onceflow.client.addresses import Address
from onceflow.client.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut, UnknownTopic
from onceflow.redis.errors import failed
from onceflow.spark.errors import MarkerRefused, SinkStopped, WrongOption
from onceflow.spark.exactly_once.checkpoint_lock import CheckpointInUse
from onceflow.spark.reader.data_loss import DataLost
from onceflow.spark.redis.target import RepairFailed, UnsuitableRedis

UNREACHABLE = BrokerUnreachable("nothing listens at b:1", Address("b", 1))
IN_SPARK = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "x.py", line 1, in y
KeyError: 'z'
During handling of the above exception, another exception occurred:
{name}: {message}
\tat org.apache.spark.sql.X"""


def of_redis(error: redis.RedisError) -> Exception:
    return failed("redis://h:1/0", "in batch 3", error)


def in_spark(name: str, message: str = "it failed; do this") -> Exception:
    """Return the driver's error for an error in a worker."""
    return ValueError(IN_SPARK.format(name=name, message=message))


def carried(error: Exception, carrier: type[Exception]) -> Exception:
    try:
        raise carrier("said") from error
    except carrier as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UNREACHABLE, restarts.BROKER_UNREACHABLE),
        (ConnectionLost("x"), restarts.BROKER_UNREACHABLE),
        (RequestTimedOut("x"), restarts.BROKER_UNREACHABLE),
        (in_spark("onceflow.client.errors.BrokerUnreachable"), restarts.BROKER_UNREACHABLE),
        (carried(in_spark("onceflow.client.errors.ConnectionLost"), QueryFailed), restarts.BROKER_UNREACHABLE),
        (carried(in_spark("onceflow.client.errors.ConnectionLost"), SinkStopped), restarts.BROKER_UNREACHABLE),
        (carried(UNREACHABLE, RepairFailed), restarts.BROKER_UNREACHABLE),
        (of_redis(redis.ConnectionError("refused")), "Redis is unreachable"),
        (of_redis(redis.TimeoutError("slow")), "Redis is unreachable"),
        (of_redis(redis.exceptions.BusyLoadingError("loading")), "Redis is unreachable"),
        (in_spark("onceflow.redis.errors.RedisAway"), "Redis is unreachable"),
        (
            carried(in_spark("org.apache.spark.SparkException", "Python worker failed to connect back."), QueryFailed),
            "a Python worker of Spark started too slowly",
        ),
    ],
    ids=lambda value: f"{type(value).__name__}" if isinstance(value, Exception) else "",
)
def test_a_failure_that_passes_is_restarted(error: Exception, reason: str) -> None:
    assert restart_reason(error) == reason


@pytest.mark.parametrize(
    "error",
    [
        WrongOption("x"),
        MarkerRefused("x"),
        DataLost("x"),
        UnknownTopic("x"),
        CheckpointInUse("x"),
        UnsuitableRedis("x"),
        SinkStopped("failed in 5 attempts"),
        carried(UNREACHABLE, MarkerRefused),
        carried(in_spark("onceflow.spark.reader.data_loss.DataLost"), QueryFailed),
        carried(
            in_spark("onceflow.spark.reader.data_loss.DataLost", "Python worker failed to connect back"), QueryFailed
        ),
        carried(in_spark("java.lang.OutOfMemoryError"), QueryFailed),
        carried(KeyError("x"), RepairFailed),
        of_redis(redis.exceptions.OutOfMemoryError("full")),
        of_redis(redis.exceptions.AuthenticationError("WRONGPASS wrong")),
        of_redis(redis.exceptions.ReadOnlyError("a replica")),
        of_redis(redis.ResponseError("ERR strange")),
        Py4JError("an error, but the JVM runs"),
        Py4JNetworkError("an error, but the JVM runs"),
        OSError("disk full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_other_failure_stops_the_run(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        Restarts(RestartLimits()).wait(error, 5, threading.Event())
    assert raised.value is error


class Pauses(threading.Event):
    """A stop that is never set; its waits return at once and advance a simulated clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now_s += timeout
        self.pauses.append(timeout)
        return False


def fail_until_it_stops(pauses: Pauses, limits: RestartLimits, batches: Any) -> None:
    counted = Restarts(limits, monotonic=lambda: pauses.now_s)
    *restarted, last = batches
    for batch in restarted:
        counted.wait(ConnectionLost("x"), batch, pauses)
    with pytest.raises(ConnectionLost):
        counted.wait(ConnectionLost("x"), last, pauses)


def test_restarts_end_at_their_number(caplog: pytest.LogCaptureFixture) -> None:
    pauses = Pauses()
    with caplog.at_level(logging.WARNING):
        fail_until_it_stops(pauses, RestartLimits(restarts_max=7), [3] * 8)
    assert pauses.pauses == [1, 2, 4, 8, 16, 30, 30]
    assert [message.partition(" of the")[0] for message in caplog.messages] == [
        f"the broker is unreachable: restart {number} of at most 7" for number in range(1, 8)
    ]
    assert all(RESTART_LINE.search(message) for message in caplog.messages), "the demo would not print it"


def test_restarts_end_at_their_time() -> None:
    pauses = Pauses()
    fail_until_it_stops(pauses, RestartLimits(restarts_max=10**9, seconds_max=100), [3] * 8)
    assert pauses.now_s == 1 + 2 + 4 + 8 + 16 + 30 + 30


def test_zero_restarts_none() -> None:
    pauses = Pauses()
    fail_until_it_stops(pauses, RestartLimits(restarts_max=0), [3])
    assert pauses.pauses == []


def test_a_completed_batch_ends_the_row() -> None:
    pauses = Pauses()
    fail_until_it_stops(pauses, RestartLimits(restarts_max=3), [3, 3, 4, 4, 5, 9, 9, 9, 9])
    assert pauses.pauses == [1, 2, 1, 2, 1, 1, 2, 4]
    assert all(after in (1, 2 * before) for before, after in pairwise(pauses.pauses))
