"""A micro-batch's rows for Redis: checked, measured, and collected in the driver if the batch is small.

A Spark job costs more than the rows of a small batch. So if the previous batch was small and this one has few offsets,
one job collects the rows unchanged: one more column, or a filter, costs a tenth of such a batch's time. Few offsets
mean few rows if there is no state and rows are not multiplied without limit; `spark.driver.maxResultSize`, at which
Spark stops the query, bounds what the driver takes. The first batch of a start, and one after a failure, is measured
first. If there are too many rows after all, or one is invalid, the batch is measured, which reports the reason.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.remedies import Remedy
from onceflow.spark.errors import IncompatibleData
from onceflow.spark.redis import chunks as redis_chunks
from onceflow.spark.redis.buckets import Row
from onceflow.spark.redis.scripts import Keys

COLUMNS = {"target": "string", "field": "binary", "amount": "bigint"}
VALUE = {"value": "binary"}
"""Additional column of a sink whose targets need it."""

# A batch up to this size is one script, which blocks Redis for some 40 ms; its rows pass through the driver. Chunks
# take a Spark job, and each list another, which costs more than this many rows.
WHOLE_ROWS_MAX = 10_000
WHOLE_BYTES_MAX = 4 * 1024 * 1024
# Each task may return a field's sum: up to this many rows are collected per written one.
COLLECTED_PER_WRITTEN = 8
# Fields up to this size keep every chunk far below its own limit.
FIELD_BYTES_MAX = 1024 * 1024

Entries = dict[str, list[tuple[int, bytes]]]
"""Target → its new entries, with the amount that orders them."""


class Collected(NamedTuple):
    """A batch's rows in the driver, one per target and field: sums, newest values, all entries."""

    rows_read: int
    counts: dict[tuple[str, bytes], int]
    newest: dict[tuple[str, bytes], tuple[int, bytes]]
    entries: Entries
    members: Collection[tuple[str, bytes, bytes]] = frozenset()
    """Values of sets: target, field, value."""
    intervals: tuple[tuple[str, bytes, bytes], ...] = ()

    @property
    def rows_written(self) -> int:
        """Number of rows that one script would write."""
        rows = len(self.counts) + len(self.newest) + len(self.members) + len(self.intervals)
        return rows + sum(map(len, self.entries.values()))

    def rows(self) -> list[Row]:
        """Return all rows that are not entries."""
        rows: list[Row] = [(*key, amount, None) for key, amount in self.counts.items()]
        rows += [(*key, *version_and_value) for key, version_and_value in self.newest.items()]
        return rows + [(target, field, 0, value) for target, field, value in (*self.members, *self.intervals)]


class Measured(NamedTuple):
    """Number of rows before they were reduced; rows to write, and bytes of their fields and values, without entries."""

    rows_read: int
    rows_written: int
    size_bytes: int
    entries: int = 0
    entries_bytes: int = 0

    @property
    def is_small(self) -> bool:
        """Whether one script writes the batch."""
        size_bytes = self.size_bytes + self.entries_bytes
        return self.rows_written + self.entries <= WHOLE_ROWS_MAX and size_bytes <= WHOLE_BYTES_MAX


def columns_of(keys: Keys) -> dict[str, str]:
    """Return the names and types of the columns of the sink's rows."""
    return COLUMNS | VALUE if keys.valued_targets else COLUMNS


def require_columns(rows: DataFrame, keys: Keys) -> None:
    """Raise IncompatibleData for other columns than the sink's."""
    needed = columns_of(keys)
    if dict(rows.dtypes) != needed:
        raise IncompatibleData(f"the rows have columns {dict(rows.dtypes)}, and the sink needs {needed}")


def with_value(rows: DataFrame, keys: Keys) -> DataFrame:
    """Return the rows with a column `value`."""
    return rows.selectExpr(*COLUMNS, "value" if keys.valued_targets else "CAST(NULL AS BINARY) AS value")


def measured(sums: DataFrame, keys: Keys, batch: int) -> Measured:
    """Return number and size of reduced rows. Raises IncompatibleData for a row that cannot be counted."""
    size = F.coalesce(F.length("field"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    is_entry = F.col("target").isin(keys.entry_targets)
    times = F.col(redis_chunks.TIMES)
    summary = sums.agg(
        F.sum(redis_chunks.UNFIT),
        F.max(size),
        F.sum(redis_chunks.READ),
        F.sum(F.when(~is_entry, times)),
        F.sum(F.when(~is_entry, times * size)),
        F.sum(F.when(is_entry, times)),
        F.sum(F.when(is_entry, times * size)),
    ).head()
    assert summary is not None
    unfit, field_bytes, rows_read, *sizes = (value or 0 for value in summary)
    if unfit:
        lacking = "a field, an amount or a value" if keys.valued_targets else "a field or an amount"
        raise IncompatibleData(
            f"batch {batch}: {unfit} of {rows_read} rows lack {lacking} or "
            f"have a target other than {', '.join(keys.targets)}"
        )
    if field_bytes > FIELD_BYTES_MAX:
        and_value = " with its value" if keys.valued_targets else ""
        raise IncompatibleData(
            f"batch {batch} has a field of {field_bytes} bytes{and_value}, and "
            f"{FIELD_BYTES_MAX} are allowed: {Remedy.SHORTER_FIELDS}"
        )
    return Measured(rows_read, *sizes)


def collected(sums: DataFrame, keys: Keys, batch: int) -> Collected:
    """Return all rows of a measured small batch. Raises IncompatibleData for a sum above 64 bits."""
    table = sums.toArrow()
    for row in table.filter(pc.is_null(table.column("amount"))).to_pylist():
        raise redis_chunks.overflow(row["target"], row["field"].decode("utf-8", "backslashreplace"), batch)
    times = table.column(redis_chunks.TIMES)
    return _summed(table.take(np.repeat(np.arange(len(table)), times)), keys)


def is_worth_a_try(offsets: int, rows_before: int | None) -> bool:
    """Return whether to collect this many offsets unmeasured, after a batch with `rows_before` rows."""
    return rows_before is not None and rows_before <= WHOLE_ROWS_MAX // 2 and 0 < offsets <= WHOLE_ROWS_MAX


def collected_unmeasured(rows: DataFrame, keys: Keys) -> Collected | None:
    """Return all rows, by one job; None if they are too many, or one is too long or cannot be counted."""
    table = rows.toArrow()
    if not keys.valued_targets:
        table = table.append_column("value", pa.nulls(len(table), pa.binary()))
    return _summed(table, keys) if _fit(table, keys) else None


def _fit(table: pa.Table, keys: Keys) -> bool:
    """Return whether `measured` would accept the rows, and they are so few that one script may write them."""
    lengths = pc.add(*(pc.fill_null(pc.binary_length(table.column(name)), 0) for name in ("field", "value")))
    if (pc.max(lengths).as_py() or 0) > FIELD_BYTES_MAX:
        return False
    if len(table) > COLLECTED_PER_WRITTEN * WHOLE_ROWS_MAX or (pc.sum(lengths).as_py() or 0) > WHOLE_BYTES_MAX:
        return False
    targets, values = table.column("target"), table.column("value")
    valued = pa.array(keys.valued_targets, pa.string())
    known = pc.is_in(targets, pa.array(keys.targets, pa.string()))
    has_value = pc.or_(values.is_valid(), pc.invert(pc.is_in(targets, valued)))
    is_whole = all(table.column(name).null_count == 0 for name in COLUMNS)
    return is_whole and bool(pc.all(pc.and_(known, has_value), min_count=0).as_py())


def _summed(table: pa.Table, keys: Keys) -> Collected:
    counts: dict[tuple[str, bytes], int] = {}
    entries: Entries = {target: [] for target in keys.entry_targets}
    newest: dict[tuple[str, bytes], tuple[int, bytes]] = {}
    members: set[tuple[str, bytes, bytes]] = set()
    intervals: list[tuple[str, bytes, bytes]] = []
    sets = {setting.target for setting in keys.sets}
    columns = [table.column(name).to_pylist() for name in redis_chunks.ROW]
    for target, field, amount, value in zip(*columns, strict=True):
        if target in entries:
            entries[target].append((amount, field))
        elif target in sets:
            newest[target, field] = max(newest.get((target, field), (amount, b"")), (amount, value))
        elif target in keys.distinct_targets:
            members.add((target, field, value))
        elif target in keys.interval_targets:
            intervals.append((target, field, value))
        else:
            counts[target, field] = counts.get((target, field), 0) + amount
    return Collected(table.num_rows, counts, newest, entries, members, tuple(intervals))
