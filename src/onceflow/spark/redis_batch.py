"""Writes one micro-batch to Redis: in one script where it is small, else begun, in chunks, and completed.

Nothing here depends on the order of rows or on tasks: Spark repeats a batch with other ones.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.spark import marker as markers
from onceflow.spark import redis_chunks, redis_pool, redis_scripts
from onceflow.spark.marker import Batch, Finish, Marker, Write
from onceflow.spark.redis_scripts import Append, Argument, DataMisfit, Keys

# Up to here a batch is one script; its rows pass through the driver.
WHOLE_ROWS_MAX = redis_chunks.ROWS_PER_CHUNK
WHOLE_BYTES_MAX = redis_chunks.BYTES_PER_CHUNK
# Fields up to here keep every chunk far below its own limit.
FIELD_BYTES_MAX = 1024 * 1024

COLUMNS = {"target": "string", "field": "binary", "amount": "bigint"}


@dataclass(frozen=True)
class BatchWriter:
    """One attempt at one batch by one start of the query."""

    url: str
    keys: Keys
    history: Append
    owner: str
    batch: Batch
    now_ms: Callable[[], int]

    def write(self, rows: DataFrame, decision: Write | Finish, found: Marker | None) -> None:
        """Does what `decision` says. Raises MarkerRefused, OwnerLost, DataMisfit, RedisFailed, redis-py's errors."""
        started_ms = self.now_ms()
        cached = self._checked_columns(rows).persist()
        try:
            row_count, size_bytes = self._measured(cached)
            if isinstance(decision, Finish):
                self._finish(cached, decision, started_ms)
            elif row_count <= WHOLE_ROWS_MAX and size_bytes <= WHOLE_BYTES_MAX:
                self._write_whole(cached.collect(), decision, found, started_ms)
            else:
                self._write_chunks(cached, decision, found, started_ms)
        finally:
            cached.unpersist()

    def _checked_columns(self, rows: DataFrame) -> DataFrame:
        if dict(rows.dtypes) != COLUMNS:
            raise DataMisfit(f"the sink was given columns {dict(rows.dtypes)} and needs {COLUMNS}")
        return rows.select(*COLUMNS)

    def _measured(self, rows: DataFrame) -> tuple[int, int]:
        """Number of rows and bytes of their fields. Raises DataMisfit for a row that could not be counted."""
        targets = [target.target for target in self.keys.increments] + [target.target for target in self.keys.appends]
        fits = F.col("target").isin(targets) & F.col("field").isNotNull() & F.col("amount").isNotNull()
        size = F.coalesce(F.length("field"), F.lit(0))
        summary = rows.agg(F.count(F.lit(1)), F.count_if(fits), F.sum(size), F.max(size)).head()
        assert summary is not None
        row_count, fitting, size_bytes, field_bytes = summary
        if fitting != row_count:
            raise DataMisfit(
                f"batch {self.batch.number}: {row_count - fitting} of {row_count} rows lack a field or an amount or "
                f"have a target other than {', '.join(targets)}"
            )
        if (field_bytes or 0) > FIELD_BYTES_MAX:
            raise DataMisfit(
                f"batch {self.batch.number} has a field of {field_bytes} bytes and {FIELD_BYTES_MAX} are allowed: "
                "count by shorter fields"
            )
        return row_count, size_bytes or 0

    def _write_whole(self, rows: Iterable[Row], decision: Write, found: Marker | None, started_ms: int) -> None:
        counts: dict[tuple[str, bytes], int] = {}
        entries: dict[str, list[tuple[int, bytes]]] = {append.target: [] for append in self.keys.appends}
        for target, field, amount in rows:
            if target in entries:
                entries[target].append((amount, bytes(field)))
            else:
                counts[target, bytes(field)] = counts.get((target, bytes(field)), 0) + amount
        fields = markers.begun_fields(found, self.batch, chunks=0, started_ms=started_ms)
        fields |= self._completed_fields(started_ms)
        self._run(
            "whole",
            decision.previous,
            *redis_scripts.field_arguments(fields),
            *redis_scripts.count_arguments(self.keys, [(*key, amount) for key, amount in counts.items()]),
            *self._list_arguments(fields, entries),
        )

    def _write_chunks(self, rows: DataFrame, decision: Write, found: Marker | None, started_ms: int) -> None:
        sums = self._sums(rows).persist()
        try:
            size = sums.agg(F.count(F.lit(1)), F.coalesce(F.sum(F.length("field")), F.lit(0))).head()
            assert size is not None
            chunks = redis_chunks.chunks_for(*size)
            fields = markers.begun_fields(found, self.batch, chunks=chunks, started_ms=started_ms)
            self._run("begin", decision.previous, *redis_scripts.field_arguments(fields))
            self._write_missing(sums, chunks, tuple(range(chunks)))
        finally:
            sums.unpersist()
        self._complete(rows, started_ms)

    def _finish(self, rows: DataFrame, decision: Finish, started_ms: int) -> None:
        if decision.missing:
            self._write_missing(self._sums(rows), decision.chunks, decision.missing)
        self._complete(rows, started_ms)

    def _sums(self, rows: DataFrame) -> DataFrame:
        return redis_chunks.summed(rows, [increment.target for increment in self.keys.increments])

    def _write_missing(self, sums: DataFrame, chunks: int, missing: tuple[int, ...]) -> None:
        writer = redis_chunks.ChunkWriter(
            self.url,
            self.keys,
            self.batch.query,
            self.owner,
            self.batch.number,
            self.batch.digest,
            redis_chunks.CHUNK_BYTES_MAX,
        )
        redis_chunks.write_chunks(sums, writer, chunks=chunks, missing=missing)

    def _complete(self, rows: DataFrame, started_ms: int) -> None:
        entries = {append.target: self._newest(rows, append) for append in self.keys.appends}
        fields = self._completed_fields(started_ms)
        self._run("complete", *redis_scripts.field_arguments(fields), *self._list_arguments(fields, entries))

    def _newest(self, rows: DataFrame, append: Append) -> list[tuple[int, bytes]]:
        wanted = rows.where(F.col("target") == append.target).select("amount", "field")
        newest = wanted.orderBy(F.desc("amount"), F.desc("field")).limit(append.length_max)
        return [(amount, bytes(field)) for amount, field in newest.collect()]

    def _completed_fields(self, started_ms: int) -> dict[str, str]:
        return markers.completed_fields(started_ms=started_ms, finished_ms=self.now_ms())

    def _list_arguments(self, fields: dict[str, str], entries: dict[str, list[tuple[int, bytes]]]) -> list[Argument]:
        """The newest entries of each list, oldest first, equal ones in the order of their bytes; and the history."""
        newest = {
            append.target: [entry for _, entry in sorted(entries[append.target])[-append.length_max :]]
            for append in self.keys.appends
        }
        return redis_scripts.list_arguments(self.keys, self.history, self._history_entry(fields), newest)

    def _history_entry(self, fields: dict[str, str]) -> str:
        # Offsets by partition, for a query on one topic; the marker has them by topic too.
        one_topic = len({part.topic for part in self.batch.ranges}) == 1
        entry = {
            "batch": self.batch.number,
            "finished_ms": int(fields["finished_ms"]),
            "events": self.batch.size_offsets,
            "offsets": {str(part.partition): part.end for part in self.batch.ranges if one_topic},
        }
        return markers.canonical_json(entry)

    def _run(self, name: str, *arguments: Any) -> None:
        identity = (self.batch.query, self.owner, self.batch.number, self.batch.digest)
        answer = redis_scripts.run(redis_pool.client(self.url), name, self.keys, [*identity, *arguments])
        redis_scripts.raise_refusal(self.keys, answer)
