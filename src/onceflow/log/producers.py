"""What the log knows about producers with an id (KIP-98), and its snapshot file (Kafka's ProducerStateManager).

Of each producer id the last five batches are kept: a batch that has the sequences of one of them is a duplicate and
is answered with the offsets of the first time; any other must follow the last one. Of a transactional producer it is
also known where its open transaction begins (`onceflow.log.transactions`) and which coordinator epoch ended the last.

`NNN.snapshot`, big-endian, NNN being the offset that the state is up to (exclusive):

    int16   version, 1
    uint32  CRC-32C of everything that follows
    int32   number of entries
    entries, each of 46 bytes:
        int64  producer id
        int16  producer epoch
        int32  last sequence of the batch
        int64  last offset of the batch
        int32  last offset - base offset
        int64  when the producer was last heard of, ms
        int32  coordinator epoch, that of the last marker; -1: there was none
        int64  first offset of the open transaction; -1: none is open

A producer of which a marker alone is known has one entry with sequence -1 and offset -1. Kafka writes one entry per
producer, its last batch. Here each of the five batches is an entry, oldest first: Kafka's reader lets a later entry
of the same id replace the earlier, so it sees what it would have written itself, and a client that repeats five
unanswered batches after a restart finds them all.
The time in an entry is the broker's clock at arrival, not the record's timestamp: replayed events are years old, and
their producer must not be forgotten for it.

A snapshot with a wrong CRC or length is as good as none. At a segment's base offset it also says that everything
below it is durable: it is written after the sealed segment was synced (`onceflow.log.sync`).
"""

import struct
from collections import deque
from typing import NamedTuple

from crc32c import crc32c

from onceflow.log.config import LogConfig
from onceflow.log.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from onceflow.log.transactions import NO_OFFSET, AbortedTransaction, OpenTransactions
from onceflow.wire.batch import BatchHeader
from onceflow.wire.markers import Marker

BATCHES_KEPT = 5

_VERSION = 1
_SEQUENCE_MAX = 2**31 - 1
_NO_SEQUENCE = -1
_NO_COORDINATOR_EPOCH = -1
_TRANSACTIONAL = 0x10
_PREFIX = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_BEGIN = 6
_NO_BATCH = ((_NO_SEQUENCE, _NO_SEQUENCE, NO_OFFSET, NO_OFFSET),)


class ProducerState(NamedTuple):
    """What DescribeProducers tells of a producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1: no batch of this epoch is known."""
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_first_offset: int
    """-1: none is open."""


class SnapshotEntry(NamedTuple):
    """One entry of a snapshot file; see the module."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    heard_ms: int
    coordinator_epoch: int
    first_offset: int


def read_snapshot(snapshot: bytes) -> list[SnapshotEntry] | None:
    """The entries of a snapshot file; None if it is torn or of another version."""
    if len(snapshot) < _PREFIX.size:
        return None
    version, crc, count = _PREFIX.unpack_from(snapshot)
    whole = len(snapshot) == _PREFIX.size + count * _ENTRY.size
    if version != _VERSION or not whole or crc != crc32c(memoryview(snapshot)[_CRC_BEGIN:]):
        return None
    return [SnapshotEntry._make(entry) for entry in _ENTRY.iter_unpack(memoryview(snapshot)[_PREFIX.size :])]


class Producer:
    """One producer id: its epoch, and (first sequence, last sequence, base offset, last offset) of its last batches."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "heard_ms")

    def __init__(self, epoch: int, heard_ms: int) -> None:
        self.epoch = epoch
        self.heard_ms = heard_ms
        self.coordinator_epoch = _NO_COORDINATOR_EPOCH
        self.batches: deque[tuple[int, int, int, int]] = deque(maxlen=BATCHES_KEPT)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else _NO_SEQUENCE

    def hear(self, epoch: int, now_ms: int) -> None:
        """Of another epoch than before nothing else is known."""
        self.heard_ms = now_ms
        if self.epoch != epoch:
            self.epoch = epoch
            self.batches.clear()


class LastBatch(NamedTuple):
    """What compaction must not lose of a producer."""

    producer_epoch: int
    last_offset: int
    """-1: of this epoch a marker alone is known."""


class Producers:
    """All producers of one partition."""

    __slots__ = ("_checked_ms", "_name", "_producers", "config", "transactions")

    def __init__(self, name: str, config: LogConfig) -> None:
        self.config = config
        self.transactions = OpenTransactions()
        self._name = name
        self._producers: dict[int, Producer] = {}
        self._checked_ms = 0

    def __len__(self) -> int:
        return len(self._producers)

    def states(self) -> list[ProducerState]:
        return [
            ProducerState(
                producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.heard_ms,
                producer.coordinator_epoch,
                self.transactions.first_offset(producer_id),
            )
            for producer_id, producer in self._producers.items()
        ]

    def last_batches(self) -> dict[int, LastBatch]:
        """Producer id → its last batch."""
        return {
            producer_id: LastBatch(producer.epoch, producer.batches[-1][3] if producer.batches else NO_OFFSET)
            for producer_id, producer in self._producers.items()
        }

    def duplicate_of(self, header: BatchHeader, last_sequence: int) -> tuple[int, int] | None:
        """(base offset, last offset) of the first time, or None if this batch is the producer's next.

        Raises InvalidProducerEpoch for an older epoch, OutOfOrderSequence where sequences are missing,
        InvalidTransactionState where the batch is outside the producer's open transaction. A producer that is not
        known (expired, or its records were deleted) may begin with any sequence, a new epoch with 0 (Kafka's
        ProducerAppendInfo).
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        sequence = header.base_sequence
        expected = 0
        if header.producer_epoch == producer.epoch:
            if producer.batches:
                expected = producer.batches[-1][1] + 1 & _SEQUENCE_MAX
            if sequence != expected:
                for first, last, base_offset, last_offset in producer.batches:
                    if first == sequence and last == last_sequence:
                        return base_offset, last_offset
        else:
            self._require_epoch(producer, header.producer_id, header.producer_epoch)
        if sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} on {self._name}: sequence {sequence} of epoch {header.producer_epoch}"
                f" arrived, {expected} was next; send the missing batches first"
            )
        if header.producer_id in self.transactions:
            self._require_within_transaction(producer, header)
        return None

    def check_coordinators_batch(self, header: BatchHeader) -> None:
        """A coordinator's batch has no sequence. Raises InvalidProducerEpoch, InvalidTransactionState."""
        producer = self._producers.get(header.producer_id)
        if producer is not None:
            self._require_epoch(producer, header.producer_id, header.producer_epoch)
            if header.producer_id in self.transactions:
                self._require_within_transaction(producer, header)

    def coordinator_epoch(self, producer_id: int) -> int:
        """That of the producer's last marker; 0 if there was none."""
        producer = self._producers.get(producer_id)
        return max(0, producer.coordinator_epoch) if producer is not None else 0

    def check_marker(self, producer_id: int, producer_epoch: int, marker: Marker) -> None:
        """Raises InvalidProducerEpoch, TransactionCoordinatorFenced where a newer marker or producer has been here."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        self._require_epoch(producer, producer_id, producer_epoch)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"producer {producer_id} on {self._name}: a marker of coordinator epoch {marker.coordinator_epoch}"
                f" arrived after one of {producer.coordinator_epoch}; a newer coordinator has taken over"
            )

    def _require_epoch(self, producer: Producer, producer_id: int, producer_epoch: int) -> None:
        if producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id} on {self._name}: epoch {producer_epoch} arrived, it is at epoch"
                f" {producer.epoch}; a newer producer with this id has taken over"
            )

    def _require_within_transaction(self, producer: Producer, header: BatchHeader) -> None:
        """While a transaction is open, nothing else of its producer may be appended, a newer epoch's least of all."""
        if header.attributes & _TRANSACTIONAL and header.producer_epoch == producer.epoch:
            return
        kind = "transactional" if header.attributes & _TRANSACTIONAL else "non-transactional"
        raise InvalidTransactionState(
            f"producer {header.producer_id} on {self._name}: a {kind} batch of epoch {header.producer_epoch} arrived,"
            f" the transaction of epoch {producer.epoch} from offset"
            f" {self.transactions.first_offset(header.producer_id)} on is open; end that first"
        )

    def add(self, header: BatchHeader, last_sequence: int, base_offset: int, now_ms: int) -> None:
        """Takes note of a batch that was appended at `base_offset`; it may begin a transaction."""
        producer_id = header.producer_id
        producer = self._heard(producer_id, header.producer_epoch, now_ms)
        if header.base_sequence >= 0:
            producer.batches.append(
                (header.base_sequence, last_sequence, base_offset, base_offset + header.last_offset_delta)
            )
        if header.attributes & _TRANSACTIONAL and producer_id not in self.transactions:
            self.transactions.begin(producer_id, base_offset)

    def add_marker(self, header: BatchHeader, marker: Marker, offset: int, now_ms: int) -> AbortedTransaction | None:
        """Takes note of a marker that was appended at `offset`; what has to go to the transaction index, if anything.

        A marker may have a newer epoch than the producer had: that fences the producer.
        """
        self._heard(header.producer_id, header.producer_epoch, now_ms).coordinator_epoch = marker.coordinator_epoch
        return self.transactions.end(header.producer_id, offset, commit=marker.commit)

    def _heard(self, producer_id: int, producer_epoch: int, now_ms: int) -> Producer:
        producer = self._producers.get(producer_id)
        if producer is None:
            self._expire(now_ms)
            producer = self._producers[producer_id] = Producer(producer_epoch, now_ms)
        producer.hear(producer_epoch, now_ms)
        return producer

    def _expire(self, now_ms: int) -> None:
        """Forgets who was silent for `producer_id_expiration_ms`; looks every `producer_id_expiration_check_ms`.

        Never one with an open transaction: its marker must find where that began.
        """
        if now_ms - self._checked_ms < self.config.producer_id_expiration_check_ms:
            return
        self._checked_ms = now_ms
        silent_since_ms = now_ms - self.config.producer_id_expiration_ms
        silent = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.heard_ms <= silent_since_ms and producer_id not in self.transactions
        ]
        for producer_id in silent:
            del self._producers[producer_id]

    def encode(self) -> bytes:
        """The content of a snapshot file."""
        entries = [
            _ENTRY.pack(
                producer_id,
                producer.epoch,
                last,
                last_offset,
                last_offset - base_offset,
                producer.heard_ms,
                producer.coordinator_epoch,
                self.transactions.first_offset(producer_id),
            )
            for producer_id, producer in self._producers.items()
            for _, last, base_offset, last_offset in producer.batches or _NO_BATCH
        ]
        body = struct.pack(">i", len(entries)) + b"".join(entries)
        return struct.pack(">hI", _VERSION, crc32c(body)) + body

    def load(self, snapshot: bytes) -> bool:
        """Takes over a snapshot; False, and nothing is changed, if it is torn or of another version."""
        entries = read_snapshot(snapshot)
        if entries is None:
            return False
        self._producers.clear()
        open_first_offsets: dict[int, int] = {}
        for entry in entries:
            self._load_entry(*entry[:7])
            open_first_offsets[entry.producer_id] = entry.first_offset
        self.transactions = OpenTransactions()
        for producer_id, first_offset in sorted(open_first_offsets.items(), key=lambda item: item[1]):
            if first_offset >= 0:
                self.transactions.begin(producer_id, first_offset)
        return True

    def _load_entry(
        self, producer_id: int, epoch: int, last: int, last_offset: int, delta: int, heard_ms: int, coordinator: int
    ) -> None:
        producer = self._producers.setdefault(producer_id, Producer(epoch, heard_ms))
        producer.hear(epoch, heard_ms)
        producer.coordinator_epoch = coordinator
        if last_offset >= 0:
            producer.batches.append((last - delta & _SEQUENCE_MAX, last, last_offset - delta, last_offset))
