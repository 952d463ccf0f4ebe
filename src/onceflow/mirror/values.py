"""Values of the mirror's records in the target: JSON objects with a version."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from onceflow.mirror.errors import MirrorStopped

VERSION = 1

Value = TypeVar("Value")


def encode(**content: Any) -> bytes:
    """Return the value of a record."""
    return json.dumps({"version": VERSION, **content}, separators=(",", ":")).encode()


def decode(value: bytes | None, place: str, read: Callable[[dict[str, Any]], Value]) -> Value:
    """Return what `read` makes of the content; `place` names the record. Raises MirrorStopped if it is another one."""
    try:
        content = json.loads(value or b"")
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}")
        return read(content)
    except (ValueError, KeyError, TypeError) as error:
        raise MirrorStopped(f"{place} is not a record of this version's mirror: {error}") from error
