"""Exact sums of decoded records inside a read task, the output of option `aggregate`.

Whole numbers and decimals are summed as decimals so wide that no task can overflow them, and converted to their SQL
type at the end: a sum that does not fit is an error, never a wrong number. The output are partial sums: a group may
appear several times, from several tasks or from one that reached GROUPS_MAX. Rejected records are passed through.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.pushdown.aggregate_plan import REJECTED, Aggregation, Key, Measure, TimeBucket
from onceflow.spark.pushdown.converters import TIMESTAMP_MAX, TIMESTAMP_MIN
from onceflow.spark.pushdown.decode import Decoder
from onceflow.spark.pushdown.decode_schema import CORRUPT_REASON

NO_TIME = "no-time"

ROWS_PER_GROUPING = 65_536
"""Grouping has a fixed cost of about a millisecond, so rows are collected for it."""
GROUPS_MAX = 200_000
"""Groups that one task keeps before it emits them."""

_NARROW_DIGITS_MAX = 28
"""A sum of numbers with 28 digits has at most 38 digits for up to ten thousand million of them."""
_TIME = pa.timestamp("us", tz="UTC")
_WINDOW = pa.struct([("start", _TIME), ("end", _TIME)])
_REJECTED = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIME),
        ("reason", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
_ONE_GROUP = "all"


class SumOverflow(OnceflowError):
    """Sum that does not fit into its type."""


class Partial:
    """Groups of one read task."""

    def __init__(self, plan: Aggregation, decoder: Decoder) -> None:
        self._plan = plan
        self._decoder = decoder
        self._time = next((key.column for key in plan.keys if isinstance(key, TimeBucket)), None)
        self._keys = [f"key{number}" for number in range(len(plan.keys))] or [_ONE_GROUP]
        self._pending: list[Any] = []
        self._groups: Any = None  # pyarrow.Table, in the columns of _keys and of _grouped

    def add(self, batch: Any) -> Iterator[Any]:
        """Add a RecordBatch of the source's columns; yield its rejected records, and the groups if there are too many.

        Raises SumOverflow.
        """
        decoded = self._decoder.columns(batch)
        reasons = self._reasons(decoded)
        if reasons.null_count < len(reasons):
            bad = reasons.is_valid()
            yield self._rejected(decoded.filter(bad), batch.filter(bad), reasons.drop_null())
            decoded = decoded.filter(pc.invert(bad))
        self._pending.append(self._columns(decoded))
        if sum(table.num_rows for table in self._pending) >= ROWS_PER_GROUPING:
            self._group()
            if self._groups.num_rows >= GROUPS_MAX:
                yield from self.result()

    def result(self) -> Iterator[Any]:
        """Yield the groups, if any, and forget them. Raises SumOverflow."""
        self._group()
        groups, self._groups = self._groups, None
        if groups is None or not groups.num_rows:
            return
        arrays = [self._key_array(key, groups[name]) for key, name in zip(self._plan.keys, self._keys, strict=False)]
        for measure, name in zip(self._plan.measures, _names(self._plan), strict=True):
            arrays.append(self._measure_array(measure, groups[name].combine_chunks(), groups))
        yield self._rows(arrays, pa.nulls(groups.num_rows, _REJECTED))

    def _reasons(self, decoded: Any) -> Any:
        """Return why each record is rejected; null for the valid ones."""
        reasons = decoded.column(CORRUPT_REASON)
        if self._time is None:
            return reasons
        times = decoded.column(self._time).cast(pa.int64())
        has_time = pc.fill_null(
            pc.and_(pc.greater_equal(times, TIMESTAMP_MIN), pc.less_equal(times, TIMESTAMP_MAX)), False
        )
        return pc.if_else(has_time, reasons, pc.coalesce(reasons, pa.scalar(f"{NO_TIME} {self._time}")))

    def _columns(self, decoded: Any) -> Any:
        """Return a Table with a column for each key and for each measure that has one."""
        columns = {name: self._key_column(key, decoded) for key, name in zip(self._plan.keys, self._keys, strict=False)}
        if not self._plan.keys:
            columns[_ONE_GROUP] = pa.nulls(decoded.num_rows, pa.bool_())
        for number, measure in enumerate(self._plan.measures):
            if measure.column is not None:
                column = decoded.column(measure.column)
                columns[f"measure{number}"] = column.cast(_wide(column.type)) if measure.function == "sum" else column
        return pa.table(columns)

    def _key_column(self, key: Key | TimeBucket, decoded: Any) -> Any:
        column = decoded.column(key.column)
        if isinstance(key, Key):
            return column
        times = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return pa.array(times - times % np.int64(key.width_us))

    def _group(self) -> None:
        """Merge the pending rows into the groups."""
        pending, self._pending = self._pending, []
        rows = pa.concat_tables(pending) if pending else None
        if rows is None or not rows.num_rows:
            return
        grouped = _aggregate(rows, self._keys, _first_functions(self._plan))
        if self._groups is not None:
            both = pa.concat_tables([self._groups, grouped])
            merged = _aggregate(both, self._keys, _later_functions(self._plan))
            grouped = merged.rename_columns(grouped.column_names)
        self._groups = grouped

    def _key_array(self, key: Key | TimeBucket, column: Any) -> Any:
        if isinstance(key, Key):
            return column.combine_chunks()
        starts = column.combine_chunks()
        ends = pc.add(starts, key.width_us)
        return pa.StructArray.from_arrays([starts.cast(_TIME), ends.cast(_TIME)], fields=list(_WINDOW))

    def _measure_array(self, measure: Measure, column: Any, groups: Any) -> Any:
        if measure.function != "sum":
            return column
        wanted = _sum_type(measure)
        try:
            return column.cast(wanted)
        except pa.ArrowInvalid as error:
            raise SumOverflow(self._overflow(measure, column, groups)) from error

    def _overflow(self, measure: Measure, column: Any, groups: Any) -> str:
        sizes = pc.fill_null(pc.abs(column), 0)
        worst = pc.index(sizes, pc.max(sizes)).as_py()
        keys = zip(self._plan.keys, self._keys, strict=False)
        where = {key.name: str(self._key_array(key, groups[name])[worst]) for key, name in keys}
        return (
            f"sum({measure.column}) of {where or 'all records'} in one read task is {column[worst].as_py()}, which "
            f"does not fit {measure.type.simpleString().upper()}: "
            f"{Remedy.MORE_DIGITS.format(column=measure.column)}, or {Remedy.FIND_RECORD}"
        )

    def _rejected(self, decoded: Any, batch: Any, reasons: Any) -> Any:
        columns = [reasons if field.name == "reason" else batch.column(field.name) for field in _REJECTED]
        nulls = [pa.nulls(len(reasons), _key_type(key, decoded)) for key in self._plan.keys]
        nulls += [pa.nulls(len(reasons), _measure_type(measure, decoded)) for measure in self._plan.measures]
        return self._rows(nulls, pa.StructArray.from_arrays(columns, fields=list(_REJECTED)))

    def _rows(self, arrays: list[Any], rejected: Any) -> Any:
        names = [part.name for part in (*self._plan.keys, *self._plan.measures)]
        return pa.RecordBatch.from_arrays([*arrays, rejected], names=[*names, REJECTED])


def _names(plan: Aggregation) -> list[str]:
    """Return the column of the groups that holds each measure."""
    return [
        "count_all" if measure.column is None else f"measure{number}_{measure.function}"
        for number, measure in enumerate(plan.measures)
    ]


Functions = list[tuple[Any, ...]]
"""(columns, function, options), as pyarrow takes them."""

_NULL_WITHOUT_VALUES = pc.ScalarAggregateOptions(min_count=1)


def _first_functions(plan: Aggregation) -> Functions:
    """Return the functions that group rows; all count(*) share one column."""
    functions: Functions = [
        _function(f"measure{number}", measure.function)
        for number, measure in enumerate(plan.measures)
        if measure.column is not None
    ]
    return functions + ([([], "count_all")] if any(measure.column is None for measure in plan.measures) else [])


def _later_functions(plan: Aggregation) -> Functions:
    """Return the functions that merge groups, in the same order."""
    functions: Functions = [
        _function(f"measure{number}_{measure.function}", "sum" if measure.function == "count" else measure.function)
        for number, measure in enumerate(plan.measures)
        if measure.column is not None
    ]
    return functions + ([("count_all", "sum")] if any(measure.column is None for measure in plan.measures) else [])


def _function(column: str, function: str) -> tuple[Any, ...]:
    return (column, function) if function == "count" else (column, function, _NULL_WITHOUT_VALUES)


def _aggregate(rows: Any, keys: list[str], functions: Functions) -> Any:
    """Aggregate on this thread only: Spark gives each task one core."""
    return pa.TableGroupBy(rows, keys, use_threads=False).aggregate(functions)


def _wide(column: Any) -> Any:
    """Return the type in which a column is summed."""
    if not pa.types.is_decimal(column):
        return pa.decimal128(38, 0)
    return (
        pa.decimal128(38, column.scale) if column.precision <= _NARROW_DIGITS_MAX else pa.decimal256(76, column.scale)
    )


def _sum_type(measure: Measure) -> Any:
    if isinstance(measure.type, types.DecimalType):
        return pa.decimal128(measure.type.precision, measure.type.scale)
    return pa.int64()


def _key_type(key: Key | TimeBucket, decoded: Any) -> Any:
    return decoded.schema.field(key.column).type if isinstance(key, Key) else _WINDOW


def _measure_type(measure: Measure, decoded: Any) -> Any:
    if measure.function == "sum":
        return _sum_type(measure)
    return pa.int64() if measure.function == "count" else decoded.schema.field(measure.column).type
