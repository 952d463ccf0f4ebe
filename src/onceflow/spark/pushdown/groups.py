"""Groups of the grouping sets of one read task, on Arrow tables.

Only the finest grouping sets group records. A coarser one, such as the hours beside the minutes, is grouped from the
groups that a finer one emits, which are fewer. Groups are merged only when GROUPS_MAX have been collected, because
merging costs as much as grouping records.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.spark.pushdown.aggregate_plan import Aggregation, AnyKey, Key, Session, TimeBucket

ROWS_PER_GROUPING = 65_536
"""Grouping has a fixed cost of about a millisecond, so rows are collected for it."""
GROUPS_MAX = 200_000
"""Groups of one grouping set that a task keeps before it emits them."""

_NARROW_DIGITS_MAX = 28
"""Digits of a number of which up to 10^10 have a sum of at most 38 digits."""
_ONE_GROUP = "all"
_SESSION = "session"

GroupingSet = tuple[AnyKey, ...]
Emitted = Iterator[tuple[GroupingSet, Any]]
"""Grouping sets with a Table of their groups."""


class Groups:
    """Groups of all grouping sets of a plan, as Tables with the columns of `column` and `measure_columns`."""

    def __init__(self, plan: Aggregation) -> None:
        self._plan = plan
        self._pending: list[Any] = []
        self._sets = {keys: _Set(plan, keys) for keys in sorted(plan.grouping_sets, key=_coarseness)}
        self._coarser: dict[GroupingSet, list[GroupingSet]] = {keys: [] for keys in self._sets}
        self._finest: list[GroupingSet] = []
        for keys in self._sets:
            finer = [other for other in self._sets if other != keys and _can_make(other, keys)]
            (self._coarser[finer[-1]] if finer else self._finest).append(keys)

    def add(self, records: Any) -> Emitted:
        """Add a RecordBatch of valid records; yield the groups of sets that have too many."""
        self._pending.append(self._rows(records))
        if sum(table.num_rows for table in self._pending) >= ROWS_PER_GROUPING:
            yield from self._group()

    def result(self) -> Emitted:
        """Yield all groups and forget them."""
        yield from self._group()
        for keys in self._finest:
            yield from self._emit(keys, everything=True)

    def _group(self) -> Emitted:
        pending, self._pending = self._pending, []
        rows = pa.concat_tables(pending) if pending else None
        if rows is None or not rows.num_rows:
            return
        for keys in self._finest:
            if self._sets[keys].add_rows(rows):
                yield from self._emit(keys)

    def _emit(self, keys: GroupingSet, *, everything: bool = False) -> Emitted:
        """Yield a set's groups and pass them on to coarser sets; with `everything` yield those of all of them too."""
        groups = self._sets[keys].take()
        if groups is not None:
            yield keys, groups
        for coarser in self._coarser[keys]:
            is_full = groups is not None and self._sets[coarser].add_groups(groups, keys)
            if is_full or everything:
                yield from self._emit(coarser, everything=everything)

    def _rows(self, records: Any) -> Any:
        """Return a Table with a column for each key of the finest sets and for each measure that has one."""
        columns = {_ONE_GROUP: pa.nulls(records.num_rows, pa.bool_())}
        for key in dict.fromkeys(key for keys in self._finest for key in keys):
            columns[column(self._plan, key)] = _values(key, records.column(key.column))
            if isinstance(key, Session):
                columns[end_column(self._plan, key)] = pc.add(columns[column(self._plan, key)], key.gap_us)
        for number, measure in enumerate(self._plan.measures):
            if measure.column is not None:
                values = records.column(measure.column)
                columns[f"measure{number}"] = values.cast(_wide(values.type)) if measure.function == "sum" else values
        return pa.table(columns)


class _Set:
    """Groups of one grouping set: parts, which may share groups until they are merged."""

    def __init__(self, plan: Aggregation, keys: GroupingSet) -> None:
        self._plan = plan
        self._keys = keys
        self._parts: list[Any] = []

    def add_rows(self, rows: Any) -> bool:
        """Group records; return whether there are too many groups."""
        return self._add(_grouped(rows, self._plan, self._keys, _first_functions(self._plan)))

    def add_groups(self, groups: Any, finer: GroupingSet) -> bool:
        """Group the groups of a finer set; return whether there are too many."""
        columns = dict(zip(groups.column_names, groups.columns, strict=True))
        for key in self._keys:
            source = _source(finer, key)
            if isinstance(key, TimeBucket) and source is not None and source != key:
                columns[column(self._plan, key)] = _starts(columns[column(self._plan, source)], key.width_us)
        return self._add(self._merged(pa.table(columns)))

    def take(self) -> Any:
        """Return the groups, None if there are none, and forget them."""
        self._merge()
        parts, self._parts = self._parts, []
        return parts[0] if parts else None

    def _add(self, groups: Any) -> bool:
        self._parts.append(groups)
        if sum(part.num_rows for part in self._parts[1:]) >= GROUPS_MAX:
            self._merge()
        return int(self._parts[0].num_rows) >= GROUPS_MAX

    def _merge(self) -> None:
        if len(self._parts) > 1:
            self._parts = [self._merged(pa.concat_tables(self._parts))]

    def _merged(self, groups: Any) -> Any:
        return _grouped(groups, self._plan, self._keys, _later_functions(self._plan))


def column(plan: Aggregation, key: AnyKey) -> str:
    """Return the column of a key; that of a window has its start in microseconds."""
    return f"key{plan.keys.index(key)}"


def end_column(plan: Aggregation, key: Session) -> str:
    """Return the column of a session's end, in microseconds."""
    return f"{column(plan, key)}_end"


def measure_columns(plan: Aggregation) -> list[str]:
    """Return the column of each measure; all count(*) share one."""
    return [
        "count_all" if measure.column is None else f"measure{number}_{measure.function}"
        for number, measure in enumerate(plan.measures)
    ]


def _coarseness(keys: GroupingSet) -> tuple[int, int]:
    """Return a sort key: a set comes after the sets from whose groups it can be built."""
    return -len(keys), max((key.width_us for key in keys if isinstance(key, TimeBucket)), default=0)


def _can_make(finer: GroupingSet, keys: GroupingSet) -> bool:
    return all(_source(finer, key) is not None for key in keys)


def _source(finer: GroupingSet, wanted: AnyKey) -> AnyKey | None:
    """Return the key of a finer set from which a key can be built: the same, or a shorter window that divides it."""
    for key in finer:
        if key == wanted or _divides(key, wanted):
            return key
    return None


def _divides(key: AnyKey, wanted: AnyKey) -> bool:
    if not (isinstance(key, TimeBucket) and isinstance(wanted, TimeBucket)) or key.column != wanted.column:
        return False
    return key.width_us < wanted.width_us and wanted.width_us % key.width_us == 0


def _values(key: AnyKey, values: Any) -> Any:
    if isinstance(key, Key):
        return values
    times_us = values.cast(pa.int64())
    return _starts(times_us, key.width_us) if isinstance(key, TimeBucket) else times_us


def _starts(times_us: Any, width_us: int) -> Any:
    times = times_us.to_numpy() if isinstance(times_us, pa.ChunkedArray) else times_us.to_numpy(zero_copy_only=False)
    return pa.array(times - times % np.int64(width_us))


Functions = list[tuple[Any, ...]]
"""(columns, function, options), as pyarrow takes them."""

_NULL_WITHOUT_VALUES = pc.ScalarAggregateOptions(min_count=1)


def _first_functions(plan: Aggregation) -> Functions:
    """Return the functions that group records; all count(*) share one column."""
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


def _function(values: str, function: str) -> tuple[Any, ...]:
    return (values, function) if function == "count" else (values, function, _NULL_WITHOUT_VALUES)


def _grouped(rows: Any, plan: Aggregation, keys: GroupingSet, functions: Functions) -> Any:
    """Return one row per group, its columns in the order of `functions` and then of the keys."""
    names = list(dict.fromkeys(measure_columns(plan)))
    names.sort(key="count_all".__eq__)
    session = next((key for key in keys if isinstance(key, Session)), None)
    columns = [column(plan, key) for key in keys if key is not session] or [_ONE_GROUP]
    if _ONE_GROUP not in rows.column_names:
        rows = rows.append_column(_ONE_GROUP, pa.nulls(rows.num_rows, pa.bool_()))
    if session is None:
        return _aggregate(rows, columns, functions).rename_columns([*columns, *names])
    start, end = column(plan, session), end_column(plan, session)
    order, begins = _sessions(rows, columns, start, end)
    rows = rows.take(order).append_column(_SESSION, pa.array(np.cumsum(begins)))
    groups = _aggregate(rows, [_SESSION], [*functions, (start, "min"), (end, "max")])
    groups = groups.rename_columns([_SESSION, *names, start, end])
    firsts = rows.select(columns).take(pa.array(np.flatnonzero(begins)))
    for name in firsts.column_names:
        groups = groups.append_column(name, firsts.column(name))
    return groups.drop_columns([_SESSION])


def _sessions(rows: Any, keys: list[str], start: str, end: str) -> tuple[Any, Any]:
    """Return an order of the rows, and for each row in it whether it begins a session.

    A row that starts at the very end of a session belongs to it, as in Spark.
    """
    size = rows.num_rows
    starts, ends, groups = rows.column(start).to_numpy(), rows.column(end).to_numpy(), _numbers(rows, keys)
    order = np.lexsort((starts, groups))
    starts, ends, groups = starts[order], ends[order], groups[order]
    by_end = np.argsort(ends, kind="stable")
    ranks = np.empty(size, np.int64)
    ranks[by_end] = np.arange(size)
    # A later group has higher numbers, so the maximum starts again with it.
    latest = ends[by_end[np.maximum.accumulate(groups * size + ranks) % size]]
    begins = np.ones(size, bool)
    begins[1:] = (groups[1:] != groups[:-1]) | (starts[1:] > latest[:-1])
    return pa.array(order), begins


def _numbers(rows: Any, keys: list[str]) -> Any:
    """Return a number for each row, equal for equal keys and below the number of rows."""
    numbers = np.zeros(rows.num_rows, np.int64)
    for name in keys:
        encoded = rows.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        numbers = numbers * len(encoded.dictionary) + encoded.indices.to_numpy()
        numbers = np.unique(numbers, return_inverse=True)[1]
    return numbers


def _aggregate(rows: Any, keys: list[str], functions: Functions) -> Any:
    """Aggregate on this thread only: Spark gives each task one core."""
    return pa.TableGroupBy(rows, keys, use_threads=False).aggregate(functions)


def _wide(values: Any) -> Any:
    """Return the type in which a column is summed: no task has enough records to overflow it."""
    if not pa.types.is_decimal(values):
        return pa.int64() if values.bit_width < 64 else pa.decimal128(38, 0)
    return (
        pa.decimal128(38, values.scale) if values.precision <= _NARROW_DIGITS_MAX else pa.decimal256(76, values.scale)
    )
