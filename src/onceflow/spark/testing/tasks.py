"""Tasks that die in the executors, once each, by the end of their Python process.

A task can die while it reads the batch's rows, or during and at the end of the sink's own function, which the sink
passes to `mapInArrow`, `mapInPandas` or `foreachPartition`. A sink that writes with Spark's own writers, or in the
driver, has no such function.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

ROWS_PER_ARROW_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
FUNCTIONS = ("mapInArrow", "mapInPandas", "foreachPartition")
TASKS = 2
"""Minimum number of tasks of a batch, unless the sink coalesces them."""
READING = "while reading the rows"
WRITING = "after receiving its first rows"
WRITTEN = "after writing all its rows"


@dataclass(frozen=True, slots=True)
class TaskDeath:
    """Death of task `task` of a stage at its first attempt; the folder `notes` records it."""

    task: int
    when: str
    notes: Path

    def __str__(self) -> str:
        return f"task {self.task} died {self.when}"

    def happens(self) -> None:
        """End the process if it runs the task that is to die."""
        context = TaskContext.get()
        if context is not None and context.partitionId() == self.task and context.attemptNumber() == 0:
            self.notes.mkdir(parents=True, exist_ok=True)
            (self.notes / f"{context.stageId()}").touch()
            os._exit(1)

    @property
    def count(self) -> int:
        """Number of tasks that died."""
        return len(list(self.notes.iterdir())) if self.notes.is_dir() else 0


def rows_of(death: TaskDeath, rows: DataFrame) -> DataFrame:
    """Return `rows`, with a task that dies while reading them."""
    return rows.mapInArrow(_Upstream(death), rows.schema) if death.when == READING else rows


class _Upstream:
    def __init__(self, death: TaskDeath) -> None:
        self._death = death

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            self._death.happens()


class _Downstream:
    """A function of the sink, in the task that dies."""

    def __init__(self, death: TaskDeath, function: Callable[..., Any]) -> None:
        self._death = death
        self._function = function

    def __call__(self, given: Iterator[Any]) -> Any:
        result = self._function(self._given(given))
        return self._last(()) if result is None else self._last(result)

    def _given(self, given: Iterator[Any]) -> Iterator[Any]:
        for item in given:
            yield item
            if self._death.when == WRITING:
                self._death.happens()

    def _last(self, output: Any) -> Iterator[Any]:
        yield from output
        if self._death.when == WRITTEN:
            self._death.happens()


@contextmanager
def dying(death: TaskDeath, session: SparkSession) -> Iterator[None]:
    """Kill a task in the functions that a sink passes to Spark in this block."""
    kind = type(session.range(0))

    def patched(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(rows: DataFrame, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            wrapped = function if isinstance(function, _Upstream) else _Downstream(death, function)
            return method(rows, wrapped, *arguments, **named)

        return called

    with ExitStack() as changed:
        for name in FUNCTIONS:
            changed.enter_context(mock.patch.object(kind, name, patched(getattr(kind, name))))
        changed.callback(session.conf.set, ROWS_PER_ARROW_BATCH, str(session.conf.get(ROWS_PER_ARROW_BATCH)))
        session.conf.set(ROWS_PER_ARROW_BATCH, "1")
        yield
