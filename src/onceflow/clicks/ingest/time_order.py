"""External merge sort of any number of events by time, in bounded memory.

Events are collected until they fill one run (64 MiB), sorted, and written to a temporary file; the runs are then
merged. The sort is stable: events of the same millisecond keep their input order. When there are 64 runs, they are
merged into one before more is read, so the number of open files is bounded too.
"""

import heapq
import struct
import tempfile
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path

from onceflow.clicks.ingest.mapping import MappedEvent
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

RUN_BYTES_MAX = 64 << 20
RUNS_MAX = 64
_EVENT_OVERHEAD_BYTES = 250
"""Memory of one event beside its key and value: a tuple, an int and two bytes objects."""
_FRAME = struct.Struct("<qII")
_by_time = attrgetter("time_ms")


class NoTime(OnceflowError):
    """Event without a time, which cannot be sorted by time."""


class SortFailed(OnceflowError):
    """Failure to write or read the temporary files of the sort."""


def in_time_order(
    events: Iterable[MappedEvent], *, run_bytes_max: int = RUN_BYTES_MAX, runs_max: int = RUNS_MAX
) -> Iterator[MappedEvent]:
    """Yield all events sorted by time. Raises `NoTime` for one without a time, `SortFailed` if the disk is full."""
    with tempfile.TemporaryDirectory(prefix="onceflow-sort-") as directory:
        try:
            runs: list[Path] = []
            for run in _runs(events, run_bytes_max):
                if len(runs) == runs_max:
                    runs = [_write_run(Path(directory), heapq.merge(*map(_read_run, runs), key=_by_time), runs)]
                runs.append(_write_run(Path(directory), run, []))
            yield from heapq.merge(*map(_read_run, runs), key=_by_time)
        except OSError as error:
            raise SortFailed(
                f"sorting by time needs space for all events in {tempfile.gettempdir()} ({error}): "
                f"{Remedy.MAKE_ROOM}, or {Remedy.OTHER_TMPDIR}"
            ) from error


def _runs(events: Iterable[MappedEvent], run_bytes_max: int) -> Iterator[list[MappedEvent]]:
    run: list[MappedEvent] = []
    size_bytes = 0
    for event in events:
        if event.time_ms is None:
            raise NoTime(f"--order time requires the time of each event: {Remedy.NAME_TIME}")
        run.append(event)
        size_bytes += len(event.key) + len(event.value) + _EVENT_OVERHEAD_BYTES
        if size_bytes >= run_bytes_max:
            yield sorted(run, key=_by_time)
            run, size_bytes = [], 0
    if run:
        yield sorted(run, key=_by_time)


def _write_run(directory: Path, events: Iterable[MappedEvent], merged: list[Path]) -> Path:
    """Write events to a new file and remove the merged files."""
    with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
        for time_ms, key, value in events:
            assert time_ms is not None
            file.write(_FRAME.pack(time_ms, len(key), len(value)) + key + value)
    for path in merged:
        path.unlink()
    return Path(file.name)


def _read_run(path: Path) -> Iterator[MappedEvent]:
    with path.open("rb") as file:
        while frame := file.read(_FRAME.size):
            time_ms, key_bytes, value_bytes = _FRAME.unpack(frame)
            yield MappedEvent(time_ms, file.read(key_bytes), file.read(value_bytes))
