"""Exact sums of decoded records inside a read task, the output of option `aggregate`.

Numbers are summed in types that no task can overflow, and converted to their SQL type at the end. A sum that does not
fit is an error, never a wrong number. Sums are partial: a group may appear several times, from several tasks or from
one that reached GROUPS_MAX. Rejected records are passed through.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.pushdown import groups as pushdown_groups
from onceflow.spark.pushdown.aggregate_plan import REJECTED, Aggregation, AnyKey, Key, Measure, Session
from onceflow.spark.pushdown.converters import TIMESTAMP_MAX, TIMESTAMP_MIN
from onceflow.spark.pushdown.custom import DecodesColumns
from onceflow.spark.pushdown.decode_schema import CORRUPT_REASON
from onceflow.spark.pushdown.groups import GroupingSet, Groups

NO_TIME = "no-time"

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


class SumOverflow(OnceflowError):
    """Sum that does not fit into its type."""


class Partial:
    """Rows of one read task."""

    def __init__(self, plan: Aggregation, decoder: DecodesColumns) -> None:
        self._plan = plan
        self._decoder = decoder
        self._groups = Groups(plan)
        self._times = list(dict.fromkeys(key.column for key in plan.keys if not isinstance(key, Key)))
        self._key_types: dict[AnyKey, Any] = {}

    def add(self, batch: Any) -> Iterator[Any]:
        """Add a RecordBatch of the source's columns; yield its rejected records, and the groups if there are too many.

        Raises SumOverflow.
        """
        decoded = self._decoder.columns(batch)
        self._key_types = {key: _key_type(key, decoded) for key in self._plan.keys}
        reasons = self._reasons(decoded)
        if reasons.null_count < len(reasons):
            bad = reasons.is_valid()
            yield self._rejected(decoded.filter(bad), batch.filter(bad), reasons.drop_null())
            decoded = decoded.filter(pc.invert(bad))
        for keys, groups in self._groups.add(decoded):
            yield self._result(keys, groups)

    def result(self) -> Iterator[Any]:
        """Yield the groups, if any, and forget them. Raises SumOverflow."""
        for keys, groups in self._groups.result():
            yield self._result(keys, groups)

    def _result(self, keys: GroupingSet, groups: Any) -> Any:
        size = groups.num_rows
        arrays = [
            self._key_array(key, groups) if key in keys else pa.nulls(size, self._key_types[key])
            for key in self._plan.keys
        ]
        if self._plan.sets is not None:
            arrays.append(pa.repeat(pa.scalar(self._plan.grouping_id(keys), pa.int64()), size))
        for measure, name in zip(self._plan.measures, pushdown_groups.measure_columns(self._plan), strict=True):
            arrays.append(self._measure_array(measure, groups.column(name).combine_chunks(), keys, groups))
        return self._rows(arrays, pa.nulls(size, _REJECTED))

    def _reasons(self, decoded: Any) -> Any:
        """Return why each record is rejected; null for the valid ones."""
        reasons = decoded.column(CORRUPT_REASON)
        for name in self._times:
            times = decoded.column(name).cast(pa.int64())
            has_time = pc.fill_null(
                pc.and_(pc.greater_equal(times, TIMESTAMP_MIN), pc.less_equal(times, TIMESTAMP_MAX)), False
            )
            reasons = pc.if_else(has_time, reasons, pc.coalesce(reasons, pa.scalar(f"{NO_TIME} {name}")))
        return reasons

    def _key_array(self, key: AnyKey, groups: Any) -> Any:
        starts = groups.column(pushdown_groups.column(self._plan, key)).combine_chunks()
        if isinstance(key, Key):
            return starts
        if isinstance(key, Session):
            ends = groups.column(pushdown_groups.end_column(self._plan, key)).combine_chunks()
        else:
            ends = pc.add(starts, key.width_us)
        return pa.StructArray.from_arrays([starts.cast(_TIME), ends.cast(_TIME)], fields=list(_WINDOW))

    def _measure_array(self, measure: Measure, column: Any, keys: GroupingSet, groups: Any) -> Any:
        if measure.function != "sum":
            return column
        wanted = _sum_type(measure)
        try:
            return column.cast(wanted)
        except pa.ArrowInvalid as error:
            raise SumOverflow(self._overflow(measure, column, keys, groups)) from error

    def _overflow(self, measure: Measure, column: Any, keys: GroupingSet, groups: Any) -> str:
        sizes = pc.fill_null(pc.abs(column), 0)
        worst = pc.index(sizes, pc.max(sizes)).as_py()
        where = {key.name: str(self._key_array(key, groups)[worst]) for key in keys}
        return (
            f"sum({measure.column}) of {where or 'all records'} in one read task is {column[worst].as_py()}, which "
            f"does not fit {measure.type.simpleString().upper()}: "
            f"{Remedy.MORE_DIGITS.format(column=measure.column)}, or {Remedy.FIND_RECORD}"
        )

    def _rejected(self, decoded: Any, batch: Any, reasons: Any) -> Any:
        columns = [reasons if field.name == "reason" else batch.column(field.name) for field in _REJECTED]
        nulls = [pa.nulls(len(reasons), self._key_types[key]) for key in self._plan.keys]
        nulls += [pa.nulls(len(reasons), pa.int64())] if self._plan.sets is not None else []
        nulls += [pa.nulls(len(reasons), _measure_type(measure, decoded)) for measure in self._plan.measures]
        return self._rows(nulls, pa.StructArray.from_arrays(columns, fields=list(_REJECTED)))

    def _rows(self, arrays: list[Any], rejected: Any) -> Any:
        names = [field.name for field in self._plan.schema()]
        return pa.RecordBatch.from_arrays([*arrays, rejected], names=[*names, REJECTED])


def _sum_type(measure: Measure) -> Any:
    if isinstance(measure.type, types.DecimalType):
        return pa.decimal128(measure.type.precision, measure.type.scale)
    return pa.int64()


def _key_type(key: AnyKey, decoded: Any) -> Any:
    return decoded.schema.field(key.column).type if isinstance(key, Key) else _WINDOW


def _measure_type(measure: Measure, decoded: Any) -> Any:
    if measure.function == "sum":
        return _sum_type(measure)
    return pa.int64() if measure.function == "count" else decoded.schema.field(measure.column).type
