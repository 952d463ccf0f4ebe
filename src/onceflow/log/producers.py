"""What the log knows about idempotent producers (KIP-98), and its snapshot file (Kafka's ProducerStateManager).

Of each producer id the last five batches are kept: a batch that has the sequences of one of them is a duplicate and
is answered with the offsets of the first time; any other must follow the last one.

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
        int32  coordinator epoch, -1
        int64  first offset of the open transaction, -1

Kafka writes one entry per producer, its last batch. Here each of the five batches is an entry, oldest first: Kafka's
reader lets a later entry of the same id replace the earlier, so it sees what it would have written itself, and a
client that repeats five unanswered batches after a restart finds them all.
The time in an entry is the broker's clock at arrival, not the record's timestamp: replayed events are years old, and
their producer must not be forgotten for it.

A snapshot with a wrong CRC or length is as good as none. At a segment's base offset it also says that everything
below it is durable: it is written after the sealed segment was synced (`onceflow.log.sync`).
"""

import struct
from collections import deque

from crc32c import crc32c

from onceflow.log.errors import InvalidProducerEpoch, OutOfOrderSequence
from onceflow.wire.batch import BatchHeader

BATCHES_KEPT = 5
EXPIRATION_CHECK_MS = 600_000

_VERSION = 1
_SEQUENCE_MAX = 2**31 - 1
_PREFIX = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_BEGIN = 6


class Producer:
    """One producer id: its epoch, and (first sequence, last sequence, base offset, last offset) of its last batches."""

    __slots__ = ("batches", "epoch", "heard_ms")

    def __init__(self, epoch: int, heard_ms: int) -> None:
        self.epoch = epoch
        self.heard_ms = heard_ms
        self.batches: deque[tuple[int, int, int, int]] = deque(maxlen=BATCHES_KEPT)


class Producers:
    """All producers of one partition."""

    def __init__(self, name: str, expiration_ms: int) -> None:
        self._name = name
        self._expiration_ms = expiration_ms
        self._producers: dict[int, Producer] = {}
        self._checked_ms = 0

    def __len__(self) -> int:
        return len(self._producers)

    def duplicate_of(self, header: BatchHeader, last_sequence: int) -> tuple[int, int] | None:
        """(base offset, last offset) of the first time, or None if this batch is the producer's next.

        Raises InvalidProducerEpoch for an older epoch, OutOfOrderSequence where sequences are missing. A producer
        that is not known (expired, or its records were deleted) may begin with any sequence, a new epoch with 0
        (Kafka's ProducerAppendInfo).
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        sequence = header.base_sequence
        if header.producer_epoch == producer.epoch:
            expected = producer.batches[-1][1] + 1 & _SEQUENCE_MAX
            if sequence == expected:
                return None
            for first, last, base_offset, last_offset in producer.batches:
                if first == sequence and last == last_sequence:
                    return base_offset, last_offset
        elif header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} on {self._name}: epoch {header.producer_epoch} arrived, it is at epoch"
                f" {producer.epoch}; a newer producer with this id has taken over"
            )
        else:
            expected = 0
        if sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} on {self._name}: sequence {sequence} of epoch {header.producer_epoch}"
                f" arrived, {expected} was next; send the missing batches first"
            )
        return None

    def add(self, header: BatchHeader, last_sequence: int, base_offset: int, now_ms: int) -> None:
        """Takes note of a batch that was appended at `base_offset`."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            self._expire(now_ms)
            producer = self._producers[header.producer_id] = Producer(header.producer_epoch, now_ms)
        producer.heard_ms = now_ms
        producer.batches.append(
            (header.base_sequence, last_sequence, base_offset, base_offset + header.last_offset_delta)
        )

    def _expire(self, now_ms: int) -> None:
        """Forgets producers that were silent for `producer.id.expiration.ms`; looks only every ten minutes."""
        if now_ms - self._checked_ms < EXPIRATION_CHECK_MS:
            return
        self._checked_ms = now_ms
        silent = [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.heard_ms >= self._expiration_ms
        ]
        for producer_id in silent:
            del self._producers[producer_id]

    def encode(self) -> bytes:
        """The content of a snapshot file."""
        entries = [
            _ENTRY.pack(
                producer_id, producer.epoch, last, last_offset, last_offset - base_offset, producer.heard_ms, -1, -1
            )
            for producer_id, producer in self._producers.items()
            for _, last, base_offset, last_offset in producer.batches
        ]
        body = struct.pack(">i", len(entries)) + b"".join(entries)
        return struct.pack(">hI", _VERSION, crc32c(body)) + body

    def load(self, snapshot: bytes) -> bool:
        """Takes over a snapshot; False, and nothing is changed, if it is torn or of another version."""
        if len(snapshot) < _PREFIX.size:
            return False
        version, crc, count = _PREFIX.unpack_from(snapshot)
        whole = len(snapshot) == _PREFIX.size + count * _ENTRY.size
        if version != _VERSION or not whole or crc != crc32c(memoryview(snapshot)[_CRC_BEGIN:]):
            return False
        self._producers.clear()
        for entry in _ENTRY.iter_unpack(memoryview(snapshot)[_PREFIX.size :]):
            self._load_entry(*entry[:6])
        return True

    def _load_entry(self, producer_id: int, epoch: int, last: int, last_offset: int, delta: int, heard_ms: int) -> None:
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            producer = self._producers[producer_id] = Producer(epoch, heard_ms)
        producer.batches.append((last - delta & _SEQUENCE_MAX, last, last_offset - delta, last_offset))
