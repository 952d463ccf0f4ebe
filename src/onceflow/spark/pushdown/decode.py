"""Decoding of the JSON in `value` to typed Arrow columns, by the rules of `converters` (docs/pushdown.md).

Nearly all records are valid and have plain values: msgspec reads them directly into the fields' types, and Arrow builds
columns of many at once. A record that either refuses, or accepts by wider rules than ours, is read a second time by the
converters, field by field from its JSON text. Only they define the result for a record that is not plain.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.spark.pushdown.converters import MISSING, Broken, converter_of
from onceflow.spark.pushdown.decode_schema import CORRUPT_REASON, CORRUPT_RECORD, Field
from onceflow.spark.pushdown.json_text import (
    DEEP_CHARACTERS_MIN,
    NO_VALUE,
    NOT_JSON,
    NOT_OBJECT,
    NOT_UTF8,
    is_json,
    is_too_deep,
)
from onceflow.spark.pushdown.plain_columns import arrow_type, plain_column, plain_type

SLICE_ROWS = 8192
"""Parsed records are Python objects for a moment; this number of them fits into the processor's cache."""


class Decoder:
    """Decoder of batches of the source's columns, created once for each read task."""

    def __init__(self, fields: Sequence[Field], kept: Sequence[str] = (), timestamp_unit: str | None = None) -> None:
        self._fields = fields
        self._kept = kept
        self._slow = RecordReader(fields, timestamp_unit)
        names = [f"f{number}" for number in range(len(fields))]
        self._attributes = [attrgetter(name) for name in names]
        self._plain = [plain_column(field, timestamp_unit) for field in fields]
        event = msgspec.defstruct(
            "Event",
            [(name, *plain_type(field)) for name, field in zip(names, fields, strict=True)],
            rename={name: field.name for name, field in zip(names, fields, strict=True)},
            gc=False,
        )
        self._nothing = event()
        self._decode = msgspec.json.Decoder(event).decode

    def columns(self, batch: Any) -> Any:
        """Return the fields, `_corrupt_record`, `_corrupt_reason` and the kept columns of a RecordBatch, row by row."""
        parts = [self._columns(batch.slice(begin, SLICE_ROWS)) for begin in range(0, batch.num_rows, SLICE_ROWS)]
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts or [self._columns(batch)])

    def _columns(self, batch: Any) -> Any:
        values = batch.column("value")
        events, unsure = read_structs(values, self._decode, self._nothing)
        columns = []
        for attribute, field, plain in zip(self._attributes, self._fields, self._plain, strict=True):
            column = plain(list(map(attribute, events)))
            columns.append(column.array)
            if column.unsure is not None:
                unsure.update(np.flatnonzero(column.unsure.to_numpy(zero_copy_only=False)).tolist())
            if field.required and column.array.null_count:
                unsure.update(np.flatnonzero(column.array.is_null().to_numpy(zero_copy_only=False)).tolist())
        arrays = self._settle(values, columns, sorted(unsure))
        arrays += [batch.column(name) for name in self._kept]
        names = [field.name for field in self._fields] + [CORRUPT_RECORD, CORRUPT_REASON, *self._kept]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _settle(self, values: Any, columns: list[Any], rows: list[int]) -> list[Any]:
        """Return the fields' arrays, corrupt texts and reasons, with the converters' results in `rows`."""
        if not rows:
            nulls = pa.nulls(len(values), pa.string())
            return [*columns, nulls, nulls]
        read = [self._slow.read(value.as_py()) for value in values.take(pa.array(rows))]
        mask = np.zeros(len(values), dtype=bool)
        mask[rows] = True
        chosen = pa.array(mask)
        arrays = []
        for index, field in enumerate(self._fields):
            patch = _array([record.values[index] for record in read], field)
            arrays.append(pc.replace_with_mask(columns[index], chosen, patch))
        nulls = pa.nulls(len(values), pa.string())
        for texts in ([record.corrupt for record in read], [record.reason for record in read]):
            arrays.append(pc.replace_with_mask(nulls, chosen, pa.array(texts, pa.string())))
        return arrays


def read_structs(values: Any, decode: Callable[[str], Any], nothing: Any) -> tuple[list[Any], set[int]]:
    """Return the records as structs, and the rows that `decode` refused, whose structs are `nothing`.

    `decode` is that of a msgspec decoder. A record that is nested too deep is refused, as is one without UTF-8 text.
    """
    texts = iter(_texts(values))
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest >= DEEP_CHARACTERS_MIN:
        texts = ("" if len(text) >= DEEP_CHARACTERS_MIN and is_too_deep(text) else text for text in texts)
    structs: list[Any] = []
    refused: set[int] = set()
    while True:
        try:
            # Records before a refused one stay in the list; the loop continues after it.
            structs.extend(map(decode, texts))
            return structs, refused
        except msgspec.DecodeError:
            refused.add(len(structs))
            structs.append(nothing)


class ReadRecord(NamedTuple):
    """One record read by the converters; `corrupt` is the text of a bad one."""

    values: list[Any]
    corrupt: str | None = None
    reason: str | None = None


class RecordReader:
    """Reader of single records with the converters: slow and complete."""

    def __init__(self, fields: Sequence[Field], timestamp_unit: str | None) -> None:
        self._fields = [
            (f"f{number}", field, converter_of(field, timestamp_unit)) for number, field in enumerate(fields)
        ]
        event = msgspec.defstruct(
            "RawEvent",
            [(name, msgspec.Raw, msgspec.Raw()) for name, _, _ in self._fields],
            rename={name: field.name for name, field, _ in self._fields},
            gc=False,
        )
        self._decode = msgspec.json.Decoder(event).decode

    def read(self, value: bytes | None) -> ReadRecord:
        """Return the fields' values in the schema's order, and the reason if the record is bad."""
        if value is None:
            return self._bad(None, NO_VALUE)
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return self._bad(value.decode(errors="replace"), NOT_UTF8)
        if is_too_deep(text):
            return self._bad(text, NOT_JSON)
        try:
            event = self._decode(text)
        except msgspec.ValidationError:
            return self._bad(text, NOT_OBJECT if is_json(text) else NOT_JSON)
        except msgspec.DecodeError:
            return self._bad(text, NOT_JSON)
        return self._convert(text, event)

    def _convert(self, text: str, event: Any) -> ReadRecord:
        values: list[Any] = []
        reason = None
        for name, field, convert in self._fields:
            raw = bytes(getattr(event, name))
            absent = raw in (b"", b"null")
            value = None if absent else convert(raw)
            if isinstance(value, Broken) or (absent and field.required):
                reason = reason or f"{MISSING if absent else value} {field.name}"
                value = None
            values.append(value)
        return ReadRecord(values, text if reason else None, reason)

    def _bad(self, text: str | None, reason: str) -> ReadRecord:
        return ReadRecord([None] * len(self._fields), text, reason)


def _texts(values: Any) -> Iterable[str]:
    """Return each value as text; "", which is not valid JSON, for a null or invalid UTF-8."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        return [_text(value) for value in values.to_pylist()]
    return (texts.fill_null("") if texts.null_count else texts).to_pylist()  # type: ignore[no-any-return]


def _text(value: bytes | None) -> str:
    try:
        return "" if value is None else value.decode()
    except UnicodeDecodeError:
        return ""


def _array(values: list[Any], field: Field) -> Any:
    """Return an Arrow array of values from a converter."""
    if field.kind == "TIMESTAMP":
        return pa.array(values, pa.int64()).cast(arrow_type(field))
    if field.kind == "DATE":
        return pa.array(values, pa.int32()).cast(arrow_type(field))
    if field.kind == "FLOAT":
        return pa.array(values, pa.float64()).cast(arrow_type(field), safe=False)
    return pa.array(values, arrow_type(field))
