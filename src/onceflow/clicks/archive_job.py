"""The archiving query: events from any Kafka to an archive of Parquet files, exactly once.

    format("onceflow") → foreachBatch(ExactlyOnce(ArchiveSink)): tasks write files, the driver creates the next version

The query is separate from the counts in Redis and has its own checkpoint, so the counts do not wait for it.
`onceflow.clicks.archive` describes the files.
"""

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from onceflow.clicks.archive import Archive, File, Version, VersionTaken, plan_of, write_hours
from onceflow.clicks.event_table import event_table
from onceflow.clicks.job import StreamingJob
from onceflow.clicks.single_event import ArchivedFields
from onceflow.spark.exactly_once.batch import NO_BATCH
from onceflow.spark.sink import Batch, CommitUnknown, ExactlyOnce, Proof, Sink

PLAN_VERSION = 1
"""Incremented with each change of the rules that changes a row of the archive."""
ROWS_PER_FILE = 500_000
"""Records that a task keeps before it writes them."""


class ArchiveSink(Sink):
    """Micro-batches as versions of an archive. Rows have the columns value, partition, offset and timestamp."""

    name = "archive"

    def __init__(self, archive: Archive, fields: ArchivedFields) -> None:
        self.batch_done = NO_BATCH
        """Last batch that the archive is known to have."""
        self._archive = archive
        self._fields = fields
        self._base: Version | None = None
        self._files: list[File] = []

    def open(self, session: Any, query: str | None) -> None:
        del session, query
        self._archive.create()

    def recover(self, query: str) -> Proof | None:
        del query
        # An older driver can create the version after this one, or this driver can, not both.
        self._base = self._archive.newest()
        if self._base is None:
            return None
        self.batch_done = self._base.proof.batch_done
        return self._base.proof

    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        self._files = []

    def write(self, rows: DataFrame) -> None:
        write = functools.partial(write_files, fields=self._fields, directory=self._archive.directory)
        records = rows.selectExpr("value", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms")
        # Spark returns the result of one successful attempt per task.
        self._files = [File(*row) for row in records.mapInArrow(write, _FILE_COLUMNS).collect()]

    def commit(self, proof: Proof) -> None:
        try:
            version = self._archive.add(self._base, proof, self._files)
        except VersionTaken as error:
            raise CommitUnknown(str(error)) from error
        self.batch_done = proof.batch
        try:
            version = self._archive.compact(version)
        except VersionTaken:
            return  # A newer driver has taken over; the batch is written.
        self._archive.clean(version)


_FILE_COLUMNS = "path string, rows long, min_ms long, max_ms long, at_ms long"
_FILE_SCHEMA = pa.schema(
    [("path", pa.string()), *((name, pa.int64()) for name in ("rows", "min_ms", "max_ms", "at_ms"))]
)


def write_files(
    batches: Iterator[pa.RecordBatch], *, fields: ArchivedFields, directory: Path
) -> Iterator[pa.RecordBatch]:
    """Write a task's records to files, one for each hour, and yield the files, for `DataFrame.mapInArrow`."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(part.num_rows for part in waiting) >= ROWS_PER_FILE:
            yield _written(waiting, fields, directory)
            waiting = []
    yield _written(waiting, fields, directory)


def _written(batches: list[pa.RecordBatch], fields: ArchivedFields, directory: Path) -> pa.RecordBatch:
    records = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch), strict=True))
    files = write_hours(event_table(fields, records), directory)
    return pa.RecordBatch.from_pylist([asdict(file) for file in files], schema=_FILE_SCHEMA)


@dataclass(frozen=True)
class ArchiveJob(StreamingJob):
    """Settings of a run that archives."""

    name = "onceflow archive"

    directory: Path = field(kw_only=True)
    fields: ArchivedFields = field(default_factory=ArchivedFields)

    @property
    def plan(self) -> str:
        """The plan, in the form stored in the proof."""
        return plan_of(self.topic, self.fields)

    def check(self) -> None:
        """Check field names, archive, broker and topic, which would otherwise fail minutes later in Spark."""
        self.fields.check()
        Archive(self.directory).newest()
        super().check()

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the stream of the topic's records."""
        return self.events(spark).select("value", "partition", "offset", "timestamp")

    def sink(self, spark: SparkSession) -> ExactlyOnce:
        """Return a sink for one start of the query."""
        del spark
        return ExactlyOnce(
            ArchiveSink(Archive(self.directory), self.fields),
            checkpoint=self.checkpoint,
            plan=self.plan,
            plan_version=PLAN_VERSION,
            accept_data_loss=self._stream if self.accept_data_loss else None,
        )

    def batch_done(self, sink: ExactlyOnce) -> int:
        """Return the last batch that the archive is known to have."""
        assert isinstance(sink.sink, ArchiveSink)
        return sink.sink.batch_done
