"""Group commit: one round makes everything durable that was appended before it began.

The owner of the log (one thread) calls `begin_sync`, hands the point to any thread that may block, and calls
`end_sync` or `fail_sync` when `run` has returned or raised. Appends go on meanwhile and belong to the next round.

What a round has to sync is more than the active file after a roll:

1. the sealed segments' files, oldest first, and the active one: an acknowledged batch may be in each;
2. the index files of the sealed segments, which are written now;
3. the directory, or a power cut takes the new files' names away, and with them what was acknowledged; in a log's
   first round the data directory too, once for all of the round (creating a log syncs nothing);
4. then only the snapshots of the sealed segments are written: one that is whole says that everything below its offset
   is durable, names included, and recovery may begin there. Its own name waits for the next roll's round; if it is
   lost, recovery begins earlier. Before what is earlier goes, it is made durable (`onceflow.log.swap`).

A file that was deleted under the broker counts as one that cannot be synced.

A failed sync of 1 or 3 is final. What can be made again is not: if an index or a snapshot cannot be written (a full
disk, no free descriptor), its seal and the later ones are kept for the next round, and a directory that could not be
opened for its sync keeps the whole round.
"""

import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onceflow.log.disk import Disk, SyncNotBegun, write_file
from onceflow.log.index import file_name
from onceflow.log.producers import Snapshot
from onceflow.log.segment import SNAPSHOT_SUFFIX, Segment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seal:
    """A sealed segment whose indexes are still in memory, and the producer state at its end."""

    segment: Segment
    offset_end: int
    snapshot: Snapshot


@dataclass(slots=True)
class SyncPoint:
    """The log as it was when the round began: what `run` makes durable, what is visible afterwards."""

    disk: Disk
    directory: Path
    offset_end: int
    active: Segment
    size_bytes: int
    seals: tuple[Seal, ...]
    max_timestamp: tuple[int, int]
    """(timestamp, last offset of its batch) of the latest batch below `offset_end`."""
    is_first: bool = False
    """Whether the log is new: neither its files' names nor its own need be durable."""
    kept_seals: int = 0
    """After `run`: how many of the last seals the next round has to finish."""
    is_durable: bool = True
    """After `run`: whether the new files' names are durable too, without which nothing more becomes visible."""
    problem: OSError | None = None
    """After `run`: why something was put off."""

    def run(self) -> None:
        """Blocks; any thread. Raises OSError, after which nothing is known about what is durable."""
        self.run_below()
        if self.is_first and self.is_durable:
            try:
                self.disk.sync_directory(self.directory.parent)
            except SyncNotBegun as error:
                self.put_off(error)

    def run_below(self) -> None:
        """All but the name of a new log's directory. Raises OSError."""
        for seal in self.seals:
            _sync_file(seal.segment)
        _sync_file(self.active)
        if not self.seals and not self.is_first:
            return
        written = self._write_indexes()
        try:
            self.disk.sync_directory(self.directory)
        except SyncNotBegun as error:
            self.put_off(error)
            return
        self.kept_seals = len(self.seals) - self._write_snapshots(written)

    def put_off(self, problem: OSError) -> None:
        """What the round should have made durable waits for the next one; nothing has failed for good."""
        self.problem, self.is_durable, self.kept_seals = problem, False, len(self.seals)

    def _write_indexes(self) -> int:
        """How many seals' indexes were written. In order: a snapshot promises every index below its offset."""
        for number, seal in enumerate(self.seals):
            try:
                seal.segment.write_indexes()
            except OSError as error:
                self.problem = error
                return number
        return len(self.seals)

    def _write_snapshots(self, count: int) -> int:
        """How many of the first `count` seals have their snapshots; a segment cannot leave before."""
        for number, seal in enumerate(self.seals[:count]):
            try:
                write_snapshot(self.disk, self.directory, seal.offset_end, seal.snapshot)
            except OSError as error:
                self.problem = error
                return number
        return count


def run_round(points: Sequence[SyncPoint]) -> list[OSError | None]:
    """Run all points, with one sync of the directory that new logs share; return the error of each. Any thread."""
    errors = [_error_of(point.run_below, point.directory) for point in points]
    by_parent: dict[Path, list[int]] = {}
    for number, point in enumerate(points):
        if point.is_first and point.is_durable and errors[number] is None:
            by_parent.setdefault(point.directory.parent, []).append(number)
    for parent, numbers in by_parent.items():
        error = _error_of(partial(points[numbers[0]].disk.sync_directory, parent), parent)
        for number in numbers:
            if isinstance(error, SyncNotBegun):
                points[number].put_off(error)
            else:
                errors[number] = error
    return errors


def _error_of(sync: Callable[[], None], directory: Path) -> OSError | None:
    try:
        sync()
    except OSError as error:
        return error
    except Exception as error:
        # Whatever it was, it is unknown what is durable.
        logger.exception("sync of %s failed in an unexpected way", directory)
        return OSError(str(error))
    return None


def _sync_file(segment: Segment) -> None:
    file = segment.file
    file.sync_data()
    if file.is_removed():
        raise FileNotFoundError(errno.ENOENT, "deleted while the broker ran", str(segment.path))


def write_snapshot(disk: Disk, directory: Path, offset_end: int, snapshot: Snapshot) -> None:
    """Blocks; its name is durable after `sync_directory`."""
    write_file(disk, directory / file_name(offset_end, SNAPSHOT_SUFFIX), snapshot.encode())
