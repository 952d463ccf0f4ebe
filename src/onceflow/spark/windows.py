"""Windows over any DataFrame, by time and by number of rows, as DStreams had them.

    clicks = events.withWatermark("timestamp", "10 minutes")
    count_by_window(clicks, "1 hour", "15 minutes", by=["os_type"])
    reduce_by_window(clicks, sum_("click_count").alias("clicks"), "1 hour", "15 minutes")
    window_by_count(events, size=100, slide=10)

A window by time is half-open, [start, end), and starts at a multiple of the slide since 1970-01-01T00:00Z. It uses
Spark's own `window` and aggregates, with the same rules for watermarks and output modes.

A window by number of rows belongs to one partition of a topic, since Kafka orders records only there: window k holds
rows k·slide to k·slide + size - 1 of the partition, in the order of their offsets, counted from the first row that the
query read. "The last N of all partitions" is not defined, because records of different partitions have no order. A
window is returned once, when its last row has arrived. A stream keeps its rows in Spark's state store, so a repeated
micro-batch returns the same windows.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import Window as SqlWindow
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import ArrayType, BinaryType, LongType, StructField, StructType

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.errors import WrongOption

WINDOW = "window"
PARTITION = ("topic", "partition")
OFFSET = "offset"
ELEMENTS = "elements"
"""The rows of a window by number of rows, an array of structures with the columns of the input."""

ROWS_AT_ONCE = 10_000
"""Rows that leave the stateful step together; a window may have more."""
ELEMENTS_AT_ONCE = 100_000
"""Elements of the windows that a task hands to Spark at once; a window may have more."""

_ROW = "row"
_NUMBER = "number"
_BOUNDS = ("first_offset", "last_offset")
_STATE = "plan string, skip long, rows binary"
"""Size, slide and columns; the rows to skip until the next window begins; and a MessagePack array of the encoded rows
that windows still need, since Spark cannot read an array from a Python state."""
_NO_ROWS = msgspec.msgpack.encode([])


class WindowsChanged(OnceflowError):
    """A checkpoint with rows of windows by number of rows, for a query with other rows or windows."""


def window(rows: DataFrame, length: str, slide: str | None = None, *, time: str = "timestamp") -> DataFrame:
    """Return each row once for each window that it is in, with the column `window` (structure of start and end).

    `length` and `slide`, at most the length, are Spark's intervals, such as "10 minutes"; without `slide` windows do
    not overlap. Rows whose `time` is null are in no window.
    """
    _require_columns(rows, [time])
    return rows.withColumn(WINDOW, F.window(time, length, slide))


def count_by_window(
    rows: DataFrame, length: str, slide: str | None = None, *, by: Sequence[str] = (), time: str = "timestamp"
) -> DataFrame:
    """Return `window`, the columns `by` and `count`: the number of rows in each window.

    A window without rows is not returned.
    """
    return _grouped(rows, length, slide, by, time).count()


def reduce_by_window(
    rows: DataFrame,
    reduce: Column | Sequence[Column],
    length: str,
    slide: str | None = None,
    *,
    by: Sequence[str] = (),
    time: str = "timestamp",
) -> DataFrame:
    """Return `window`, the columns `by` and one column for each aggregate of `reduce`, such as `sum("clicks")`."""
    aggregates = [reduce] if isinstance(reduce, Column) else list(reduce)
    return _grouped(rows, length, slide, by, time).agg(*aggregates)


def window_by_count(rows: DataFrame, size: int, slide: int | None = None) -> DataFrame:
    """Return windows of `size` rows of a partition, each `slide` rows after the one before; see the module.

    `rows` has the source's columns `topic`, `partition` and `offset`, and any others; without `slide` the windows do
    not overlap. The columns of the result are `topic`, `partition`, `first_offset`, `last_offset` and `elements`, the
    array of the window's rows. Rows that complete no window yet are not returned.

    A stream sorts a partition's rows of a micro-batch in the memory of one task: bound them by `maxOffsetsPerTrigger`.
    It stops with WindowsChanged if its checkpoint has other columns, another size or another slide.

    Raises:
        WrongOption: a size or slide below 1, or a column that is missing.
    """
    step = size if slide is None else slide
    for name, value in (("size", size), ("slide", step)):
        if value < 1:
            raise WrongOption(f"{name} of a window by number of rows: {value}, expected at least 1")
    _require_columns(rows, [*PARTITION, OFFSET])
    return _stream_by_count(rows, size, step) if rows.isStreaming else _batch_by_count(rows, size, step)


def _grouped(rows: DataFrame, length: str, slide: str | None, by: Sequence[str], time: str) -> GroupedData:
    _require_columns(rows, [time, *by])
    return rows.groupBy(F.window(time, length, slide), *by)


def _require_columns(rows: DataFrame, names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in rows.columns]:
        raise WrongOption(f"columns of a window: {', '.join(missing)} missing; the rows have {', '.join(rows.columns)}")


def _batch_by_count(rows: DataFrame, size: int, slide: int) -> DataFrame:
    numbered = rows.select(
        *PARTITION,
        F.struct(*rows.columns).alias(_ROW),
        (F.row_number().over(SqlWindow.partitionBy(*PARTITION).orderBy(OFFSET)) - 1).alias(_NUMBER),
    ).withColumn(_ROW, F.struct(_NUMBER, _ROW))
    number = F.col(_NUMBER)
    # Row n is in the windows k with k·slide <= n < k·slide + size.
    last = F.floor(number / F.lit(slide))
    first = F.greatest(F.lit(0), F.floor((number - size) / F.lit(slide)) + 1)
    numbers = F.when(first <= last, F.sequence(first, last)).otherwise(F.array().cast("array<bigint>"))
    windows = (
        numbered.select(*PARTITION, F.explode(numbers).alias(WINDOW), _ROW)
        .groupBy(*PARTITION, WINDOW)
        .agg(F.array_sort(F.collect_list(_ROW), _by_number).alias(_ROW))
        .where(F.size(_ROW) == size)
    )
    elements = F.col(f"{_ROW}.{_ROW}")
    bounds = [elements[place][OFFSET].alias(name) for place, name in zip((0, size - 1), _BOUNDS, strict=True)]
    return windows.select(*PARTITION, *bounds, elements.alias(ELEMENTS))


def _by_number(row: Column, other: Column) -> Column:
    """Compare two rows; the whole structures cannot be compared where a column is a map."""
    return row[_NUMBER] - other[_NUMBER]


def _stream_by_count(rows: DataFrame, size: int, slide: int) -> DataFrame:
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    places = [rows.schema[name] for name in PARTITION]
    bounds = [StructField(name, LongType()) for name in _BOUNDS]
    row = StructField(_ROW, BinaryType())
    encoded = StructType([*places, StructField(OFFSET, LongType()), row])
    windows = StructType([*places, StructField(ELEMENTS, ArrayType(BinaryType()))])
    result = StructType([*places, *bounds, StructField(ELEMENTS, ArrayType(rows.schema))])

    plan = f"size {size}, slide {slide}, {rows.schema.simpleString()}"
    windows_at_once = max(1, (ROWS_AT_ONCE - size) // slide + 1)

    def advance(key: tuple[Any, ...], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        before, skip, kept = state.get if state.exists else (plan, 0, _NO_ROWS)
        if before != plan:
            raise WindowsChanged(f"the checkpoint has windows of {before}, the query {plan}: {Remedy.NEW_CHECKPOINT}")
        # By the rows, too, so that the order does not depend on that of their arrival.
        arrived = pd.concat(list(parts)).sort_values([OFFSET, _ROW])
        available = [*msgspec.msgpack.decode(kept, type=list[bytes]), *arrived[_ROW]]
        starts = range(skip, len(available) - size + 1, slide)
        for place in range(0, len(starts), windows_at_once):
            some = starts[place : place + windows_at_once]
            elements = available[some[0] : some[-1] + size]
            yield pd.DataFrame(dict(zip(PARTITION, key, strict=True)) | {ELEMENTS: [elements]})
        following = skip + slide * len(starts)
        needed = available[following:]
        state.update((plan, following - (len(available) - len(needed)), msgspec.msgpack.encode(needed)))

    return (
        rows.mapInArrow(functools.partial(_encode, schema), encoded)
        .groupBy(*PARTITION)
        .applyInPandasWithState(advance, windows, _STATE, "append", GroupStateTimeout.NoTimeout)
        .mapInArrow(functools.partial(_decode, schema, size, slide), result)
    )


def _encode(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return each row as an Arrow record batch of its own, which keeps every type exactly."""
    for batch in batches:
        typed = batch.cast(schema)
        encoded = [typed.slice(place, 1).serialize().to_pybytes() for place in range(typed.num_rows)]
        columns = {name: typed[name] for name in (*PARTITION, OFFSET)}
        yield pa.RecordBatch.from_pydict(columns | {_ROW: pa.array(encoded, pa.binary())})


def _decode(schema: pa.Schema, size: int, slide: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the windows of runs of encoded rows as arrays of structures."""
    for batch in batches:
        for place in range(batch.num_rows):
            encoded = batch[ELEMENTS][place].values
            rows = (
                pa.Table.from_batches(
                    [pa.ipc.read_record_batch(pa.py_buffer(row.as_buffer()), schema) for row in encoded], schema
                )
                .combine_chunks()
                .to_struct_array()
                .combine_chunks()
            )
            starts = np.arange(0, len(rows) - size + 1, slide)
            for some in np.array_split(starts, max(1, len(starts) * size // ELEMENTS_AT_ONCE)):
                elements = rows.take(pa.array((some[:, None] + np.arange(size)).ravel()))
                ends = np.arange(0, len(elements) + 1, size, dtype=np.int32)
                bounds = [rows.field(OFFSET).take(pa.array(offsets)) for offsets in (some, some + size - 1)]
                yield pa.RecordBatch.from_pydict(
                    {name: pa.repeat(batch[name][place], len(some)) for name in PARTITION}
                    | dict(zip(_BOUNDS, bounds, strict=True))
                    | {ELEMENTS: pa.ListArray.from_arrays(ends, elements)}
                )
