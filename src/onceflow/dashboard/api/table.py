"""Types of the API's table: parameters, fields of responses, routes; and the parser of a request's parameters."""

import base64
import binascii
import functools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from onceflow.clicks.moments import duration_ms, moment_ms
from onceflow.errors import OnceflowError

TEXT_BYTES_MAX = 1_024
CONDITIONS_MAX = 20
TIME_MS_MAX = 253_370_764_800_000
"""Start of the year 9999, the last one in which every time zone has every time."""

Parsed = dict[str, Any]
Schema = dict[str, Any]


class BadParameter(OnceflowError):
    """A parameter that is unknown, missing or not valid."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True)
class Context:
    """Time and time zone that the text of a parameter depends on."""

    now_ms: int
    zone: tzinfo = UTC


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of a parameter: the parser of its text, which raises ValueError, and its JSON schema."""

    parse: Callable[[str, Context], Any]
    schema: Schema
    expected: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a route. `default` is shown and used as if it was given."""

    name: str
    kind: Kind
    help: str
    default: str | None = None
    required: bool = False
    repeated: bool = False

    @property
    def shown_value(self) -> str:
        """Its values for a reader."""
        flags = (("required", self.required), ("may be repeated", self.repeated))
        extra = [name for name, is_set in flags if is_set]
        default = [] if self.default is None else [f"default {self.default}"]
        return "; ".join([self.kind.expected, *extra, *default])


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a response's object."""

    name: str
    kind: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """Content of a response: dataclasses or mappings with the route's fields, and where they come from."""

    rows: Sequence[Any]
    source: str
    cursor: Sequence[int | str] | None = None
    """Position after the last row, if there may be more."""


# The first argument is an `onceflow.dashboard.api.service.Service`, which imports this module.
Handler = Callable[[Any, Parsed], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """One path below /api/v1/ that is read by GET."""

    path: str
    summary: str
    parameters: tuple[Parameter, ...]
    fields: tuple[Field, ...]
    handle: Handler
    is_list: bool = True

    @property
    def accepted(self) -> tuple[Parameter, ...]:
        """All parameters, also those that every route has."""
        return (*self.parameters, FORMAT)

    def parse(self, query: Sequence[tuple[str, str]], now_ms: int) -> Parsed:
        """Return the values of all parameters. Raises BadParameter."""
        known = {parameter.name: parameter for parameter in self.accepted}
        given: dict[str, list[str]] = {}
        for name, text in query:
            if name not in known:
                expected = ", ".join(known) or "none"
                raise BadParameter(name, f"unknown parameter: {name!r}; expected {expected}")
            given.setdefault(name, []).append(text)
        context = Context(now_ms)
        if "tz" in known:
            context = Context(now_ms, _value(known["tz"], given, context))
        values = {name: _value(parameter, given, context) for name, parameter in known.items()}
        begin, end = values.get("from"), values.get("to")
        if isinstance(begin, int) and isinstance(end, int) and begin > end:
            raise BadParameter("from", f"from is after to: {given['from'][0]!r}, {given['to'][0]!r}")
        return values


def _value(parameter: Parameter, given: Mapping[str, Sequence[str]], context: Context) -> Any:
    texts = given.get(parameter.name, ())
    name = parameter.name
    if parameter.repeated:
        if len(texts) > CONDITIONS_MAX:
            raise BadParameter(name, f"{name} is given {len(texts)} times; expected at most {CONDITIONS_MAX}")
        return [_parsed(parameter, text, context) for text in texts]
    if len(texts) > 1:
        raise BadParameter(name, f"{name} is given {len(texts)} times; expected it once")
    if not texts and parameter.required:
        raise BadParameter(name, f"missing parameter: {name}; expected {parameter.kind.expected}")
    text = texts[0] if texts else parameter.default
    return None if text is None else _parsed(parameter, text, context)


def _parsed(parameter: Parameter, text: str, context: Context) -> Any:
    try:
        if len(text.encode()) > TEXT_BYTES_MAX:
            raise ValueError
        return parameter.kind.parse(text, context)
    except (ValueError, OnceflowError):
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        message = f"invalid {parameter.name}: {shown!r}; expected {parameter.kind.expected}"
        raise BadParameter(parameter.name, message) from None


def fields(text: str) -> tuple[Field, ...]:
    """Return the fields that a text such as `value:text? events:count` lists."""
    parts = (word.split(":") for word in text.split())
    return tuple(Field(name, kind.removesuffix("?"), kind.endswith("?")) for name, kind in parts)


# Kinds


def integer(least: int, most: int) -> Kind:
    """Return the kind of a whole number."""

    def parse(text: str, _: Context) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise ValueError
        return int(text)

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Kind(parse, schema, f"a whole number from {least:,} to {most:,}")


def choice(*names: str) -> Kind:
    """Return the kind of a text that is one of these."""

    def parse(text: str, _: Context) -> str:
        if text not in names:
            raise ValueError
        return text

    return Kind(parse, {"type": "string", "enum": list(names)}, f"one of {', '.join(names)}")


def cursor(*types: type) -> Kind:
    """Return the kind of a position that a response's Link header has."""

    def parse(text: str, _: Context) -> tuple[Any, ...]:
        try:
            parts = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
        except (binascii.Error, RecursionError) as error:
            raise ValueError from error
        if not isinstance(parts, list) or [type(part) for part in parts] != list(types):
            raise ValueError
        if any(isinstance(part, int) and not 0 <= part < 2**63 for part in parts):
            raise ValueError
        return tuple(parts)

    return Kind(parse, {"type": "string"}, "the cursor of a response's Link header")


def encode_cursor(parts: Sequence[int | str]) -> str:
    """Return a position as the text of a cursor."""
    return base64.urlsafe_b64encode(json.dumps(list(parts)).encode()).rstrip(b"=").decode()


def _time(text: str, context: Context) -> int:
    at_ms = context.now_ms if text == "now" else moment_ms(text, context.now_ms, context.zone)
    if at_ms > TIME_MS_MAX:
        raise ValueError
    return at_ms


def _boolean(text: str, _: Context) -> bool:
    return {"true": True, "false": False}[text] if text in ("true", "false") else _refuse()


def _refuse() -> bool:
    raise ValueError


def _zone(text: str, _: Context) -> tzinfo:
    if text == "UTC":
        return UTC  # Also on a machine without a database of time zones.
    if text not in _zones():
        raise ValueError
    return ZoneInfo(text)


@functools.cache
def _zones() -> set[str]:
    return available_timezones()


def _text(text: str, _: Context) -> str:
    if not text:
        raise ValueError
    return text


def _duration(text: str, _: Context) -> int:
    length_ms = duration_ms(text)
    if not length_ms or length_ms > TIME_MS_MAX:
        raise ValueError
    return length_ms


def _condition(text: str, _: Context) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError
    return name, value


_TIME_EXPECTED = "ms since 1970, 2026-02-14, 2026-02-14T10:00Z, -24h or now"
TIME = Kind(_time, {"type": "string", "examples": ["-24h"]}, _TIME_EXPECTED)
BEGIN = Kind(
    lambda text, context: text if text == "all" else _time(text, context),
    {"type": "string", "examples": ["-24h"]},
    f"{_TIME_EXPECTED}, or all",
)
BOOLEAN = Kind(_boolean, {"type": "boolean"}, "true or false")
ZONE = Kind(_zone, {"type": "string", "examples": ["Europe/Berlin"]}, "the name of a time zone, such as Europe/Berlin")
TEXT = Kind(_text, {"type": "string", "minLength": 1, "maxLength": TEXT_BYTES_MAX}, "1 to 1,024 bytes of text")
DURATION = Kind(_duration, {"type": "string", "examples": ["1h"]}, "a duration such as 15m, 1h or 7d")
FORMAT = Parameter(
    "format", choice("json", "csv"), "Layout of the response; CSV has the same rows with a heading.", default="json"
)
CONDITION = Kind(_condition, {"type": "string", "examples": ["os=iOS"]}, "DIMENSION=VALUE, such as os=iOS")
