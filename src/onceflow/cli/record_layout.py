"""Output formats of `consume` and `dead`: the value, JSON, or a layout given by the user."""

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from onceflow.cli.output import readable

if TYPE_CHECKING:
    from onceflow.wire.batch import Record

Layout = Callable[[str, int, "Record"], bytes]
"""(topic, partition, record) → printed bytes."""

_PART = re.compile(r"%(.)|\\([nt\\])")
_ESCAPES = {"n": b"\n", "t": b"\t", "\\": b"\\"}


def to_layout(context: click.Context, parameter: click.Parameter, value: str | None) -> Layout | None:
    """Parse `--format`; without it there is no layout."""
    if value is None:
        return None
    if value == "text":
        return _as_value
    if value == "json":
        return _as_json
    if "%" not in value:
        raise click.BadParameter(f"'{value}' is not a valid format; expected text, json or a layout like '%k %v\\n'")
    return _as_laid_out(_parts(value))


def _as_value(topic: str, partition: int, record: "Record") -> bytes:
    return (record.value or b"") + b"\n"


def _as_json(topic: str, partition: int, record: "Record") -> bytes:
    shown = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **readable("key", record.key),
        **readable("value", record.value),
        "headers": [{"key": key, **readable("value", value)} for key, value in record.headers],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _headers(record: "Record") -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


FIELDS: dict[str, Layout] = {
    "t": lambda topic, partition, record: topic.encode(),
    "p": lambda topic, partition, record: str(partition).encode(),
    "o": lambda topic, partition, record: str(record.offset).encode(),
    "d": lambda topic, partition, record: str(record.timestamp_ms).encode(),
    "k": lambda topic, partition, record: record.key or b"",
    "v": lambda topic, partition, record: record.value or b"",
    "h": lambda topic, partition, record: _headers(record),
    "%": lambda topic, partition, record: b"%",
}


def _parts(value: str) -> list[bytes | Layout]:
    parts: list[bytes | Layout] = []
    position = 0
    for match in _PART.finditer(value):
        parts.append(value[position : match.start()].encode())
        letter, escape = match.groups()
        if letter is not None and letter not in FIELDS:
            raise click.BadParameter(f"unknown field %{letter} in '{value}'; expected %{', %'.join(FIELDS)}")
        parts.append(_ESCAPES[escape] if letter is None else FIELDS[letter])
        position = match.end()
    parts.append(value[position:].encode())
    return parts


def _as_laid_out(parts: list[bytes | Layout]) -> Layout:
    def laid_out(topic: str, partition: int, record: "Record") -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(topic, partition, record) for part in parts)

    return laid_out
