"""Mapping of a file's fields to the event's fields, and parsing of times.

A mapped row is the article's JSON, `{"uid": text, "event_time": ms as text, "os_type": text, "click_count": number}`.
It must be valid by the rules of `onceflow.clicks.events`; other rows are rejected with a reason before they are sent.
Additional fields may be mapped; they are passed on as text. With `all_fields` the event has every field of the row, and
each value keeps its type.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from onceflow.clicks.events import (
    COUNT_MAX,
    KEY_FIELD,
    OS_FIELD,
    TIME_FIELD,
    UID_BYTES_MAX,
    VALUE_FIELD,
    Reason,
    Rules,
    count_of_text,
)
from onceflow.clicks.ingest.readers import COMBINED_FIELDS, COMBINED_TIME, InputFormat, is_number, typed_values
from onceflow.errors import OnceflowError

EVENT_FIELDS = (KEY_FIELD, TIME_FIELD, OS_FIELD, VALUE_FIELD)
TIME_FORMATS = ("ms", "s", "iso")
EVENT_BYTES_MAX = 900_000
"""Producers and brokers take records of one megabyte by default."""
_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""


class WrongMapping(OnceflowError):
    """Invalid mapping: an unknown field, a duplicate name or an invalid time format."""


class Unmappable(OnceflowError):
    """Row that cannot be mapped to an event; the message is the reason."""


class MappedEvent(NamedTuple):
    """Event to send: its time in ms since 1970 (None if no time is mapped), its key and its JSON."""

    time_ms: int | None
    key: bytes
    value: bytes


@dataclass(frozen=True)
class FieldMapping:
    """The user's mapping: event field → file field, event field → constant, and the format of times.

    A source in `optional` may be missing in a row. With `all_fields` the row's other fields are kept too.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    time_format: str | None = None
    all_fields: bool = False
    optional: frozenset[str] = frozenset()

    def for_format(self, input_format: InputFormat) -> "FieldMapping":
        """Add the defaults: in a combined log each line is one click of its ip; else the file has the event's names.

        event_time and os_type under their own names are optional; uid and click_count are required.
        """
        sources = {name: name for name in EVENT_FIELDS}
        constants: dict[str, str] = {}
        if input_format is InputFormat.COMBINED:
            sources, constants = {KEY_FIELD: "ip", TIME_FIELD: "time"}, {VALUE_FIELD: "1"}
        given = {**self.sources, **self.constants}
        sources = {name: source for name, source in sources.items() if name not in given}
        constants = {name: text for name, text in constants.items() if name not in given}
        return replace(
            self,
            sources={**self.sources, **sources},
            constants={**self.constants, **constants},
            time_format=self.time_format or (COMBINED_TIME if input_format is InputFormat.COMBINED else "ms"),
            optional=frozenset(name for name, source in sources.items() if name == source) & {TIME_FIELD, OS_FIELD},
        )

    def check(self) -> None:
        """Raise `WrongMapping` for a mapping that is invalid for every file."""
        twice = sorted(self.sources.keys() & self.constants.keys())
        if twice:
            raise WrongMapping(f"'{twice[0]}' is given by --field and by --const: choose one")
        self._refuse_typos()
        if VALUE_FIELD in self.constants and isinstance(count_of_text(self.constants[VALUE_FIELD]), Reason):
            raise WrongMapping(
                f"--const {VALUE_FIELD}={self.constants[VALUE_FIELD]} is not a count: give a whole number from 0 to "
                f"{COUNT_MAX:,}"
            )
        if self.time_format is not None and self.time_format not in TIME_FORMATS:
            _check_pattern(self.time_format)

    def _refuse_typos(self) -> None:
        """Raise `WrongMapping` for an additional field whose name resembles that of a missing event field."""
        given = self.sources.keys() | self.constants.keys()
        for name in sorted(given - set(EVENT_FIELDS)):
            near = difflib.get_close_matches(name, [field for field in EVENT_FIELDS if field not in given], 1, 0.8)
            if near:
                option = "--field" if name in self.sources else "--const"
                correct = f"{near[0]}={self.sources.get(name, self.constants.get(name))}"
                raise WrongMapping(
                    f"'{name}' is not one of {', '.join(EVENT_FIELDS)}: did you mean {option} {correct}? To send both, "
                    f"give {near[0]} too"
                )


def _check_pattern(pattern: str) -> None:
    """Raise `WrongMapping` for a pattern that cannot parse its own output."""
    if "%" not in pattern:
        raise WrongMapping(
            f"--time-format {pattern!r} is neither {', '.join(TIME_FORMATS)} nor a pattern like '%m/%d/%Y %H:%M'"
        )
    try:
        datetime.strptime(datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC).strftime(pattern), pattern)
    except (ValueError, re.error) as error:
        raise WrongMapping(
            f"--time-format {pattern!r} cannot parse times ({error}): give a pattern like '%m/%d/%Y %H:%M', with each "
            "part once"
        ) from error


class Mapper:
    """Mapper from the rows of one file to events."""

    def __init__(self, mapping: FieldMapping) -> None:
        mapping.check()
        self._sources = mapping.sources
        self._constants = mapping.constants
        self._optional = mapping.optional
        # Counts recur and log lines share their seconds, so results are cached by text.
        self._count_of_text = lru_cache(maxsize=4_096)(count_of_text)
        self._read_time = lru_cache(maxsize=65_536)(time_reader(mapping.time_format or "ms"))
        names = dict.fromkeys([*mapping.sources, *mapping.constants])
        self._texts = [name for name in names if name not in (KEY_FIELD, TIME_FIELD, VALUE_FIELD)]
        self._has_time = TIME_FIELD in names
        self._rules = Rules() if mapping.all_fields else None

    def check_columns(self, file: str, columns: Iterable[str]) -> None:
        """Raise `WrongMapping`, with the nearest column, if the file lacks a source."""
        known = list(columns)
        for name, source in self._sources.items():
            if source not in known and name not in self._optional:
                if name == source == VALUE_FIELD and not difflib.get_close_matches(source, known, 1, 0.65):
                    raise WrongMapping(
                        f"{file} has no field '{source}' (it has {', '.join(known[:20])}): if each row is a click, add "
                        f"--const {name}=1, or name the field with --field {name}=FIELD"
                    )
                near = difflib.get_close_matches(source, known, 1, 0.5)
                hint = f"did you mean '{near[0]}'" if near else f"it has {', '.join(known[:20])}"
                raise WrongMapping(
                    f"{file} has no field '{source}' for the event's {name} ({hint}): name the right one with "
                    f"--field {name}={near[0] if near else 'FIELD'}, or give a constant with --const {name}=VALUE"
                )

    def event_of(self, fields: Mapping[str, str]) -> MappedEvent:
        """Map one row. Raises `Unmappable` with the reason."""
        uid = self._text(fields, KEY_FIELD) or ""
        key = uid.encode()
        if not 0 < len(key) <= UID_BYTES_MAX:
            raise Unmappable("uid is empty" if not key else f"uid is longer than {UID_BYTES_MAX:,} bytes")
        time_text = self._text(fields, TIME_FIELD) if self._has_time else None
        time_ms = None if time_text is None else self._read_time(time_text)
        event = self._event(fields, uid, time_ms) if self._rules is None else self._whole_event(fields, time_ms)
        value = msgspec.json.encode(event)
        if len(value) > EVENT_BYTES_MAX:
            raise Unmappable(f"the event has {len(value):,} bytes, more than {EVENT_BYTES_MAX:,}")
        if self._rules is not None and isinstance(reason := self._rules.judge(value), Reason):
            raise Unmappable(f"the event is not valid ({reason})")
        return MappedEvent(time_ms, key, value)

    def _event(self, fields: Mapping[str, str], uid: str, time_ms: int | None) -> dict[str, object]:
        event: dict[str, object] = {KEY_FIELD: uid}
        if time_ms is not None:
            event[TIME_FIELD] = str(time_ms)
        for name in self._texts:
            text = self._text(fields, name)
            if text is not None:
                event[name] = text
        event[VALUE_FIELD] = self._count(fields)
        return event

    def _whole_event(self, fields: Mapping[str, str], time_ms: int | None) -> dict[str, object]:
        """Return the row's fields with their types, and the mapped fields; event_time becomes ms in its own type."""
        values = typed_values(fields)
        event: dict[str, object] = {**values, **self._constants}
        for name, source in self._sources.items():
            if source in values:
                event[name] = values[source]
            elif name not in self._optional:
                raise Unmappable(f"no field '{source}' for {name}")
        if time_ms is not None:
            is_text = TIME_FIELD in self._constants or not is_number(values[self._sources[TIME_FIELD]])
            event[TIME_FIELD] = str(time_ms) if is_text else time_ms
        count = self._count(fields)
        if VALUE_FIELD in self._constants:
            event[VALUE_FIELD] = count
        return event

    def _text(self, fields: Mapping[str, str], name: str) -> str | None:
        """Return the field's text; None for an optional field that the row lacks."""
        source = self._sources.get(name)
        if source is None:
            return self._constants[name]
        text = fields.get(source)
        if text is None and name not in self._optional:
            raise Unmappable(f"no text or number in field '{source}' for {name}")
        return text

    def _count(self, fields: Mapping[str, str]) -> int:
        text = self._text(fields, VALUE_FIELD) or ""
        count = self._count_of_text(text)
        if isinstance(count, Reason):
            raise Unmappable(f"{VALUE_FIELD} {text[:40]!r} is not a count ({count})")
        return count


def columns_of(input_format: InputFormat, first: Mapping[str, str]) -> Iterable[str]:
    """Return the field names of a file, from its first row."""
    return COMBINED_FIELDS if input_format is InputFormat.COMBINED else first.keys()


def time_reader(time_format: str) -> Callable[[str], int]:
    """Return a function from a time's text to ms since 1970; times without a zone are UTC. It raises Unmappable."""
    readers: dict[str, Callable[[str], int]] = {"ms": _whole_ms, "s": _seconds, "iso": _iso}
    read = readers.get(time_format, partial(_strptime, time_format=time_format))

    def checked(text: str) -> int:
        try:
            time_ms = read(text)
        except (ValueError, ArithmeticError):
            raise Unmappable(
                f"event_time {text[:40]!r} is not a time in the format {time_format} (--time-format)"
            ) from None
        if not 0 <= time_ms <= _MS_MAX:
            raise Unmappable(f"event_time {text[:40]!r} is not between the years 1970 and 9999")
        return time_ms

    return checked


def _whole_ms(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise ValueError(text)
    return int(text)


def _seconds(text: str) -> int:
    return int(Decimal(text) * 1000)


def _iso(text: str) -> int:
    return _moment_ms(datetime.fromisoformat(text))


def _strptime(text: str, time_format: str) -> int:
    return _moment_ms(datetime.strptime(text, time_format))


def _moment_ms(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since_1970 = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_1970.days * 86_400 + since_1970.seconds) * 1000 + since_1970.microseconds // 1000
