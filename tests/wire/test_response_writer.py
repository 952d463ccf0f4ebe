"""Responses written from mappings: kio's bytes, in one piece or in steps; a field of no version is an error."""

import random
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

import pytest

from onceflow.wire import apis
from onceflow.wire.apis import Api
from onceflow.wire.frames import response_class
from onceflow.wire.response_writer import entity_writer
from tests.wire.messages import body, every_version, random_message

FIELDS = {"topics": (), "brokers": (), "cluster_id": "c", "controller_id": 1}


@every_version
def test_kio_writes_the_same(api: Api, version: int) -> None:
    seeded = random.Random(f"{api.name} {version}")
    writer = entity_writer(response_class(api.key, version))  # type: ignore[arg-type]
    for _ in range(10):
        message = without_tags(random_message(response_class(api.key, version), seeded))
        at_once, in_steps = bytearray(b"head"), bytearray(b"head")
        writer.write(at_once, values_of(message))
        works = list(writer.in_steps(in_steps, values_of(message)))
        assert at_once == in_steps == b"head" + body(message)
        assert len(works) == elements_in(message)
        assert min(works, default=1) > 0


def values_of(message: Any) -> dict[str, Any]:
    """Return a message's fields, tagged ones excepted, entities as mappings."""
    plain = [field.name for field in fields(message) if "tag" not in field.metadata]
    return {name: value_of(getattr(message, name)) for name in plain}


def value_of(value: Any) -> Any:
    if is_dataclass(value):
        return values_of(value)
    return [value_of(element) for element in value] if isinstance(value, tuple) else value


def without_tags(message: Any) -> Any:
    """Return the message with default tagged fields, so that none is written."""
    if isinstance(message, tuple):
        return tuple(without_tags(element) for element in message)
    if not is_dataclass(message) or isinstance(message, type):
        return message
    return replace(
        message,
        **{
            field.name: field.default if "tag" in field.metadata else without_tags(getattr(message, field.name))
            for field in fields(message)
        },
    )


def elements_in(value: Any) -> int:
    """Return the total number of elements in a message's arrays."""
    if isinstance(value, tuple):
        return len(value) + sum(map(elements_in, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(elements_in(getattr(value, field.name)) for field in fields(value) if "tag" not in field.metadata)
    return 0


def written(version: int, **values: Any) -> bytes:
    buffer = bytearray()
    entity_writer(response_class(apis.METADATA, version)).write(buffer, {**FIELDS, **values})  # type: ignore[arg-type]
    return bytes(buffer)


def test_fields_of_other_versions_are_left_out() -> None:
    no_arrays = bytes(8)
    assert [written(version) for version in (0, 1, 2)] == [
        no_arrays,
        no_arrays[:4] + b"\0\0\0\1" + no_arrays[:4],
        no_arrays[:4] + b"\0\1c" + b"\0\0\0\1" + no_arrays[:4],
    ]


@pytest.mark.parametrize("version", [0, 1, 9, 12])
def test_a_field_of_no_version_raises(version: int) -> None:
    with pytest.raises(TypeError, match="MetadataResponse has no field topicks in any served version"):
        written(version, topicks=(), throttle_time=0)


def test_a_tagged_field_raises() -> None:
    values = {"error_code": 0, "api_keys": (), "throttle_time": 0, "finalized_features_epoch": 1}
    with pytest.raises(TypeError, match="no field finalized_features_epoch"):
        entity_writer(response_class(apis.API_VERSIONS, 3)).write(bytearray(), values)  # type: ignore[arg-type]


def test_a_missing_field_raises() -> None:
    without = {name: value for name, value in FIELDS.items() if name != "topics"}
    with pytest.raises(KeyError, match="topics"):
        entity_writer(response_class(apis.METADATA, 0)).write(bytearray(), without)  # type: ignore[arg-type]
    assert any(field.default is MISSING for field in fields(response_class(apis.METADATA, 0)))


def test_null_is_no_string() -> None:
    topic = {"name": None, "error_code": 0, "partitions": ()}
    with pytest.raises(TypeError, match="null where a string is required"):
        written(0, topics=[topic])
