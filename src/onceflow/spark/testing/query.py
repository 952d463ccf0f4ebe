"""The part of Spark that a sink sees: a checkpoint that goes on batch by batch, and each batch's rows.

Every start of the query gets a copy of the checkpoint. So a driver that is overtaken and its successor meet as they do
where a file system knows no locks: only the sink's own fence is between them.
"""

import json
import random
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

TOPIC = "conformance"
LAYOUTS = 2
PARALLELISM = "spark.sql.leafNodeDefaultParallelism"
TASKS_MIN = 2


class Query:
    """One query from its first batch on. Batch 0 is empty, as it is with `format("onceflow")`."""

    def __init__(self, directory: Path, row_count: int) -> None:
        self.newest = 0
        """Number of the batch that is planned and not committed."""
        self.starts = 0
        self._directory = directory
        self._row_count = row_count
        self._id = str(uuid.uuid4())
        self._ends = [0]

    def plan_next(self, *, empty: bool = False) -> int:
        """Spark has committed the newest batch and plans another one; its number."""
        self._ends.append(self._ends[-1] + (0 if empty else self._row_count))
        self.newest += 1
        return self.newest

    def values(self, number: int) -> list[str]:
        """What batch `number` has to write, each value once in the whole query."""
        begin = self._ends[number - 1] if number else 0
        return [f"{number}.{row}" for row in range(self._ends[number] - begin)]

    def checkpoint(self, at: int, *, offsets_more: int = 0) -> Path:
        """A copy for one start: batch `at` is planned, those before are committed.

        `offsets_more` are in its plan beyond those that it had: another batch under the same number.
        """
        self.starts += 1
        copy = self._directory / f"start-{self.starts}"
        for folder in ("offsets", "commits"):
            (copy / folder).mkdir(parents=True)
        (copy / "metadata").write_text(json.dumps({"id": self._id}))
        if at:
            self._write_plan(copy, at - 1, self._ends[at - 1])
        self.go_on(copy, at, offsets_more=offsets_more)
        return copy

    def go_on(self, copy: Path, number: int, *, offsets_more: int = 0) -> None:
        """Commits the batch before `number` in a start's copy, and plans `number`."""
        if number:
            (copy / "commits" / str(number - 1)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        self._write_plan(copy, number, self._ends[number] + offsets_more)

    @staticmethod
    def _write_plan(copy: Path, number: int, end: int) -> None:
        (copy / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"{TOPIC}":{{"0":{end}}}}}')

    def rows(self, session: SparkSession, number: int) -> DataFrame:
        """The rows of batch `number`, one string column `value`: each time in another order and other tasks."""
        values = self.values(number)
        random.Random(f"{number} {self.starts}").shuffle(values)
        # Rows that Spark has no job for where the sink just collects them: hundreds of batches come.
        session.conf.set(PARALLELISM, str(TASKS_MIN + self.starts % LAYOUTS))
        listed = ", ".join(f"('{value}')" for value in values or ["none"])
        return session.sql(f"SELECT value FROM VALUES {listed} AS batch(value) WHERE value != 'none'")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader sees of one batch, of those before it, and what nobody wrote. Each value is to be there once."""

    of: int
    """Number of values that the batch has."""
    twice: tuple[str, ...]
    missing: tuple[str, ...]
    before_twice: tuple[str, ...]
    before_missing: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """The batch is there, once, and so are those before."""
        return not (self.twice or self.missing or self.before_twice or self.before_missing or self.foreign)

    @property
    def is_absent(self) -> bool:
        """Nothing of the batch is there, and those before are once."""
        wrong = self.twice or self.before_twice or self.before_missing or self.foreign
        return not wrong and len(self.missing) == self.of


def seen(query: Query, number: int, values: Iterable[str]) -> Seen:
    """What `values` have of batch `number` and of those before it."""
    counts = Counter(values)
    mine = query.values(number)
    before = [value for each in range(number) for value in query.values(each)]
    return Seen(
        of=len(mine),
        twice=tuple(value for value in mine if counts[value] > 1),
        missing=tuple(value for value in mine if not counts[value]),
        before_twice=tuple(value for value in before if counts[value] > 1),
        before_missing=tuple(value for value in before if not counts[value]),
        foreign=tuple(sorted(counts.keys() - set(before) - set(mine))),
    )
