"""State of producers with an id (KIP-98) and its snapshot file (Kafka's ProducerStateManager).

The last five batches of each producer id are kept. A batch with the sequences of one of them is a duplicate, and its
response has the offsets of the first copy; any other batch must follow the last one. For a transactional producer the
log also keeps the start of its open transaction (`onceflow.log.transactions`) and the coordinator epoch that ended the
last one.

`NNN.snapshot`, big-endian; NNN is the end offset of the state (exclusive):

    int16   version, 1
    uint32  CRC-32C of the rest
    int32   number of entries
    entries, each of 46 bytes:
        int64  producer id
        int16  producer epoch
        int32  last sequence of the batch
        int64  last offset of the batch
        int32  last offset - base offset
        int64  when the batch arrived, in the last entry when the producer was last active, ms
        int32  coordinator epoch of the last marker; -1: none
        int64  first offset of the open transaction; -1: none

A producer with only a marker has one entry with sequence -1 and offset -1. Kafka writes one entry per producer, its
last batch. Here each of the five batches is an entry, oldest first. In Kafka's reader a later entry of an id replaces
the earlier one, so it reads what it would have written itself. A client that retries five batches after a restart finds
them all. The time in an entry is the broker's clock at arrival, not the record's timestamp: replayed events are years
old, and their producer must not expire for that.

In memory a producer is these entries, joined in one `bytes` of some 200 bytes. A snapshot is a list of them that a
thread joins later (`Snapshot`). It fills in the first offset of the few with an open transaction.

A partition keeps at most `producer_ids_max` producers, since nothing else limits how many ids clients invent: like
Kafka, the broker accepts an idempotent batch with an id that it never assigned. At the limit the producer that was
inactive longest is forgotten. One with an open transaction is never forgotten, nor one active in the last `RETRY_MS`,
whose client may still retry a batch. If none can be forgotten, the new producer is refused.

A snapshot with a wrong CRC or length is ignored. One at a segment's base offset also guarantees that everything below
it is durable: it is written after the sealed segment was synced (`onceflow.log.sync`).
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from onceflow.log.config import INT64_MAX, LogConfig
from onceflow.log.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TooManyProducers,
    TransactionCoordinatorFenced,
)
from onceflow.log.first_sequences import FirstSequences
from onceflow.log.transactions import NO_OFFSET, AbortedTransaction, OpenTransactions
from onceflow.remedies import Remedy
from onceflow.wire.batch import SEQUENCE_MAX, BatchHeader
from onceflow.wire.crc32c import crc32c
from onceflow.wire.markers import Marker

BATCHES_KEPT = 5
RETRY_MS = 900_000
"""Longest time within which a client retries a batch: Java's delivery.timeout.ms is 2 minutes, librdkafka's 5."""

_VERSION = 1
_NO_SEQUENCE = -1
_NO_COORDINATOR_EPOCH = -1
_TRANSACTIONAL = 0x10
_PREFIX = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_PRODUCER_ID = struct.Struct(">q")
_CRC_BEGIN = 6
_ENTRIES_KEPT_BYTES = (BATCHES_KEPT - 1) * _ENTRY.size
"""Size of the entries that are kept when one more is added."""


class ProducerState(NamedTuple):
    """State of a producer for DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1: no batch of this epoch is known."""
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_first_offset: int
    """-1: none."""


class SnapshotEntry(NamedTuple):
    """One entry of a snapshot file, described in the module docstring."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    heard_ms: int
    coordinator_epoch: int
    first_offset: int


def read_snapshot(snapshot: bytes) -> list[SnapshotEntry] | None:
    """Return the entries of a snapshot file; None if it is torn or of another version."""
    entries = _checked_entries(snapshot)
    return None if entries is None else [SnapshotEntry._make(entry) for entry in _ENTRY.iter_unpack(entries)]


def _checked_entries(snapshot: bytes) -> memoryview | None:
    if len(snapshot) < _PREFIX.size:
        return None
    version, crc, count = _PREFIX.unpack_from(snapshot)
    whole = len(snapshot) == _PREFIX.size + count * _ENTRY.size
    if version != _VERSION or not whole or crc != crc32c(memoryview(snapshot)[_CRC_BEGIN:]):
        return None
    return memoryview(snapshot)[_PREFIX.size :]


def _last_entry(entries: bytes) -> SnapshotEntry:
    """Return a producer's newest entry, which has its epoch, time and coordinator epoch."""
    return SnapshotEntry._make(_ENTRY.unpack_from(entries, len(entries) - _ENTRY.size))


def _without_batch(producer_id: int, producer_epoch: int) -> SnapshotEntry:
    return SnapshotEntry(producer_id, producer_epoch, _NO_SEQUENCE, NO_OFFSET, 0, 0, _NO_COORDINATOR_EPOCH, NO_OFFSET)


class LastBatch(NamedTuple):
    """The last batch of a producer, which compaction must keep."""

    producer_epoch: int
    last_offset: int
    """-1: only a marker of this epoch is known."""


class Snapshot:
    """State of a partition's producers at one offset. Immutable: another thread may encode it."""

    __slots__ = ("_entries", "_open_first_offsets")

    def __init__(self, entries: Sequence[bytes], open_first_offsets: Mapping[int, int]) -> None:
        self._entries = entries
        self._open_first_offsets = open_first_offsets

    def encode(self) -> bytes:
        """Return the content of a snapshot file."""
        joined = b"".join(self._with_first_offsets() if self._open_first_offsets else self._entries)
        body = struct.pack(">i", len(joined) // _ENTRY.size) + joined
        return struct.pack(">hI", _VERSION, crc32c(body)) + body

    def _with_first_offsets(self) -> Iterator[bytes]:
        for entries in self._entries:
            first_offset = self._open_first_offsets.get(_PRODUCER_ID.unpack_from(entries)[0])
            if first_offset is None:
                yield entries
            else:
                yield b"".join(_ENTRY.pack(*entry[:-1], first_offset) for entry in _ENTRY.iter_unpack(entries))

    def last_batches(self) -> dict[int, LastBatch]:
        """Return the last batch of each producer id."""
        return {
            last.producer_id: LastBatch(last.producer_epoch, last.last_offset)
            for last in map(_last_entry, self._entries)
        }


class Producers:
    """Producers of one partition."""

    __slots__ = ("_checked_ms", "_entries", "_first_sequences", "_name", "config", "transactions")

    def __init__(self, name: str, config: LogConfig) -> None:
        self.config = config
        self.transactions = OpenTransactions()
        self._name = name
        self._entries: dict[int, bytes] = {}
        """Producer id → its entries; the longest inactive producer comes first."""
        self._checked_ms = 0
        self._first_sequences = FirstSequences(name, RETRY_MS)

    def __len__(self) -> int:
        return len(self._entries)

    def states(self) -> list[ProducerState]:
        first_offset = self.transactions.first_offset
        return [
            ProducerState(
                last.producer_id,
                last.producer_epoch,
                last.last_sequence,
                last.heard_ms,
                last.coordinator_epoch,
                first_offset(last.producer_id),
            )
            for last in map(_last_entry, self._entries.values())
        ]

    def snapshot(self) -> Snapshot:
        """Return the current state."""
        return Snapshot(list(self._entries.values()), self.transactions.first_offsets())

    def duplicate_of(self, header: BatchHeader, last_sequence: int, now_ms: int) -> tuple[int, int] | None:
        """Return (base offset, last offset) of the first copy, None if this batch is the producer's next.

        Raises InvalidProducerEpoch for an older epoch, OutOfOrderSequence where sequences are missing,
        InvalidTransactionState where the batch is outside the producer's open transaction, TooManyProducers. An unknown
        producer (expired, or its records were deleted) may start with any sequence, a new epoch with 0 (Kafka's
        ProducerAppendInfo). Unlike in Kafka, it must send a later one again (EarlierBatchesAwaited).
        """
        entries = self._entries.get(header.producer_id)
        if entries is None:
            self._first_sequences.check(header, now_ms)
            self.require_capacity(header.producer_id, now_ms)
            return None
        _, epoch, newest_sequence, *_ = _ENTRY.unpack_from(entries, len(entries) - _ENTRY.size)
        sequence = header.base_sequence
        expected = 0
        if header.producer_epoch == epoch:
            if newest_sequence >= 0:
                expected = newest_sequence + 1 & SEQUENCE_MAX
            elif sequence != 0:
                # Only a marker is known: the transaction was aborted while its first batch was refused.
                self._first_sequences.check(header, now_ms)
                expected = sequence
            if sequence != expected:
                for _, _, last, last_offset, delta, *_ in _ENTRY.iter_unpack(entries):
                    if last == last_sequence and last - delta & SEQUENCE_MAX == sequence and last_offset >= 0:
                        return last_offset - delta, last_offset
        else:
            self._require_epoch(epoch, header.producer_id, header.producer_epoch)
        if sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} on {self._name}: sequence {sequence} of epoch {header.producer_epoch}"
                f" arrived, {expected} was next; send the missing batches first"
            )
        if header.producer_id in self.transactions:
            self._require_within_transaction(epoch, header)
        return None

    def require_capacity(self, producer_id: int, now_ms: int) -> None:
        """Ensure that a producer is known or can be added. Raises TooManyProducers."""
        if producer_id in self._entries or len(self._entries) < self.config.producer_ids_max:
            return
        if not self._forget_inactive(now_ms - min(RETRY_MS, self.config.producer_id_expiration_ms), 1):
            raise TooManyProducers(
                f"producer {producer_id} on {self._name}: {len(self._entries)} producers are known, and all were active"
                f" in the last {RETRY_MS // 60_000} minutes; {Remedy.FEWER_PRODUCERS}, or"
                f" {Remedy.MORE_PRODUCER_IDS}"
            )

    def _forget_inactive(self, since_ms: int, count_max: int) -> int:
        """Forget at most `count_max` producers that were inactive since then; return how many.

        A producer with an open transaction is kept: its marker must find the transaction's start.
        """
        inactive: list[int] = []
        for producer_id, entries in self._entries.items():
            if len(inactive) == count_max or _last_entry(entries).heard_ms > since_ms:
                break
            if producer_id not in self.transactions:
                inactive.append(producer_id)
        for producer_id in inactive:
            del self._entries[producer_id]
        return len(inactive)

    def check_coordinator_batch(self, header: BatchHeader) -> None:
        """Check a coordinator's batch, which has no sequence. Raises InvalidProducerEpoch, InvalidTransactionState."""
        entries = self._entries.get(header.producer_id)
        if entries is not None:
            epoch = _last_entry(entries).producer_epoch
            self._require_epoch(epoch, header.producer_id, header.producer_epoch)
            if header.producer_id in self.transactions:
                self._require_within_transaction(epoch, header)

    def coordinator_epoch(self, producer_id: int) -> int:
        """Return the coordinator epoch of the producer's last marker, 0 without one."""
        entries = self._entries.get(producer_id)
        return max(0, _last_entry(entries).coordinator_epoch) if entries is not None else 0

    def check_marker(self, producer_id: int, producer_epoch: int, marker: Marker) -> None:
        """Check a marker. Raises InvalidProducerEpoch, TransactionCoordinatorFenced after a newer producer or
        marker."""
        entries = self._entries.get(producer_id)
        if entries is None:
            return
        last = _last_entry(entries)
        self._require_epoch(last.producer_epoch, producer_id, producer_epoch)
        if marker.coordinator_epoch < last.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"producer {producer_id} on {self._name}: a marker of coordinator epoch {marker.coordinator_epoch}"
                f" arrived after one of {last.coordinator_epoch}; a newer coordinator has taken over"
            )

    def _require_epoch(self, epoch: int, producer_id: int, producer_epoch: int) -> None:
        if producer_epoch < epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id} on {self._name}: epoch {producer_epoch} arrived, the current one is"
                f" {epoch}; a newer producer with this id has taken over"
            )

    def _require_within_transaction(self, epoch: int, header: BatchHeader) -> None:
        """Refuse any other batch of a producer with an open transaction, in particular one of a newer epoch."""
        if header.attributes & _TRANSACTIONAL and header.producer_epoch == epoch:
            return
        kind = "transactional" if header.attributes & _TRANSACTIONAL else "non-transactional"
        raise InvalidTransactionState(
            f"producer {header.producer_id} on {self._name}: a {kind} batch of epoch {header.producer_epoch} arrived,"
            f" the transaction of epoch {epoch} from offset"
            f" {self.transactions.first_offset(header.producer_id)} is open; {Remedy.END_FIRST}"
        )

    def add(self, header: BatchHeader, last_sequence: int, base_offset: int, now_ms: int) -> None:
        """Record a batch that was appended at `base_offset`; it may begin a transaction."""
        producer_id = header.producer_id
        if producer_id not in self._entries:
            self._expire(now_ms)
        if header.base_sequence >= 0:
            kept, coordinator_epoch = self._pop_entries(producer_id, header.producer_epoch)
            if not kept:
                self._first_sequences.forget(producer_id)
            delta = header.last_offset_delta
            self._entries[producer_id] = kept[-_ENTRIES_KEPT_BYTES:] + _ENTRY.pack(
                producer_id,
                header.producer_epoch,
                last_sequence,
                base_offset + delta,
                delta,
                now_ms,
                coordinator_epoch,
                NO_OFFSET,
            )
        else:
            self._touch(producer_id, header.producer_epoch, None, now_ms)
        if header.attributes & _TRANSACTIONAL and producer_id not in self.transactions:
            self.transactions.begin(producer_id, base_offset)

    def add_marker(self, header: BatchHeader, marker: Marker, offset: int, now_ms: int) -> AbortedTransaction | None:
        """Record a marker that was appended at `offset`; return the entry for the transaction index, if any.

        A marker with a newer epoch than the producer's fences the producer.
        """
        if header.producer_id not in self._entries:
            self._expire(now_ms)
        self._touch(header.producer_id, header.producer_epoch, marker.coordinator_epoch, now_ms)
        return self.transactions.end(header.producer_id, offset, commit=marker.commit)

    def _touch(self, producer_id: int, producer_epoch: int, coordinator_epoch: int | None, now_ms: int) -> None:
        """Record a producer's batch without sequences or marker; None keeps its coordinator epoch."""
        kept, before = self._pop_entries(producer_id, producer_epoch)
        entry = _last_entry(kept) if kept else _without_batch(producer_id, producer_epoch)
        if coordinator_epoch is None:
            coordinator_epoch = before
        changed = entry._replace(heard_ms=now_ms, coordinator_epoch=coordinator_epoch)
        self._entries[producer_id] = kept[: -_ENTRY.size] + _ENTRY.pack(*changed)

    def _pop_entries(self, producer_id: int, producer_epoch: int) -> tuple[bytes, int]:
        """Remove the producer; return the entries that stay known and its coordinator epoch.

        Entries of another epoch are dropped.
        """
        entries = self._entries.pop(producer_id, None)
        if entries is None:
            return b"", _NO_COORDINATOR_EPOCH
        _, epoch, last_sequence, _, _, _, coordinator_epoch, _ = _ENTRY.unpack_from(entries, len(entries) - _ENTRY.size)
        return entries if epoch == producer_epoch and last_sequence >= 0 else b"", coordinator_epoch

    def _expire(self, now_ms: int) -> None:
        """Forget producers inactive for `producer_id_expiration_ms`; checks every `producer_id_expiration_check_ms`.

        A coordinator's own batches and markers are never refused: one more producer is forgotten for them if possible.
        """
        if now_ms - self._checked_ms >= self.config.producer_id_expiration_check_ms:
            self._checked_ms = now_ms
            self._forget_inactive(now_ms - self.config.producer_id_expiration_ms, len(self._entries))
        if len(self._entries) >= self.config.producer_ids_max:
            self._forget_inactive(now_ms - RETRY_MS, 1)

    def forget_beyond_limit(self) -> None:
        """Forget producers that the limit had removed before recovery read them again: `_entries` is in batch order."""
        excess = len(self._entries) - self.config.producer_ids_max
        if excess > 0:
            self._forget_inactive(INT64_MAX, excess)

    def load(self, snapshot: bytes) -> bool:
        """Load a snapshot. Return False, without a change, if it is torn or of another version."""
        content = _checked_entries(snapshot)
        if content is None:
            return False
        self._entries.clear()
        open_first_offsets: dict[int, int] = {}
        for entry in _ENTRY.iter_unpack(content):
            producer_id, epoch, *_, first_offset = entry
            kept, _coordinator_epoch = self._pop_entries(producer_id, epoch)
            self._entries[producer_id] = kept[-_ENTRIES_KEPT_BYTES:] + _ENTRY.pack(*entry[:-1], NO_OFFSET)
            open_first_offsets[producer_id] = first_offset
        self._entries = dict(sorted(self._entries.items(), key=lambda item: _last_entry(item[1]).heard_ms))
        self.transactions = OpenTransactions()
        for producer_id, first_offset in sorted(open_first_offsets.items(), key=lambda item: item[1]):
            if first_offset >= 0:
                self.transactions.begin(producer_id, first_offset)
        return True
