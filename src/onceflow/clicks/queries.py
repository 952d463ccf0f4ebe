"""Queries over all events: DuckDB over the files of the archive and the newer records of the log (the tail).

    with open_events(Path("archive"), cluster) as events:
        events.counts("hour", Selection(begin_ms=…, where=[("os", "iOS"), ("country", "DE")]))

The newest version of the archive ends at an offset of each partition. `open_events` reads the records from there to the
end of the log. So all results are exact at that point, with each event once. Without a cluster the tail is ignored.

A dimension is `uid`, `os`, or the name of another field of the events. Its value is a string of 1 to 1,024 bytes or an
integer; anything else is `unknown`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from onceflow.clicks.archive import Archive, Version
from onceflow.clicks.event_table import SCHEMA, event_table
from onceflow.client.cluster import Cluster
from onceflow.client.lag import log_ends
from onceflow.client.records import read_partitions
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

WIDTHS_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
"""Buckets of time, in UTC."""
TAIL_RECORDS_MAX = 1_000_000
"""Maximum number of records that a query reads from the log."""
VALUE_BYTES_MAX = 1024
UNKNOWN = "unknown"
_SHIFT_MS = 10**8 * WIDTHS_MS["day"]
_COLUMNS = {"uid", "os"}

Row = dict[str, Any]


class QueryRefused(OnceflowError):
    """Events that cannot be read completely: the log has deleted some of the tail, or the tail is too long."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Time range and values of the selected events; an event matches one of the values of each dimension."""

    begin_ms: int | None = None
    end_ms: int | None = None
    where: Sequence[tuple[str, str]] = ()


ALL = Selection()


class Events:
    """All events at one point. Times are in ms since 1970; ends of ranges are exclusive."""

    def __init__(self, database: duckdb.DuckDBPyConnection, archive: Archive, version: Version, ends: dict[int, int]):
        self.topic = version.topic
        self.ends = ends
        """The first offset of each partition that is not in these events."""
        self._database = database
        self._archive = archive
        self._version = version

    def counts(self, per: str, selection: Selection = ALL, *, by: str | None = None, users: bool = False) -> list[Row]:
        """Return events and clicks of each minute, hour or day that has events, optionally by a dimension.

        `users` adds the number of distinct users, exactly.
        """
        width = WIDTHS_MS[per]
        query = _Query()
        # Division rounds toward zero, so times before 1970 are shifted.
        bucket = f"(epoch_ms(event_time) + {_SHIFT_MS}) // {width} AS bucket"
        value, kept = ("", "") if by is None else (f", {query.dimension(by)} AS value", "value, ")
        distinct, users_kept = (", count(DISTINCT uid) AS users", ", users") if users else ("", "")
        counted = f"SELECT {bucket}{value}, count(*) AS events, sum(clicks)::BIGINT AS clicks{distinct}"
        start = f"bucket * {width} - {_SHIFT_MS} AS start_ms, start_ms + {width} AS end_ms"
        return self._rows(
            query,
            selection,
            f"SELECT {start}, {kept}events, clicks{users_kept} FROM ({counted}",
            "GROUP BY ALL) ORDER BY ALL",
        )

    def top(self, dimension: str, selection: Selection = ALL, *, count: int = 10) -> list[Row]:
        """Return the values of a dimension with most clicks."""
        query = _Query()
        return self._rows(
            query,
            selection,
            f"SELECT {query.dimension(dimension)} AS value, count(*) AS events, sum(clicks)::BIGINT AS clicks",
            f"GROUP BY ALL ORDER BY clicks DESC, events DESC, value LIMIT {int(count)}",
        )

    def totals(self, selection: Selection = ALL) -> Row:
        """Return the number of events, clicks and distinct users, and of events without a time of their own."""
        [row] = self._rows(
            _Query(),
            selection,
            "SELECT count(*) AS events, coalesce(sum(clicks), 0)::BIGINT AS clicks, count(DISTINCT uid) AS users, "
            "count(*) FILTER (no_time) AS no_time, count(*) FILTER (future) AS future",
        )
        return row

    def timeline(self, uid: str, selection: Selection = ALL, *, count: int = 100) -> list[Row]:
        """Return the newest events of one user, newest first."""
        chosen = Selection(selection.begin_ms, selection.end_ms, [*selection.where, ("uid", uid)])
        return self._rows(
            _Query(),
            chosen,
            'SELECT epoch_ms(event_time) AS time_ms, clicks, os, no_time, future, partition, "offset", extra',
            f'ORDER BY event_time DESC, partition DESC, "offset" DESC LIMIT {int(count)}',
        )

    def _rows(self, query: "_Query", selection: Selection, select: str, end: str = "") -> list[Row]:
        paths = self._archive.paths(self._version, selection.begin_ms, selection.end_ms)
        columns = ", ".join(f'"{name}"' for name in SCHEMA.names)
        source = f"SELECT {columns} FROM tail"
        if paths:
            files = query.parameter(paths)
            source += f" UNION ALL SELECT {columns} FROM read_parquet({files}, hive_partitioning = false)"
        text = f"{select} FROM ({source}) {query.where(selection)} {end}"
        result = self._database.execute(text, query.parameters)
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


class _Query:
    """Parts of one query, with its parameters."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}

    def parameter(self, value: Any) -> str:
        name = f"p{len(self.parameters)}"
        self.parameters[name] = value
        return f"${name}"

    def dimension(self, name: str) -> str:
        """Return the expression for a dimension's value."""
        if name in _COLUMNS:
            return name
        text, kind = self._field(name)
        is_value = f"({kind} = 'VARCHAR' OR regexp_full_match({text}, '-?[0-9]+'))"
        fits = f"strlen({text}) BETWEEN 1 AND {VALUE_BYTES_MAX}"
        return f"CASE WHEN {fits} AND {is_value} THEN {text} ELSE '{UNKNOWN}' END"

    def condition(self, name: str, values: list[str]) -> str:
        """Return the condition that a dimension has one of these values."""
        chosen = self.parameter(values)
        exact = f"{self.dimension(name)} IN {chosen}"
        if name in _COLUMNS or UNKNOWN in values:
            return exact
        # Most events differ in the text already, which is cheaper to compare.
        return f"{self._field(name)[0]} IN {chosen} AND {exact}"

    def _field(self, name: str) -> tuple[str, str]:
        """Return the expressions for the text and the JSON type of a field in `extra`."""
        pointer = self.parameter("/" + name.replace("~", "~0").replace("/", "~1"))
        return f"json_extract_string(extra, {pointer})", f"json_type(extra, {pointer})"

    def where(self, selection: Selection) -> str:
        conditions = []
        for compared, moment_ms in ((">=", selection.begin_ms), ("<", selection.end_ms)):
            if moment_ms is not None:
                conditions.append(f"event_time {compared} make_timestamptz({self.parameter(moment_ms * 1000)}::BIGINT)")
        values: dict[str, list[str]] = {}
        for name, value in selection.where:
            values.setdefault(name, []).append(value)
        conditions += [self.condition(name, chosen) for name, chosen in values.items()]
        return f"WHERE {' AND '.join(conditions)}" if conditions else ""


@contextlib.contextmanager
def open_events(directory: Path, cluster: Cluster | None = None) -> Iterator[Events]:
    """Return the events of an archive, and with a cluster also those that its topic has behind the archive.

    Raises ArchiveUnreadable, QueryRefused and the client's errors.
    """
    archive = Archive(directory)
    version = archive.require()
    ends = dict(version.ends)
    tail = event_table(version.fields, [])
    if cluster is not None:
        begins, ends = _tail_range(cluster, version)
        records = read_partitions(cluster, version.topic, begins, ends)
        tail = event_table(
            version.fields,
            ((record.value, partition, record.offset, record.timestamp_ms) for partition, record in records),
        )
    with duckdb.connect() as database:
        database.register("tail", tail)
        yield Events(database, archive, version, ends)


def _tail_range(cluster: Cluster, version: Version) -> tuple[dict[int, int], dict[int, int]]:
    """Return the offsets at which the tail begins and ends. Raises QueryRefused."""
    topic = version.topic
    ranges = log_ends(cluster, topic, sorted(cluster.require_topic(topic).partitions))
    begins = {partition: version.ends.get(partition, start) for partition, (start, _) in ranges.items()}
    for partition, (start, end) in ranges.items():
        begin = begins[partition]
        if not start <= begin <= end:
            raise QueryRefused(
                f"{topic}-{partition} is archived up to offset {begin} and its log has offsets {start} to {end}: "
                f"{Remedy.ARCHIVE_ONLY}"
            )
    behind = sum(ranges[partition][1] - begin for partition, begin in begins.items())
    if behind > TAIL_RECORDS_MAX:
        raise QueryRefused(
            f"the archive is {behind:,} records behind {topic}, a query reads at most {TAIL_RECORDS_MAX:,} of them: "
            f"{Remedy.WAIT_FOR_ARCHIVE}, or {Remedy.ARCHIVE_ONLY}"
        )
    return begins, {partition: end for partition, (_, end) in ranges.items()}
