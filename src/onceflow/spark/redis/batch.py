"""Writer of one micro-batch to Redis: one script if it is small, otherwise begin, chunks and complete.

Nothing here depends on the order of rows or on tasks: Spark repeats a batch with others.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.redis import pool as redis_pool
from onceflow.remedies import Remedy
from onceflow.spark.errors import IncompatibleData
from onceflow.spark.exactly_once.batch import NO_BATCH, Batch, canonical_json
from onceflow.spark.redis import chunks as redis_chunks
from onceflow.spark.redis import ids as redis_ids
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis import rows as redis_rows
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.buckets import Argument
from onceflow.spark.redis.marker import Marker
from onceflow.spark.redis.repair import MissingRanges, Step
from onceflow.spark.redis.rows import Collected, Entries, Measured
from onceflow.spark.redis.scripts import Keys
from onceflow.spark.redis.targets import Append, StreamAppend


@dataclass
class BatchWriter:
    """One attempt at one batch by one start of the query: `write`, then `commit`; `marker` is the marker before.

    `rows_before` is the row count of this start's last batch with rows; after `write`, the count of this one.
    """

    url: str
    keys: Keys
    history: Append
    owner: str
    batch: Batch
    marker: Marker | None
    now_ms: Callable[[], int]
    records: Callable[[MissingRanges], DataFrame] | None = None
    """Returns the records of offsets, for the ids."""
    rows_before: int | None = None

    def write(self, rows: DataFrame) -> None:
        """Write the chunks of a large batch; keep a small one for `commit`.

        Raises MarkerRefused, MarkerMoved, OwnerLost, IncompatibleData, RedisFailed, redis-py's errors.
        """
        self._started_ms = self.now_ms()
        with self._offsets_named():
            if self.keys.ids is not None and (self.marker is None or self.marker.sealed != self.batch.digest):
                self._claim_ids()
            self._write(rows)

    def commit(self) -> None:
        """Complete the batch, in one script."""
        with self._offsets_named():
            self._last_script()

    @contextlib.contextmanager
    def _offsets_named(self) -> Iterator[None]:
        """Add the batch's offsets to the message of an IncompatibleData."""
        try:
            yield
        except IncompatibleData as error:
            parts = (f"{part.topic}-{part.partition} offsets {part.begin} to {part.end}" for part in self.batch.ranges)
            raise IncompatibleData(
                f"{error}; micro-batch {self.batch.number} has {', '.join(parts) or 'no offsets'}"
            ) from error

    def _write(self, rows: DataFrame) -> None:
        redis_rows.require_columns(rows, self.keys)
        part = self.marker if self.marker is not None and self.marker.batch == self.batch.number else None
        if part is None and redis_rows.is_worth_a_try(self.batch.size_offsets, self.rows_before):
            collected = redis_rows.collected_unmeasured(rows, self.keys)
            if collected is not None and self._kept_for_commit(collected):
                self.rows_before = collected.rows_read or self.rows_before
                return
        sums = self._sums(redis_rows.with_value(rows, self.keys)).persist()
        try:
            self._write_measured(sums, part)
        finally:
            sums.unpersist()

    def _claim_ids(self) -> None:
        assert self.records is not None
        topics = {part.topic for part in self.batch.ranges}
        if len(topics) > 1:
            raise IncompatibleData(f"a sink with ids reads one topic, not {', '.join(sorted(topics))}")
        missing = Step(self.batch).missing
        times = {} if self.marker is None else self.marker.ids_times
        identity = (self.batch.query, self.owner, self.batch.number, self.batch.digest, self._previous)
        claimed = redis_ids.Claimed({}, [])
        if missing is not None:
            writer = redis_ids.ClaimWriter(self.url, self.keys, identity, self.batch.number, times)
            claimed = redis_ids.claim(self.records(missing), writer)
        self._run("seal", self._previous, *redis_ids.seal_arguments(self.keys, times, claimed))

    def _kept_for_commit(self, collected: Collected) -> bool:
        """Keep the rows for `commit`; return false if they are too many for one script."""
        if collected.rows_written > redis_rows.WHOLE_ROWS_MAX:
            return False
        self._last_script = partial(self._write_whole, collected)
        return True

    def _write_measured(self, sums: DataFrame, part: Marker | None) -> None:
        size = redis_rows.measured(sums, self.keys, self.batch.number)
        self.rows_before = size.rows_read or self.rows_before
        if part is None and size.is_small:
            collected = redis_rows.collected(sums, self.keys, self.batch.number)
            self._last_script = partial(self._write_whole, collected)
            return
        if part is None:
            self._begin_and_write(sums, size)
        elif part.chunks_missing:
            self._write_missing(sums, part.chunks, part.chunks_missing)
        entries = {append.target: self._newest(sums, append) for append in self._entry_targets}
        self._last_script = partial(self._complete, entries)

    def _write_whole(self, collected: Collected) -> None:
        fields = markers.begun_fields(self.marker, self.batch, chunks=0, started_ms=self._started_ms)
        fields |= self._completed_fields()
        rows = redis_scripts.row_arguments(self.keys, collected.rows())
        self._run(
            "whole",
            self._previous,
            *redis_scripts.field_arguments(fields),
            *rows.arguments,
            *self._list_arguments(fields, collected.entries),
            touched=rows.touched,
        )

    def _begin_and_write(self, sums: DataFrame, size: Measured) -> None:
        chunks = redis_chunks.chunks_for(size.rows_written, size.size_bytes)
        fields = markers.begun_fields(self.marker, self.batch, chunks=chunks, started_ms=self._started_ms)
        self._run("begin", self._previous, *redis_scripts.field_arguments(fields))
        self._write_missing(sums, chunks, tuple(range(chunks)))

    def _sums(self, rows: DataFrame) -> DataFrame:
        return redis_chunks.reduced(rows, self.keys)

    @property
    def _previous(self) -> int:
        return NO_BATCH if self.marker is None else self.marker.batch

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
        indexes = redis_scripts.index_arguments(self.keys)
        lists = self._list_arguments(fields, entries)
        self._run("complete", *redis_scripts.field_arguments(fields), *indexes, *lists)

    def _newest(self, sums: DataFrame, append: Append | StreamAppend) -> list[tuple[int, bytes]]:
        wanted = sums.where(F.col("target") == append.target).select("amount", "field", redis_chunks.TIMES)
        newest = wanted.orderBy(F.desc("amount"), F.desc("field")).limit(append.length_max).collect()
        entries = ((amount, bytes(field)) for amount, field, times in newest for _ in range(times))
        return list(itertools.islice(entries, append.length_max))

    def _completed_fields(self) -> dict[str, str]:
        times = markers.completed_fields(started_ms=self._started_ms, finished_ms=self.now_ms())
        return times | markers.loss_fields(self.marker, self.batch)

    def _list_arguments(self, fields: dict[str, str], entries: Entries) -> list[Argument]:
        """Return the newest entries of each list, oldest first and then by their bytes, and the history."""
        newest = {
            append.target: [entry for _, entry in sorted(entries[append.target])[-append.length_max :]]
            for append in self._entry_targets
        }
        for target, new in newest.items():
            size_bytes = sum(map(len, new))
            if size_bytes > redis_chunks.CHUNK_BYTES_MAX:
                raise IncompatibleData(
                    f"the newest entries of target {target!r} in batch {self.batch.number} have {size_bytes} bytes, "
                    f"and {redis_chunks.CHUNK_BYTES_MAX} are allowed: {Remedy.FEWER_ENTRIES}"
                )
        return redis_scripts.list_arguments(self.keys, self.history, self._history_entry(fields), newest)

    def _history_entry(self, fields: dict[str, str]) -> str:
        # Offsets by partition, for a query on one topic; the marker has them by topic.
        one_topic = len({part.topic for part in self.batch.ranges}) == 1
        entry = {
            "batch": self.batch.number,
            "finished_ms": int(fields["finished_ms"]),
            "events": self.batch.size_offsets,
            "offsets": {str(part.partition): part.end for part in self.batch.ranges if one_topic},
        }
        return canonical_json(entry)

    def _run(self, name: str, *arguments: Any, touched: Sequence[bytes] = ()) -> None:
        identity = (self.batch.query, self.owner, self.batch.number, self.batch.digest)
        client = redis_pool.client(self.url, self.keys.marker)
        reply = redis_scripts.run(client, name, self.keys, [*identity, *arguments], touched)
        redis_scripts.raise_refusal(self.keys, reply)
