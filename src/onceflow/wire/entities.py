"""Reader of kio's message classes from untrusted bytes.

kio generates a class for each version of each message; this is the reader for them, compiled once per class from its
fields. kio's own, native reader is unsafe for untrusted bytes: it allocates memory for an array's announced length
unchecked, so one short frame aborts the whole process ("memory allocation of 34359738352 bytes failed"). It also
refuses unknown tagged fields, which KIP-482 requires to skip. Here each length and count is checked against the
remaining bytes.

A request's array elements are also counted, over all its arrays: a megabyte holds half a million empty names, each of
which costs the receiver much more than its two bytes.
"""

import datetime
import struct
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode

from onceflow.wire.errors import MalformedFrame
from onceflow.wire.primitives import (
    TAGS_MAX,
    bounded,
    read_count,
    read_nullable_bytes,
    read_nullable_string,
    read_tag_count,
    read_uvarint,
)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Reader = Callable[[memoryview, int], tuple[Any, int]]
Steps = Generator[int, None, tuple[Any, int]]
"""Steps of a reader: yields the cost of each in units of about a microsecond, and returns a Reader's result."""


class FieldReader(NamedTuple):
    """Reader of one field, the minimum size of the field, and its approximate cost in microseconds."""

    read: Reader
    bytes_min: int
    work: int = 1
    steps: Callable[[memoryview, int], Steps] | None = None
    """Reader in steps, one for each element of an array; None if the field has no arrays."""


class Limits(NamedTuple):
    """Limits of one message: elements in all its arrays together, and tagged fields in each section."""

    elements_max: int
    tags_max: int


NO_LIMITS = Limits(sys.maxsize, TAGS_MAX)
"""Limits for a broker's response, whose elements are not counted."""


class Left(threading.local):
    """Remaining limits of the message being read; each thread has its own."""

    elements = sys.maxsize
    tags_max = TAGS_MAX
    tags_read = 0


_left = Left()


def read_entity(entity_class: type, view: memoryview, position: int, limits: Limits) -> tuple[Any, int]:
    """Return (message, position after it). Raises MalformedFrame, also for more than `limits` allow."""
    _left.elements, _left.tags_max = limits
    return entity_reader(entity_class).read(view, position)


def read_entity_in_steps(entity_class: type, view: memoryview, position: int, limits: Limits) -> Steps:
    """Run `read_entity` in steps; other messages may be read between them."""
    reader = entity_reader(entity_class)
    if reader.steps is None:
        return read_entity(entity_class, view, position, limits)
    steps = reader.steps(view, position)
    elements_left = limits.elements_max
    while True:
        _left.elements, _left.tags_max, _left.tags_read = elements_left, limits.tags_max, 0
        try:
            work = next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        elements_left = _left.elements
        yield work + _left.tags_read


@cache
def entity_reader(entity_class: type) -> FieldReader:
    """Return the reader of a kio entity class (a message, or a struct inside one)."""
    flexible: bool = entity_class.__flexible__  # type: ignore[attr-defined]
    plain: list[tuple[str, Reader]] = []
    in_steps: list[tuple[str, FieldReader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    bytes_min = 1 if flexible else 0
    for field in fields(entity_class):
        reader = _field_reader(field, flexible=flexible)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = (field.name, reader.read)
        else:
            plain.append((field.name, reader.read))
            in_steps.append((field.name, reader))
            bytes_min += reader.bytes_min

    def read_entity(view: memoryview, position: int) -> tuple[Any, int]:
        values = {}
        for name, read in plain:
            values[name], position = read(view, position)
        if flexible:
            position = _read_tagged(view, position, tagged, values)
        return entity_class(**values), position

    def entity_steps(view: memoryview, position: int) -> Steps:
        values = {}
        for name, reader in in_steps:
            if reader.steps is None:
                values[name], position = reader.read(view, position)
            else:
                values[name], position = yield from reader.steps(view, position)
        if flexible:
            position = _read_tagged(view, position, tagged, values)
        return entity_class(**values), position

    work = 1 + sum(reader.work for _, reader in in_steps)
    has_arrays = any(reader.steps is not None for _, reader in in_steps)
    return FieldReader(read_entity, bytes_min, work, entity_steps if has_arrays else None)


def _read_tagged(
    view: memoryview, position: int, known: Mapping[int, tuple[str, Reader]], values: dict[str, Any]
) -> int:
    """Add the known tagged fields to `values` and skip the others (KIP-482)."""
    count, position = read_tag_count(view, position, _left.tags_max)
    if count:
        _left.tags_read += count
    for _ in range(count):
        tag, position = read_uvarint(view, position)
        size_bytes, position = read_uvarint(view, position)
        end = bounded(size_bytes, view, position)
        if tag in known:
            name, read = known[tag]
            values[name], position = read(view[:end], position)
            if position != end:
                raise MalformedFrame(f"tagged field {name} ends at byte {position}, not at {end}")
        position = end
    return position


def _field_reader(field: Field[Any], *, flexible: bool) -> FieldReader:
    assert not isinstance(field.type, str)
    inner, nullable = without_none(field.type)
    nullable = nullable and "tag" not in field.metadata
    if get_origin(inner) is tuple:
        element = _element_reader(get_args(inner)[0], field, flexible=flexible, nullable=False)
        return _array_reader(element, flexible=flexible, nullable=nullable)
    return _element_reader(inner, field, flexible=flexible, nullable=nullable)


def _element_reader(inner: Any, field: Field[Any], *, flexible: bool, nullable: bool) -> FieldReader:
    if is_dataclass(inner) and isinstance(inner, type) and not nullable:
        return entity_reader(inner)
    kafka_type = field.metadata.get("kafka_type", "nullable struct")
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    if kafka_type == "string":
        read_text = _text_reader(flexible=flexible, nullable=nullable)
        return FieldReader(read_text, 1 if flexible else 2)
    if kafka_type in ("bytes", "records"):
        return FieldReader(_bytes_reader(flexible=flexible, nullable=nullable), 1 if flexible else 4)
    raise NotImplementedError(f"{field.name}: no reader for Kafka's type {kafka_type}; add one to wire.entities")


def without_none(annotation: Any) -> tuple[Any, bool]:
    """Return a field's type without None, and whether it may be None."""
    if get_origin(annotation) in (UnionType, Union):
        (inner,) = (part for part in get_args(annotation) if part is not NoneType)
        return inner, True
    return annotation, False


def _array_reader(element: FieldReader, *, flexible: bool, nullable: bool) -> FieldReader:
    read_element, element_bytes_min, element_work, element_steps = element

    def read_length(view: memoryview, position: int) -> tuple[int, int]:
        count, position = read_count(
            view, position, flexible=flexible, element_bytes_min=element_bytes_min, nullable=nullable
        )
        _left.elements -= max(count, 0)
        if _left.elements < 0:
            raise MalformedFrame(f"byte {position}: {count} more elements than one request may have")
        return count, position

    def read_array(view: memoryview, position: int) -> tuple[Any, int]:
        count, position = read_length(view, position)
        if count == -1:
            return None, position
        elements = []
        for _ in range(count):
            value, position = read_element(view, position)
            elements.append(value)
        return tuple(elements), position

    def array_steps(view: memoryview, position: int) -> Steps:
        count, position = read_length(view, position)
        if count == -1:
            return None, position
        elements = []
        for _ in range(count):
            if element_steps is None:
                value, position = read_element(view, position)
            else:
                value, position = yield from element_steps(view, position)
            elements.append(value)
            yield element_work
        return tuple(elements), position

    return FieldReader(read_array, 1 if flexible else 4, steps=array_steps)


def _text_reader(*, flexible: bool, nullable: bool) -> Reader:
    def read_text(view: memoryview, position: int) -> tuple[Any, int]:
        value, end = read_nullable_string(view, position, flexible=flexible)
        _require(nullable or value is not None, position, "a string")
        return value, end

    return read_text


def _bytes_reader(*, flexible: bool, nullable: bool) -> Reader:
    def read_bytes(view: memoryview, position: int) -> tuple[Any, int]:
        value, end = read_nullable_bytes(view, position, flexible=flexible)
        _require(nullable or value is not None, position, "bytes")
        return None if value is None else bytes(value), end

    return read_bytes


def _require(allowed: bool, position: int, what: str) -> None:
    if not allowed:
        raise MalformedFrame(f"byte {position}: null where {what} is required")


def _fixed_reader(layout: str, convert: Callable[[Any], Any] | None = None) -> FieldReader:
    packed = struct.Struct(layout)
    unpack_from, size_bytes = packed.unpack_from, packed.size

    def read_fixed(view: memoryview, position: int) -> tuple[Any, int]:
        (value,) = unpack_from(view, position)
        return (value if convert is None else convert(value)), position + size_bytes

    return FieldReader(read_fixed, size_bytes)


def _milliseconds(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


def _time(value: int) -> datetime.datetime:
    try:
        return _EPOCH + datetime.timedelta(milliseconds=value)
    except OverflowError as error:
        raise MalformedFrame(f"{value} ms since 1970 is outside the calendar") from error


def _uuid(value: bytes) -> UUID | None:
    """Return a UUID; the zero id means "none", as in Kafka's Uuid.ZERO_UUID."""
    return UUID(bytes=value) if any(value) else None


_FIXED: Mapping[str, FieldReader] = {
    "bool": _fixed_reader(">?"),
    "error_code": _fixed_reader(">h", ErrorCode),
    "int8": _fixed_reader(">b"),
    "int16": _fixed_reader(">h"),
    "int32": _fixed_reader(">i"),
    "int64": _fixed_reader(">q"),
    "float64": _fixed_reader(">d"),
    "datetime_i64": _fixed_reader(">q", _time),
    "timedelta_i32": _fixed_reader(">i", _milliseconds),
    "timedelta_i64": _fixed_reader(">q", _milliseconds),
    "uint16": _fixed_reader(">H"),
    "uuid": _fixed_reader(">16s", _uuid),
}
