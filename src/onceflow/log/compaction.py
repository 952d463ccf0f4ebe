"""Log compaction keeps the last record of each key (org.apache.kafka.storage.internals.log.Cleaner).

A compacted log has a clean part, up to the cleaner checkpoint, and a dirty part after it. One pass reads the dirty part
into a map of key → last offset. It then copies all segments up to there without the records that have a later one of
the same key (`onceflow.log.swap` swaps in the copies). The pass keeps:

- what is not compactable: the active segment, everything from the last stable offset on, and everything from the first
  segment on with a record younger than `min.compaction.lag.ms`;
- a tombstone (a record without a value) until `delete.retention.ms` after the first pass that read it. That pass writes
  the time, the *delete horizon*, into the batch, so that a restart does not restart the wait;
- a transaction's marker until a pass has read none of its records, and the marker's own horizon is over;
- a batch, empty if necessary, that is the last of a producer whose sequence is still known, that ends the compactable
  part, or that ends a segment (the next segment starts right after it).

The first pass removes records of aborted transactions. Offsets never change, so gaps remain.

The map holds short keys themselves and the MD5 of others. When it holds `keys_max` keys, the pass ends at that offset
and another pass follows. A pass is a generator that yields after every batch: the thread that runs it decides how much
it does at a time.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onceflow.log import swap
from onceflow.log.config import LogConfig
from onceflow.log.disk import Disk, write_whole
from onceflow.log.errors import CorruptBatch
from onceflow.log.producers import LastBatch
from onceflow.log.segment import NO_TIMESTAMP, Segment
from onceflow.log.transactions import AbortedTransaction
from onceflow.wire.batch import HEADER_BYTES, BatchHeader, Record, decode_batch, encode_retained, read_header
from onceflow.wire.errors import WireError

BYTES_PER_KEY = 200
"""Memory of one key in the map: its part of the table, the key's bytes object and the offset's integer."""

_READ_BYTES = 1024 * 1024
_DIGEST_BYTES = 16
_RELATIVE_OFFSET_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Compactable:
    """Snapshot of a log for compaction. It is taken on the loop and valid in any thread: sealed segments never
    change."""

    name: str
    directory: Path
    config: LogConfig
    segments: Sequence[Segment]
    """Segments from the log's start, without the active one and those whose seal is not finished."""
    segments_end: int
    """End offset of the last of `segments`."""
    offset_begin: int
    """The first dirty offset, where the last pass ended."""
    last_stable_offset: int
    """A segment that extends beyond it is not compacted."""

    def ends(self) -> list[int]:
        """Return the end offset of each segment."""
        return [*(segment.base_offset for segment in self.segments[1:]), self.segments_end][: len(self.segments)]


@dataclass(frozen=True, slots=True)
class Dirt:
    """Dirty part of a log."""

    log: Compactable
    offset_end: int
    """End of what may be compacted now, exclusive."""
    dirty_ratio: float
    is_overdue: bool
    """Whether a record has been uncompacted for longer than `max.compaction.lag.ms`."""

    @property
    def is_due(self) -> bool:
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def measure(log: Compactable, now_ms: int) -> Dirt:
    """Return the dirty part of a log (LogCleanerManager.cleanableOffsets and LogToClean). Reads one header per dirty
    segment."""
    clean_bytes = sum(segment.size_bytes for segment in log.segments if segment.base_offset < log.offset_begin)
    dirty_bytes, offset_end, first_dirty_ms = 0, log.offset_begin, NO_TIMESTAMP
    for segment, end in zip(log.segments, log.ends(), strict=True):
        if end <= log.offset_begin:
            continue
        is_young = 0 < log.config.min_compaction_lag_ms > now_ms - segment.max_timestamp_ms
        if end > log.last_stable_offset or is_young:
            break
        if segment.base_offset < log.offset_begin:
            clean_bytes -= segment.size_bytes
        dirty_bytes += segment.size_bytes
        offset_end = end
        if first_dirty_ms < 0:
            first_dirty_ms = segment.header_at(0).max_timestamp if segment.size_bytes else NO_TIMESTAMP
    ratio = dirty_bytes / (clean_bytes + dirty_bytes) if dirty_bytes else 0.0
    is_overdue = first_dirty_ms >= 0 and now_ms - first_dirty_ms > log.config.max_compaction_lag_ms
    return Dirt(log, offset_end, ratio, is_overdue)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Neighbouring segments with a durable compacted copy in `.cleaned` files, ready for `swap.replace`."""

    old: Sequence[Segment]
    offset_end: int


class Compaction:
    """One pass over one log."""

    def __init__(
        self,
        dirt: Dirt,
        *,
        disk: Disk,
        now_ms: int,
        keys_max: int,
        aborted: Iterable[AbortedTransaction] = (),
        last_batches: Mapping[int, LastBatch] | None = None,
    ) -> None:
        """Prepare a pass with the log's current aborted transactions and each producer id's last batch."""
        self.log = dirt.log
        self.config = dirt.log.config
        self.offset_end = dirt.offset_end
        """End of the pass, where the next one starts."""
        self.keys_max = keys_max
        self._disk = disk
        self._now_ms = now_ms
        self._compactable_end = dirt.offset_end
        self._aborted = sorted(
            (transaction for transaction in aborted if transaction.first_offset < dirt.offset_end), key=_first_offset
        )
        self._last_batches = last_batches or {}
        self._last_offsets: dict[bytes, int] = {}
        self._last_offset = -1
        """Last offset of the last batch that was kept."""

    def run(self) -> Iterator[Cleaned | None]:
        """Run the pass, one batch per step. Raises CorruptBatch where a batch cannot be read, OSError.

        It writes only files that end in `.cleaned`.
        """
        yield from self._read_keys()
        number_end = sum(segment.base_offset < self.offset_end for segment in self.log.segments)
        transactions = _Transactions(self._aborted)
        for group, end in self._groups(self.log.segments[:number_end]):
            cleaned = Segment(
                self._disk, self.log.directory, group[0].base_offset, create=True, suffix=swap.CLEANED_SUFFIX
            )
            for segment in group:
                for header, batch in _batches(segment):
                    self._clean(cleaned, header, batch, transactions, is_end=header.last_offset == end - 1)
                    yield None
            if self._last_offset != end - 1:
                raise CorruptBatch(f"{group[-1].path} ends at {self._last_offset}, the next segment starts at {end}")
            cleaned.index_max_timestamp()
            cleaned.write_indexes()
            cleaned.file.sync_data()
            yield Cleaned(group, end)

    def _read_keys(self) -> Iterator[None]:
        """Fill the map from the dirty part; end the pass where the map is full."""
        transactions = _Transactions(self._aborted)
        last_offsets = self._last_offsets
        for segment in self.log.segments:
            if segment.base_offset >= self._compactable_end:
                return
            for header, batch in _batches(segment):
                if header.last_offset < self.log.offset_begin or header.base_offset >= self._compactable_end:
                    continue
                if len(last_offsets) >= self.keys_max:
                    self.offset_end = header.base_offset
                    return
                if not transactions.is_aborted(header) and not header.is_control:
                    for record in self._records(segment, header, batch):
                        if record.key is not None:
                            last_offsets[_hashed(record.key)] = record.offset
                yield None

    def _groups(self, segments: Sequence[Segment]) -> Iterator[tuple[list[Segment], int]]:
        """Yield (neighbours that fit into one segment, end offset of the last of them)."""
        group: list[Segment] = []
        group_end = 0
        for segment, end in zip(segments, self.log.ends(), strict=False):
            if group and not self._fits(group, segment, end):
                yield group, group_end
                group = []
            group.append(segment)
            group_end = end
        if group:
            yield group, group_end

    def _fits(self, group: list[Segment], segment: Segment, end: int) -> bool:
        together = [*group, segment]
        return (
            sum(member.size_bytes for member in together) <= self.config.segment_bytes
            and sum(member.offset_index.size_bytes() for member in together) <= self.config.segment_index_bytes
            and sum(member.time_index.size_bytes() for member in together) <= self.config.segment_index_bytes
            and end - 1 - group[0].base_offset <= _RELATIVE_OFFSET_MAX
        )

    def _clean(
        self, cleaned: Segment, header: BatchHeader, batch: bytes, transactions: "_Transactions", *, is_end: bool
    ) -> None:
        """Append what is kept of one batch to `cleaned`. `is_end`: the batch is the last of its group of segments."""
        is_finished = transactions.is_finished(header) if header.is_control else False
        is_discarded = is_finished and self._is_past_horizon(header)
        if not header.is_control:
            is_discarded = transactions.is_aborted(header)
        records = [] if is_discarded or not header.record_count else self._retained(cleaned, header, batch)
        must_stay = is_end or self._is_last_of_producer(header) or header.last_offset + 1 == self._compactable_end
        if not records and not must_stay:
            return
        needs_horizon = header.delete_horizon_ms is None and (
            is_finished or (not header.is_control and any(record.value is None for record in records))
        )
        if len(records) < header.record_count or (needs_horizon and records):
            horizon_ms = self._now_ms + self.config.delete_retention_ms if needs_horizon else None
            batch = bytes(encode_retained(header, records, delete_horizon_ms=horizon_ms))
        self._append(cleaned, batch)

    def _retained(self, segment: Segment, header: BatchHeader, batch: bytes) -> list[Record]:
        records = self._records(segment, header, batch)
        return records if header.is_control else [record for record in records if self._is_retained(header, record)]

    def _records(self, segment: Segment, header: BatchHeader, batch: bytes) -> list[Record]:
        try:
            return decode_batch(batch, size_bytes_max=self.config.batch_unpacked_bytes_max)
        except WireError as error:
            raise CorruptBatch(f"{segment.path}, batch at offset {header.base_offset}: {error}") from error

    def _is_retained(self, header: BatchHeader, record: Record) -> bool:
        if record.offset >= self.offset_end:
            return True
        if record.key is None or record.offset < self._last_offsets.get(_hashed(record.key), -1):
            return False
        return record.value is not None or not self._is_past_horizon(header)

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        return header.delete_horizon_ms is not None and header.delete_horizon_ms <= self._now_ms

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._last_batches.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset >= 0:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _append(self, cleaned: Segment, batch: bytes) -> None:
        header = read_header(batch)
        position = cleaned.size_bytes
        cleaned.is_unsynced = True
        write_whole(cleaned.file, batch, position)
        max_timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
        cleaned.index_batch(position, len(batch), header.last_offset, max_timestamp, self.config.index_interval_bytes)
        cleaned.size_bytes = position + len(batch)
        self._last_offset = header.last_offset


class _Transactions:
    """Transactions that batches belong to; the batches pass by in order (CleanedTransactionMetadata)."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._coming = list(reversed(aborted))
        self._aborted: dict[int, int] = {}
        """Producer id → its abort marker's offset."""
        self._with_batches: set[int] = set()
        """Producers whose current transaction had a batch."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether the batch of records belongs to an aborted transaction; called for every batch, in order."""
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            coming = self._coming.pop()
            self._aborted[coming.producer_id] = coming.last_offset
        if header.is_control:
            if self._aborted.get(header.producer_id, -1) <= header.last_offset:
                self._aborted.pop(header.producer_id, None)
            return False
        if not header.is_transactional:
            return False
        self._with_batches.add(header.producer_id)
        return header.producer_id in self._aborted

    def is_finished(self, header: BatchHeader) -> bool:
        """Return whether no batch was read of the transaction that this marker ends."""
        self.is_aborted(header)
        is_finished = header.producer_id not in self._with_batches
        self._with_batches.discard(header.producer_id)
        return is_finished


def _batches(segment: Segment) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield every batch of a sealed segment, complete. Raises CorruptBatch for an invalid length."""
    block, block_begin = b"", 0
    position, end = 0, segment.size_bytes
    while position < end:
        if position + HEADER_BYTES > block_begin + len(block):
            block, block_begin = segment.file.read(min(_READ_BYTES, end - position), position), position
        if len(block) - (position - block_begin) < HEADER_BYTES:
            raise CorruptBatch(f"{segment.path}, position {position}: the header is cut; the file is damaged")
        header = read_header(block, position - block_begin)
        size_bytes = header.size_bytes
        if size_bytes < HEADER_BYTES or position + size_bytes > end:
            raise CorruptBatch(f"{segment.path}, position {position}: batch size {size_bytes}; the file is damaged")
        if position + size_bytes > block_begin + len(block):
            block_bytes = max(size_bytes, min(_READ_BYTES, end - position))
            block, block_begin = segment.file.read(block_bytes, position), position
        begin = position - block_begin
        yield header, block[begin : begin + size_bytes]
        position += size_bytes


def _hashed(key: bytes) -> bytes:
    """Return a short key itself, the digest of others: a digest has 16 bytes."""
    return key if len(key) < _DIGEST_BYTES else hashlib.md5(key, usedforsecurity=False).digest()


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset
