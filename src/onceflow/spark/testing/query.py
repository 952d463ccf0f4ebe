"""The part of Spark that a sink sees: a checkpoint that advances batch by batch, and each batch's rows.

Every start of the query has its own copy of the checkpoint. So an overtaken driver and its successor run as on a file
system without locks: only the sink's own fence separates them.
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
    """One query from its first batch on. Batch 0 is empty, as with `format("onceflow")`."""

    def __init__(self, directory: Path, row_count: int) -> None:
        self.newest = 0
        """Number of the planned, uncommitted batch."""
        self.starts = 0
        self._directory = directory
        self._row_count = row_count
        self._id = str(uuid.uuid4())
        self._ends = [0]

    def plan_next(self, *, empty: bool = False) -> int:
        """Commit the newest batch and plan another one; return its number."""
        self._ends.append(self._ends[-1] + (0 if empty else self._row_count))
        self.newest += 1
        return self.newest

    def values(self, number: int) -> list[str]:
        """Return the values of batch `number`; each is unique within the query."""
        begin = self._ends[number - 1] if number else 0
        return [f"{number}.{row}" for row in range(self._ends[number] - begin)]

    def checkpoint(self, at: int, *, offsets_more: int = 0) -> Path:
        """Return a copy for one start: batch `at` is planned, earlier ones are committed.

        `offsets_more` extends its plan beyond the former offsets: another batch under the same number.
        """
        self.starts += 1
        copy = self._directory / f"start-{self.starts}"
        for folder in ("offsets", "commits"):
            (copy / folder).mkdir(parents=True)
        (copy / "metadata").write_text(json.dumps({"id": self._id}))
        if at:
            self._write_plan(copy, at - 1, self._ends[at - 1])
        self.advance(copy, at, offsets_more=offsets_more)
        return copy

    def advance(self, copy: Path, number: int, *, offsets_more: int = 0) -> None:
        """Commit the batch before `number` in a start's copy, and plan `number`."""
        if number:
            (copy / "commits" / str(number - 1)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        self._write_plan(copy, number, self._ends[number] + offsets_more)

    @staticmethod
    def _write_plan(copy: Path, number: int, end: int) -> None:
        (copy / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"{TOPIC}":{{"0":{end}}}}}')

    def rows(self, session: SparkSession, number: int) -> DataFrame:
        """Return batch `number` with one string column `value`, each time in another order and in other tasks."""
        values = self.values(number)
        random.Random(f"{number} {self.starts}").shuffle(values)
        # Literal rows: Spark collects them without a job, which matters for hundreds of batches.
        session.conf.set(PARALLELISM, str(TASKS_MIN + self.starts % LAYOUTS))
        listed = ", ".join(f"('{value}')" for value in values or ["none"])
        return session.sql(f"SELECT value FROM VALUES {listed} AS batch(value) WHERE value != 'none'")


@dataclass(frozen=True, slots=True)
class Seen:
    """A reader's view of one batch, earlier ones and foreign values. Each value must occur once."""

    of: int
    """Number of values of the batch."""
    twice: tuple[str, ...]
    missing: tuple[str, ...]
    before_twice: tuple[str, ...]
    before_missing: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether this batch and all earlier ones are visible once."""
        return not (self.twice or self.missing or self.before_twice or self.before_missing or self.foreign)

    @property
    def is_absent(self) -> bool:
        """Whether nothing of this batch is visible, and all earlier ones are visible once."""
        wrong = self.twice or self.before_twice or self.before_missing or self.foreign
        return not wrong and len(self.missing) == self.of


def seen(query: Query, number: int, values: Iterable[str]) -> Seen:
    """Return the view of batch `number` and earlier ones in `values`."""
    counts = Counter(values)
    mine = query.values(number)
    before = [value for earlier in range(number) for value in query.values(earlier)]
    return Seen(
        of=len(mine),
        twice=tuple(value for value in mine if counts[value] > 1),
        missing=tuple(value for value in mine if not counts[value]),
        before_twice=tuple(value for value in before if counts[value] > 1),
        before_missing=tuple(value for value in before if not counts[value]),
        foreign=tuple(sorted(counts.keys() - set(before) - set(mine))),
    )
