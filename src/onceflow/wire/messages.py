"""kio's message objects built from mappings, in the same way for every version of a message."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args


def message_of(message_class: Any, values: Mapping[str, Any], *, of_any_version: bool = False) -> Any:
    """Build a message from its fields; nested entities are mappings, arrays are iterables.

    TypeError for an unknown field. `of_any_version`: the fields are those of all versions, and only the fields of this
    one are used.
    """
    nested = _nested_classes(message_class)
    if of_any_version:
        values = {name: value for name, value in values.items() if name in nested}
    return message_class(
        **{name: _converted(value, nested.get(name), of_any_version) for name, value in values.items()}
    )


def element_class(message_class: Any, field: str) -> type[Any]:
    """Return the class of the entities in an array of a message."""
    nested = _nested_classes(message_class)[field]
    assert nested is not None
    return nested


def _converted(value: Any, nested: type[Any] | None, of_any_version: bool) -> Any:
    if value is None or isinstance(value, bytes | str | int):
        return value
    if nested is not None:
        return tuple(message_of(nested, element, of_any_version=of_any_version) for element in value)
    return tuple(value) if isinstance(value, list) else value


@cache
def _nested_classes(message_class: Any) -> Mapping[str, type[Any] | None]:
    """Return field → the class of the entities in its array; None for other fields."""
    return {field.name: entity_class_in(field.type) for field in fields(message_class)}


def entity_class_in(annotation: Any) -> type[Any] | None:
    """Return the class of the entities in a field of this type, if it has any."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    return next((nested for part in get_args(annotation) if (nested := entity_class_in(part)) is not None), None)
