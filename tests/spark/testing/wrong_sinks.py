"""A correct sink on SQLite, and sinks that each break one rule of exactly once."""

import contextlib
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from onceflow.spark.sink import Batch, CommitUnknown, Proof, Sink

TABLES = """
PRAGMA journal_mode = wal; PRAGMA synchronous = off;
CREATE TABLE IF NOT EXISTS data (value TEXT);
CREATE TABLE IF NOT EXISTS staged (value TEXT);
CREATE TABLE IF NOT EXISTS marker (id INTEGER PRIMARY KEY, owner INTEGER, proof TEXT);
INSERT OR IGNORE INTO marker VALUES (1, 0, NULL);
"""


class TableSink(Sink):
    """A sink that writes rows and proof to two tables of SQLite in one transaction, fenced by owner."""

    name = "table"

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=0)
        self.connection.executescript(TABLES)
        self.owner = 0
        self.values: list[str] = []

    def recover(self, query: str) -> Proof | None:
        ((self.owner, text),) = self.run("UPDATE marker SET owner = owner + 1 RETURNING owner, proof")
        return Proof.parse("marker", text) if text else None

    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        self.values = []

    def write(self, rows: DataFrame) -> None:
        self.values = [row.value for row in rows.collect()]

    def commit(self, proof: Proof) -> None:
        self.run("BEGIN IMMEDIATE")
        self.insert("data", self.values)
        self.mark(proof)
        self.run("COMMIT")

    def abort(self) -> None:
        if self.connection.in_transaction:
            self.run("ROLLBACK")

    def close(self) -> None:
        self.connection.close()

    def insert(self, table: str, values: Sequence[str]) -> None:
        self.connection.executemany(f"INSERT INTO {table} VALUES (?)", [(value,) for value in values])

    def mark(self, proof: Proof) -> None:
        if not self.run("UPDATE marker SET proof = ? WHERE owner = ? RETURNING id", proof.text(), self.owner):
            raise CommitUnknown(f"owner {self.owner} of the table is not the newest")

    def run(self, statement: str, *arguments: Any) -> list[Any]:
        return self.connection.execute(statement, arguments).fetchall()


def values_in(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM data")]


class StagedSink(TableSink):
    """A sink that stages rows in a table that readers do not use, and moves them at the commit."""

    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        self.run("DELETE FROM staged")

    def write(self, rows: DataFrame) -> None:
        self.insert("staged", [row.value for row in rows.collect()])

    def commit(self, proof: Proof) -> None:
        self.run("BEGIN IMMEDIATE")
        self.run("INSERT INTO data SELECT value FROM staged")
        self.run("DELETE FROM staged")
        self.mark(proof)
        self.run("COMMIT")


class MarkerOutside(TableSink):
    def commit(self, proof: Proof) -> None:
        self.run("BEGIN IMMEDIATE")
        self.insert("data", self.values)
        self.run("COMMIT")
        self.mark(proof)


class MarkerFirst(TableSink):
    def commit(self, proof: Proof) -> None:
        self.mark(proof)
        self.run("BEGIN IMMEDIATE")
        self.insert("data", self.values)
        self.run("COMMIT")


class RetryOutsideTheFence(TableSink):
    def mark(self, proof: Proof) -> None:
        self.run("UPDATE marker SET proof = ?", proof.text())


class OwnerTakenTooLate(TableSink):
    """A sink that reads the proof before it fences: an earlier start can commit in between."""

    def recover(self, query: str) -> Proof | None:
        ((text,),) = self.run("SELECT proof FROM marker")
        proof = Proof.parse("marker", text) if text else None
        ((self.owner,),) = self.run("UPDATE marker SET owner = owner + 1 RETURNING owner")
        return proof


class WritesDirectlyToTheTable(TableSink):
    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        self.run("DELETE FROM data WHERE value LIKE ?", f"{batch.number}.%")

    def write(self, rows: DataFrame) -> None:
        self.insert("data", [row.value for row in rows.collect()])

    def commit(self, proof: Proof) -> None:
        self.mark(proof)


class CommitsRowByRow(TableSink):
    """A sink that commits each row alone, and the proof with the last row."""

    def commit(self, proof: Proof) -> None:
        for value in self.values[:-1]:
            self.insert("data", [value])
        self.values = self.values[-1:]
        super().commit(proof)


class KeepsStagedRows(StagedSink):
    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        pass


class ResumesAtTheRow(StagedSink):
    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        pass

    def write(self, rows: DataFrame) -> None:
        ((done,),) = self.run("SELECT count(*) FROM staged")
        for row in rows.collect()[done:]:
            self.insert("staged", [row.value])


class AbortsACommittedBatch(TableSink):
    def abort(self) -> None:
        super().abort()
        for value in self.values:
            self.run("DELETE FROM data WHERE value = ?", value)


class ForgetsTheProof(TableSink):
    def recover(self, query: str) -> Proof | None:
        super().recover(query)
        return None


class MarksNoEmptyBatch(TableSink):
    def commit(self, proof: Proof) -> None:
        if self.values:
            super().commit(proof)


class KeepsALock(TableSink):
    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        self.run("CREATE TABLE batch_is_open (since TEXT)")

    def mark(self, proof: Proof) -> None:
        super().mark(proof)
        self.run("DROP TABLE batch_is_open")


class LosesARow(TableSink):
    def write(self, rows: DataFrame) -> None:
        self.values = [row.value for row in rows.collect()[1:]]


class ListsTheFolder(TableSink):
    """A sink whose tasks write files; it commits every file in the folder, also those of failed tasks."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.parent = path.parent

    def write(self, rows: DataFrame) -> None:
        folder = tempfile.mkdtemp(dir=self.parent)
        self.run_tasks(rows, folder)
        self.values = [value for file in Path(folder).iterdir() for value in file.read_text().split()]

    def run_tasks(self, rows: DataFrame, folder: str) -> None:
        def to_file(rows: Iterator[Row]) -> None:
            with Path(folder, uuid.uuid4().hex).open("w") as file:
                for row in rows:
                    print(row.value, file=file, flush=True)

        rows.foreachPartition(to_file)


class IgnoresFailedTasks(ListsTheFolder):
    def run_tasks(self, rows: DataFrame, folder: str) -> None:
        with contextlib.suppress(PySparkException, Py4JError):
            super().run_tasks(rows, folder)


class ChecksOnlyTheNumber:
    """A foreachBatch function that ignores the checkpoint: the batch's number is its only proof."""

    def __init__(self, path: Path) -> None:
        self.table = TableSink(path)

    def open(self, session: Any) -> None:
        self.table.run("UPDATE marker SET proof = '-1' WHERE proof IS NULL")

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        ((done,),) = self.table.run("SELECT proof FROM marker")
        if int(done) >= batch_id:
            self.skip(rows)
            return
        self.table.run("BEGIN IMMEDIATE")
        self.table.insert("data", [row.value for row in rows.collect()])
        self.table.run("UPDATE marker SET proof = ?", str(batch_id))
        self.table.run("COMMIT")

    def skip(self, rows: DataFrame) -> None:
        rows.write.format("noop").mode("append").save()

    def close(self) -> None:
        self.table.close()


class FailsOnAnotherPlan(ChecksOnlyTheNumber):
    """A function that fails with KeyError, instead of a refusal, when a batch's plan has changed."""

    def __init__(self, path: Path, checkpoint: str, plans: dict[int, str]) -> None:
        super().__init__(path)
        self.checkpoint = Path(checkpoint)
        self.plans = plans

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        plan = (self.checkpoint / "offsets" / str(batch_id)).read_text()
        if self.plans.setdefault(batch_id, plan) != plan:
            raise KeyError(batch_id)
        super().__call__(rows, batch_id)


class ReadsNoSkippedRows(ChecksOnlyTheNumber):
    def skip(self, rows: DataFrame) -> None:
        pass
