"""The JSON in `value` to typed Arrow columns, by the rules of `converters` (docs/pushdown.md tells them).

Nearly every record of a topic is a good one with plain values: msgspec reads it straight into the fields' types, and
Arrow makes columns of many at once. Whatever either of them refuses, or takes by wider rules than ours, is read a
second time by the converters, field by field from its JSON text; they alone say what a record that is not plain means.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.spark.converters import MICROSECONDS, MISSING, TIMESTAMP_MIN, Broken, converter_of
from onceflow.spark.decode_schema import BITS, CORRUPT_REASON, CORRUPT_RECORD, Field
from onceflow.spark.json_text import DEPTH_MAX, NO_VALUE, NOT_JSON, NOT_OBJECT, NOT_UTF8, is_json, is_too_deep

SLICE_ROWS = 8192
"""Parsed records are Python objects for a moment; so many of them still lie in the processor's cache."""

_ARROW_TYPES = {
    "STRING": pa.string(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
}
_PLAIN_TYPES: dict[str, Any] = {"STRING": str, "DOUBLE": float, "FLOAT": float, "BOOLEAN": bool, "DATE": str}
_PLAIN_TYPES |= {
    kind: Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)] for kind, bits in BITS.items()
}
_PLAIN_TYPES["TIMESTAMP"] = str | _PLAIN_TYPES["BIGINT"]

_NUMBER_OF_MICROSECONDS_END = 10**17
"""Times before it, the year 5138, need no check of their range."""
_UTC = ("Z", "+00:00")
_INSTANT_LENGTHS = (
    len("2015-04-28T07:03:32"),
    *range(len("2015-04-28T07:03:32.4"), len("2015-04-28T07:03:32.405000") + 1),
)


class Column(NamedTuple):
    """A field's values, and which rows are null here because the converter has to look at them (None: no row)."""

    array: Any  # pyarrow.Array
    unsure: Any = None  # pyarrow.BooleanArray, without nulls


def arrow_type(field: Field) -> Any:
    """The Arrow type of a field's column."""
    return pa.decimal128(field.precision, field.scale) if field.kind == "DECIMAL" else _ARROW_TYPES[field.kind]


class Decoder:
    """Turns batches of the source's columns into decoded ones; made once for a read task."""

    def __init__(self, fields: Sequence[Field], kept: Sequence[str] = (), timestamp_unit: str | None = None) -> None:
        self._fields = fields
        self._kept = kept
        self._slow = RecordReader(fields, timestamp_unit)
        names = [f"f{number}" for number in range(len(fields))]
        self._attributes = [attrgetter(name) for name in names]
        self._plain = [_plain_column(field, timestamp_unit) for field in fields]
        event = msgspec.defstruct(
            "Event",
            [(name, *_plain_type(field)) for name, field in zip(names, fields, strict=True)],
            rename={name: field.name for name, field in zip(names, fields, strict=True)},
            gc=False,
        )
        self._nothing = event()
        self._decode = msgspec.json.Decoder(event).decode

    def columns(self, batch: Any) -> Any:
        """The fields, `_corrupt_record`, `_corrupt_reason` and the kept columns of a RecordBatch, row by row."""
        parts = [self._columns(batch.slice(begin, SLICE_ROWS)) for begin in range(0, batch.num_rows, SLICE_ROWS)]
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts or [self._columns(batch)])

    def _columns(self, batch: Any) -> Any:
        values = batch.column("value")
        events, unsure = self._parse(values)
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

    def _parse(self, values: Any) -> tuple[list[Any], set[int]]:
        """The records as structs, one without fields where msgspec refused; and the rows where it did."""
        texts = iter(_texts(values))
        longest = pc.max(pc.binary_length(values)).as_py() or 0
        decode = self._decode if longest <= DEPTH_MAX else self._decode_if_shallow
        events: list[Any] = []
        unsure: set[int] = set()
        while True:
            try:
                # What comes before a refused record stays in the list, and the loop goes on behind it.
                events.extend(map(decode, texts))
                return events, unsure
            except msgspec.DecodeError:
                unsure.add(len(events))
                events.append(self._nothing)

    def _decode_if_shallow(self, text: str) -> Any:
        if len(text) > DEPTH_MAX and is_too_deep(text):
            raise msgspec.DecodeError
        return self._decode(text)

    def _settle(self, values: Any, columns: list[Any], rows: list[int]) -> list[Any]:
        """Put what the converters say of some rows in its place: all fields' arrays, the corrupt texts, the reasons."""
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


class ReadRecord(NamedTuple):
    """One record as the converters see it; `corrupt` is the text of one that is bad."""

    values: list[Any]
    corrupt: str | None = None
    reason: str | None = None


class RecordReader:
    """Reads one record by the rules themselves: slowly, and wholly."""

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
        """The fields' values in the schema's order, and why the record is bad if it is."""
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
    """Each value as text; "", which is no JSON, for those that are none."""
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
    """Values as the converters give them."""
    if field.kind == "TIMESTAMP":
        return pa.array(values, pa.int64()).cast(arrow_type(field))
    if field.kind == "DATE":
        return pa.array(values, pa.int32()).cast(arrow_type(field))
    if field.kind == "FLOAT":
        return pa.array(values, pa.float64()).cast(arrow_type(field), safe=False)
    return pa.array(values, arrow_type(field))


def _plain_type(field: Field) -> tuple[Any, Any]:
    """What msgspec reads a field as, and what stands for an absent one."""
    if field.kind == "DECIMAL":
        return msgspec.Raw, msgspec.Raw()
    return _PLAIN_TYPES[field.kind] | None, None


def _plain_column(field: Field, timestamp_unit: str | None) -> Callable[[list[Any]], Column]:
    """What makes a column of one field's values as msgspec read them."""
    match field.kind:
        case "FLOAT":
            return _floats
        case "DATE":
            return _dates
        case "DECIMAL":
            return _decimals(field)
        case "TIMESTAMP":
            return _timestamps(timestamp_unit)
        case _:
            plain = _ARROW_TYPES[field.kind]
            return lambda values: Column(pa.array(values, plain))


def _floats(values: list[Any]) -> Column:
    array = pa.array(values, pa.float64()).cast(pa.float32(), safe=False)
    return _without(array, pc.is_inf(array))


def _dates(values: list[Any]) -> Column:
    texts = pa.array(values, pa.string())
    sure = pc.match_substring_regex(
        texts, r"^(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}$"
    )
    return _cast(texts, sure, lambda plain: plain.cast(pa.date32()))


def _decimals(field: Field) -> Callable[[list[Any]], Column]:
    """Numbers without an exponent, in quotes or not, that fit as they are."""
    whole = field.precision - field.scale
    digits = f"(?:0|[1-9][0-9]{{0,{whole - 1}}})" if whole else "0"
    number = f"^-?{digits}" + (rf"(?:\.[0-9]{{1,{field.scale}}})?$" if field.scale else "$")
    wanted = arrow_type(field)

    def columns(values: list[Any]) -> Column:
        raw = pa.array([bytes(value) for value in values], pa.binary()).cast(pa.string())
        absent = pc.is_in(raw, pa.array(["", "null"]))
        quoted = pc.and_(pc.starts_with(raw, '"'), pc.ends_with(raw, '"'))
        bare = pc.if_else(quoted, pc.utf8_trim(raw, '"'), raw) if pc.any(quoted).as_py() else raw
        texts = pc.if_else(absent, None, bare)
        return _cast(texts, pc.match_substring_regex(texts, number), lambda plain: plain.cast(wanted))

    return columns


def _timestamps(unit: str | None) -> Callable[[list[Any]], Column]:
    unit_us = MICROSECONDS[unit or "seconds"]

    def columns(values: list[Any]) -> Column:
        kinds = set(map(type, values)) - {type(None)}
        if kinds == {int}:
            return _numbers(pa.array(values, pa.int64()), unit_us)
        if kinds <= {str}:
            texts = pa.array(values, pa.string())
            numbers = _number_texts(texts, unit_us) if unit is not None else None
            return numbers or _instants(texts)
        return Column(pa.nulls(len(values), _ARROW_TYPES["TIMESTAMP"]), pa.array(value is not None for value in values))

    return columns


def _numbers(numbers: Any, unit_us: int) -> Column:
    """Numbers of a unit since 1970, those up to the year 5138."""
    end = _NUMBER_OF_MICROSECONDS_END // unit_us
    sure = _without(numbers, pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, end)))
    return Column(pc.multiply(sure.array, unit_us).cast(_ARROW_TYPES["TIMESTAMP"]), sure.unsure)


def _number_texts(texts: Any, unit_us: int) -> Column | None:
    """The same in quotes; None where no text is such a number."""
    digits_max = len(str(_NUMBER_OF_MICROSECONDS_END // unit_us)) - 1
    sure = pc.and_(pc.ascii_is_decimal(texts), pc.less_equal(pc.binary_length(texts), digits_max))
    sure = pc.and_(sure, pc.invert(pc.starts_with(texts, "0")))
    if not pc.any(sure).as_py():
        return None
    column = _cast(texts, sure, lambda plain: plain.cast(pa.int64()))
    return Column(_numbers(column.array, unit_us).array, column.unsure)


def _instants(texts: Any) -> Column:
    """Texts of one form: all say that they are in UTC, or none has a zone. What else Arrow reads has other lengths."""
    zone = next((zone for zone in _UTC if pc.any(pc.ends_with(texts, zone)).as_py()), "")
    lengths = [length + len(zone) for length in _INSTANT_LENGTHS]
    sure = pc.and_(pc.ends_with(texts, zone), pc.is_in(pc.binary_length(texts), pa.array(lengths, pa.int32())))
    read_as = _ARROW_TYPES["TIMESTAMP"] if zone else pa.timestamp("us")
    column = _cast(texts, sure, lambda plain: plain.cast(read_as).cast(pa.int64()))
    settled = _without(column.array, pc.less(column.array, TIMESTAMP_MIN))
    unsure = [each for each in (column.unsure, settled.unsure) if each is not None]
    return Column(
        settled.array.cast(_ARROW_TYPES["TIMESTAMP"]), pc.or_(*unsure) if len(unsure) == 2 else (unsure or [None])[0]
    )


def _without(array: Any, unsure: Any) -> Column:
    """The column with null where it is not sure."""
    unsure = pc.fill_null(unsure, False)
    if not pc.any(unsure).as_py():
        return Column(array)
    return Column(pc.if_else(unsure, pa.scalar(None, array.type), array), unsure)


def _cast(texts: Any, sure: Any, cast: Callable[[Any], Any]) -> Column:
    """Cast the sure texts; all of them are unsure when the cast refuses one."""
    column = _without(texts, pc.invert(sure))
    try:
        return Column(cast(column.array), column.unsure)
    except pa.ArrowInvalid:
        return Column(cast(pa.nulls(len(texts), pa.string())), texts.is_valid())
