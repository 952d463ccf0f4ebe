"""A micro-batch's rows for Redis: what they must be like, how many they are, and those of a small batch in the driver.

A job of Spark costs more than a small batch's rows do. So where the batch before was small and this one has few
offsets the rows are collected in one job, as they are: a column more, or a filter, costs a tenth of such a batch's
time. Few offsets make few rows where there is no state and rows are not multiplied without measure; what the driver
takes is bounded by `spark.driver.maxResultSize`, at which Spark stops the query. What follows a batch that failed, or
a start, is measured first. Where there are too many rows after all, and where one is not as expected, it is left to
the measuring, which tells what it is.
"""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.remedies import Remedy
from onceflow.spark.redis import chunks as redis_chunks
from onceflow.spark.redis.scripts import DataMisfit, Keys, Row

COLUMNS = {"target": "string", "field": "binary", "amount": "bigint"}
VALUE = {"value": "binary"}
"""One more column, for a sink that sets values."""

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


class Collected(NamedTuple):
    """A batch's rows in the driver, those of one target and field in one: sums, newest values, all entries."""

    rows_read: int
    counts: dict[tuple[str, bytes], int]
    newest: dict[tuple[str, bytes], tuple[int, bytes]]
    entries: Entries

    @property
    def rows_written(self) -> int:
        """What one script would write."""
        return len(self.counts) + len(self.newest) + sum(map(len, self.entries.values()))

    def rows(self) -> list[Row]:
        """The sums and the newest values."""
        sums: list[Row] = [(*key, amount, None) for key, amount in self.counts.items()]
        return sums + [(*key, *version_and_value) for key, version_and_value in self.newest.items()]


class Measured(NamedTuple):
    """Rows, and bytes of their fields and values."""

    row_count: int
    size_bytes: int

    @property
    def is_small(self) -> bool:
        """Whether the rows may be collected; they may still be too many for one script then."""
        return self.row_count <= COLLECTED_PER_WRITTEN * WHOLE_ROWS_MAX and self.size_bytes <= WHOLE_BYTES_MAX


def require_columns(rows: DataFrame, keys: Keys) -> None:
    """Raises DataMisfit for other columns than the sink's."""
    needed = COLUMNS | VALUE if keys.sets else COLUMNS
    if dict(rows.dtypes) != needed:
        raise DataMisfit(f"the sink was given columns {dict(rows.dtypes)} and needs {needed}")


def with_value(rows: DataFrame, keys: Keys) -> DataFrame:
    """The rows with a column `value` in any case."""
    return rows.selectExpr(*COLUMNS, "value" if keys.sets else "CAST(NULL AS BINARY) AS value")


def measured(rows: DataFrame, keys: Keys, batch: int) -> Measured:
    """Number and size of rows with a value. Raises DataMisfit for a row that could not be counted."""
    fits = F.col("target").isin(keys.targets) & F.col("field").isNotNull() & F.col("amount").isNotNull()
    fits &= F.col("value").isNotNull() | ~F.col("target").isin([each.target for each in keys.sets])
    size = F.coalesce(F.length("field"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    summary = rows.agg(F.count(F.lit(1)), F.count_if(fits), F.sum(size), F.max(size)).head()
    assert summary is not None
    row_count, fitting, size_bytes, field_bytes = summary
    if fitting != row_count:
        lacking = "a field, an amount or a value" if keys.sets else "a field or an amount"
        raise DataMisfit(
            f"batch {batch}: {row_count - fitting} of {row_count} rows lack {lacking} or "
            f"have a target other than {', '.join(keys.targets)}"
        )
    if (field_bytes or 0) > FIELD_BYTES_MAX:
        and_value = " with its value" if keys.sets else ""
        raise DataMisfit(
            f"batch {batch} has a field of {field_bytes} bytes{and_value} and "
            f"{FIELD_BYTES_MAX} are allowed: {Remedy.SHORTER_FIELDS}"
        )
    return Measured(row_count, size_bytes or 0)


def collected(rows: DataFrame, keys: Keys) -> Collected:
    """All rows of a batch that was measured, and is small."""
    return _summed(rows.toArrow(), keys)


def is_worth_a_try(offsets: int, rows_before: int | None) -> bool:
    """Whether so many offsets are collected unmeasured, where the last batch that had rows had `rows_before`."""
    return rows_before is not None and rows_before <= WHOLE_ROWS_MAX // 2 and 0 < offsets <= WHOLE_ROWS_MAX


def collected_unmeasured(rows: DataFrame, keys: Keys) -> Collected | None:
    """All rows, in one job; None where they are too many, or one is too long or could not be counted."""
    found = rows.toArrow()
    if not keys.sets:
        found = found.append_column("value", pa.nulls(len(found), pa.binary()))
    return _summed(found, keys) if _fit(found, keys) else None


def _fit(found: pa.Table, keys: Keys) -> bool:
    """Whether `measured` would call them small, and each row has what it asks for."""
    lengths = pc.add(*(pc.fill_null(pc.binary_length(found.column(name)), 0) for name in ("field", "value")))
    if (pc.max(lengths).as_py() or 0) > FIELD_BYTES_MAX:
        return False
    if not Measured(len(found), pc.sum(lengths).as_py() or 0).is_small:
        return False
    targets, values = found.column("target"), found.column("value")
    sets = pa.array([each.target for each in keys.sets], pa.string())
    known = pc.is_in(targets, pa.array(keys.targets, pa.string()))
    has_value = pc.or_(values.is_valid(), pc.invert(pc.is_in(targets, sets)))
    is_whole = all(found.column(name).null_count == 0 for name in COLUMNS)
    return is_whole and bool(pc.all(pc.and_(known, has_value), min_count=0).as_py())


def _summed(found: pa.Table, keys: Keys) -> Collected:
    counts: dict[tuple[str, bytes], int] = {}
    entries: Entries = {target: [] for target in keys.entry_targets}
    newest: dict[tuple[str, bytes], tuple[int, bytes]] = {}
    sets = {each.target for each in keys.sets}
    columns = [found.column(name).to_pylist() for name in redis_chunks.ROW]
    for target, field, amount, value in zip(*columns, strict=True):
        if target in entries:
            entries[target].append((amount, field))
        elif target in sets:
            newest[target, field] = max(newest.get((target, field), (amount, b"")), (amount, value))
        else:
            counts[target, field] = counts.get((target, field), 0) + amount
    return Collected(found.num_rows, counts, newest, entries)
