"""The measures of `onceflow run`, declared once.

A measure groups the events by columns, evaluates sums or distinct values, and has its place in the read model:

    target           grouped by           in the read model                                  function
    count            uid                  H: uid → clicks, and their ranking {H}:top         sum
    totals           -                    {H}:totals: events, clicks, no-time, future, duplicates  sum
    D                D                    {H}:D: value → clicks                              sum
    minute           minute               {H}:minute:START: events, clicks                   sum
    minute:D         minute, D            {H}:minute:D:START: events:VALUE, clicks:VALUE     sum
    minute-users     minute, uid          {H}:minute-users:START: users                      distinct
    minute-users     minute, D, uid       {H}:minute-users:START:D=VALUE: users              distinct
    hour-top         hour, uid            {H}:hour-top:START: uid → clicks                   sum, as a ranking
    sessions         uid, session         {H}:sessions:UID: its sessions                     merged intervals

for each dimension D (by default `os`); the lines of `minute` also for `hour` and `day`, that of `hour-top` also for
`day`. All measures are one push-down: the read tasks of the source evaluate them as grouping sets, so that an event is
parsed once, and Spark moves sums. Each is a function of the set of events, not of their order or of micro-batches.

The module returns SQL and sink targets; it reads and writes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onceflow.clicks.events import DUPLICATE
from onceflow.clicks.windows import DAY, HOUR, MINUTE, WIDTHS, Width

UID, CLICKS, EVENTS, EVENT_TIME, SESSION = "uid", "clicks", "events", "event_time", "session"
NO_TIME, FUTURE = "no_time", "future"
"""Columns of the events, and of their sums."""
COUNT, TOTALS, SESSIONS, BAD, DEAD = "count", "totals", "sessions", "bad", "dead"
RESERVED = (
    *(UID, CLICKS, EVENTS, EVENT_TIME, SESSION, NO_TIME, FUTURE, *(width.name for width in WIDTHS)),
    *(
        COUNT,
        TOTALS,
        SESSIONS,
        "top",
        BAD,
        DEAD,
        "history",
        "onceflow",
        "verified",
        "announced",
        "value",
        "key",
        "topic",
        "partition",
    ),
    *("offset", "timestamp", "rejected", "grouping_id", "rebuild", "ids", "duplicates"),
)
"""Names of columns and keys, which a dimension cannot have."""
GROUPING_ID = "grouping_id"

_RANKED = (HOUR, DAY)
"""Buckets with a ranking of users."""

RETENTION_MS: Mapping[str, int | None] = {
    "minute": 2 * DAY.ms,
    "hour": 730 * DAY.ms,
    "day": None,
    "minute-users": 2 * DAY.ms,
    "hour-users": 31 * DAY.ms,
    "day-users": 730 * DAY.ms,
    "hour-top": 2 * DAY.ms,
    "day-top": 31 * DAY.ms,
    SESSIONS: 90 * DAY.ms,
}
"""Default retention. Users cost memory, sums little: two years of hours are 17,520 hashes of two fields."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the sink for each group: SQL of its field, its amount and its value."""

    field: str
    amount: str = "0"
    value: str = "NULL"


DUPLICATES = (TOTALS, Row("'duplicates'", "1"))
"""Row of an event whose id has been counted, with its target."""

REJECTED = (
    (TOTALS, Row("'events'", "1")),
    (TOTALS, Row("'clicks'")),
    (TOTALS, Row("'bad'", "1")),
    (BAD, Row("rejected.reason", "1")),
    (
        DEAD,
        Row(
            "concat_ws(':', rejected.partition, rejected.offset, rejected.reason)",
            "unix_micros(rejected.timestamp)",
        ),
    ),
)
"""Rows of an event that is not valid, with their targets."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Line of the table above."""

    target: str
    by: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class MeasureSettings:
    """Measures of a job. Part of its plan: counts of other settings are other counts."""

    dimensions: Mapping[str, str] = field(default_factory=lambda: {"os": "os_type"})
    """Name → field of the event."""
    over_time: bool = False
    """Whether minutes, hours and days are counted."""
    sessions: bool = False
    retention_ms: Mapping[str, int | None] = field(default_factory=lambda: dict(RETENTION_MS))
    """How long buckets are kept, by the names of RETENTION_MS, from the newest event; None keeps all."""
    exact_users_max: int = 100_000
    """Distinct users of a bucket up to which their number is exact."""
    session_gap_ms: int = 30 * MINUTE.ms

    @property
    def is_timed(self) -> bool:
        """Whether anything that is counted depends on the event's time."""
        return self.over_time or self.sessions

    def as_json(self) -> dict[str, Any]:
        """Return the settings for the plan."""
        return asdict(self)

    def retention_of(self, target: str) -> int | None:
        """Return the retention of a target's buckets."""
        return self.retention_ms[target.partition(":")[0]]


def measures(settings: MeasureSettings) -> tuple[Measure, ...]:
    """Return all measures of a job."""
    dimensions = list(settings.dimensions)
    numbers = (EVENTS, CLICKS, *((NO_TIME, FUTURE) if settings.is_timed else ()))
    every = [
        Measure(COUNT, (UID,), (Row(UID, CLICKS),)),
        Measure(TOTALS, (), (*(Row(_text(name.replace("_", "-")), name) for name in numbers), Row("'bad'"))),
        *(Measure(name, (name,), (Row(_quoted(name), CLICKS),)) for name in dimensions),
    ]
    if settings.over_time:
        every += [measure for width in WIDTHS for measure in _of_width(width, dimensions)]
    if settings.sessions:
        every.append(Measure(SESSIONS, (UID, SESSION), (Row(UID, value=_interval(settings)),)))
    return tuple(every)


def _of_width(width: Width, dimensions: Sequence[str]) -> Iterator[Measure]:
    at = width.name
    yield Measure(at, (at,), tuple(Row(_starting(at, _text(name)), name) for name in (EVENTS, CLICKS)))
    for name in dimensions:
        rows = [Row(_starting(at, _text(f"{column}:"), _quoted(name)), column) for column in (EVENTS, CLICKS)]
        yield Measure(f"{at}:{name}", (at, name), tuple(rows))
    yield Measure(f"{at}-users", (at, UID), (Row(_starting(at), value=UID),))
    for name in dimensions:
        row = Row(_starting(at, _text(f"{name}="), _quoted(name)), value=UID)
        yield Measure(f"{at}-users", (at, name, UID), (row,))
    if width in _RANKED:
        yield Measure(f"{at}-top", (at, UID), (Row(_starting(at, UID), CLICKS),))


# Push-down


def columns_of(every: Iterable[Measure]) -> list[str]:
    """Return the columns that measures group by, in the order of their first use."""
    return list(dict.fromkeys(column for measure in every for column in measure.by))


def grouping_sets(settings: MeasureSettings) -> str:
    """Return the source's option groupBy."""
    sets = dict.fromkeys(measure.by for measure in measures(settings))
    keys = {width.name: f"window({EVENT_TIME}, '{width.ms} milliseconds') AS {width.name}" for width in WIDTHS}
    keys[SESSION] = f"session_window({EVENT_TIME}, '{settings.session_gap_ms} milliseconds') AS {SESSION}"
    return f"GROUPING SETS ({', '.join(_set([keys.get(name, _quoted(name)) for name in by]) for by in sets)})"


def aggregates(settings: MeasureSettings) -> str:
    """Return the source's option aggregate."""
    columns = (CLICKS, NO_TIME, FUTURE) if settings.is_timed else (CLICKS,)
    sums = [f"sum({name}) AS {name}" for name in columns]
    return ", ".join([*sums, f"count(*) AS {EVENTS}"])


def sink_rows(settings: MeasureSettings) -> str:
    """Return SQL that converts the push-down's rows to the sink's: target, field, amount, and value if over time."""
    every, with_value = measures(settings), settings.is_timed
    columns = columns_of(every)
    rows_by_set: dict[tuple[str, ...], list[str]] = {}
    for measure in every:
        structs = [_struct(measure.target, row, with_value) for row in measure.rows]
        rows_by_set.setdefault(measure.by, []).extend(structs)
    cases = [f"WHEN rejected.reason = {_text(DUPLICATE)} THEN array({_struct(*DUPLICATES, with_value)})"]
    cases += [f"WHEN rejected IS NOT NULL THEN array({', '.join(_struct(*row, with_value) for row in REJECTED)})"]
    cases += [
        f"WHEN {GROUPING_ID} = {_grouping_id(columns, by)} THEN array({', '.join(structs)})"
        for by, structs in rows_by_set.items()
    ]
    return f"inline(CASE {' '.join(cases)} END)"


def _set(keys: Sequence[str]) -> str:
    return f"({', '.join(keys)})"


def _grouping_id(columns: Sequence[str], by: Sequence[str]) -> int:
    """Return Spark's grouping_id: a bit for each column, the first one highest, 1 if it is not in the set."""
    return int("".join("0" if column in by else "1" for column in columns), 2)


def _struct(target: str, row: Row, with_value: bool) -> str:
    value = f", 'value', CAST({row.value} AS BINARY)" if with_value else ""
    return (
        f"named_struct('target', {_text(target)}, 'field', CAST({row.field} AS BINARY), "
        f"'amount', CAST({row.amount} AS BIGINT){value})"
    )


def _starting(bucket: str, *parts: str) -> str:
    """Return SQL of a field in a bucket: START:PARTS."""
    return f"concat({', '.join([f'unix_millis({bucket}.start)', _text(':'), *parts])})"


def _interval(settings: MeasureSettings) -> str:
    """Return SQL of an interval; Spark's session ends a gap after its last event."""
    ended = f"unix_millis({SESSION}.end) - {settings.session_gap_ms}"
    return f"concat_ws(',', unix_millis({SESSION}.start), {ended}, {EVENTS}, {CLICKS})"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
