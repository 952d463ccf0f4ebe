"""Writes one micro-batch to Redis: in one script where it is small, else begun, in chunks, and completed.

Nothing here depends on the order of rows or on tasks: Spark repeats a batch with other ones.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.spark import redis_chunks, redis_pool, redis_scripts
from onceflow.spark import redis_marker as markers
from onceflow.spark.batch import NO_BATCH, Batch, canonical_json
from onceflow.spark.redis_marker import Marker
from onceflow.spark.redis_scripts import Append, Argument, DataMisfit, Keys, StreamAppend

# Up to here a batch is one script, which holds Redis for some 40 ms then; its rows pass through the driver. Chunks take
# five more jobs of Spark, each of which costs more than so many rows do.
WHOLE_ROWS_MAX = 2 * redis_chunks.ROWS_PER_CHUNK
WHOLE_BYTES_MAX = redis_chunks.BYTES_PER_CHUNK
# Tasks that sum for themselves give a field once each: so many rows are collected for one that is written.
COLLECTED_PER_WRITTEN = 8
# Fields up to here keep every chunk far below its own limit.
FIELD_BYTES_MAX = 1024 * 1024

Entries = dict[str, list[tuple[int, bytes]]]
"""Target → its new entries and their order."""


COLUMNS = {"target": "string", "field": "binary", "amount": "bigint"}
VALUE = {"value": "binary"}
"""One more column, for a sink that sets values."""


class Collected(NamedTuple):
    """A batch's rows in the driver, those of one target and field in one: sums, newest values, all entries."""

    counts: dict[tuple[str, bytes], int]
    newest: dict[tuple[str, bytes], tuple[int, bytes]]
    entries: Entries

    @property
    def row_count(self) -> int:
        """What one script would write."""
        return len(self.counts) + len(self.newest) + sum(map(len, self.entries.values()))


@dataclass
class BatchWriter:
    """One attempt at one batch by one start of the query: `write`, then `commit`; `found` is the marker before."""

    url: str
    keys: Keys
    history: Append
    owner: str
    batch: Batch
    found: Marker | None
    now_ms: Callable[[], int]

    def write(self, rows: DataFrame) -> None:
        """Writes the chunks of a large batch; a small one is kept for `commit`.

        Raises MarkerRefused, MarkerMoved, OwnerLost, DataMisfit, RedisFailed, redis-py's errors.
        """
        self._started_ms = self.now_ms()
        cached = self._checked_columns(rows).persist()
        try:
            row_count, size_bytes = self._measured(cached)
            part = self.found if self.found is not None and self.found.batch == self.batch.number else None
            small = row_count <= COLLECTED_PER_WRITTEN * WHOLE_ROWS_MAX and size_bytes <= WHOLE_BYTES_MAX
            if part is None and small:
                collected = self._collected(cached.collect())
                if collected.row_count <= WHOLE_ROWS_MAX:
                    self._last_script = partial(self._write_whole, collected)
                    return
            if part is None:
                self._begin_and_write(cached)
            elif part.chunks_missing:
                self._write_missing(self._sums(cached), part.chunks, part.chunks_missing)
            entries = {append.target: self._newest(cached, append) for append in self._entry_targets}
            self._last_script = partial(self._complete, entries)
        finally:
            cached.unpersist()

    def commit(self) -> None:
        """Completes the batch, in one script."""
        self._last_script()

    def _checked_columns(self, rows: DataFrame) -> DataFrame:
        needed = COLUMNS | VALUE if self.keys.sets else COLUMNS
        if dict(rows.dtypes) != needed:
            raise DataMisfit(f"the sink was given columns {dict(rows.dtypes)} and needs {needed}")
        value = F.col("value") if self.keys.sets else F.lit(None).cast("binary").alias("value")
        return rows.select(*COLUMNS, value)

    def _measured(self, rows: DataFrame) -> tuple[int, int]:
        """Number of rows and bytes of their fields. Raises DataMisfit for a row that could not be counted."""
        keys = self.keys
        fits = F.col("target").isin(keys.targets) & F.col("field").isNotNull() & F.col("amount").isNotNull()
        fits &= F.col("value").isNotNull() | ~F.col("target").isin([each.target for each in keys.sets])
        size = F.coalesce(F.length("field"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
        summary = rows.agg(F.count(F.lit(1)), F.count_if(fits), F.sum(size), F.max(size)).head()
        assert summary is not None
        row_count, fitting, size_bytes, field_bytes = summary
        if fitting != row_count:
            lacking = "a field, an amount or a value" if keys.sets else "a field or an amount"
            raise DataMisfit(
                f"batch {self.batch.number}: {row_count - fitting} of {row_count} rows lack {lacking} or "
                f"have a target other than {', '.join(keys.targets)}"
            )
        if (field_bytes or 0) > FIELD_BYTES_MAX:
            with_value = " with its value" if keys.sets else ""
            raise DataMisfit(
                f"batch {self.batch.number} has a field of {field_bytes} bytes{with_value} and "
                f"{FIELD_BYTES_MAX} are allowed: count by shorter fields"
            )
        return row_count, size_bytes or 0

    def _collected(self, rows: Iterable[Row]) -> Collected:
        counts: dict[tuple[str, bytes], int] = {}
        entries: dict[str, list[tuple[int, bytes]]] = {append.target: [] for append in self._entry_targets}
        newest: dict[tuple[str, bytes], tuple[int, bytes]] = {}
        sets = {each.target for each in self.keys.sets}
        for target, field, amount, value in rows:
            if target in entries:
                entries[target].append((amount, bytes(field)))
            elif target in sets:
                known = newest.get((target, bytes(field)), (amount, b""))
                newest[target, bytes(field)] = max(known, (amount, bytes(value)))
            else:
                counts[target, bytes(field)] = counts.get((target, bytes(field)), 0) + amount
        return Collected(counts, newest, entries)

    def _write_whole(self, collected: Collected) -> None:
        rows: list[redis_scripts.Row] = [(*key, amount, None) for key, amount in collected.counts.items()]
        rows += [(*key, *version_and_value) for key, version_and_value in collected.newest.items()]
        fields = markers.begun_fields(self.found, self.batch, chunks=0, started_ms=self._started_ms)
        fields |= self._completed_fields()
        self._run(
            "whole",
            self._previous,
            *redis_scripts.field_arguments(fields),
            *redis_scripts.count_arguments(self.keys, rows),
            *self._list_arguments(fields, collected.entries),
        )

    def _begin_and_write(self, rows: DataFrame) -> None:
        sums = self._sums(rows).persist()
        try:
            length = F.length("field") + F.coalesce(F.length("value"), F.lit(0))
            size = sums.agg(F.count(F.lit(1)), F.coalesce(F.sum(length), F.lit(0))).head()
            assert size is not None
            chunks = redis_chunks.chunks_for(*size)
            fields = markers.begun_fields(self.found, self.batch, chunks=chunks, started_ms=self._started_ms)
            self._run("begin", self._previous, *redis_scripts.field_arguments(fields))
            self._write_missing(sums, chunks, tuple(range(chunks)))
        finally:
            sums.unpersist()

    def _sums(self, rows: DataFrame) -> DataFrame:
        return redis_chunks.reduced(rows, self.keys)

    @property
    def _previous(self) -> int:
        return NO_BATCH if self.found is None else self.found.batch

    @property
    def _entry_targets(self) -> tuple[Append | StreamAppend, ...]:
        return (*self.keys.appends, *self.keys.streams)

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

    def _complete(self, entries: Entries) -> None:
        fields = self._completed_fields()
        self._run("complete", *redis_scripts.field_arguments(fields), *self._list_arguments(fields, entries))

    def _newest(self, rows: DataFrame, append: Append | StreamAppend) -> list[tuple[int, bytes]]:
        wanted = rows.where(F.col("target") == append.target).select("amount", "field")
        newest = wanted.orderBy(F.desc("amount"), F.desc("field")).limit(append.length_max)
        return [(amount, bytes(field)) for amount, field in newest.collect()]

    def _completed_fields(self) -> dict[str, str]:
        return markers.completed_fields(started_ms=self._started_ms, finished_ms=self.now_ms())

    def _list_arguments(self, fields: dict[str, str], entries: Entries) -> list[Argument]:
        """The newest entries of each list, oldest first, equal ones in the order of their bytes; and the history."""
        newest = {
            append.target: [entry for _, entry in sorted(entries[append.target])[-append.length_max :]]
            for append in self._entry_targets
        }
        for target, new in newest.items():
            size_bytes = sum(map(len, new))
            if size_bytes > redis_chunks.CHUNK_BYTES_MAX:
                raise DataMisfit(
                    f"the newest entries of target {target!r} in batch {self.batch.number} have {size_bytes} bytes and "
                    f"{redis_chunks.CHUNK_BYTES_MAX} are allowed: keep fewer, or shorter ones"
                )
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
        return canonical_json(entry)

    def _run(self, name: str, *arguments: Any) -> None:
        identity = (self.batch.query, self.owner, self.batch.number, self.batch.digest)
        answer = redis_scripts.run(
            redis_pool.client(self.url, self.keys.marker), name, self.keys, [*identity, *arguments]
        )
        redis_scripts.raise_refusal(self.keys, answer)
