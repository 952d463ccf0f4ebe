"""Writer of responses from mappings of their fields: one mapping for all versions of a message.

It is the counterpart of `wire.entities`, compiled once for each of kio's classes from its fields. A version writes the
names that it has and ignores the others; a name that no served version has is an error and raises. kio's own writer
requires objects of its classes, which take longer to create than to write, and writes a message in one piece; here
other work can run between the elements of a response about thousands of partitions.

Tagged fields are not written: the broker has no data in one.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from onceflow.wire.apis import CLUSTER_APIS
from onceflow.wire.entities import without_none
from onceflow.wire.frames import request_class, response_class
from onceflow.wire.messages import entity_class_in
from onceflow.wire.primitives import append_count, append_string

Values = Mapping[str, Any]
"""Fields by name; nested entities are such mappings, arrays are sequences."""
Write = Callable[[bytearray, Any], None]
Steps = Callable[[bytearray, Any], Iterator[int]]
"""Writer in steps, one for each element of an array; yields about how many microseconds each took."""

_NO_TAGS = 0


class FieldWriter(NamedTuple):
    """Writer of one field, its approximate cost in microseconds, and its steps if it has arrays."""

    write: Write
    work: int = 1
    steps: Steps | None = None

    def in_steps(self, buffer: bytearray, value: Any) -> Iterator[int]:
        """Write in steps; yield about how many microseconds each took, and nothing without an array."""
        if self.steps is None:
            self.write(buffer, value)
        else:
            yield from self.steps(buffer, value)


@cache
def entity_writer(entity_class: Any) -> FieldWriter:
    """Return the writer of one of kio's classes, from a mapping. KeyError for a missing field, TypeError for an unknown
    one."""
    flexible: bool = entity_class.__flexible__
    plain = [field for field in fields(entity_class) if "tag" not in field.metadata]
    writers = [(field.name, field.default, _field_writer(field, flexible=flexible)) for field in plain]
    in_one_piece = [(name, default, writer.write) for name, default, writer in writers]
    known = frozenset(field.name for field in plain)

    def write_entity(buffer: bytearray, values: Values) -> None:
        if not values.keys() <= known:
            _check_names(entity_class, values.keys() - known)
        for name, default, write in in_one_piece:
            write(buffer, values[name] if default is MISSING else values.get(name, default))
        if flexible:
            buffer.append(_NO_TAGS)

    def entity_steps(buffer: bytearray, values: Values) -> Iterator[int]:
        if not values.keys() <= known:
            _check_names(entity_class, values.keys() - known)
        for name, default, writer in writers:
            value = values[name] if default is MISSING else values.get(name, default)
            if writer.steps is None:
                writer.write(buffer, value)
            else:
                yield from writer.steps(buffer, value)
        if flexible:
            buffer.append(_NO_TAGS)

    work = 1 + sum(writer.work for _, _, writer in writers) // 2
    has_arrays = any(writer.steps is not None for _, _, writer in writers)
    return FieldWriter(write_entity, work, entity_steps if has_arrays else None)


def _field_writer(field: Field[Any], *, flexible: bool) -> FieldWriter:
    inner, nullable = without_none(field.type)
    if get_origin(inner) is not tuple:
        return _element_writer(inner, field, flexible=flexible, nullable=nullable)
    element = _element_writer(get_args(inner)[0], field, flexible=flexible, nullable=False)
    return _array_writer(element, flexible=flexible, nullable=nullable)


def _element_writer(inner: Any, field: Field[Any], *, flexible: bool, nullable: bool) -> FieldWriter:
    entity_class: Any = inner
    if is_dataclass(inner) and not nullable:
        return entity_writer(entity_class)
    kafka_type = field.metadata.get("kafka_type", "nullable struct")
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    if kafka_type == "string":
        return FieldWriter(_text_writer(flexible=flexible, nullable=nullable))
    if kafka_type == "bytes" and not nullable:
        return FieldWriter(_bytes_writer(flexible=flexible))
    raise NotImplementedError(f"{field.name}: no writer for Kafka's type {kafka_type}; add one to wire.response_writer")


def _array_writer(element: FieldWriter, *, flexible: bool, nullable: bool) -> FieldWriter:
    write_element, element_work, element_steps = element

    def begin(buffer: bytearray, values: Any) -> Sequence[Any]:
        """Write the number of elements, and return them; null has none."""
        is_null = values is None and nullable
        append_count(buffer, -1 if is_null else len(values), flexible=flexible)
        return () if is_null else values

    def write_array(buffer: bytearray, values: Any) -> None:
        for element in begin(buffer, values):
            write_element(buffer, element)

    def array_steps(buffer: bytearray, values: Any) -> Iterator[int]:
        for element in begin(buffer, values):
            if element_steps is None:
                write_element(buffer, element)
            else:
                yield from element_steps(buffer, element)
            yield element_work

    return FieldWriter(write_array, steps=array_steps)


def _text_writer(*, flexible: bool, nullable: bool) -> Write:
    def write_text(buffer: bytearray, value: str | None) -> None:
        if value is None and not nullable:
            raise TypeError("null where a string is required")
        append_string(buffer, value, flexible=flexible)

    return write_text


def _bytes_writer(*, flexible: bool) -> Write:
    def write_bytes(buffer: bytearray, value: bytes) -> None:
        append_count(buffer, len(value), flexible=flexible)
        buffer += value

    return write_bytes


def _fixed_writer(layout: str, convert: Callable[[Any], Any] | None = None) -> FieldWriter:
    pack = struct.Struct(layout).pack

    def write_fixed(buffer: bytearray, value: Any) -> None:
        buffer += pack(value if convert is None else convert(value))

    return FieldWriter(write_fixed)


_FIXED: Mapping[str, FieldWriter] = {
    "bool": _fixed_writer(">?"),
    "error_code": _fixed_writer(">h"),
    "int8": _fixed_writer(">b"),
    "int16": _fixed_writer(">h"),
    "int32": _fixed_writer(">i"),
    "int64": _fixed_writer(">q"),
    "float64": _fixed_writer(">d"),
    "datetime_i64": _fixed_writer(">q", lambda value: -1 if value is None else round(value.timestamp() * 1000)),
    "timedelta_i32": _fixed_writer(">i", lambda value: round(value.total_seconds() * 1000)),
    "timedelta_i64": _fixed_writer(">q", lambda value: round(value.total_seconds() * 1000)),
    "uuid": _fixed_writer(">16s", lambda value: bytes(16) if value is None else value.bytes),
}
"""Null values: a UUID of zeros means none, like Kafka's Uuid.ZERO_UUID, and -1 means no time."""


def _check_names(entity_class: Any, names: Set[str]) -> None:
    """Raise TypeError unless another served version of the message has each of these fields."""
    unknown = _unknown_names(entity_class, frozenset(names))
    if unknown:
        raise TypeError(f"{entity_class.__name__} has no field {', '.join(sorted(unknown))} in any served version")


@cache
def _unknown_names(entity_class: Any, names: frozenset[str]) -> frozenset[str]:
    """Return those names that no served version has.

    The newest and the oldest version, which usually suffice, come first. A version's classes are generated on first
    use, which takes kio milliseconds: a broker that starts for a test should not need them all.
    """
    key = entity_class.__api_key__
    api = CLUSTER_APIS[key]
    versions = dict.fromkeys((api.version_max, api.version_min, *range(api.version_min, api.version_max + 1)))
    for load in (response_class, request_class):
        for version in versions:
            message_class: Any = load(api.key, version)
            names -= _names_in(message_class)
            if not names:
                return names
    return names


@cache
def _names_in(entity_class: Any) -> frozenset[str]:
    """Return the fields of an entity and of its nested ones, tagged ones excepted."""
    names: set[str] = set()
    for field in fields(entity_class):
        if "tag" not in field.metadata:
            names.add(field.name)
            nested: Any = entity_class_in(field.type)
            if nested is not None:
                names |= _names_in(nested)
    return frozenset(names)
