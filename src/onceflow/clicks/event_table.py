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

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from onceflow.clicks.events import Reason
from onceflow.clicks.single_event import ArchivedFields, EventReader

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


def event_table(fields: ArchivedFields, records: Iterable[tuple[bytes | None, int, int, int]]) -> pa.Table:
    """Return the valid events of records, each its value, partition, offset and timestamp in ms."""
    read = EventReader(fields).read
    rows: list[tuple[Any, ...]] = []
    for value, partition, offset, timestamp_ms in records:
        event = read(value, timestamp_ms)
        if not isinstance(event, Reason):
            *own, extra = event
            rows.append((*own, partition, offset, timestamp_ms, extra))
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    return pa.table([pa.array(cells, field.type) for cells, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
