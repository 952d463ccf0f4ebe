"""Replay of log files into a topic as click events: rows → mapped events → sorted → paced → sent.

Everything is streamed, so memory is bounded for files of any size. A row that cannot be mapped goes into the rejects
file (JSON lines: file, line, reason, text), and the replay continues. `--skip N` skips the first N events in sending
order (rejected rows are not events), to resume an interrupted replay. A file replayed twice is counted twice: the log
does not detect duplicates.
"""

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from onceflow.clicks.ingest.lines import FileUnreadable, Rejected, excerpt
from onceflow.clicks.ingest.mapping import FieldMapping, MappedEvent, Mapper, Unmappable, WrongMapping, columns_of
from onceflow.clicks.ingest.readers import InputFormat, Row, guess_format, rows_of
from onceflow.clicks.ingest.time_order import in_time_order
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

FLUSH_EVENTS = 100_000
"""Number of events after which all acknowledgements are awaited, so that a failure has a resume position."""

FIRST_ROWS = 100
"""Number of first JSON lines; a field that none of them has is reported at once."""


class ReplayFailed(OnceflowError):
    """Failure to send events; the message names the resume position."""


class Writer(Protocol):
    """Destination of events, such as `onceflow.client.producer.EventWriter`."""

    def write(self, key: bytes | None, value: bytes | None) -> None: ...

    def flush(self) -> None: ...


@dataclass(frozen=True)
class Replay:
    """Settings of a replay; `speed` is relative to event time, None as fast as possible."""

    files: Sequence[Path]
    mapping: FieldMapping = field(default_factory=FieldMapping)
    input_format: InputFormat | None = None
    by_time: bool = False
    speed: float | None = None
    skip: int = 0

    def check(self) -> None:
        """Raise for invalid files and options, before a topic is created or a row is sent."""
        self.mapping.check()
        for path in self.files:
            input_format = self._format(path)
            columns = _first_columns(path, input_format)
            if columns:
                Mapper(self.mapping.for_format(input_format)).check_columns(str(path), columns)

    def events(self, rejects: "Rejects") -> Iterator[MappedEvent]:
        """Yield every event in sending order, skipped ones included.

        Raises `ReplayFailed` at once if the rejects file is one of the input files.
        """
        rejects.check_is_none_of(self.files)
        events = (event for path in self.files for event in self._events_of(path, rejects))
        return in_time_order(events) if self.by_time else events

    def _events_of(self, path: Path, rejects: "Rejects") -> Iterator[MappedEvent]:
        input_format = self._format(path)
        mapper = None
        for row in rows_of(path, input_format):
            if isinstance(row, Rejected):
                rejects.add(row)
                continue
            mapper = mapper or self._mapper(input_format, row)
            event = _mapped(mapper, row, rejects)
            if event is not None:
                yield event

    def _format(self, path: Path) -> InputFormat:
        return self.input_format or guess_format(path)

    def _mapper(self, input_format: InputFormat, first: Row) -> Mapper:
        mapper = Mapper(self.mapping.for_format(input_format))
        # Lines of JSON need not have the same fields: one that lacks a field is rejected like any other bad row.
        if input_format is not InputFormat.JSONL:
            mapper.check_columns(first.file, columns_of(input_format, first.fields))
        return mapper


def _first_columns(path: Path, input_format: InputFormat) -> list[str]:
    """Return the field names of the first row, or of a hundred JSON lines, which need not have the same fields."""
    rows = rows_of(path, input_format)
    first = [next(rows, None)]
    if input_format is InputFormat.JSONL:
        # Later damage is reported when it is reached, after the rows before it are sent.
        with contextlib.suppress(FileUnreadable):
            first.extend(itertools.islice(rows, FIRST_ROWS))
    columns = [columns_of(input_format, row.fields) for row in first if isinstance(row, Row)]
    return list(dict.fromkeys(itertools.chain.from_iterable(columns)))


def _mapped(mapper: Mapper, row: Row, rejects: "Rejects") -> MappedEvent | None:
    try:
        return mapper.event_of(row.fields)
    except Unmappable as error:
        rejects.add(Rejected(row.file, row.line, str(error), excerpt(row.text)))
        return None


class Rejects(AbstractContextManager["Rejects"]):
    """The rejects file, overwritten when the first row is rejected.

    `count` is the number of rejected rows, `first_reason` the reason of the first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.first_reason = ""
        self._file: IO[str] | None = None

    def check_is_none_of(self, files: Sequence[Path]) -> None:
        """Raise `ReplayFailed` if the first rejected row would overwrite an input file."""
        for path in files:
            if self.path.exists() and path.exists() and self.path.samefile(path):
                raise ReplayFailed(
                    f"{path} is an input file and the rejects file {self.path}, which is overwritten: "
                    f"{Remedy.OTHER_REJECTS}"
                )

    def add(self, rejected: Rejected) -> None:
        """Write one row. Raises `ReplayFailed` if the file cannot be written."""
        document = {
            "file": rejected.file,
            "line": rejected.line,
            "reason": rejected.reason,
            "text": rejected.text,
        }
        try:
            if self._file is None:
                self._file = self.path.open("w", encoding="utf-8")
            self._file.write(json.dumps(document, ensure_ascii=False) + "\n")
        except OSError as error:
            raise ReplayFailed(
                f"the rejects file {self.path} cannot be written ({error}): {Remedy.OTHER_REJECTS}"
            ) from error
        self.first_reason = self.first_reason or rejected.reason
        self.count += 1

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()


@dataclass(slots=True)
class Progress:
    """Progress of a replay; `position` counts skipped and sent events, `acknowledged` those certainly in the log."""

    skipped: int = 0
    sent: int = 0
    without_time: int = 0
    """Sent events without an event_time."""
    acknowledged: int = 0
    is_complete: bool = False

    @property
    def position(self) -> int:
        return self.skipped + self.sent


def send(
    replay: Replay, events: Iterator[MappedEvent], writer: Writer, progress: Progress, wait: Callable[[float], bool]
) -> None:
    """Send events until they end or `wait(seconds)` (0 to only ask) is true; update `progress` all the time.

    Raises `ReplayFailed` with the resume position if the writer fails. If the files become unreadable, it is raised
    after all sent events are acknowledged.
    """
    try:
        unread = _send_each(_due(replay, events, progress), writer, progress, wait)
        writer.flush()
    except OnceflowError as error:
        if progress.sent == progress.acknowledged:
            raise
        raise ReplayFailed(
            f"{error}; {Remedy.SKIP_SENT.format(position=progress.skipped + progress.acknowledged)} without a gap, "
            f"but up to {progress.sent - progress.acknowledged} events may be counted twice"
        ) from error
    progress.acknowledged = progress.sent
    if unread is not None and progress.sent:
        raise ReplayFailed(
            f"{unread}; the {progress.sent:,} events before it are sent and acknowledged; once the file is repaired, "
            f"{Remedy.SKIP_SENT.format(position=progress.position)} with the next"
        ) from unread
    if unread is not None:
        raise unread


def _due(replay: Replay, events: Iterator[MappedEvent], progress: Progress) -> Iterator[tuple[float, MappedEvent]]:
    """Drop the skipped events; yield the others with the seconds to wait before each."""
    pace = Pace(replay.speed)
    for event in events:
        if progress.skipped < replay.skip:
            progress.skipped += 1
        else:
            yield pace.pause_s(event), event


def _send_each(
    due: Iterator[tuple[float, MappedEvent]], writer: Writer, progress: Progress, wait: Callable[[float], bool]
) -> OnceflowError | None:
    """Send until the end or a stop. Return a failure of reading; raise a failure of the writer."""
    while True:
        try:
            item = next(due, None)
        except OnceflowError as error:
            return error
        if item is None:
            progress.is_complete = True
            return None
        pause_s, event = item
        if wait(pause_s):
            return None
        writer.write(event.key, event.value)
        progress.sent += 1
        progress.without_time += event.time_ms is None
        if progress.sent % FLUSH_EVENTS == 0:
            writer.flush()
            progress.acknowledged = progress.sent


class Pace:
    """Pauses before events, for a replay at `speed` relative to event time."""

    def __init__(self, speed: float | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._speed = speed
        self._monotonic = monotonic
        self._started: tuple[float, int] | None = None

    def pause_s(self, event: MappedEvent) -> float:
        """Return the seconds until the event is due; 0.0 for one before the latest (an unordered file)."""
        if self._speed is None:
            return 0.0
        if event.time_ms is None:
            raise WrongMapping(f"--speed requires the time of each event: {Remedy.NAME_TIME}, or send with --speed max")
        if self._started is None:
            self._started = (self._monotonic(), event.time_ms)
        started_s, first_ms = self._started
        due_s = started_s + (event.time_ms - first_ms) / 1000 / self._speed
        return max(0.0, due_s - self._monotonic())
