"""Leader epochs of one log and the file `leader-epoch-checkpoint`, in Kafka's format (LeaderEpochFileCache, KIP-101).

    0          version
    2          number of lines that follow
    0 0        leader epoch, offset of its first record
    7 1200

Each leader appends in an epoch of its own, which its batches carry. An epoch ends where the next one starts, the last
one at the log's end. So two replicas find out where their logs part: a follower asks the leader for the end of its own
last epoch.

A log without replicas has epoch 0 from offset 0, and its file never changes. In a replicated log the epochs are
assigned before their first batch is appended. The file is written, durably, by the round of group commit that syncs
the first batches (`onceflow.log.sync`): nothing of an epoch is visible before. After a crash recovery assigns the
epochs of the batches that it scans again; an epoch without a batch is forgotten, since no other replica can have one.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from onceflow.log.disk import Disk, write_file

EPOCHS_FILE = "leader-epoch-checkpoint"
NO_EPOCH = -1
NO_OFFSET = -1

_VERSION = "0"


class EpochEnd(NamedTuple):
    """An epoch and the offset after its last record; both -1 if they are unknown."""

    epoch: int
    end_offset: int


UNKNOWN_END = EpochEnd(NO_EPOCH, NO_OFFSET)


class LeaderEpochs:
    """Epochs with the offsets where they start; both ascend."""

    __slots__ = ("_epochs", "_starts", "is_changed")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.is_changed = False
        """Whether the file differs and must be written before more becomes visible."""
        for epoch, start_offset in entries:
            self._epochs.append(epoch)
            self._starts.append(start_offset)

    def entries(self) -> list[tuple[int, int]]:
        """Return each epoch with the offset where it starts."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The last epoch, -1 without any."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Let an epoch start there, unless it continues; remove entries that are not before it in both columns.

        Those that start there or later were never filled: a leader had no record yet, and now copies from another one.
        """
        if self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= start_offset:
            return
        while self._starts and self._starts[-1] >= start_offset:
            self._pop()
        if self._epochs and self._epochs[-1] == epoch:
            return
        while self._epochs and self._epochs[-1] >= epoch:
            self._pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.is_changed = True

    def truncate_from_end(self, offset: int) -> None:
        """Remove the epochs that start at `offset` or later."""
        while self._starts and self._starts[-1] >= offset:
            self._pop()

    def _pop(self) -> None:
        self._epochs.pop()
        self._starts.pop()
        self.is_changed = True

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, -1 if it is unknown."""
        number = bisect_right(self._starts, offset)
        return self._epochs[number - 1] if number else NO_EPOCH

    def end_of(self, epoch: int, log_start_offset: int, log_end_offset: int) -> EpochEnd:
        """Return the largest epoch up to `epoch` with its end, as Kafka's LeaderEpochFileCache.endOffsetFor does.

        An epoch whose records were all deleted ends at the log's start. Unknown: for -1, and for a later epoch than the
        last one.
        """
        if epoch == NO_EPOCH or epoch > self.latest:
            return UNKNOWN_END
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        number = bisect_right(self._epochs, epoch)
        end_offset = max(self._starts[number], log_start_offset)
        is_deleted = not number or end_offset == log_start_offset
        return EpochEnd(epoch if is_deleted else self._epochs[number - 1], end_offset)

    def encode(self, log_start_offset: int) -> bytes:
        """Return the file's content, without the epochs whose records were deleted."""
        first = max(bisect_right(self._starts, log_start_offset) - 1, 0)
        del self._epochs[:first], self._starts[:first]
        if self._starts and self._starts[0] < log_start_offset:
            self._starts[0] = log_start_offset
        lines = [f"{epoch} {start_offset}" for epoch, start_offset in self.entries()]
        return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def parse_epochs(content: bytes) -> LeaderEpochs | None:
    """Return the epochs of a file; None if it is torn or its entries do not ascend."""
    try:
        version, count, *lines = content.decode().splitlines()
        entries = [(int(epoch), int(start_offset)) for epoch, start_offset in map(str.split, lines)]
        is_whole = version == _VERSION and int(count) == len(entries)
    except ValueError:
        return None
    ascend = all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(entries))
    is_valid = ascend and all(epoch >= 0 and start_offset >= 0 for epoch, start_offset in entries)
    return LeaderEpochs(entries) if is_whole and is_valid else None


def write_epochs(disk: Disk, directory: Path, content: bytes) -> None:
    """Replace the file; its name is durable after `sync_directory`. Blocks; raises OSError and keeps the old one."""
    fresh = directory / f"{EPOCHS_FILE}.tmp"
    write_file(disk, fresh, content)
    disk.rename(fresh, directory / EPOCHS_FILE)
