"""Transactions of one partition: open ones, the last stable offset, aborted ones.

A transaction begins in a partition with its first batch there and ends with a marker. Offsets are **unstable** from the
first batch of the earliest transaction that is open, or whose marker is not yet below the high watermark (Kafka's
ProducerStateManager: ongoing and unreplicated transactions). Readers of committed data see what is below.

`NNN.txnindex` lists the transactions whose *abort marker* is in segment NNN; their records may be segments earlier.
Entries of 34 bytes, big-endian, in the order of the markers (org.apache.kafka.storage.internals.log.AbortedTxn):

    int16  version, 0
    int64  producer id
    int64  first offset of the transaction
    int64  last offset: the marker's
    int64  last stable offset after this transaction's end, regardless of the high watermark

The columns of last offsets and of last stable offsets ascend. Without an aborted transaction there is no file. Like
the other indexes (`onceflow.log.index`) it is in memory while its segment is active, written when the segment is sealed
or closed, and rebuilt by recovery.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from onceflow.log.disk import Disk, remove_if_there
from onceflow.log.index import Index

NO_OFFSET = -1

_VERSION = 0
_ENTRIES_PER_READ = 1024
_LAST_OFFSET = struct.Struct(">18xq")


class AbortedTransaction(NamedTuple):
    """One entry of the index."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class OpenTransactions:
    """First offsets of the transactions that make offsets unstable."""

    __slots__ = ("_ended", "_guards", "_open", "first_unstable_offset")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """Producer id → first offset, in the order of the first offsets: a transaction begins at the log's end."""
        self._ended: list[tuple[int, int]] = []
        """(first offset, marker's offset) of those whose marker may not be durable yet."""
        self._guards: dict[int, object] = {}
        """Producer id → guard of the verification of its first batch (Kafka's VerificationGuard)."""
        self.first_unstable_offset = NO_OFFSET
        """-1: none."""

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._open

    def first_offset(self, producer_id: int) -> int:
        """Return the first offset of the producer's open transaction, -1 without one."""
        return self._open.get(producer_id, NO_OFFSET)

    def first_offsets(self) -> dict[int, int]:
        """Return the first offset of each open transaction by producer id."""
        return dict(self._open)

    def begin(self, producer_id: int, first_offset: int) -> None:
        self._open[producer_id] = first_offset
        if self.first_unstable_offset < 0:
            self.first_unstable_offset = first_offset

    def begin_verification(self, producer_id: int) -> object:
        """Return a guard: the verification of the producer's first batch is void once a marker has ended it."""
        return self._guards.setdefault(producer_id, object())

    def is_verifying(self, producer_id: int, guard: object) -> bool:
        """Return whether no marker of the producer was written since the verification began."""
        return self._guards.get(producer_id) is guard

    def end_verification(self, producer_id: int, guard: object) -> None:
        """Forget a guard."""
        if self.is_verifying(producer_id, guard):
            del self._guards[producer_id]

    def end(self, producer_id: int, marker_offset: int, *, commit: bool) -> AbortedTransaction | None:
        """End the producer's transaction; return its index entry if it was aborted and had records here."""
        self._guards.pop(producer_id, None)
        first_offset = self._open.pop(producer_id, NO_OFFSET)
        if first_offset < 0:
            return None
        self._ended.append((first_offset, marker_offset))
        if commit:
            return None
        stable = next(iter(self._open.values()), marker_offset + 1)
        return AbortedTransaction(_VERSION, producer_id, first_offset, marker_offset, stable)

    def forget_ended(self, high_watermark: int) -> None:
        """Forget transactions with a durable marker, one below the high watermark: they are stable now."""
        if self._ended:
            self._ended = [ended for ended in self._ended if ended[1] >= high_watermark]
            first_open = next(iter(self._open.values()), NO_OFFSET)
            firsts = [first for first, _marker in self._ended] + [first_open] * (first_open >= 0)
            self.first_unstable_offset = min(firsts, default=NO_OFFSET)


class TransactionIndex(Index):
    """Aborted transactions of one segment, in the module's format."""

    __slots__ = ("count",)

    entry = struct.Struct(">hqqqq")
    suffix = ".txnindex"

    def __init__(
        self, disk: Disk, directory: Path, base_offset: int, *, suffix: str = "", is_new: bool = False
    ) -> None:
        super().__init__(disk, directory, base_offset, suffix=suffix, is_new=is_new)
        self.count = 0
        """Number of entries, known without reading the file."""

    def append(self, aborted: AbortedTransaction) -> None:
        assert self.entries is not None
        self.entries += self.entry.pack(*aborted)
        self.count += 1

    def load(self, sizes: Mapping[str, int]) -> bool:
        """Load the entries; a missing file is an empty index."""
        is_sane = super().load(sizes)
        if self.entries is None:
            self.entries, is_sane = bytearray(), True
        self.count = len(self)
        return is_sane

    def load_sealed(self, size_bytes: int) -> None:
        """Count the entries, which stay in the file; without a file there are none."""
        self.count = size_bytes // self.entry.size

    def forget(self) -> None:
        """Empty the index before it is rebuilt."""
        self.entries = bytearray()
        self.count = 0

    def write(self) -> None:
        """Write the file, or remove an old one if there are no entries."""
        if self.entries:
            super().write()
        else:
            remove_if_there(self._disk, self.path)

    def last_offset(self) -> int:
        """Return the last marker's offset, -1 without entries."""
        last = self.last_entry() if self.count else None
        return int(last[3]) if last else NO_OFFSET

    def since(self, offset: int) -> Iterator[AbortedTransaction]:
        """Yield the transactions whose marker is at `offset` or later, in the order of the markers."""
        count, size_bytes = self.count, self.entry.size
        if not count:
            return
        content = self._content()
        first = bisect_left(
            range(count), offset, key=lambda number: int(_LAST_OFFSET.unpack_from(content, number * size_bytes)[0])
        )
        for number in range(first, count, _ENTRIES_PER_READ):
            # A copy: entries in memory may grow before the next one is read.
            block = content[number * size_bytes : min(number + _ENTRIES_PER_READ, count) * size_bytes]
            yield from map(AbortedTransaction._make, self.entry.iter_unpack(block))


def aborted_between(indexes: Iterable[TransactionIndex], offset_begin: int, offset_end: int) -> list[tuple[int, int]]:
    """Return (producer id, first offset) of the aborted transactions that may have records in a range of offsets.

    `indexes` are those of the segment that contains `offset_begin` and of all later ones: the marker may be far after
    the records. The search ends at the entry whose last stable offset is at or after `offset_end`: below it all
    transactions had ended (Kafka's TransactionIndex.collectAbortedTxns).
    """
    transactions = []
    for index in indexes:
        if not index.count:
            continue
        for aborted in index.since(offset_begin):
            if aborted.first_offset < offset_end:
                transactions.append((aborted.producer_id, aborted.first_offset))
            if aborted.last_stable_offset >= offset_end:
                return transactions
    return transactions
