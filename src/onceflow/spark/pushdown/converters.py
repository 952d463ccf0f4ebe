"""Converters from a field's JSON text to its value, one for each type. They define `decode`; see docs/pushdown.md.

A converter takes the JSON text of a field that is present and not null. It returns the value, or the code of the rule
that the text breaks. `decode` reads many records at once with msgspec and Arrow where the result is certain to be the
same. Values are in Arrow's form: a TIMESTAMP is microseconds since 1970, a DATE days.
"""

import decimal
import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any

import msgspec

from onceflow.spark.pushdown.decode_schema import BITS, Field
from onceflow.spark.pushdown.json_text import Number, parse_number

MISSING = "missing"


class Broken(StrEnum):
    """Rule that a field breaks."""

    WRONG_TYPE = "wrong-type"
    FRACTIONAL = "fractional"
    OUT_OF_RANGE = "out-of-range"


Converter = Callable[[bytes], Any]
"""Function from JSON text to the value or Broken."""

MICROSECONDS = {"seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1}
"""The units of option timestampUnit."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
TIMESTAMP_MIN = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
TIMESTAMP_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
OFFSET_MINUTES_MAX = 18 * 60

_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP = re.compile(
    _DATE.pattern + r"(?:[T ]([0-9]{2}):([0-9]{2})"
    r"(?::([0-9]{2})(?:\.([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})?)?)?"
)


def converter_of(field: Field, timestamp_unit: str | None) -> Converter:
    """Return the converter for a field's type."""
    if field.kind in BITS:
        return _whole_number(BITS[field.kind])
    match field.kind:
        case "DECIMAL":
            return _decimal(field.precision, field.scale)
        case "DOUBLE":
            return _double
        case "FLOAT":
            return _float
        case "BOOLEAN":
            return _boolean
        case "DATE":
            return _date
        case "TIMESTAMP":
            return _timestamp(timestamp_unit)
        case _:
            return _string


def _string(raw: bytes) -> str:
    return _unquoted(raw) if raw.startswith(b'"') else raw.decode()


def _unquoted(raw: bytes) -> str:
    return msgspec.json.decode(raw, type=str)


def _number(raw: bytes) -> Number | None:
    """Parse a number, or a string that is exactly one."""
    return parse_number(_string(raw))


def _whole_number(bits: int) -> Converter:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    places_max = len(str(most))

    def convert(raw: bytes) -> int | Broken:
        number = _number(raw)
        if number is None:
            return Broken.WRONG_TYPE
        if number.power < 0:
            return Broken.FRACTIONAL
        if number.places > places_max:
            return Broken.OUT_OF_RANGE
        value = _int_of(number)
        return value if least <= value <= most else Broken.OUT_OF_RANGE

    return convert


def _int_of(number: Number) -> int:
    """Return the whole number; its power is neither negative nor large."""
    value: int = int(number.digits or "0") * 10**number.power
    return -value if number.negative else value


def _decimal(precision: int, scale: int) -> Converter:
    step = decimal.Decimal((0, (1,), -scale))
    context = decimal.Context(prec=precision + 1, rounding=decimal.ROUND_HALF_UP)

    def convert(raw: bytes) -> decimal.Decimal | Broken:
        number = _number(raw)
        if number is None:
            return Broken.WRONG_TYPE
        if not number.digits or number.places < -scale:
            return decimal.Decimal((0, (0,), -scale))
        if number.places > precision - scale:
            return Broken.OUT_OF_RANGE
        exact = decimal.Decimal((number.negative, tuple(map(int, number.digits)), number.power))
        rounded = exact.quantize(step, context=context)
        return rounded if len(rounded.as_tuple().digits) <= precision else Broken.OUT_OF_RANGE

    return convert


def _double(raw: bytes) -> float | Broken:
    text = _string(raw)
    if parse_number(text) is None:
        return Broken.WRONG_TYPE
    # As in Spark, -0 is a whole number, which has no negative zero; -0.0 has one.
    value = 0.0 if text == "-0" else float(text)
    return Broken.OUT_OF_RANGE if math.isinf(value) else value


def _float(raw: bytes) -> float | Broken:
    value = _double(raw)
    if isinstance(value, Broken):
        return value
    try:
        struct.pack("<f", value)
    except OverflowError:
        return Broken.OUT_OF_RANGE
    return value


def _boolean(raw: bytes) -> bool | Broken:
    return {b"true": True, b"false": False}.get(raw, Broken.WRONG_TYPE)


def _date(raw: bytes) -> int | Broken:
    match = _DATE.fullmatch(_unquoted(raw)) if raw.startswith(b'"') else None
    if match is None:
        return Broken.WRONG_TYPE
    try:
        return (date(*map(int, match.groups())) - date(1970, 1, 1)).days
    except ValueError:
        return Broken.OUT_OF_RANGE


def _timestamp(unit: str | None) -> Converter:
    def convert(raw: bytes) -> int | Broken:
        text = _string(raw)
        quoted = raw.startswith(b'"')
        match = _TIMESTAMP.fullmatch(text) if quoted else None
        if match is not None:
            return _instant(*match.groups())
        number = parse_number(text) if unit is not None or not quoted else None
        if number is None:
            return Broken.WRONG_TYPE
        if unit is None and number.power < 0:
            return Broken.FRACTIONAL
        return _microseconds(number, MICROSECONDS[unit or "seconds"])

    return convert


def _microseconds(number: Number, unit_us: int) -> int | Broken:
    """Convert a number of a unit to microseconds."""
    power = number.power + len(str(unit_us)) - 1
    if number.digits and power < 0:
        return Broken.FRACTIONAL
    if len(number.digits) + power > len(str(TIMESTAMP_MAX)):
        return Broken.OUT_OF_RANGE
    value = _int_of(number._replace(power=power))
    return value if TIMESTAMP_MIN <= value <= TIMESTAMP_MAX else Broken.OUT_OF_RANGE


def _instant(
    year: str,
    month: str,
    day: str,
    hour: str | None,
    minute: str | None,
    second: str | None,
    fraction: str | None,
    zone: str | None,
) -> int | Broken:
    """Return the microseconds since 1970 of a timestamp's parts; a missing part is 0, a missing zone UTC."""
    offset_minutes = 0
    if zone is not None and zone != "Z":
        if int(zone[4:]) > 59 or (offset_minutes := int(zone[1:3]) * 60 + int(zone[4:])) > OFFSET_MINUTES_MAX:
            return Broken.OUT_OF_RANGE
        offset_minutes = -offset_minutes if zone[0] == "-" else offset_minutes
    try:
        local = datetime(
            int(year),
            int(month),
            int(day),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "0").ljust(6, "0")[:6]),
            tzinfo=timezone(timedelta(minutes=offset_minutes)),
        )
    except ValueError:
        return Broken.OUT_OF_RANGE
    value = (local - _EPOCH) // _MICROSECOND
    return value if TIMESTAMP_MIN <= value <= TIMESTAMP_MAX else Broken.OUT_OF_RANGE
