"""Input for the tests of `decode`, and how to read its output."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from onceflow.spark.pushdown.decode import Decoder
from onceflow.spark.pushdown.decode_schema import parse_schema


def source_batch(values: Sequence[bytes | None], *, partition: int = 0, offset_begin: int = 0) -> pa.RecordBatch:
    """The source's own columns for some values, the timestamps one millisecond apart."""
    size = len(values)
    offsets = range(offset_begin, offset_begin + size)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(size, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["clicks"] * size, pa.string()),
            "partition": pa.array([partition] * size, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([1000 * offset for offset in offsets], pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * size, pa.int32()),
        }
    )


def decoded(schema: str, values: Sequence[bytes | None], timestamp_unit: str | None = None) -> list[dict[str, Any]]:
    """The decoded rows, times and days as numbers since 1970: Python has no years above 9999 and no equal NaN."""
    batch = Decoder(parse_schema(schema), (), timestamp_unit).columns(source_batch(values))
    columns = {name: plain(batch.column(name)).to_pylist() for name in batch.schema.names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def plain(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date(column.type) else column


def fields(schema: str, value: bytes | None, timestamp_unit: str | None = None) -> tuple[Any, ...]:
    """One record's fields, and its reason last."""
    row = decoded(schema, [value], timestamp_unit)[0]
    row.pop("_corrupt_record")
    return tuple(row.values())
