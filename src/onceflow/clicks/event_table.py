"""Valid events as Arrow columns, as the archive keeps them and queries read them.

| column | content |
|---|---|
| `uid`, `clicks`, `os` | the event, by the rules of docs/events.md |
| `event_time` | its time in UTC, by the rules of `onceflow.clicks.event_time` |
| `no_time`, `future` | whether that is the record's timestamp instead, and why |
| `partition`, `offset`, `timestamp` | its record |
| `extra` | the event's other fields as a JSON object, each value as it was written; null if there are none |

Bad events have no row; they stay in the log.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from onceflow.clicks.event_time import event_time
from onceflow.clicks.events import KEY_FIELD, OS_FIELD, TIME_FIELD, VALUE_FIELD, Reason, Rules, WrongField

_TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("uid", pa.string(), nullable=False),
        pa.field("clicks", pa.int32(), nullable=False),
        pa.field("os", pa.string(), nullable=False),
        pa.field("event_time", _TIME, nullable=False),
        pa.field("no_time", pa.bool_(), nullable=False),
        pa.field("future", pa.bool_(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("extra", pa.string()),
    ]
)

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class EventFields:
    """Names of the fields of an event that have a column of their own; without a count field each event counts 1."""

    key: str = KEY_FIELD
    value: str | None = VALUE_FIELD
    time: str = TIME_FIELD

    def check(self) -> None:
        """Raise WrongField for an empty or duplicate name."""
        _rules(self.key, self.value)
        names = [name for name in (self.key, self.value, OS_FIELD, self.time) if name is not None]
        if not self.time or names.count(self.time) > 1:
            raise WrongField(f"the event's fields {', '.join(map(repr, names))} must have different names")


_rules = functools.cache(Rules)


def event_table(fields: EventFields, records: Iterable[tuple[bytes | None, int, int, int]]) -> pa.Table:
    """Return the valid events of records, each its value, partition, offset and timestamp in ms."""
    judge, own = _rules(fields.key, fields.value).judge, {fields.key, fields.value, fields.time, OS_FIELD}
    rows: list[tuple[Any, ...]] = []
    for value, partition, offset, timestamp_ms in records:
        click = judge(value)
        if isinstance(click, Reason):
            continue
        assert value is not None
        event = _decode(value)
        at = event_time(bytes(event.get(fields.time, b"")), timestamp_ms)
        extra = {name: raw for name, raw in event.items() if name not in own}
        text = _encode(extra).decode() if extra else None
        rows.append((*click, *at, partition, offset, timestamp_ms, text))
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    return pa.table([pa.array(cells, field.type) for cells, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
