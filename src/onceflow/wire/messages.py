"""kio's message classes made from mappings, the same way for every version of a message."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args


def message_of(message_class: Any, values: Mapping[str, Any]) -> Any:
    """A message from its fields; nested entities are mappings, arrays are iterables. TypeError for an unknown field."""
    nested = _nested_classes(message_class)
    return message_class(**{name: _converted(value, nested.get(name)) for name, value in values.items()})


def element_class(message_class: Any, field: str) -> type[Any]:
    """The class of the entities in an array of a message."""
    return _nested_classes(message_class)[field]  # type: ignore[no-any-return]


def _converted(value: Any, nested: Any) -> Any:
    if value is None or isinstance(value, bytes | str | int):
        return value
    if nested is not None:
        return tuple(message_of(nested, each) for each in value)
    return tuple(value) if isinstance(value, list) else value


@cache
def _nested_classes(message_class: Any) -> Mapping[str, Any]:
    """Field → the class of the entities in its array, for the fields that have one."""
    found = {each.name: entity_class_in(each.type) for each in fields(message_class)}
    return {name: nested for name, nested in found.items() if nested is not None}


def entity_class_in(annotation: Any) -> type[Any] | None:
    """The class of the entities that a field of this type has, if it has any."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    return next((found for each in get_args(annotation) if (found := entity_class_in(each)) is not None), None)
