"""Group commit: one round makes everything durable that was appended before it started.

The owner of the log (one thread) calls `begin_sync`, hands the point to any thread that may block, and calls `end_sync`
or `fail_sync` when `run` has returned or raised. Appends continue meanwhile and belong to the next round.

After a roll a round has to sync more than the active file:

1. the sealed segments' files, oldest first, and the active one: each may contain an acknowledged batch;
2. the index files of the sealed segments, which are written now;
3. the directory: otherwise a power cut removes the new files' names, and the acknowledged batches with them. A log's
   first round also syncs the data directory, once per round (creating a log syncs nothing);
4. the snapshots of the sealed segments, written last. A complete snapshot guarantees that everything below its offset
   is durable, names included, and recovery may start there. Its own name waits for the next roll's round; if it is
   lost, recovery starts earlier. Before earlier files are removed, it is made durable (`onceflow.log.swap`).

A file that was deleted under the broker counts as one that cannot be synced.

A failed sync of 1 or 3 is final. Files that can be rebuilt are not: if an index or a snapshot cannot be written (a full
disk, no free descriptor), its seal and the later ones are kept for the next round. A directory that could not be opened
for its sync keeps the whole round.
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
    """State of the log when the round started: what `run` makes durable and what becomes visible afterwards."""

    disk: Disk
    directory: Path
    offset_end: int
    active: Segment
    size_bytes: int
    seals: tuple[Seal, ...]
    max_timestamp: tuple[int, int]
    """(timestamp, last offset of its batch) of the batch with the latest timestamp below `offset_end`."""
    is_first: bool = False
    """Whether the log is new: neither its files' names nor its own may be durable yet."""
    kept_seals: int = 0
    """Number of the last seals that `run` left to the next round."""
    is_durable: bool = True
    """Whether the new files' names are durable too, after `run`; otherwise nothing more becomes visible."""
    problem: OSError | None = None
    """Reason why `run` postponed something."""

    def run(self) -> None:
        """Sync everything. Blocks; any thread. Raises OSError, after which it is unknown what is durable."""
        self.run_below()
        if self.is_first and self.is_durable:
            try:
                self.disk.sync_directory(self.directory.parent)
            except SyncNotBegun as error:
                self.postpone(error)

    def run_below(self) -> None:
        """Sync everything but the name of a new log's directory. Raises OSError."""
        for seal in self.seals:
            _sync_file(seal.segment)
        _sync_file(self.active)
        if not self.seals and not self.is_first:
            return
        written = self._write_indexes()
        try:
            self.disk.sync_directory(self.directory)
        except SyncNotBegun as error:
            self.postpone(error)
            return
        self.kept_seals = len(self.seals) - self._write_snapshots(written)

    def postpone(self, problem: OSError) -> None:
        """Leave everything to the next round; nothing has failed permanently."""
        self.problem, self.is_durable, self.kept_seals = problem, False, len(self.seals)

    def _write_indexes(self) -> int:
        """Write the seals' indexes in order; return how many. A snapshot promises every index below its offset."""
        for number, seal in enumerate(self.seals):
            try:
                seal.segment.write_indexes()
            except OSError as error:
                self.problem = error
                return number
        return len(self.seals)

    def _write_snapshots(self, count: int) -> int:
        """Write the snapshots of the first `count` seals; return how many. A segment cannot be removed before its
        snapshot."""
        for number, seal in enumerate(self.seals[:count]):
            try:
                write_snapshot(self.disk, self.directory, seal.offset_end, seal.snapshot)
            except OSError as error:
                self.problem = error
                return number
        return count


def run_round(points: Sequence[SyncPoint]) -> list[OSError | None]:
    """Run all points, with one sync of the directory that new logs share. Return each point's error. Any thread."""
    errors = [_error_of(point.run_below, point.directory) for point in points]
    by_parent: dict[Path, list[int]] = {}
    for number, point in enumerate(points):
        if point.is_first and point.is_durable and errors[number] is None:
            by_parent.setdefault(point.directory.parent, []).append(number)
    for parent, numbers in by_parent.items():
        error = _error_of(partial(points[numbers[0]].disk.sync_directory, parent), parent)
        for number in numbers:
            if isinstance(error, SyncNotBegun):
                points[number].postpone(error)
            else:
                errors[number] = error
    return errors


def _error_of(sync: Callable[[], None], directory: Path) -> OSError | None:
    try:
        sync()
    except OSError as error:
        return error
    except Exception as error:
        # Whatever the error, it is unknown what is durable.
        logger.exception("sync of %s failed unexpectedly", directory)
        return OSError(str(error))
    return None


def _sync_file(segment: Segment) -> None:
    file = segment.file
    file.sync_data()
    if file.is_removed():
        raise FileNotFoundError(errno.ENOENT, "deleted while the broker ran", str(segment.path))


def write_snapshot(disk: Disk, directory: Path, offset_end: int, snapshot: Snapshot) -> None:
    """Write a snapshot. Blocks; its name is durable after `sync_directory`."""
    write_file(disk, directory / file_name(offset_end, SNAPSHOT_SUFFIX), snapshot.encode())
