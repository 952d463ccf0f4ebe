"""Kafka's records in `__transaction_state`: one per transactional id, the last one is current.

Key and value each start with an int16 version, followed by the fields of their schemas (kafka-transaction-coordinator,
`common/message/TransactionLogKey.json`, `TransactionLogValue.json`). Keys have version 0. Values are written in
version 1, the flexible one, as by Kafka 4, and read in 0 and 1. A null value deletes the id. Kafka's
`DumpLogSegments --transaction-log-decoder` reads them.

Tagged field 0 is Kafka's previous producer id. `LAST_PRODUCER_EPOCH_TAG` is Onceflow's: Kafka keeps the last producer
epoch only in memory, so after a restart it fences a producer that retries an InitProducerId. Kafka's readers skip
unknown tags.
"""

import struct

from onceflow.broker.topics.records import UnknownRecord
from onceflow.broker.transactions.transaction import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Transaction, TransactionState
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition
from onceflow.wire.primitives import append_uvarint, read_uvarint

KEY_VERSION = 0
VALUE_VERSION = 1
PREVIOUS_PRODUCER_ID_TAG = 0
LAST_PRODUCER_EPOCH_TAG = 10_000

STATE_IDS = {state: number for number, state in enumerate(TransactionState)}
_STATES = {number: state for state, number in STATE_IDS.items()}
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")

TransactionRecord = Transaction | str
"""The state of a transactional id, or only the id if it expired."""


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Return key and value of the record."""
    if isinstance(record, str):
        return _key(record), None
    return _key(record.transactional_id), _value(record)


def decode(key: bytes, value: bytes | None) -> TransactionRecord:
    """Return the record, written by `encode` or by Kafka. Raises UnknownRecord for any other version."""
    version, length = struct.unpack_from(">hh", key)
    if version != KEY_VERSION:
        raise UnknownRecord(f"transaction record with unknown key version {version}; {Remedy.WRITER_RELEASE}")
    transactional_id = key[4 : 4 + length].decode()
    return transactional_id if value is None else _read_value(transactional_id, value)


def _key(transactional_id: str) -> bytes:
    encoded = transactional_id.encode()
    return struct.pack(">hh", KEY_VERSION, len(encoded)) + encoded


def _value(transaction: Transaction) -> bytes:
    buffer = bytearray(
        _HEAD.pack(
            VALUE_VERSION,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            STATE_IDS[transaction.state],
        )
    )
    _append_partitions(buffer, transaction)
    buffer += _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    tags = {
        PREVIOUS_PRODUCER_ID_TAG: _tag(">q", transaction.previous_producer_id, NO_PRODUCER_ID),
        LAST_PRODUCER_EPOCH_TAG: _tag(">h", transaction.last_producer_epoch, NO_PRODUCER_EPOCH),
    }
    set_tags = {tag: data for tag, data in tags.items() if data}
    append_uvarint(buffer, len(set_tags))
    for tag, data in set_tags.items():
        append_uvarint(buffer, tag)
        append_uvarint(buffer, len(data))
        buffer += data
    return bytes(buffer)


def _tag(layout: str, value: int, default: int) -> bytes:
    return b"" if value == default else struct.pack(layout, value)


def _append_partitions(buffer: bytearray, transaction: Transaction) -> None:
    if transaction.state is TransactionState.EMPTY:
        buffer.append(0)
        return
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(partition)
    append_uvarint(buffer, len(by_topic) + 1)
    for topic, partitions in by_topic.items():
        encoded = topic.encode()
        append_uvarint(buffer, len(encoded) + 1)
        buffer += encoded
        append_uvarint(buffer, len(partitions) + 1)
        buffer += struct.pack(f">{len(partitions)}i", *partitions)
        buffer.append(0)


def _read_value(transactional_id: str, value: bytes) -> Transaction:
    version, producer_id, producer_epoch, timeout_ms, state_id = _HEAD.unpack_from(value)
    if version not in (0, VALUE_VERSION):
        raise UnknownRecord(
            f"record of transactional id {transactional_id}: value version {version}, but only 0 and"
            f" {VALUE_VERSION} are supported; {Remedy.WRITER_RELEASE}"
        )
    reader = _Reader(memoryview(value), _HEAD.size, is_flexible=version >= 1)
    partitions = frozenset(reader.partitions())
    updated_ms, started_ms = reader.unpack(_TIMES.format)
    tags = reader.tags()
    return Transaction(
        transactional_id,
        producer_id,
        producer_epoch,
        timeout_ms,
        _STATES[state_id],
        partitions,
        updated_ms,
        started_ms,
        _tagged(">q", tags.get(PREVIOUS_PRODUCER_ID_TAG), NO_PRODUCER_ID),
        _tagged(">h", tags.get(LAST_PRODUCER_EPOCH_TAG), NO_PRODUCER_EPOCH),
    )


def _tagged(layout: str, data: bytes | None, default: int) -> int:
    return default if data is None else int(struct.unpack(layout, data)[0])


class _Reader:
    """Reader of a value of version 0, or of version 1 if flexible."""

    def __init__(self, view: memoryview, position: int, *, is_flexible: bool) -> None:
        self._view = view
        self._position = position
        self._is_flexible = is_flexible

    def unpack(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._view, self._position)
        self._position += struct.calcsize(layout)
        return values

    def _uvarint(self) -> int:
        value, self._position = read_uvarint(self._view, self._position)
        return value

    def _length(self, layout: str) -> int:
        """Return the length of a string or an array, -1 for null."""
        return self._uvarint() - 1 if self._is_flexible else self.unpack(layout)[0]

    def _bytes(self, size_bytes: int) -> bytes:
        start = self._position
        self._position += size_bytes
        return bytes(self._view[start : self._position])

    def tags(self) -> dict[int, bytes]:
        """Return the tagged fields at this position, as bytes."""
        count = self._uvarint() if self._is_flexible else 0
        return {self._uvarint(): self._bytes(self._uvarint()) for _ in range(count)}

    def partitions(self) -> list[TopicPartition]:
        partitions = []
        for _ in range(self._length(">i")):
            topic = self._bytes(self._length(">h")).decode()
            partitions += [(topic, partition) for partition in self.unpack(f">{self._length('>i')}i")]
            self.tags()
        return partitions
