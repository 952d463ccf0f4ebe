"""Removal of a log's end: a follower removes what its leader does not have (Kafka's UnifiedLog.truncateTo).

The log is cut on disk and loaded again as after a crash, so everything that is derived from batches (indexes, producer
state, transactions, leader epochs) is derived once more. A crash in the middle leaves a shorter log at most:

1. the segments after the new end are removed, newest first;
2. once that is durable, the segment with the new end is cut at the batch that contains it;
3. recovery loads the log, syncs it, and removes snapshots of removed batches (`onceflow.log.recovery`).

The owner of the log calls `PartitionLog.begin_truncation`, lets `run` run in any thread, and calls `end_truncation`.
Fetchers of replicas, the next part of docs/decisions/replication.md, use it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onceflow.log.checkpoint import check_checkpoints
from onceflow.log.clock import Clock
from onceflow.log.config import LogConfig
from onceflow.log.disk import Disk, replace_file
from onceflow.log.epochs import EPOCHS_FILE, LeaderEpochs
from onceflow.log.index import OFFSET_DIGITS, file_name
from onceflow.log.recovery import Loaded, Loader, new_log
from onceflow.log.segment import Segment
from onceflow.log.swap import SEGMENT_SUFFIXES, SWAP_SUFFIX


@dataclass(frozen=True, slots=True)
class Truncation:
    """One truncation: everything from `offset` on is removed, and the batch that contains it."""

    disk: Disk
    directory: Path
    config: LogConfig
    clock: Clock
    segments: Sequence[Segment]
    log_start_offset: int
    offset: int
    starts_over: bool = False
    """Whether nothing is kept, and the log starts at `offset`."""

    def run(self) -> Loaded:
        """Cut the log and load it. Blocks; any thread. Raises OSError, after which the log must be reopened."""
        if self.starts_over:
            return self._start_over()
        if any(name.endswith(SWAP_SUFFIX) for name in self.disk.names(self.directory)):
            # It would replace what is copied here later.
            raise OSError(f"{self.directory} has a compaction that failed; the next start finishes it")
        self._remove([segment for segment in self.segments if segment.base_offset > self.offset])
        last = next(segment for segment in reversed(self.segments) if segment.base_offset <= self.offset)
        span = last.find(self.offset, last.size_bytes)
        if span is not None:
            last.file.truncate(span[0])
        sizes = self.disk.sizes(self.directory)
        epochs = check_checkpoints(self.disk, self.directory, sizes, None, is_replica=True)
        loader = Loader(
            self.directory, sizes, self.config, self.disk, self.clock, self.log_start_offset, epochs, is_replica=True
        )
        loaded = loader.load(clean=False)
        # The log may be new, and its name not durable yet.
        self.disk.sync_directory(self.directory.parent)
        return loaded

    def _remove(self, segments: Sequence[Segment]) -> None:
        for segment in reversed(segments):
            segment.remove()
        self.disk.sync_directory(self.directory)

    def _start_over(self) -> Loaded:
        # All other numbered files go first. Snapshots would be read as the state at the start of a later segment, and
        # the next start would bring back what a failed compaction or deletion has left.
        bases = {file_name(segment.base_offset, "") for segment in self.segments}
        for name in self.disk.names(self.directory):
            is_of_segment = name[:OFFSET_DIGITS] in bases and name[OFFSET_DIGITS:] in SEGMENT_SUFFIXES
            if name[:OFFSET_DIGITS].isdecimal() and not is_of_segment:
                self.disk.remove(self.directory / name)
        self._remove(self.segments)
        epochs = LeaderEpochs()
        replace_file(self.disk, self.directory / EPOCHS_FILE, epochs.encode(self.offset))
        return new_log(self.directory, self.config, self.disk, self.offset, epochs)
