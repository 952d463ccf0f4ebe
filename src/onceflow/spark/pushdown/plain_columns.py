"""Fast conversion of fields read by msgspec to Arrow columns, where the result is that of the converters.

msgspec and Arrow accept some texts that `converters` does not, and vice versa. So each kind of column first selects the
rows that all three certainly read alike. The other rows are null here and left to the converter. The tests compare
both ways.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.spark.pushdown.converters import MICROSECONDS, TIMESTAMP_MIN
from onceflow.spark.pushdown.decode_schema import BITS, Field

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
_TIMESTAMP = _ARROW_TYPES["TIMESTAMP"]

_NUMBER_OF_MICROSECONDS_END = 10**17
"""Earlier times, up to the year 5138, need no range check."""
_INSTANT_LENGTHS = (
    len("2015-04-28T07:03:32"),
    *range(len("2015-04-28T07:03:32.4"), len("2015-04-28T07:03:32.405000") + 1),
)
_DATE = r"^(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}$"
_NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"

_POSSIBLE = (
    r"^.{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    r"02-(?:0[1-9]|[12][0-9]))(?:$|[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])"
)
"""Days and times that exist, except the 29th of February in the wrong years."""

_REFUSED_TOGETHER = 16
"""Number of texts down to which a cast that Arrow refuses is retried in halves."""


class Column(NamedTuple):
    """A field's values, and which rows are null because they need the converter (None: no row)."""

    array: Any  # pyarrow.Array
    unsure: Any = None  # pyarrow.BooleanArray, without nulls


MakeColumn = Callable[[list[Any]], Column]
Cast = Callable[[Any], Any]


def arrow_type(field: Field) -> Any:
    """Return the Arrow type of a field's column."""
    return pa.decimal128(field.precision, field.scale) if field.kind == "DECIMAL" else _ARROW_TYPES[field.kind]


def plain_type(field: Field) -> tuple[Any, Any]:
    """Return the type as which msgspec reads a field, and the value for an absent one."""
    if field.kind in BITS:
        return _integer(BITS[field.kind]) | str | None, None
    match field.kind:
        case "DECIMAL":
            return msgspec.Raw, msgspec.Raw()
        case "DOUBLE" | "FLOAT":
            return float | str | None, None
        case "BOOLEAN":
            return bool | None, None
        case "TIMESTAMP":
            return _integer(64) | str | None, None
        case "STRING":
            return int | str | None, None
        case _:
            return str | None, None


def _integer(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


def plain_column(field: Field, timestamp_unit: str | None) -> MakeColumn:
    """Return the function that converts one field's values to a column."""
    if field.kind in BITS:
        return _whole_numbers(field)
    match field.kind:
        case "STRING":
            return _strings
        case "DOUBLE":
            return _doubles
        case "FLOAT":
            return _floats
        case "DATE":
            return _dates
        case "DECIMAL":
            return _decimals(field)
        case "TIMESTAMP":
            return _timestamps(timestamp_unit)
        case _:
            return lambda values: Column(pa.array(values, pa.bool_()))


def _strings(values: list[Any]) -> Column:
    try:
        return Column(pa.array(values, pa.string()))
    except pa.ArrowTypeError:  # There are numbers: str() gives their text, except that of -0.
        unsure = pa.array([type(value) is int and value == 0 for value in values])
        return _without(
            pa.array([str(value) if type(value) is int else value for value in values], pa.string()), unsure
        )


def _whole_numbers(field: Field) -> MakeColumn:
    wanted = _ARROW_TYPES[field.kind]
    digits = len(str(2 ** (BITS[field.kind] - 1))) - 1

    def column(values: list[Any]) -> Column:
        try:
            return Column(pa.array(values, wanted))
        except pa.ArrowInvalid:  # There are strings.
            texts, numbers = _apart(values)
            from_texts = _cast(texts, _are_digits(texts, digits), lambda plain: plain.cast(wanted))
            return Column(pc.coalesce(from_texts.array, pa.array(numbers, wanted)), from_texts.unsure)

    return column


def _apart(values: list[Any]) -> tuple[Any, list[Any]]:
    """Return the strings as an array and the others as a list, each with null in the other's places."""
    texts = pa.array([value if type(value) is str else None for value in values], pa.string())
    return texts, [None if type(value) is str else value for value in values]


def _are_digits(texts: Any, digits_max: int) -> Any:
    short = pc.and_(pc.ascii_is_decimal(texts), pc.less_equal(pc.binary_length(texts), digits_max))
    return pc.and_(short, pc.or_(pc.equal(texts, "0"), pc.invert(pc.starts_with(texts, "0"))))


def _doubles(values: list[Any]) -> Column:
    try:
        return Column(pa.array(values, pa.float64()))
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # There are strings.
        texts, numbers = _apart(values)
        are_numbers = pc.and_(pc.match_substring_regex(texts, _NUMBER), pc.not_equal(texts, "-0"))
        from_texts = _cast(texts, are_numbers, lambda plain: plain.cast(pa.float64()))
        finite = _also_unsure(from_texts, pc.is_inf(from_texts.array))
        return Column(pc.coalesce(finite.array, pa.array(numbers, pa.float64())), finite.unsure)


def _floats(values: list[Any]) -> Column:
    doubles = _doubles(values)
    array = doubles.array.cast(pa.float32(), safe=False)
    return _also_unsure(Column(array, doubles.unsure), pc.is_inf(array))


def _dates(values: list[Any]) -> Column:
    texts = pa.array(values, pa.string())
    return _cast_times(texts, pc.match_substring_regex(texts, _DATE), lambda plain: plain.cast(pa.date32()))


def _decimals(field: Field) -> MakeColumn:
    """Return the conversion of numbers without exponent, quoted or not, that fit without rounding."""
    whole = field.precision - field.scale
    digits = f"(?:0|[1-9][0-9]{{0,{whole - 1}}})" if whole else "0"
    number = f"^-?{digits}" + (rf"(?:\.[0-9]{{1,{field.scale}}})?$" if field.scale else "$")
    wanted = arrow_type(field)

    def column(values: list[Any]) -> Column:
        raw = pa.array([bytes(value) for value in values], pa.binary()).cast(pa.string())
        absent = pc.is_in(raw, pa.array(["", "null"]))
        quoted = pc.and_(pc.starts_with(raw, '"'), pc.ends_with(raw, '"'))
        bare = pc.if_else(quoted, pc.utf8_trim(raw, '"'), raw) if pc.any(quoted).as_py() else raw
        texts = pc.if_else(absent, None, bare)
        return _cast(texts, pc.match_substring_regex(texts, number), lambda plain: plain.cast(wanted))

    return column


def _timestamps(unit: str | None) -> MakeColumn:
    unit_us = MICROSECONDS[unit or "seconds"]

    def column(values: list[Any]) -> Column:
        kinds = set(map(type, values)) - {type(None)}
        if kinds == {int}:
            return _epochs(pa.array(values, pa.int64()), unit_us)
        if kinds <= {str}:
            texts = pa.array(values, pa.string())
            numbers = _epoch_texts(texts, unit_us) if unit is not None else None
            return numbers or _instants(texts)
        return Column(pa.nulls(len(values), _TIMESTAMP), pa.array(value is not None for value in values))

    return column


def _epochs(numbers: Any, unit_us: int) -> Column:
    """Convert numbers of a unit since 1970, up to the year 5138."""
    end = _NUMBER_OF_MICROSECONDS_END // unit_us
    sure = _without(numbers, pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, end)))
    return Column(pc.multiply(sure.array, unit_us).cast(_TIMESTAMP), sure.unsure)


def _epoch_texts(texts: Any, unit_us: int) -> Column | None:
    """Convert the same numbers in quotes; return None if no text is such a number."""
    sure = _are_digits(texts, len(str(_NUMBER_OF_MICROSECONDS_END // unit_us)) - 1)
    if not pc.any(sure).as_py():
        return None
    column = _cast(texts, sure, lambda plain: plain.cast(pa.int64()))
    return Column(_epochs(column.array, unit_us).array, column.unsure)


def _instants(texts: Any) -> Column:
    """Convert texts with the first one's kind of zone: Z, an offset, none. Arrow's other forms have other lengths."""
    present = texts.drop_null()
    first = present[0].as_py() if len(present) else ""
    if first.endswith("Z"):
        zone_bytes, has_zone = 1, pc.ends_with(texts, "Z")
    elif first[-6:-5] in ("+", "-"):
        zone_bytes, has_zone = 6, _have_offsets(texts)
    else:
        zone_bytes, has_zone = 0, pc.invert(pc.ends_with(texts, "Z"))
    lengths = pa.array([length + zone_bytes for length in _INSTANT_LENGTHS], pa.int32())
    sure = pc.and_(has_zone, pc.is_in(pc.binary_length(texts), lengths))
    read_as = _TIMESTAMP if zone_bytes else pa.timestamp("us")
    column = _cast_times(texts, sure, lambda plain: plain.cast(read_as).cast(pa.int64()))
    settled = _also_unsure(column, pc.less(column.array, TIMESTAMP_MIN))
    return Column(settled.array.cast(_TIMESTAMP), settled.unsure)


def _have_offsets(texts: Any) -> Any:
    """Return whether the last characters are like +02:00, below 18 hours; Arrow itself refuses wrong minutes."""

    def end(start: int, stop: int) -> Any:
        return pc.utf8_slice_codeunits(texts, start, stop)

    signed = pc.and_(pc.is_in(end(-6, -5), pa.array(["+", "-"])), pc.equal(end(-3, -2), ":"))
    return pc.and_(signed, pc.is_in(end(-5, -3), pa.array([f"{hour:02}" for hour in range(18)])))


def _without(array: Any, unsure: Any) -> Column:
    """Return the column with null in the unsure rows."""
    unsure = pc.fill_null(unsure, False)
    if not pc.any(unsure).as_py():
        return Column(array)
    return Column(pc.if_else(unsure, pa.scalar(None, array.type), array), unsure)


def _also_unsure(column: Column, unsure: Any) -> Column:
    """Return the column with more unsure rows."""
    more = _without(column.array, unsure)
    if column.unsure is None or more.unsure is None:
        return Column(more.array, more.unsure if column.unsure is None else column.unsure)
    return Column(more.array, pc.or_(column.unsure, more.unsure))


def _cast(texts: Any, sure: Any, cast: Cast) -> Column:
    """Cast the sure texts, which Arrow reads."""
    column = _without(texts, pc.invert(sure))
    return Column(cast(column.array), column.unsure)


def _cast_times(texts: Any, sure: Any, cast: Cast) -> Column:
    """Cast the sure texts. A day or time that does not exist is unsure, sometimes with some of its neighbours."""
    try:
        return _cast(texts, sure, cast)
    except pa.ArrowInvalid:
        column = _without(texts, pc.invert(pc.and_(sure, pc.match_substring_regex(texts, _POSSIBLE))))
    parts = _cast_parts(column.array, cast)
    refused = [pa.array([False] * len(part.array)) if part.unsure is None else part.unsure for part in parts]
    cast_ones = Column(pa.concat_arrays([part.array for part in parts]), column.unsure)
    return _also_unsure(cast_ones, pa.concat_arrays(refused))


def _cast_parts(texts: Any, cast: Cast) -> list[Column]:
    try:
        return [Column(cast(texts))]
    except pa.ArrowInvalid:
        if len(texts) <= _REFUSED_TOGETHER:
            return [Column(cast(pa.nulls(len(texts), pa.string())), texts.is_valid())]
        middle = len(texts) // 2
        return _cast_parts(texts.slice(0, middle), cast) + _cast_parts(texts.slice(middle), cast)
