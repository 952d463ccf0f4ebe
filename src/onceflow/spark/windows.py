"""Windows over any DataFrame, by time and by number of rows, as DStreams had them.

    clicks = events.withWatermark("timestamp", "10 minutes")
    count_by_window(clicks, "1 hour", "15 minutes", by=["os_type"])
    reduce_by_window(clicks, sum_("click_count").alias("clicks"), "1 hour", "15 minutes")
    window_by_count(events, size=100, slide=10)

A window by time is half-open, [start, end), and begins at a multiple of the slide since 1970-01-01T00:00Z. These are
Spark's own `window` and aggregates, so that everything Spark says about watermarks and output modes holds.

A window by number of rows belongs to one partition of a topic, since Kafka orders records only there: window k holds
rows k·slide to k·slide + size - 1 of the partition, in the order of their offsets, counted from the first row that the
query read. There is no "last N of all partitions": the partitions' records have no common order; a topic with one
partition has one. A window is returned once, when its last row has arrived. What a stream needs for it is in Spark's
state store, so that a repeated micro-batch returns the same windows.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import Window as SqlWindow
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import ArrayType, BinaryType, LongType, StructField, StructType

from onceflow.spark.errors import WrongOption

WINDOW = "window"
PARTITION = ("topic", "partition")
OFFSET = "offset"
ELEMENTS = "elements"
"""The rows of a window by number of rows, an array of structures with the columns of the input."""

WINDOWS_AT_ONCE = 1000
"""Windows that a task hands to Spark at once."""

_ROW = "row"
_BOUNDS = ("first_offset", "last_offset")
_STATE = "skip long, rows binary"
"""Rows to skip until the next window begins, and a MessagePack array of the encoded rows that windows still need: Spark
cannot read an array from a Python state."""
_NO_ROWS = msgspec.msgpack.encode([])


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
        # The offset comes first, so that sorting the structures sorts by it.
        F.struct(F.col(OFFSET).alias("_order"), F.struct(*rows.columns).alias(_ROW)).alias(_ROW),
        (F.row_number().over(SqlWindow.partitionBy(*PARTITION).orderBy(OFFSET)) - 1).alias("_number"),
    )
    number = F.col("_number")
    # Row n is in the windows k with k·slide <= n < k·slide + size.
    last = F.floor(number / F.lit(slide))
    first = F.greatest(F.lit(0), F.floor((number - size) / F.lit(slide)) + 1)
    numbers = F.when(first <= last, F.sequence(first, last)).otherwise(F.array().cast("array<bigint>"))
    windows = (
        numbered.select(*PARTITION, F.explode(numbers).alias(WINDOW), _ROW)
        .groupBy(*PARTITION, WINDOW)
        .agg(F.array_sort(F.collect_list(_ROW)).alias(_ROW))
        .where(F.size(_ROW) == size)
    )
    bounds = [F.col(_ROW)[place]["_order"].alias(name) for place, name in zip((0, size - 1), _BOUNDS, strict=True)]
    return windows.select(*PARTITION, *bounds, F.col(f"{_ROW}.{_ROW}").alias(ELEMENTS))


def _stream_by_count(rows: DataFrame, size: int, slide: int) -> DataFrame:
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    places = [rows.schema[name] for name in PARTITION]
    bounds = [StructField(name, LongType()) for name in _BOUNDS]
    row = StructField(_ROW, BinaryType())
    encoded = StructType([*places, StructField(OFFSET, LongType()), row])
    windows = StructType([*places, StructField(ELEMENTS, ArrayType(BinaryType()))])
    result = StructType([*places, *bounds, StructField(ELEMENTS, ArrayType(rows.schema))])

    def advance(key: tuple[Any, ...], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        skip, kept = state.get if state.exists else (0, _NO_ROWS)
        arrived = pd.concat(list(parts)).sort_values(OFFSET)
        available = [*msgspec.msgpack.decode(kept, type=list[bytes]), *arrived[_ROW]]
        starts = range(skip, len(available) - size + 1, slide)
        for some in (starts[place : place + WINDOWS_AT_ONCE] for place in range(0, len(starts), WINDOWS_AT_ONCE)):
            elements = [available[start : start + size] for start in some]
            yield pd.DataFrame(dict(zip(PARTITION, key, strict=True)) | {ELEMENTS: elements})
        following = skip + slide * len(starts)
        needed = available[following:]
        state.update((following - (len(available) - len(needed)), msgspec.msgpack.encode(needed)))

    return (
        rows.mapInArrow(functools.partial(_encode, schema), encoded)
        .groupBy(*PARTITION)
        .applyInPandasWithState(advance, windows, _STATE, "append", GroupStateTimeout.NoTimeout)
        .mapInArrow(functools.partial(_decode, schema), result)
    )


def _encode(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return each row as an Arrow record batch of its own, which keeps every type exactly."""
    for batch in batches:
        typed = batch.cast(schema)
        encoded = [typed.slice(place, 1).serialize().to_pybytes() for place in range(typed.num_rows)]
        columns = {name: typed[name] for name in (*PARTITION, OFFSET)}
        yield pa.RecordBatch.from_pydict(columns | {_ROW: pa.array(encoded, pa.binary())})


def _decode(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return windows of encoded rows as arrays of structures; a row of several windows is decoded once."""
    for batch in batches:
        if not batch.num_rows:
            continue
        windows = batch[ELEMENTS]
        distinct = windows.flatten().dictionary_encode()
        decoded = pa.Table.from_batches(
            [pa.ipc.read_record_batch(pa.py_buffer(row.as_buffer()), schema) for row in distinct.dictionary], schema
        ).combine_chunks()
        rows = decoded.to_struct_array().combine_chunks().take(distinct.indices)
        ends = pa.array([0, *itertools.accumulate(pc.list_value_length(windows).to_pylist())], pa.int32())
        offsets = rows.field(OFFSET)
        bounds = (offsets.take(ends[:-1]), offsets.take(pc.subtract(ends[1:], 1)))
        yield pa.RecordBatch.from_pydict(
            {name: batch[name] for name in PARTITION}
            | dict(zip(_BOUNDS, bounds, strict=True))
            | {ELEMENTS: pa.ListArray.from_arrays(ends, rows)}
        )
