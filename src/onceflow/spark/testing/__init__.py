"""Conformance kit for sinks: `check_exactly_once` kills a sink everywhere and checks what a reader sees.

    from onceflow.spark.testing import check_exactly_once

    def test_it_is_exactly_once(spark, tmp_path):
        check_exactly_once(lambda: MySink(tmp_path), lambda: read(tmp_path), spark=spark)

docs/sink-kit.md describes what the kit does to the sink, and the meaning of each verdict.
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
from onceflow.spark.testing.harness import Harness, identity
from onceflow.spark.testing.points import Reaper
from onceflow.spark.testing.query import Query
from onceflow.spark.testing.start import DriverSilent, collect_dead_drivers
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
    """Summary of the failures that a sink has withstood."""

    batches: int
    points: tuple[str, ...]
    """Descriptions of where drivers died."""
    overtaken: int
    """Drivers that were frozen, overtaken and woken."""
    blocked: int
    """Drivers that could not be overtaken while frozen, since they held a lock of the target."""
    losses: int
    """Responses that were lost."""
    tasks: int
    """Tasks that died in the executors."""

    def __str__(self) -> str:
        return (
            f"exactly once: {self.batches} micro-batches, drivers killed at {len(self.points)} points, "
            f"{self.overtaken} overtaken and woken, {self.blocked} frozen with a lock, {self.losses} responses lost, "
            f"{self.tasks} tasks killed"
        )


def check_exactly_once(
    make_sink: Callable[[], Sink],
    read: Callable[[], Iterable[str]],
    *,
    spark: SparkSession,
    rows_per_batch: int = 6,
    columns: Callable[[DataFrame], DataFrame] = identity,
    lines: bool = True,
    watch: Collection[ModuleType] = (),
    visible_within_ms: int = 2000,
) -> Report:
    """Kill a sink before and after each step, and each line of its own code. Raises NotExactlyOnce, KitMisused.

    make_sink: creates the sink as each start of a query does; all write to one target, which is empty at first.
    read: returns the values that a reader of committed data sees there now, each as often as it occurs.
    rows_per_batch: at least 2. columns: converts rows with one string column `value` to the sink's rows.
    lines: false for a quick run, in which drivers die only between the steps.
    watch: modules with more of the sink's code, besides those of its class and base classes.
    visible_within_ms: time after which committed data must be visible.
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
    columns: Callable[[DataFrame], DataFrame] = identity,
    lines: bool = True,
    watch: Collection[ModuleType] = (),
    visible_within_ms: int = 2000,
) -> Report:
    """Check any function for foreachBatch as `check_exactly_once` does; `make_sink` takes the query's checkpoint.

    Drivers of an `ExactlyOnce` die at its steps and lines, those of another function at its lines.
    """

    def make(checkpoint: str, reaper: Reaper, loss: Loss | None) -> BatchSink:
        return with_steps(make_sink(checkpoint), reaper, loss)

    if rows_per_batch < 2:
        raise KitMisused(f"rows_per_batch {rows_per_batch}: must be at least 2, so that a batch can be partly written")
    files = {str(module.__file__) for module in watch}
    with tempfile.TemporaryDirectory(prefix="onceflow-conformance-", dir=_memory()) as directory:
        query = Query(Path(directory), rows_per_batch)
        harness = Harness(make, read, spark, query, Path(directory), columns, files, lines, visible_within_ms)
        # Existing objects are excluded from the many garbage collections after dead drivers.
        gc.freeze()
        try:
            examine(harness)
        finally:
            gc.unfreeze()
            collect_dead_drivers()
    counts = harness.counts
    points = tuple(str(point) for point in counts.points)
    return Report(query.newest, points, counts.overtaken, counts.blocked, counts.losses, counts.tasks)


def _memory() -> str | None:
    """Return a folder in memory if available: each start syncs a checkpoint, and nothing outlives the process."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
