"""Single events with all their fields, as the archive keeps them; no I/O."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from onceflow.clicks.event_time import event_time
from onceflow.clicks.events import KEY_FIELD, OS_FIELD, TIME_FIELD, VALUE_FIELD, Reason, Rules, WrongField

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class ArchivedFields:
    """Names of the fields of an event that have a column of their own; without a count field each event counts 1."""

    key: str = KEY_FIELD
    value: str | None = VALUE_FIELD
    time: str = TIME_FIELD

    @property
    def dimensions(self) -> dict[str, str]:
        """Field → its dimension, of those with a column of their own."""
        return {self.key: "uid", OS_FIELD: "os"}

    def check(self) -> None:
        """Raise WrongField for an empty or duplicate name."""
        _rules(self.key, self.value)
        names = [name for name in (self.key, self.value, OS_FIELD, self.time) if name is not None]
        if not self.time or names.count(self.time) > 1:
            raise WrongField(f"the event's fields {', '.join(map(repr, names))} must have different names")


_rules = functools.cache(Rules)


class Event(NamedTuple):
    """A valid event, by the columns that do not depend on its place."""

    uid: str
    clicks: int
    os: str
    time_ms: int
    no_time: bool
    future: bool
    extra: str | None


class EventReader:
    """Parser of the events of one topic."""

    def __init__(self, fields: ArchivedFields) -> None:
        self._judge = _rules(fields.key, fields.value).judge
        self._time = fields.time
        self._own = {fields.key, fields.value, fields.time, OS_FIELD}

    def read(self, value: bytes | None, timestamp_ms: int) -> Event | Reason:
        """Return the event in a record's value, or the reason why it is not valid."""
        click = self._judge(value)
        if isinstance(click, Reason):
            return click
        assert value is not None
        event = _decode(value)
        at = event_time(bytes(event.get(self._time, b"")), timestamp_ms)
        extra = {name: raw for name, raw in event.items() if name not in self._own}
        return Event(*click, *at, _encode(extra).decode() if extra else None)
