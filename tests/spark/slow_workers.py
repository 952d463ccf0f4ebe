"""Queries of tests, started again where the machine was too busy for Spark.

Spark gives the Python worker of a streaming source 10 s to start and has no setting for that. The worker starts before
the first micro-batch, so a sink that serves one start has not been called yet.
"""

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from onceflow.clicks.restarts import TRANSIENT_IN_SPARK
from onceflow.errors import OnceflowError

STARTS_MAX = 10
WITHIN_S = 300


def finish(writer: DataStreamWriter, within_s: float = WITHIN_S) -> StreamingQuery:
    """Run an available-now query to its end, and return it. Raises what it failed with."""
    writer = writer.trigger(availableNow=True)
    for _ in range(STARTS_MAX):
        query = writer.start()
        try:
            assert query.awaitTermination(within_s)  # type: ignore[arg-type]
        except StreamingQueryException as error:
            if not is_too_slow(error):
                raise
        else:
            return query
    raise AssertionError(f"Spark's worker was too slow {STARTS_MAX} times")


def restarted(run: Callable[[], None]) -> None:
    """Run a pipeline, again where Spark's worker was too slow. Raises what it failed with."""
    for _ in range(STARTS_MAX):
        try:
            return run()
        except OnceflowError as error:
            if not is_too_slow(error):
                raise
    raise AssertionError(f"Spark's worker was too slow {STARTS_MAX} times")


def is_too_slow(error: object) -> bool:
    """Return whether Spark stopped a query only because its worker started too slowly."""
    return any(text in str(error) for text in TRANSIENT_IN_SPARK)
