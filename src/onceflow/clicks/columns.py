"""Click events as Arrow columns: the decoder of the pipeline's push-down, by the rules of docs/events.md.

| column | content |
|---|---|
| `uid`, `clicks` | the event |
| `event_time` | its time, by the rules of `onceflow.clicks.event_time` |
| `no_time`, `future` | 1 if that is the record's timestamp instead, for this reason, else 0 |
| one for each dimension | the value of its field, or `unknown` |

msgspec reads common events into structs, and Arrow builds columns of many at once. All other records are judged one by
one by `onceflow.clicks.events`, which alone defines the rules.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.clicks.event_time import FUTURE_MS, TIME_MS_MAX, EventTime, event_time
from onceflow.clicks.events import (
    COUNT_MAX,
    KEY_FIELD,
    OS_FIELD,
    OS_UNKNOWN,
    TIME_FIELD,
    VALUE_FIELD,
    Reason,
    Rules,
    WrongField,
    os_of,
)
from onceflow.spark.pushdown.decode import SLICE_ROWS, read_structs
from onceflow.spark.pushdown.decode_schema import Field
from onceflow.spark.pushdown.plain_columns import plain_column, plain_type

COLUMNS = {"uid": "STRING", "clicks": "INT", "event_time": "TIMESTAMP", "no_time": "TINYINT", "future": "TINYINT"}
_TIMESTAMP = pa.timestamp("us", "UTC")

_CHARACTERS_MAX = 256
"""A character is at most four bytes, so this number of them is never too long."""
_TIME = Field("event_time", "TIMESTAMP")


@dataclass(frozen=True, slots=True)
class EventFields:
    """Names of the fields of an event. Without a count field each event counts 1."""

    key: str = KEY_FIELD
    value: str | None = VALUE_FIELD
    time: str | None = TIME_FIELD
    """Without it the time is the record's timestamp."""
    dimensions: Mapping[str, str] = field(default_factory=lambda: {"os": OS_FIELD})
    """Dimension → its field."""

    def check(self) -> None:
        """Raise WrongField for an empty or duplicate field, and for a dimension with the name of another column."""
        fields = [name for name in (self.key, self.value, self.time, *self.dimensions.values()) if name is not None]
        if "" in fields or len(set(fields)) < len(fields):
            raise WrongField(f"the event's fields {', '.join(map(repr, fields))} must have different names")
        columns = [*COLUMNS, *map(str.lower, self.dimensions)]
        if "" in columns or len(set(columns)) < len(columns):
            raise WrongField(
                f"the dimensions {', '.join(map(repr, self.dimensions))} must have different names, other than "
                f"{', '.join(COLUMNS)}"
            )

    def source_options(self) -> dict[str, str]:
        """Return the options of the source that decode these fields."""
        return {
            "decoder": f"{ClickDecoder.__module__}:{ClickDecoder.__name__}",
            "decoderOptions": json.dumps(asdict(self)),
        }


class ClickDecoder:
    """Decoder for option `decoder` of the source; `options` are those of `EventFields.source_options`."""

    def __init__(self, options: str) -> None:
        fields = EventFields(**json.loads(options))
        fields.check()
        quoted = (f"`{name.replace('`', '``')}` STRING" for name in fields.dimensions)
        self.schema = ", ".join([*(f"{name} {kind}" for name, kind in COLUMNS.items()), *quoted])
        self._counts_events = fields.value is None
        self._dimensions = [f"d{number}" for number in range(len(fields.dimensions))]
        self._exact = _ExactReader(fields, self._dimensions)
        text = Annotated[str, msgspec.Meta(max_length=_CHARACTERS_MAX)] | None
        names = {"uid": fields.key, "clicks": fields.value, "time": fields.time}
        names |= dict(zip(self._dimensions, fields.dimensions.values(), strict=True))
        self._has_time = fields.time is not None
        members = [
            ("uid", Annotated[str, msgspec.Meta(min_length=1, max_length=_CHARACTERS_MAX)], ""),
            ("clicks", Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)], -1),
            ("time", *plain_type(_TIME)),
            *((name, text, None) for name in self._dimensions),
        ]
        event = msgspec.defstruct(
            "Event",
            [member for member in members if names[member[0]] is not None],
            rename={name: named for name, named in names.items() if named is not None},
            gc=False,
        )
        self._nothing = event()
        self._decode = msgspec.json.Decoder(event).decode
        self._plain_times = plain_column(_TIME, "milliseconds")

    def decode(self, batch: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns and the reasons of a RecordBatch of the source."""
        begins = range(0, max(batch.num_rows, 1), SLICE_ROWS)
        parts = [self._decoded(batch.slice(begin, SLICE_ROWS)) for begin in begins]
        *columns, reasons = (pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True))
        return columns, reasons

    def _decoded(self, batch: Any) -> list[Any]:
        """Return the columns and, last, the reasons."""
        values = batch.column("value")
        timestamps_ms = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
        events, others = read_structs(values, self._decode, self._nothing)
        uids = pa.array(list(map(attrgetter("uid"), events)), pa.string())
        clicks = np.ones(len(events), np.int32)
        if not self._counts_events:
            clicks = np.fromiter(map(attrgetter("clicks"), events), np.int32, len(events))
        # Defaults stand for absent fields.
        others.update(np.flatnonzero((pc.binary_length(uids).to_numpy() == 0) | (clicks < 0)).tolist())
        columns = [
            uids,
            pa.array(clicks),
            *self._times(events, timestamps_ms, others),
            *(_dimension(list(map(attrgetter(name), events))) for name in self._dimensions),
            pa.nulls(len(events), pa.string()),
        ]
        return self._settle(columns, values, timestamps_ms, sorted(others)) if others else columns

    def _times(self, events: Sequence[Any], timestamps_ms: Any, others: set[int]) -> Iterable[Any]:
        """Return the columns event_time, no_time and future; add rows that need the exact reader to `others`."""
        if not self._has_time:
            zeros = pa.array(np.zeros(len(events), np.int8))
            return _array(timestamps_ms * 1000, _TIMESTAMP), zeros, zeros
        given = self._plain_times(list(map(attrgetter("time"), events)))
        if given.unsure is not None:
            others.update(np.flatnonzero(given.unsure.to_numpy(zero_copy_only=False)).tolist())
        given_ms = given.array.cast(pa.int64()).fill_null(-1).to_numpy() // 1000
        has_time = (given_ms >= 0) & (given_ms <= TIME_MS_MAX)
        is_future = has_time & (given_ms - timestamps_ms > FUTURE_MS)
        time_ms = np.where(has_time & ~is_future, given_ms, timestamps_ms)
        flags = (pa.array(flag).cast(pa.int8()) for flag in (~has_time, is_future))
        return _array(time_ms * 1000, _TIMESTAMP), *flags

    def _settle(self, columns: list[Any], values: Any, timestamps_ms: Any, rows: list[int]) -> list[Any]:
        """Return the columns with the exact results in `rows`."""
        mask = np.zeros(len(values), dtype=bool)
        mask[rows] = True
        chosen = values.take(pa.array(rows)).to_pylist()
        read = [self._exact.read(value, int(timestamps_ms[row])) for row, value in zip(rows, chosen, strict=True)]
        return [
            pc.replace_with_mask(column, pa.array(mask), _array(cells, column.type))
            for column, cells in zip(columns, zip(*read, strict=True), strict=True)
        ]


class _ExactReader:
    """Reader of single records: slow and complete."""

    def __init__(self, fields: EventFields, dimensions: Sequence[str]) -> None:
        self._judge = Rules(fields.key, fields.value).judge
        self._dimensions = [attrgetter(name) for name in dimensions]
        self._has_time = fields.time is not None
        names = dict(zip(dimensions, fields.dimensions.values(), strict=True))
        names |= {} if fields.time is None else {"time": fields.time}
        event = msgspec.defstruct(
            "RawEvent", [(name, msgspec.Raw, msgspec.Raw()) for name in names], rename=names, gc=False
        )
        self._decode = msgspec.json.Decoder(event).decode

    def read(self, value: bytes | None, timestamp_ms: int) -> tuple[Any, ...]:
        """Return the columns and the reason of one record; a time is in microseconds."""
        click = self._judge(value)
        if isinstance(click, Reason):
            return (None,) * (len(COLUMNS) + len(self._dimensions)) + (str(click),)
        assert value is not None
        event: Any = self._decode(value)
        time = event_time(bytes(event.time), timestamp_ms) if self._has_time else EventTime(timestamp_ms)
        dimensions = (os_of(bytes(dimension(event))) for dimension in self._dimensions)
        return (click.uid, click.clicks, time.ms * 1000, int(time.no_time), int(time.future), *dimensions, None)


def _dimension(values: list[str | None]) -> Any:
    column = pa.array(values, pa.string())
    return pc.if_else(pc.fill_null(pc.equal(column, ""), True), OS_UNKNOWN, column)


def _array(cells: Any, kind: Any) -> Any:
    return pa.array(cells, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(cells, kind)
