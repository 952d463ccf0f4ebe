"""Transaction markers: the control batches with which a transaction ends in a partition (KIP-98).

A marker is a record batch of format 2 with the attributes transactional and control (0x30), the producer's id and
epoch, base sequence -1, and one record (org.apache.kafka.common.record.ControlRecordType, EndTransactionMarker):

    key    int16  version, 0                value  int16  version, 0
           int16  type: 0 abort, 1 commit          int32  coordinator epoch

It has an offset like any record, and readers skip it.
"""

import struct
from typing import NamedTuple

from typing_extensions import Buffer

from onceflow.wire.batch import Record, decode_batch, encode_batch
from onceflow.wire.errors import MalformedBatch

ABORT = 0
COMMIT = 1

_VERSION = 0
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    """Content of a marker besides its header."""

    commit: bool
    coordinator_epoch: int


class ProducerMarker(NamedTuple):
    """A marker for a producer's transaction (an element of a WriteTxnMarkers request)."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int | None
    """Leader epoch of the coordinator's partition; None without a cluster, where nothing replaces the coordinator."""


def encode_marker(
    producer_id: int, producer_epoch: int, marker: Marker, *, offset: int, timestamp_ms: int, leader_epoch: int
) -> bytearray:
    """Encode the control batch, one record long, at `offset`."""
    key = _KEY.pack(_VERSION, COMMIT if marker.commit else ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return encode_batch(
        [Record(offset, timestamp_ms, key, value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
    )


def decode_marker(buffer: Buffer, position: int = 0) -> Marker | None:
    """Decode the marker in the control batch at `position`. Raises MalformedBatch.

    Returns None for control records of other types, or if compaction left the batch empty.
    """
    records = decode_batch(buffer, position)
    return read_marker(records[0]) if records else None


def read_marker(record: Record) -> Marker | None:
    """Return the marker in a control record; None for other types. Raises MalformedBatch."""
    try:
        _version, kind = _KEY.unpack_from(record.key or b"")
        if kind not in (ABORT, COMMIT):
            return None
        _version, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except struct.error as error:
        raise MalformedBatch(f"control record at offset {record.offset}: {error}") from error
    return Marker(kind == COMMIT, coordinator_epoch)
