"""Random messages of kio's classes, and their bytes by kio's own writer."""

import datetime
import io
import random
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from onceflow.wire.apis import APIS
from onceflow.wire.messages import message_of

HAND_WRITTEN = ("Produce", "Fetch")
VERSIONS = [
    (api, version)
    for api in APIS.values()
    if api.name not in HAND_WRITTEN
    for version in range(api.version_min, api.version_max + 1)
]
every_version = pytest.mark.parametrize(
    ("api", "version"), VERSIONS, ids=[f"{api.name}-{version}" for api, version in VERSIONS]
)


def random_message(entity_class: Any, seeded: random.Random) -> Any:
    """Return a strategy of messages with random fields, tagged ones and nulls included where they are allowed."""
    return entity_class(**{field.name: _value(field, seeded) for field in fields(entity_class)})


def body(message: Any) -> bytes:
    """Return the message's own bytes, without frame and header."""
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def _value(field: Field[Any], seeded: random.Random) -> Any:
    inner: Any = field.type
    if isinstance(inner, UnionType):
        if seeded.random() < 0.3:
            return None
        (inner,) = (part for part in get_args(inner) if part is not NoneType)
    if get_origin(inner) is tuple:
        return tuple(_element(get_args(inner)[0], field, seeded) for _ in range(seeded.choice((0, 1, 2, 5))))
    return _element(inner, field, seeded)


def _element(inner: Any, field: Field[Any], seeded: random.Random) -> Any:
    if is_dataclass(inner):
        return random_message(inner, seeded)
    kafka_type = field.metadata["kafka_type"]
    if kafka_type.startswith(("int", "uint")):
        return _integer(kafka_type, seeded)
    values = {
        "bool": seeded.random() < 0.5,
        "error_code": seeded.choice(list(ErrorCode)),
        "timedelta_i32": datetime.timedelta(milliseconds=seeded.randrange(-(2**31), 2**31)),
        "timedelta_i64": datetime.timedelta(milliseconds=seeded.randrange(-(2**40), 2**40)),
        "datetime_i64": datetime.datetime.fromtimestamp(seeded.randrange(2**31), tz=datetime.UTC),
        "float64": seeded.uniform(-1e9, 1e9),
        "uuid": UUID(int=seeded.randrange(1, 2**128)),
        "string": "".join(seeded.choices("aå€𝄞", k=seeded.choice((0, 3, 200)))),
        "bytes": seeded.randbytes(seeded.choice((0, 3, 200))),
        "records": seeded.randbytes(seeded.choice((0, 3, 200))),
    }
    return values[kafka_type]


def _integer(kafka_type: str, seeded: random.Random) -> int:
    bits = int(kafka_type.lstrip("uint"))
    low, high = (0, 2**bits - 1) if kafka_type.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return seeded.choice((low, high, 0, 1, seeded.randint(low, high)))


def build(entity_class: Any, values: Mapping[str, Any]) -> Any:
    """Build a message from the fields of all versions, using those that it has; entities are mappings."""
    return message_of(entity_class, values, of_any_version=True)
