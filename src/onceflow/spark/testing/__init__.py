"""Is a sink exactly once? `check_exactly_once` kills it everywhere and looks at what a reader sees.

    from onceflow.spark.testing import check_exactly_once

    def test_it_is_exactly_once(spark, tmp_path):
        check_exactly_once(lambda: MySink(tmp_path), lambda: read(tmp_path), spark=spark)

docs/sink-kit.md tells what is done to the sink, and what each verdict means.
"""

import gc
import os
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pyspark.sql import DataFrame, SparkSession

from onceflow.spark.sink import ExactlyOnce, Sink
from onceflow.spark.testing.examination import examine
from onceflow.spark.testing.points import Reaper
from onceflow.spark.testing.query import Query
from onceflow.spark.testing.stand import Stand, as_they_are
from onceflow.spark.testing.start import DriverSilent, bury
from onceflow.spark.testing.steps import BatchSink, Loss, with_steps
from onceflow.spark.testing.verdict import KitMisused, NotExactlyOnce, Rule

__all__ = [
    "BatchSink",
    "DriverSilent",
    "KitMisused",
    "NotExactlyOnce",
    "Report",
    "Rule",
    "check_exactly_once",
    "check_foreach_batch",
]


@dataclass(frozen=True, slots=True)
class Report:
    """What a sink has withstood."""

    batches: int
    points: tuple[str, ...]
    """Where drivers died, in words."""
    overtaken: int
    """Drivers that were frozen, overtaken, and woke up."""
    blocked: int
    """Drivers that nobody could overtake while they were frozen, since they held a lock of the target."""
    losses: int
    """Answers that were lost."""
    tasks: int
    """Tasks that died in the executors."""

    def __str__(self) -> str:
        return (
            f"exactly once: {self.batches} micro-batches, drivers killed at {len(self.points)} points, "
            f"{self.overtaken} overtaken and woken, {self.blocked} frozen with a lock, {self.losses} answers lost, "
            f"{self.tasks} tasks killed"
        )


def check_exactly_once(
    make_sink: Callable[[], Sink],
    read: Callable[[], Iterable[str]],
    *,
    spark: SparkSession,
    rows_per_batch: int = 6,
    columns: Callable[[DataFrame], DataFrame] = as_they_are,
    lines: bool = True,
    watch: Collection[ModuleType] = (),
    visible_within_ms: int = 2000,
) -> Report:
    """Kills a sink before and after each step, and each line of its own code. Raises NotExactlyOnce, KitMisused.

    make_sink: makes the sink as each start of a query does; all write to one target, which is empty at first.
    read: the values that a reader of committed data sees there now, each as often as it is there.
    rows_per_batch: 2 at least. columns: what the sink gets, made of rows with one string column `value`.
    lines: false for a quick run, in which drivers die between the steps alone.
    watch: modules that have more of the sink's code; those of its class, and of what that inherits, need no telling.
    visible_within_ms: how long what was committed may take to be seen.
    """

    def make(checkpoint: str) -> BatchSink:
        return ExactlyOnce(make_sink(), checkpoint=checkpoint)

    return check_foreach_batch(
        make,
        read,
        spark=spark,
        rows_per_batch=rows_per_batch,
        columns=columns,
        lines=lines,
        watch=watch,
        visible_within_ms=visible_within_ms,
    )


def check_foreach_batch(
    make_sink: Callable[[str], BatchSink],
    read: Callable[[], Iterable[str]],
    *,
    spark: SparkSession,
    rows_per_batch: int = 6,
    columns: Callable[[DataFrame], DataFrame] = as_they_are,
    lines: bool = True,
    watch: Collection[ModuleType] = (),
    visible_within_ms: int = 2000,
) -> Report:
    """As `check_exactly_once`, for whatever foreachBatch gets; `make_sink` is given the query's checkpoint.

    The steps of an `ExactlyOnce` are seen as they are there; another function has lines alone.
    """

    def make(checkpoint: str, reaper: Reaper, loss: Loss | None) -> BatchSink:
        return with_steps(make_sink(checkpoint), reaper, loss)

    if rows_per_batch < 2:
        raise KitMisused(f"rows_per_batch {rows_per_batch}: what is there in part needs 2 rows at least")
    files = {str(module.__file__) for module in watch}
    with tempfile.TemporaryDirectory(prefix="onceflow-conformance-", dir=_memory()) as directory:
        query = Query(Path(directory), rows_per_batch)
        stand = Stand(make, read, spark, query, Path(directory), columns, files, lines, visible_within_ms)
        # What is there before is left alone by the many collections that follow dead drivers.
        gc.freeze()
        try:
            examine(stand)
        finally:
            gc.unfreeze()
            bury()
    counts = stand.counts
    points = tuple(str(point) for point in counts.points)
    return Report(query.newest, points, counts.overtaken, counts.blocked, counts.losses, counts.tasks)


def _memory() -> str | None:
    """A folder in memory where there is one: nothing here outlives the process, and each start syncs a checkpoint."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
