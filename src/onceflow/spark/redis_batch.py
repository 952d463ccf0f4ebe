"""Writes one micro-batch to Redis: in one script where it is small, else begun, in chunks, and completed.

Nothing here depends on the order of rows or on tasks: Spark repeats a batch with other ones.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.spark import marker as markers
from onceflow.spark import redis_chunks, redis_pool, redis_scripts
from onceflow.spark.marker import Batch, Finish, Marker, Write
from onceflow.spark.redis_scripts import Append, Argument, DataMisfit, Increment, Keys, SetIfNewer, StreamAppend

# Up to here a batch is one script; its rows pass through the driver.
WHOLE_ROWS_MAX = redis_chunks.ROWS_PER_CHUNK
WHOLE_BYTES_MAX = redis_chunks.BYTES_PER_CHUNK
# Fields up to here keep every chunk far below its own limit.
FIELD_BYTES_MAX = 1024 * 1024

Target = Increment | Append | SetIfNewer | StreamAppend

COLUMNS = {"target": "string", "field": "binary", "amount": "bigint"}
VALUE = {"value": "binary"}
"""One more column, for a sink that sets values."""


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
        needed = COLUMNS | VALUE if self.keys.sets else COLUMNS
        if dict(rows.dtypes) != needed:
            raise DataMisfit(f"the sink was given columns {dict(rows.dtypes)} and needs {needed}")
        value = F.col("value") if self.keys.sets else F.lit(None).cast("binary").alias("value")
        return rows.select(*COLUMNS, value)

    def _measured(self, rows: DataFrame) -> tuple[int, int]:
        """Number of rows and bytes of their fields. Raises DataMisfit for a row that could not be counted."""
        keys = self.keys
        groups: tuple[Sequence[Target], ...] = (keys.increments, keys.appends, keys.sets, keys.streams)
        targets = [each.target for group in groups for each in group]
        fits = F.col("target").isin(targets) & F.col("field").isNotNull() & F.col("amount").isNotNull()
        fits &= F.col("value").isNotNull() | ~F.col("target").isin([each.target for each in keys.sets])
        size = F.coalesce(F.length("field"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
        summary = rows.agg(F.count(F.lit(1)), F.count_if(fits), F.sum(size), F.max(size)).head()
        assert summary is not None
        row_count, fitting, size_bytes, field_bytes = summary
        if fitting != row_count:
            lacking = "a field, an amount or a value" if keys.sets else "a field or an amount"
            raise DataMisfit(
                f"batch {self.batch.number}: {row_count - fitting} of {row_count} rows lack {lacking} or "
                f"have a target other than {', '.join(targets)}"
            )
        if (field_bytes or 0) > FIELD_BYTES_MAX:
            with_value = " with its value" if keys.sets else ""
            raise DataMisfit(
                f"batch {self.batch.number} has a field of {field_bytes} bytes{with_value} and "
                f"{FIELD_BYTES_MAX} are allowed: count by shorter fields"
            )
        return row_count, size_bytes or 0

    def _write_whole(self, rows: Iterable[Row], decision: Write, found: Marker | None, started_ms: int) -> None:
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
        fields = markers.begun_fields(found, self.batch, chunks=0, started_ms=started_ms)
        fields |= self._completed_fields(started_ms)
        self._run(
            "whole",
            decision.previous,
            *redis_scripts.field_arguments(fields),
            *redis_scripts.count_arguments(
                self.keys,
                [
                    *((*key, amount, None) for key, amount in counts.items()),
                    *((*key, *version_and_value) for key, version_and_value in newest.items()),
                ],
            ),
            *self._list_arguments(fields, entries),
        )

    def _write_chunks(self, rows: DataFrame, decision: Write, found: Marker | None, started_ms: int) -> None:
        sums = self._sums(rows).persist()
        try:
            length = F.length("field") + F.coalesce(F.length("value"), F.lit(0))
            size = sums.agg(F.count(F.lit(1)), F.coalesce(F.sum(length), F.lit(0))).head()
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
        return redis_chunks.reduced(rows, self.keys)

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

    def _complete(self, rows: DataFrame, started_ms: int) -> None:
        entries = {append.target: self._newest(rows, append) for append in self._entry_targets}
        fields = self._completed_fields(started_ms)
        self._run("complete", *redis_scripts.field_arguments(fields), *self._list_arguments(fields, entries))

    def _newest(self, rows: DataFrame, append: Append | StreamAppend) -> list[tuple[int, bytes]]:
        wanted = rows.where(F.col("target") == append.target).select("amount", "field")
        newest = wanted.orderBy(F.desc("amount"), F.desc("field")).limit(append.length_max)
        return [(amount, bytes(field)) for amount, field in newest.collect()]

    def _completed_fields(self, started_ms: int) -> dict[str, str]:
        return markers.completed_fields(started_ms=started_ms, finished_ms=self.now_ms())

    def _list_arguments(self, fields: dict[str, str], entries: dict[str, list[tuple[int, bytes]]]) -> list[Argument]:
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
        return markers.canonical_json(entry)

    def _run(self, name: str, *arguments: Any) -> None:
        identity = (self.batch.query, self.owner, self.batch.number, self.batch.digest)
        answer = redis_scripts.run(
            redis_pool.client(self.url, self.keys.marker), name, self.keys, [*identity, *arguments]
        )
        redis_scripts.raise_refusal(self.keys, answer)
