"""Chunks of a batch too large for one script: summed by key, each chunk written by one script.

A row's chunk depends only on its target, its field, its value if it is a member of a set, and the number of chunks, so
every attempt has the same chunks.
The rows of a chunk are collected into **one row** before a task writes them: whatever Spark splits, merges or repeats,
a chunk is whole. Every chunk has such a row, even an empty one, and is reported as written.
"""

import functools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import redis
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.pandas.functions import arrow_udf

from onceflow.redis import errors as redis_errors
from onceflow.redis import pool as redis_pool
from onceflow.remedies import Remedy
from onceflow.spark.errors import IncompatibleData, MarkerRefused
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.buckets import Row
from onceflow.spark.redis.scripts import Keys

ROWS_PER_CHUNK = 5_000
BYTES_PER_CHUNK = 4 * 1024 * 1024
CHUNKS_PER_TASK_MAX = 8
CHUNK_BYTES_MAX = 64 * 1024 * 1024
ROW = ("target", "field", "amount", "value")


def reduced(rows: DataFrame, keys: Keys) -> DataFrame:
    """Return one row per target and field: the sum of its amounts, null if above 64 bits, or its newest value.

    Members of sets are one row for each value; intervals stay as they are, since two may be equal.
    """
    grouped = [_grouped(rows, keys.summed_targets).agg(*_sum())]
    if keys.sets:
        newest = _grouped(rows, [setting.target for setting in keys.sets]).agg(
            F.max(F.struct("amount", "value")).alias("newest")
        )
        grouped.append(newest.select("target", "field", "newest.amount", "newest.value"))
    if keys.distinct_targets:
        members = _of(rows, keys.distinct_targets).select("target", "field", "value").distinct()
        grouped.append(members.withColumn("amount", F.lit(0).cast("bigint")))
    if keys.interval_targets:
        grouped.append(_of(rows, keys.interval_targets).select(*ROW))
    return functools.reduce(DataFrame.unionByName, grouped)


def _sum() -> tuple[Column, Column]:
    return F.try_sum("amount").alias("amount"), F.lit(None).cast("binary").alias("value")


def _grouped(rows: DataFrame, targets: Sequence[str]) -> GroupedData:
    return _of(rows, targets).groupBy("target", "field")


def _of(rows: DataFrame, targets: Sequence[str]) -> DataFrame:
    return rows.where(F.col("target").isin(list(targets)))


def chunks_for(row_count: int, size_bytes: int) -> int:
    """Return the number of chunks for this many rows and bytes, at least one."""
    return max(1, math.ceil(row_count / ROWS_PER_CHUNK), math.ceil(size_bytes / BYTES_PER_CHUNK))


def task_count(chunks: int, parallelism: int) -> int:
    """Return the number of tasks for this many chunks.

    A task costs about as much as the rows of a chunk, so few write them all: as many as run at once. None has more
    chunks than its memory should hold.
    """
    return max(min(chunks, parallelism), math.ceil(chunks / CHUNKS_PER_TASK_MAX))


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
    """Write the `missing` chunks of `chunks`, one script each, in Spark's tasks.

    Raises MarkerRefused, OwnerLost or IncompatibleData with the first refusal; chunks before it stay written, and a
    later attempt continues with the others.
    """
    session = sums.sparkSession
    wanted = F.col("chunk").isin(list(missing))
    # The members of one large set are spread over the chunks.
    member = F.when(F.col("target").isin(writer.keys.distinct_targets), F.col("value"))
    number = F.pmod(F.xxhash64("target", "field", member), F.lit(chunks)).cast("int").alias("chunk")
    rows = sums.select(number, F.struct(*ROW).alias("row")).where(wanted)
    row_type = rows.schema["row"].dataType
    empty = session.range(chunks).select(
        F.col("id").cast("int").alias("chunk"), F.lit(None).cast(row_type).alias("row")
    )
    tasks = task_count(chunks, session.sparkContext.defaultParallelism)
    numbered = rows.unionByName(empty.where(wanted)).withColumn("task", F.col("chunk") % tasks)
    # The partition's number is the task's number: no adaptive coalescing, and grouping needs no second exchange.
    whole = numbered.repartitionById(tasks, "task").groupBy("task", "chunk").agg(F.collect_list("row").alias("rows"))
    make: Any = arrow_udf  # its overloads know neither a plain type name nor an iterator of columns
    write = make(_task(writer), "string").asNondeterministic()
    reported = whole.select(write("chunk", "rows").alias("report"))
    _check([json.loads(row.report) for row in reported.collect()], writer, missing)


def _task(writer: ChunkWriter) -> Any:
    def write(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for chunk_numbers, chunk_rows in batches:
            reports = []
            for index, chunk in enumerate(chunk_numbers.to_pylist()):
                rows = chunk_rows[index].values
                columns = [rows.field(name).to_pylist() for name in ROW]
                reports.append(json.dumps([chunk, *writer.write(chunk, list(zip(*columns, strict=True)))]))
            yield pa.array(reports, pa.string())

    return write


def _check(reports: Sequence[list[Any]], writer: ChunkWriter, missing: Sequence[int]) -> None:
    for chunk, *reply in sorted(reports):
        if reply[0] == "too-large":
            raise IncompatibleData(
                f"chunk {chunk} of batch {writer.batch} has {reply[1]} bytes of fields, and {writer.size_bytes_max} "
                f"are allowed: {Remedy.SHORTER_FIELDS}"
            )
        if reply[0] == "overflow":
            raise IncompatibleData(
                f"the amounts of field {reply[2]!r} of target {reply[1]!r} in batch {writer.batch} exceed "
                f"64 bits in total: {Remedy.REFUSE_AMOUNTS}"
            )
        if reply[0] == "incompatible":
            raise IncompatibleData(reply[1])
        redis_scripts.raise_refusal(writer.keys, reply)
    written = sorted(report[0] for report in reports)
    if written != sorted(missing):
        raise MarkerRefused(
            f"batch {writer.batch}: chunks {written} were written where {sorted(missing)} were missing; "
            f"{Remedy.START_AGAIN}, which writes the missing ones"
        )
