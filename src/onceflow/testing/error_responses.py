"""Error responses for any API, written from the fields of its request and its response.

An error goes to the same place as in Kafka: to the response as a whole if it has an error code of its own, else to each
topic, partition, group or other item that the request names. In a Fetch response, and if a fault is for one topic or
partition, it goes to partitions.

A request whose topics are only partly concerned is split: the broker serves the rest, and its response is merged with
the errors. Metadata and ApiVersions have no such error response: the broker's own is changed.
"""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, get_origin

from onceflow.wire import apis
from onceflow.wire.entities import without_none
from onceflow.wire.errors import ErrorCode
from onceflow.wire.messages import entity_class_in

TOPIC_ARRAYS = frozenset(("topics", "topic_data", "topic_names", "topic_partitions", "v3_and_below_topics"))
PARTITION_ARRAYS = frozenset(("partitions", "partition_data", "partition_indexes"))
TOPIC_NAMES = ("name", "topic")
PARTITION_NUMBERS = ("partition_index", "partition", "index", "partition_id")
ERROR_CODES = frozenset(("error_code", "partition_error_code"))
KEYS = (*TOPIC_NAMES, *PARTITION_NUMBERS, "group_id")
"""Fields that tell the items of an array of topics or partitions apart."""
IDENTITIES = frozenset((*KEYS, "key", "transactional_id", "user", "topic_id", "resource_type", "resource_name"))
"""Fields by which an item of a response belongs to one of the request."""
NEUTRAL: Mapping[type, Any] = MappingProxyType(
    {
        bool: False,
        int: -1,
        float: 0.0,
        str: "",
        bytes: b"",
        datetime.timedelta: datetime.timedelta(0),
        datetime.datetime: datetime.datetime.fromtimestamp(0, datetime.UTC),
    }
)
"""Values of the other fields, by their type: the subclass, bool, before int."""


class Concerned(NamedTuple):
    """Topics and partitions of a fault; None: all of them."""

    topic: str | None = None
    partition: int | None = None

    @property
    def is_everything(self) -> bool:
        return self.topic is None

    def has(self, topic: str, partition: int | None) -> bool:
        """Return whether a partition, or None for a topic of which the request names none, is concerned."""
        return self.topic in (None, topic) and (self.partition is None or partition in (None, self.partition))


def has_topics(request_class: Any) -> bool:
    """Return whether requests of this class name topics."""
    return any(True for _ in _topic_fields(request_class))


def has_partitions(request_class: Any) -> bool:
    """Return whether requests of this class name partitions."""
    topics = [entity_class_in(field.type) for field in _topic_fields(request_class)]
    return any(field.name in PARTITION_ARRAYS for topic in topics if topic is not None for field in fields(topic))


def carries_topic_errors(response_class: Any) -> bool:
    """Return whether responses of this class have errors of single topics or partitions."""
    return any(
        (nested := entity_class_in(field.type)) is not None
        and ((_has_error(nested) and _has_any(nested, TOPIC_NAMES)) or carries_topic_errors(nested))
        for field in fields(response_class)
    )


def _has_any(entity_class: Any, names: tuple[str, ...]) -> bool:
    return any(field.name in names for field in fields(entity_class))


def _topic_fields(message_class: Any) -> Iterator[Field[Any]]:
    for field in fields(message_class):
        nested = entity_class_in(field.type)
        if field.name in TOPIC_ARRAYS:
            yield field
        elif nested is not None:
            yield from _topic_fields(nested)


# Requests


def selected(request: Any, concerned: Concerned, *, rest: bool = False) -> Any | None:
    """Return the request with only the topics and partitions that are concerned, or with the `rest`; None without any.

    A request that names no topics is concerned as a whole, if the fault is for all topics.
    """
    if not has_topics(type(request)):
        return request if concerned.is_everything != rest else None
    left, kept = _selected(request, concerned, rest)
    return left if kept else None


def _selected(entity: Any, concerned: Concerned, rest: bool) -> tuple[Any, bool]:
    changed: dict[str, Any] = {}
    kept = False
    for field in fields(entity):
        value = getattr(entity, field.name)
        nested = entity_class_in(field.type)
        if field.name in TOPIC_ARRAYS:
            # None is all topics.
            items = _selected_topics(value, concerned, rest) if value is not None else None
            kept = kept or (bool(items) if items is not None else not rest)
        elif nested is not None and isinstance(value, tuple) and has_topics(nested):
            pairs = [_selected(item, concerned, rest) for item in value]
            items = tuple(item for item, is_kept in pairs if is_kept)
            kept = kept or bool(items)
        else:
            continue
        changed[field.name] = items
    return replace(entity, **changed), kept


def _selected_topics(topics: tuple[Any, ...], concerned: Concerned, rest: bool) -> tuple[Any, ...]:
    kept = []
    for topic in topics:
        is_name = isinstance(topic, str)
        name = topic if is_name else _first(topic, TOPIC_NAMES)
        array = None if is_name else next((f.name for f in fields(topic) if f.name in PARTITION_ARRAYS), None)
        partitions = getattr(topic, array) if array is not None else None
        if array is None or partitions is None:
            if concerned.has(name, None) != rest:
                kept.append(topic)
            continue
        some = tuple(item for item in partitions if concerned.has(name, _partition(item)) != rest)
        if some:
            kept.append(replace(topic, **{array: some}))
    return tuple(kept)


def _partition(item: Any) -> int:
    index: int = item if isinstance(item, int) else _first(item, PARTITION_NUMBERS)
    return index


def _first(entity: Any, names: tuple[str, ...]) -> Any:
    return next(getattr(entity, name) for name in names if hasattr(entity, name))


# Responses


def error_response(api_key: int, response_class: Any, request: Any, error_code: ErrorCode, concerned: Concerned) -> Any:
    """Return the response in which everything that the request names has the error."""
    has_own = any(field.name in ERROR_CODES for field in fields(response_class))
    to_items = api_key == apis.FETCH or not concerned.is_everything or not has_own
    return _error_entity(response_class, request, error_code, to_items=to_items)


def _error_entity(entity_class: Any, item: Any, error_code: ErrorCode, *, to_items: bool) -> Any:
    """Return a part of the response; `item` is the request, or the part of it that it belongs to."""
    values: dict[str, Any] = {}
    for field in fields(entity_class):
        nested = entity_class_in(field.type)
        if nested is not None and to_items and _has_error(nested):
            items = _items_for(field.name, item)
            if items is not None:
                values[field.name] = tuple(_error_entity(nested, part, error_code, to_items=True) for part in items)
    own_error = ErrorCode.none if values else error_code
    for field in fields(entity_class):
        if field.name in ERROR_CODES:
            values[field.name] = own_error
        elif field.name not in values and "tag" not in field.metadata:
            values[field.name] = _value(field, item)
    return entity_class(**values)


def _has_error(entity_class: Any) -> bool:
    return any(
        field.name in ERROR_CODES or ((nested := entity_class_in(field.type)) is not None and _has_error(nested))
        for field in fields(entity_class)
    )


def _items_for(array: str, item: Any) -> tuple[Any, ...] | None:
    """Return what the items of an array of the response belong to: items of the array with its name, or of all."""
    if not is_dataclass(item):
        return None
    arrays = {field.name: value for field in fields(item) if isinstance(value := getattr(item, field.name), tuple)}
    if array in arrays:
        return arrays[array]
    arrays = {name: value for name, value in arrays.items() if name in TOPIC_ARRAYS} or arrays
    return tuple(element for value in arrays.values() for element in value) if arrays else None


def _value(field: Field[Any], item: Any) -> Any:
    """Return the value by which a part of a response belongs to one of the request, else a neutral one."""
    nested = entity_class_in(field.type)
    if nested is not None and _has_error(nested):
        return ()
    if nested is not None:
        same = getattr(item, field.name, ())
        names = {inner.name for inner in fields(nested)}
        if same and all(names == {inner.name for inner in fields(element)} for element in same):
            return tuple(nested(**{name: getattr(element, name) for name in names}) for element in same)
        return ()
    known = _identity(field.name, item) if field.name in IDENTITIES else None
    return neutral(field) if known is None else known


def _identity(name: str, item: Any) -> Any:
    if not is_dataclass(item):
        return item if isinstance(item, int) == (name in PARTITION_NUMBERS) else None
    names = next((group for group in (TOPIC_NAMES, PARTITION_NUMBERS) if name in group), (name,))
    return next((getattr(item, own) for own in (name, *names) if hasattr(item, own)), None)


def neutral(field: Field[Any]) -> Any:
    """Return the default of a field, else a value that says nothing."""
    if field.default is not MISSING:
        return field.default
    inner, is_nullable = without_none(field.type)
    if is_nullable:
        return None
    if get_origin(inner) is tuple:
        return ()
    return next(value for kind, value in NEUTRAL.items() if issubclass(inner, kind))


def merged(served: Any, errors: Any) -> Any:
    """Return the broker's response to the rest of a request, with the errors of what was not served."""
    changes: dict[str, Any] = {}
    for field in fields(served):
        if entity_class_in(field.type) is not None:
            ours, theirs = getattr(served, field.name), getattr(errors, field.name)
            if isinstance(ours, tuple) and isinstance(theirs, tuple):
                changes[field.name] = _merged_items(ours, theirs)
    return replace(served, **changes)


def _merged_items(served: tuple[Any, ...], errors: tuple[Any, ...]) -> tuple[Any, ...]:
    items = {_key(item): item for item in served}
    for item in errors:
        key = _key(item)
        items[key] = merged(items[key], item) if key in items else item
    return tuple(items.values())


def _key(item: Any) -> tuple[Any, ...]:
    return tuple(getattr(item, name) for name in KEYS if hasattr(item, name))


def with_topic_errors(metadata: Any, error_code: ErrorCode, concerned: Concerned) -> Any:
    """Return a Metadata response in which topics have the error, and no partitions."""
    topics = tuple(
        replace(topic, error_code=error_code, partitions=()) if concerned.has(topic.name, None) else topic
        for topic in metadata.topics
    )
    return replace(metadata, topics=topics)
