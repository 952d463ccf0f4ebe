"""A batch's rows summed by key, and the chunks of one too large for one script: one script writes each.

A row's chunk depends only on its target, its field, its value if it is a member of a set, and the number of chunks, so
every attempt has the same chunks, in the driver and in tasks.
The driver writes few chunks itself, from one job's result. Many are written by tasks. Then the rows of a chunk are
collected into **one row** before a task writes them: whatever Spark splits, merges or repeats, a chunk is whole. Every
chunk has such a row, even an empty one, and is reported as written.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import redis
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.pandas.functions import arrow_udf

from onceflow.redis import errors as redis_errors
from onceflow.redis import pool as redis_pool
from onceflow.remedies import Remedy
from onceflow.spark.errors import IncompatibleData, MarkerRefused
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.buckets import Row
from onceflow.spark.redis.scripts import Keys

ROWS_PER_CHUNK = 1_000
"""Redis serves no other client during a script."""
BYTES_PER_CHUNK = 1024 * 1024
SHORTER = 4
SHORT_CHUNKS_MAX = 400
"""Number of chunks below which each has a quarter of that size. The marker has a field for each."""
CHUNKS_PER_TASK_MAX = 40
"""Chunks of full size, whose rows a task collects in the JVM, 40 MiB; of short ones four times as many."""
DRIVER_CHUNKS_MAX = 100
"""Number of chunks up to which the driver writes them itself: some 25,000 rows or 25 MiB pass through it."""
CHUNK_BYTES_MAX = 64 * 1024 * 1024
ROW = ("target", "field", "amount", "value")
TIMES = "times"
"""How many equal rows a reduced row stands for; 1 where equal rows are one."""
_LOW = (1 << 32) - 1
READ, UNFIT = "rows_read", "rows_unfit"
"""Columns with the number of all rows that became a reduced one, and of those that cannot be counted."""


def reduced(rows: DataFrame, keys: Keys) -> DataFrame:
    """Return one row per target and field: the sum of its amounts, null if above 64 bits, or its newest value.

    Members of sets are one row for each value; equal intervals, and equal entries, are one with their number. Whether
    Spark repeats a task or not, the rows are the same: nothing here depends on their order.
    """
    valued, entry_targets = [*keys.distinct_targets, *keys.interval_targets], keys.entry_targets
    groups = rows.groupBy(
        "target",
        "field",
        F.when(_is_in(valued), F.col("value")).alias("member"),
        F.when(_is_in(entry_targets), F.col("amount")).alias("entry"),
    )
    sums = [_sum(F.col("amount")).alias("sum"), F.count(F.lit(1)).alias(READ), F.count_if(~_fits(keys)).alias(UNFIT)]
    amount, value = F.when(_is_in(entry_targets), F.col("entry")), F.col("member")
    if keys.sets:
        sums.append(F.max(F.struct("amount", "value")).alias("newest"))
        versioned = _is_in([setting.target for setting in keys.sets])
        amount = amount.when(versioned, F.col("newest.amount"))
        value = F.when(versioned, F.col("newest.value")).otherwise(value)
    amount = amount.when(_is_in(valued), F.lit(0)).otherwise(F.col("sum"))
    times = F.when(_is_in([*keys.interval_targets, *entry_targets]), F.col(READ)).otherwise(F.lit(1))
    reduced_row = amount.alias("amount"), value.alias("value"), times.alias(TIMES)
    written = groups.agg(*sums).select("target", "field", *reduced_row, READ, UNFIT)
    # Each later job has a task for every partition, 200 by Spark's default.
    return written.coalesce(rows.sparkSession.sparkContext.defaultParallelism)


def _sum(amount: Column) -> Column:
    """Return the sum, null if above 64 bits. Unlike `try_sum`, it is the same in any order of positive and negative."""
    high, low = F.sum(F.shiftright(amount, 32)), F.sum(amount.bitwiseAND(F.lit(_LOW)))
    carried = high + F.shiftright(low, 32)
    fits = carried.between(F.lit(-(1 << 31)), F.lit((1 << 31) - 1))
    return F.when(fits, F.shiftleft(carried, 32).bitwiseOR(low.bitwiseAND(F.lit(_LOW))))


def _fits(keys: Keys) -> Column:
    fits = _is_in(keys.targets) & F.col("field").isNotNull() & F.col("amount").isNotNull()
    has_value = F.col("value").isNotNull() | ~_is_in(keys.valued_targets)
    return F.coalesce(fits & has_value, F.lit(False))


def _is_in(targets: Sequence[str]) -> Column:
    return F.col("target").isin(list(targets))


def chunks_for(row_count: int, size_bytes: int) -> int:
    """Return the number of chunks for this many rows and bytes, at least one."""
    full = max(row_count / ROWS_PER_CHUNK, size_bytes / BYTES_PER_CHUNK)
    return max(1, math.ceil(full), min(math.ceil(SHORTER * full), SHORT_CHUNKS_MAX))


def task_count(chunks: int, parallelism: int) -> int:
    """Return the number of tasks for this many chunks.

    A task costs about as much as 5,000 rows, so few write all chunks: as many as run at once. None has more
    chunks than its memory should hold.
    """
    full = chunks / SHORTER if chunks < SHORT_CHUNKS_MAX else chunks
    return max(min(chunks, parallelism), math.ceil(full / CHUNKS_PER_TASK_MAX))


@dataclass(frozen=True)
class ChunkWriter:
    """Writer of chunks in a task; it has only plain values, since it is pickled."""

    url: str
    keys: Keys
    query: str
    owner: str
    batch: int
    digest: str
    size_bytes_max: int

    def write(self, chunk: int, rows: Sequence[tuple[str, bytes, int | None, bytes | None]]) -> list[str]:
        """Write one chunk; return the script's reply, which may be a refusal. Raises RedisFailed."""
        size_bytes = sum(len(field) + len(value or b"") for _, field, _, value in rows)
        if size_bytes > self.size_bytes_max:
            return ["too-large", str(size_bytes)]
        for target, field, amount, _ in rows:
            if amount is None:
                return ["overflow", target, field.decode("utf-8", "backslashreplace")]
        try:
            counts, touched = redis_scripts.row_arguments(self.keys, cast(Sequence[Row], rows))
        except IncompatibleData as error:
            return ["incompatible", str(error)]
        arguments = [self.query, self.owner, self.batch, self.digest, chunk, *counts]
        client = redis_pool.client(self.url, self.keys.marker)
        try:
            return redis_scripts.run(client, "chunk", self.keys, arguments, touched)
        except redis.RedisError as error:
            raise redis_errors.failed(self.url, f"in chunk {chunk} of batch {self.batch}", error) from error


def write_chunks(sums: DataFrame, writer: ChunkWriter, *, chunks: int, missing: Sequence[int]) -> None:
    """Write the `missing` chunks of `chunks`, one script each; entries of lists are in none.

    Raises MarkerRefused, OwnerLost or IncompatibleData with the first refusal; chunks before it stay written, and a
    later attempt continues with the others.
    """
    # The members of one large set are spread over the chunks.
    member = F.when(_is_in(writer.keys.distinct_targets), F.col("value"))
    number = F.pmod(F.xxhash64("target", "field", member), F.lit(chunks)).cast("int").alias("chunk")
    is_missing = F.col("chunk").isin(list(missing))
    rows = sums.where(~_is_in(writer.keys.entry_targets)).select(number, *ROW, TIMES).where(is_missing)
    if chunks <= DRIVER_CHUNKS_MAX:
        _write_in_driver(rows, writer, missing)
    else:
        _write_in_tasks(rows, writer, chunks, missing)


def _write_in_driver(rows: DataFrame, writer: ChunkWriter, missing: Sequence[int]) -> None:
    """Collect the rows, and write one chunk after the other: tasks for so few would cost more."""
    chunk_rows: dict[int, list[Row]] = {chunk: [] for chunk in missing}
    columns = rows.toArrow().to_pydict()
    for chunk, times, *row in zip(columns["chunk"], columns[TIMES], *(columns[name] for name in ROW), strict=True):
        chunk_rows[chunk] += [cast(Row, tuple(row))] * times
    for chunk in missing:
        _require_written(chunk, writer.write(chunk, chunk_rows[chunk]), writer)


def _write_in_tasks(rows: DataFrame, writer: ChunkWriter, chunks: int, missing: Sequence[int]) -> None:
    session = rows.sparkSession
    whole = rows.select("chunk", F.struct(*ROW, TIMES).alias("row"))
    empty = session.range(chunks).select(
        F.col("id").cast("int").alias("chunk"), F.lit(None).cast(whole.schema["row"].dataType).alias("row")
    )
    every = whole.unionByName(empty.where(F.col("chunk").isin(list(missing))))
    tasks = task_count(chunks, session.sparkContext.defaultParallelism)
    numbered = every.withColumn("task", F.col("chunk") % tasks)
    # The partition's number is the task's number: no adaptive coalescing, and grouping needs no second exchange.
    grouped = numbered.repartitionById(tasks, "task").groupBy("task", "chunk").agg(F.collect_list("row").alias("rows"))
    make: Any = arrow_udf  # its overloads know neither a plain type name nor an iterator of columns
    write = make(_task(writer), "string").asNondeterministic()
    reports = grouped.select(write("chunk", "rows").alias("report")).collect()
    _check([json.loads(row.report) for row in reports], writer, missing)


def _task(writer: ChunkWriter) -> Any:
    def write(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for chunk_numbers, chunk_rows in batches:
            reports = []
            for index, chunk in enumerate(chunk_numbers.to_pylist()):
                rows = chunk_rows[index].values
                rows = rows.take(np.repeat(np.arange(len(rows)), rows.field(TIMES)))
                columns = [rows.field(name).to_pylist() for name in ROW]
                reports.append(json.dumps([chunk, *writer.write(chunk, list(zip(*columns, strict=True)))]))
            yield pa.array(reports, pa.string())

    return write


def _check(reports: Sequence[list[Any]], writer: ChunkWriter, missing: Sequence[int]) -> None:
    for chunk, *reply in sorted(reports):
        _require_written(chunk, reply, writer)
    written = sorted(report[0] for report in reports)
    if written != sorted(missing):
        raise MarkerRefused(
            f"batch {writer.batch}: chunks {written} were written where {sorted(missing)} were missing; "
            f"{Remedy.START_AGAIN}, which writes the missing ones"
        )


def _require_written(chunk: int, reply: Sequence[Any], writer: ChunkWriter) -> None:
    if reply[0] == "too-large":
        raise IncompatibleData(
            f"chunk {chunk} of batch {writer.batch} has {reply[1]} bytes of fields, and {writer.size_bytes_max} "
            f"are allowed: {Remedy.SHORTER_FIELDS}"
        )
    if reply[0] == "overflow":
        raise overflow(reply[1], reply[2], writer.batch)
    if reply[0] == "incompatible":
        raise IncompatibleData(reply[1])
    redis_scripts.raise_refusal(writer.keys, reply)


def overflow(target: str, field: str, batch: int) -> IncompatibleData:
    """Return the error for a sum that Redis cannot hold."""
    return IncompatibleData(
        f"the amounts of field {field!r} of target {target!r} in batch {batch} exceed 64 bits in total: "
        f"{Remedy.REFUSE_AMOUNTS}"
    )
