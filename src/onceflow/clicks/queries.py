"""Questions about events that no prepared number has: DuckDB over the archive's files and the log's tail behind them.

    with open_events(Path("archive"), cluster) as events:
        events.counts("hour", Selection(begin_ms=…, where=[("os", "iOS"), ("country", "DE")]))

The archive's newest version ends at an offset of each partition; the records from there to the end of the log are read
when the events are opened. So all results are exact as of that one moment, each event once. Without a cluster the
results are as of the archive's version.

A dimension is `uid`, `os`, or the name of another field of the events: its string of 1 to 1,024 bytes or its integer,
otherwise `unknown`.
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
"""Records behind the archive that a query reads from the log."""
VALUE_BYTES_MAX = 1024
UNKNOWN = "unknown"
_COLUMNS = {"uid", "os"}

Row = dict[str, Any]


class QueryRefused(OnceflowError):
    """Events that cannot be read completely: they are behind the archive and deleted from the log, or too many."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Events of a time range with certain values; several values of one dimension are alternatives."""

    begin_ms: int | None = None
    end_ms: int | None = None
    where: Sequence[tuple[str, str]] = ()


ALL = Selection()


class Events:
    """All events as of one moment. Times are ms since 1970, ranges include their begin and exclude their end."""

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
        # A remainder of a time before 1970 is negative.
        start = f"epoch_ms(event_time) - (epoch_ms(event_time) % {width} + {width}) % {width}"
        columns = [f"{start} AS start_ms", f"{start} + {width} AS end_ms"]
        if by is not None:
            columns.append(f"{query.dimension(by)} AS value")
        distinct = ", count(DISTINCT uid) AS users" if users else ""
        return self._rows(
            query,
            selection,
            f"SELECT {', '.join(columns)}, count(*) AS events, sum(clicks)::BIGINT AS clicks{distinct}",
            "GROUP BY ALL ORDER BY ALL",
        )

    def top(self, dimension: str, selection: Selection = ALL, *, count: int = 10) -> list[Row]:
        """Return the values of a dimension with the most clicks."""
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
        # A JSON pointer.
        path = self.parameter("/" + name.replace("~", "~0").replace("/", "~1"))
        text = (
            f"CASE WHEN json_type(extra, {path}) = 'VARCHAR' THEN json_extract_string(extra, {path}) "
            f"ELSE regexp_extract(CAST(json_extract(extra, {path}) AS VARCHAR), '^-?[0-9]+$') END"
        )
        return f"CASE WHEN strlen({text}) BETWEEN 1 AND {VALUE_BYTES_MAX} THEN {text} ELSE '{UNKNOWN}' END"

    def where(self, selection: Selection) -> str:
        conditions = []
        for compared, moment_ms in ((">=", selection.begin_ms), ("<", selection.end_ms)):
            if moment_ms is not None:
                conditions.append(f"event_time {compared} make_timestamptz({self.parameter(moment_ms * 1000)}::BIGINT)")
        values: dict[str, list[str]] = {}
        for name, value in selection.where:
            values.setdefault(name, []).append(value)
        conditions += [f"{self.dimension(name)} IN {self.parameter(chosen)}" for name, chosen in values.items()]
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
