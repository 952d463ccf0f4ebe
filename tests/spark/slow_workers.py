"""Queries of tests, started again where the machine was too busy for Spark.

Spark gives the Python worker of a streaming source 10 s to start and has no setting for that. The worker starts before
the first micro-batch, so a sink that serves one start has not been called yet.
"""

from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from onceflow.clicks.restarts import TRANSIENT_IN_SPARK
from onceflow.errors import OnceflowError

T = TypeVar("T")

STARTS_MAX = 10
WITHIN_S = 300


def finish(writer: DataStreamWriter, within_s: int = WITHIN_S) -> StreamingQuery:
    """Run an available-now query to its end, and return it. Raises what it failed with."""

    def run() -> StreamingQuery:
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(within_s)
        return query

    return restarted(run)


def restarted(run: Callable[[], T]) -> T:
    """Run a query to its end, again where Spark's worker was too slow. Raises what it failed with."""
    for _ in range(STARTS_MAX):
        try:
            return run()
        except (OnceflowError, StreamingQueryException) as error:
            if not is_too_slow(error):
                raise
    raise AssertionError(f"Spark's worker was too slow {STARTS_MAX} times")


def is_too_slow(error: object) -> bool:
    """Return whether Spark stopped a query only because its worker started too slowly."""
    return any(text in str(error) for text in TRANSIENT_IN_SPARK)
