"""Queries over all events: DuckDB over the files of the archive and the newer records of the log (the tail).

    with open_events(Path("archive"), cluster) as events:
        events.counts("hour", Selection(begin_ms=…, where=[("os", "iOS"), ("country", "DE")]))

The newest version of the archive ends at an offset of each partition. `open_events` reads the records from there to the
end of the log. So all results are exact at that point, with each event once. Without a cluster the tail is ignored.

A dimension is `uid`, `os`, or the name of another field of the events. Its value is a string of 1 to 1,024 bytes or an
integer; anything else is `unknown`.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.clicks.archive import Archive, Version
from onceflow.clicks.archive_errors import ArchiveFailed, QueryCancelled, QueryRefused
from onceflow.clicks.event_table import SCHEMA, event_table
from onceflow.clicks.single_event import ArchivedFields
from onceflow.clicks.windows import TooMuch, Window, WindowCounts, refuse_more_rows
from onceflow.client.cluster import Cluster
from onceflow.client.errors import ClientError
from onceflow.client.lag import log_ends
from onceflow.client.records import read_partitions
from onceflow.remedies import Remedy

WIDTHS_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
"""Buckets of time, in UTC."""
TAIL_RECORDS_MAX = 1_000_000
"""Maximum number of records that a query reads from the log."""
RUNS_MAX = 100
"""Maximum number of queries for the windows of one call: one for each run of windows of the same length."""
READ_AT_ONCE = 1_000
"""Records of the tail that are read between two checks for a cancellation."""
CHUNKS_MAX = 64
VALUE_BYTES_MAX = 1024
UNKNOWN = "unknown"
CANCELLED = "the query was cancelled"
_SHIFT_MS = 10**8 * WIDTHS_MS["day"]
_JSON_BYTES_MAX = 6 * VALUE_BYTES_MAX + 2
"""Maximum size of a value in JSON: each character may be escaped, as `\\u0001`."""
_COLUMNS = {"uid", "os"}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Selection:
    """Time range and values of the selected events; an event matches one of the values of each dimension."""

    begin_ms: int | None = None
    end_ms: int | None = None
    where: Sequence[tuple[str, str]] = ()


ALL = Selection()


class Events:
    """All events at one point. Times are in ms since 1970; ends of ranges are exclusive."""

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        archive: Archive,
        version: Version,
        ends: Mapping[int, int],
        tail_times: tuple[int | None, int | None] = (None, None),
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.topic = version.topic
        self.ends = dict(ends)
        """The first offset of each partition that is not in these events."""
        self._database = database
        self._archive = archive
        self._version = version
        self._tail_times = tail_times
        self._is_cancelled = is_cancelled

    @property
    def oldest_ms(self) -> int | None:
        """The oldest time of an event; None without events."""
        oldest = self._tail_times[0]
        return min([file.min_ms for file in self._version.files] + ([] if oldest is None else [oldest]), default=None)

    @property
    def newest_ms(self) -> int | None:
        """The newest time of an event; None without events."""
        newest = self._tail_times[1]
        return max([file.max_ms for file in self._version.files] + ([] if newest is None else [newest]), default=None)

    def interrupt(self) -> None:
        """Let the query that another thread is executing fail, if there is one."""
        with contextlib.suppress(duckdb.ConnectionException):  # It is closed.
            self._database.interrupt()

    def windows(
        self,
        chosen: Sequence[Window],
        where: Sequence[tuple[str, str]] = (),
        *,
        by: str | None = None,
        values: int | None = None,
        users: bool = False,
    ) -> list[WindowCounts]:
        """Return the counts of these windows, without those that have no events.

        With a dimension `by` a window has an entry for each value, most events first, or for the `values` with most
        clicks from the start of the first window to the end of the last one. Raises TooMuch.
        """
        runs = list(_runs(chosen))
        if len(runs) > RUNS_MAX:
            raise TooMuch(
                f"these windows need {len(runs):,} queries, at most {RUNS_MAX} are allowed: {Remedy.ASK_LESS}"
            )
        refuse_more_rows(chosen, None if by is None else values)
        if by is not None and values is not None and runs:
            span = Selection(chosen[0].start_ms, chosen[-1].end_ms, where)
            most = [(by, row["value"]) for row in self.top(by, span, count=values)]
            where = [*(one for one in where if one[0] != by), *most]
        return [counts for run in runs for counts in self._run(run, where, by, users)]

    def _run(
        self, run: Sequence[Window], where: Sequence[tuple[str, str]], by: str | None, users: bool
    ) -> Iterator[WindowCounts]:
        """Yield the counts of windows of one length, each of which begins at the end of the one before."""
        begin_ms, width = run[0].start_ms, run[0].end_ms - run[0].start_ms
        query = _Query()
        value = "NULL" if by is None else query.dimension(by)
        distinct = "count(DISTINCT uid)" if users else "NULL"
        rows = self._rows(
            query,
            Selection(begin_ms, run[-1].end_ms, where),
            f"SELECT (epoch_ms(event_time) - {begin_ms}) // {width} AS number, {value} AS value, count(*) AS events, "
            f"sum(clicks)::BIGINT AS clicks, {distinct} AS users",
            "GROUP BY number, value ORDER BY number, events DESC, value",
        )
        for row in rows:
            window = run[row["number"]]
            shown = (row["value"], row["events"], row["clicks"], row["users"])
            yield WindowCounts(window.start_ms, window.end_ms, *shown, users_exact=row["users"] is not None)

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
        column, value = query.grouped(dimension)
        return self._rows(
            query,
            selection,
            f"SELECT {value} AS value, sum(n)::BIGINT AS events, sum(s)::BIGINT AS clicks "
            f"FROM (SELECT {column}, count(*) AS n, sum(clicks) AS s",
            f"GROUP BY ALL) GROUP BY ALL ORDER BY clicks DESC, events DESC, value LIMIT {int(count)}",
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

    def timeline(
        self,
        uid: str,
        selection: Selection = ALL,
        *,
        count: int = 100,
        before: tuple[int, int, int] | None = None,
    ) -> list[Row]:
        """Return the newest events of one user, newest first.

        `before` is time, partition and offset of the last event of the page before.
        """
        chosen = Selection(selection.begin_ms, selection.end_ms, [*selection.where, ("uid", uid)])
        query = _Query()
        if before is not None:
            places = ", ".join(query.parameter(number) for number in before)
            query.conditions.append(f'(epoch_ms(event_time), partition, "offset") < ({places})')
        return self._rows(
            query,
            chosen,
            'SELECT epoch_ms(event_time) AS time_ms, clicks, os, no_time, future, partition, "offset", extra',
            f'ORDER BY event_time DESC, partition DESC, "offset" DESC LIMIT {int(count)}',
        )

    def doubt(self, dimension: str, selection: Selection = ALL) -> str | None:
        """Return why a dimension cannot have a value in a time range; None if it can."""
        fields = self._version.fields
        if dimension in _COLUMNS:
            return None
        if dimension in fields.dimensions:
            return f"the field '{dimension}' is the dimension {fields.dimensions[dimension]}"
        if dimension in (fields.value, fields.time):
            return f"the field '{dimension}' is not a dimension"
        query = _Query()
        query.conditions.append(f"json_exists(extra, {query.pointer(dimension)})")
        span = Selection(selection.begin_ms, selection.end_ms)
        return None if self._rows(query, span, "SELECT 1", "LIMIT 1") else f"no event has the field '{dimension}'"

    def _rows(self, query: "_Query", selection: Selection, select: str, end: str = "") -> list[Row]:
        paths = self._archive.paths(self._version, selection.begin_ms, selection.end_ms)
        columns = ", ".join(f'"{name}"' for name in SCHEMA.names)
        source = f"SELECT {columns} FROM tail"
        if paths:
            files = query.parameter(paths)
            source += f" UNION ALL SELECT {columns} FROM read_parquet({files}, hive_partitioning = false)"
        text = f"{select} FROM ({source}) {query.where(selection)} {end}"
        if self._is_cancelled():
            raise QueryCancelled(CANCELLED)
        try:
            result = self._database.execute(text, query.parameters)
            names = [column[0] for column in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
        except duckdb.InterruptException as error:
            raise QueryCancelled(CANCELLED) from error
        except duckdb.OutOfMemoryException as error:
            raise TooMuch(f"the query needs more memory than it may have ({error}): {Remedy.ASK_LESS}") from error
        except duckdb.IOException as error:
            raise ArchiveFailed(
                f"failed to read the archive {self._archive.directory} ({error}): {Remedy.LOOK_AT_DISK}"
            ) from error


class _Query:
    """Parts of one query, with its parameters."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}
        self.conditions: list[str] = []

    def parameter(self, value: Any) -> str:
        name = f"p{len(self.parameters)}"
        self.parameters[name] = value
        return f"${name}"

    def dimension(self, name: str) -> str:
        """Return the expression for a dimension's value."""
        return name if name in _COLUMNS else _value("extra", self.pointer(name))

    def grouped(self, name: str) -> tuple[str, str]:
        """Return a column to group by, and the expression for a dimension's value over this column.

        So the JSON of each event is parsed once, and text and type are read for each group only.
        """
        if name in _COLUMNS:
            return name, name
        json = f"json_extract(extra, {self.pointer(name)})"
        return f"CASE WHEN strlen({json}) <= {_JSON_BYTES_MAX} THEN {json} END AS json", _value("json", "''")

    def condition(self, name: str, values: list[str]) -> str:
        """Return the condition that a dimension has one of these values."""
        chosen = self.parameter(values)
        exact = f"{self.dimension(name)} IN {chosen}"
        if name in _COLUMNS or UNKNOWN in values:
            return exact
        # Most events differ in the text already, which is cheaper to compare.
        return f"json_extract_string(extra, {self.pointer(name)}) IN {chosen} AND {exact}"

    def pointer(self, name: str) -> str:
        """Return the JSON pointer of a field in `extra`."""
        return self.parameter("/" + name.replace("~", "~0").replace("/", "~1"))

    def where(self, selection: Selection) -> str:
        conditions = list(self.conditions)
        for compared, moment_ms in ((">=", selection.begin_ms), ("<", selection.end_ms)):
            if moment_ms is not None:
                conditions.append(f"event_time {compared} make_timestamptz({self.parameter(moment_ms * 1000)}::BIGINT)")
        values: dict[str, list[str]] = {}
        for name, value in selection.where:
            values.setdefault(name, []).append(value)
        conditions += [self.condition(name, chosen) for name, chosen in values.items()]
        return f"WHERE {' AND '.join(conditions)}" if conditions else ""


def _value(json: str, pointer: str) -> str:
    """Return the expression for a dimension's value, which is at this pointer of a column."""
    text = f"json_extract_string({json}, {pointer})"
    is_value = f"(json_type({json}, {pointer}) = 'VARCHAR' OR regexp_full_match({text}, '-?[0-9]+'))"
    return f"CASE WHEN strlen({text}) BETWEEN 1 AND {VALUE_BYTES_MAX} AND {is_value} THEN {text} ELSE '{UNKNOWN}' END"


@contextlib.contextmanager
def open_events(directory: Path, cluster: Cluster | None = None) -> Iterator[Events]:
    """Return the events of an archive, and with a cluster also those that its topic has behind the archive.

    Raises ArchiveUnreadable, QueryRefused and the client's errors.
    """
    with contextlib.closing(ArchiveReader(directory)) as reader, reader.events(cluster) as events:
        yield events


@dataclass(frozen=True)
class _Tail:
    """Events of the log behind a version of the archive: the table of each partition, and the offset that ends it."""

    version: Version
    topic_id: str
    ends: Mapping[int, int]
    tables: Mapping[int, pa.Table]


class ArchiveReader:
    """Reader of one archive for many queries: the log's tail is kept, so that each reads only what is new.

    Any thread may ask; one at a time reads the log.
    """

    def __init__(self, directory: Path, *, memory: str | None = None) -> None:
        """`memory` limits that of the database for all queries, such as `1GB`."""
        self._archive = Archive(directory)
        self._database = duckdb.connect(config={} if memory is None else {"memory_limit": memory})
        self._lock = threading.Lock()
        self._tail: _Tail | None = None

    def close(self) -> None:
        """Free the database's memory."""
        self._database.close()

    def version(self) -> Version:
        """Return the newest version of the archive. Raises ArchiveUnreadable."""
        return self._archive.require()

    @contextlib.contextmanager
    def events(
        self, cluster: Cluster | None = None, is_cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[Events]:
        """Return the events as of now, with a cluster also those of the log. Raises QueryCancelled too."""
        ends: Mapping[int, int]
        if cluster is None:
            version = self._archive.require()
            ends, tail = version.ends, event_table(version.fields, [])
        else:
            with self._lock:
                try:
                    kept = self._tail = self._read_tail(cluster, is_cancelled)
                except (ClientError, QueryCancelled):
                    cluster.close()  # The next query opens new connections.
                    raise
            version, ends = kept.version, kept.ends
            tail = pa.concat_tables([event_table(version.fields, []), *kept.tables.values()])
        times = pc.min_max(tail["event_time"].cast(pa.int64())).as_py()
        with self._database.cursor() as database:
            database.register("tail", tail)
            yield Events(database, self._archive, version, ends, (times["min"], times["max"]), is_cancelled)

    def _read_tail(self, cluster: Cluster, is_cancelled: Callable[[], bool]) -> _Tail:
        version = self._archive.require()
        begins, ends = _tail_range(cluster, version)
        topic_id = str(cluster.require_topic(version.topic).topic_id)
        kept = self._kept(version, topic_id, begins, ends)
        starts = begins | {partition: kept.ends[partition] for partition in kept.tables}
        fresh: dict[int, list[tuple[bytes | None, int, int, int]]] = {partition: [] for partition in starts}
        records = read_partitions(cluster, version.topic, starts, ends)
        for number, (partition, record) in enumerate(records):
            if number % READ_AT_ONCE == 0 and is_cancelled():
                raise QueryCancelled(CANCELLED)
            fresh[partition].append((record.value, partition, record.offset, record.timestamp_ms))
        tables = {
            partition: _joined(kept.tables.get(partition), part, version.fields) for partition, part in fresh.items()
        }
        return _Tail(version, topic_id, ends, tables)

    def _kept(self, version: Version, topic_id: str, begins: Mapping[int, int], ends: Mapping[int, int]) -> _Tail:
        """Return the part of the tail read before that is still behind the archive."""
        before = self._tail
        is_same = before is not None and (before.topic_id, before.version.proof.plan) == (topic_id, version.proof.plan)
        if before is None or not is_same:
            return _Tail(version, topic_id, {}, {})
        tables = {}
        for partition, table in before.tables.items():
            begin = begins.get(partition)
            end = before.ends[partition]
            if begin is not None and before.version.ends.get(partition, begin) <= begin <= end <= ends[partition]:
                archived = pc.sum(pc.less(table["offset"], begin)).as_py() or 0
                tables[partition] = table.slice(archived)
        return _Tail(version, topic_id, before.ends, tables)


def _joined(
    before: pa.Table | None, records: Sequence[tuple[bytes | None, int, int, int]], fields: ArchivedFields
) -> pa.Table:
    """Return the table of a partition with further records, in few chunks."""
    table = event_table(fields, records)
    if before is not None:
        table = pa.concat_tables([before, table]) if records else before
    return table.combine_chunks() if table["uid"].num_chunks > CHUNKS_MAX else table


def _runs(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Yield the windows in runs of one length, each of which begins at the end of the one before."""
    run: list[Window] = []
    for window in windows:
        if window.start_ms >= window.end_ms:
            continue
        is_next = run and window.start_ms == run[-1].end_ms
        if not is_next or window.end_ms - window.start_ms != run[0].end_ms - run[0].start_ms:
            if run:
                yield run
            run = []
        run.append(window)
    if run:
        yield run


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
