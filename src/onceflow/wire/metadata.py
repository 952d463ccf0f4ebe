"""Metadata responses, versions 0 to 12, as bytes: a head, one entry per topic, a tail.

kio needs milliseconds for a response with a hundred topics. Here a topic's entry is encoded once for all versions that
share its layout and kept by the broker; a response is the entries joined. (MetadataResponse.json of Apache Kafka)

    int32 throttle time (3+), [broker: int32 id, string host, int32 port, nullable string rack (1+)],
    nullable string cluster id (2+), int32 controller id (1+),
    [topic: int16 error, string name, uuid (10+), bool is internal (1+),
        [partition: int16 error, int32 index, int32 leader, int32 leader epoch (7+), [int32] replicas, [int32] in-sync
         replicas, [int32] offline replicas (5+)], int32 authorized operations (8+)],
    int32 authorized operations of the cluster (8 to 10)
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from onceflow.wire.primitives import INT16, INT32, append_count, append_string

VERSION_MAX = 12
FLEXIBLE_FROM = 9
NULLABLE_NAME_FROM = 12
OPERATIONS_NOT_REQUESTED = -(2**31)
"""Value of authorized operations that were not requested."""

_NO_TAGS = b"\x00"
_LAYOUT_SINCE = (0, 1, 5, 7, 8, 9, 10)
LAYOUTS = tuple(max(since for since in _LAYOUT_SINCE if since <= version) for version in range(VERSION_MAX + 1))
"""Version → the first version in which a topic's entry has the same layout."""


def encode_head(
    version: int, brokers: Sequence[tuple[int, str, int, str | None]], cluster_id: str, controller_id: int
) -> bytes:
    """Encode the part before the number of topics; `brokers` are (id, host, port, rack)."""
    flexible = version >= FLEXIBLE_FROM
    buffer = bytearray()
    if version >= 3:
        buffer += INT32.pack(0)
    append_count(buffer, len(brokers), flexible=flexible)
    for broker_id, host, port, rack in brokers:
        buffer += INT32.pack(broker_id)
        append_string(buffer, host, flexible=flexible)
        buffer += INT32.pack(port)
        if version >= 1:
            append_string(buffer, rack, flexible=flexible)
        if flexible:
            buffer += _NO_TAGS
    if version >= 2:
        append_string(buffer, cluster_id, flexible=flexible)
    if version >= 1:
        buffer += INT32.pack(controller_id)
    return bytes(buffer)


def encode_tail(version: int, operations: int) -> bytes:
    """Encode the part after the topics; `operations` are the cluster's."""
    buffer = INT32.pack(operations) if 8 <= version <= 10 else b""
    return buffer + _NO_TAGS if version >= FLEXIBLE_FROM else buffer


def encode_topic(
    version: int,
    error_code: int,
    name: str | None,
    topic_id: UUID | None,
    *,
    is_internal: bool = False,
    partition_count: int = 0,
    broker_id: int = -1,
    leader_epoch: int = -1,
    operations: int = OPERATIONS_NOT_REQUESTED,
) -> bytes:
    """Encode one topic; the one broker is leader and only replica of each partition."""
    flexible = version >= FLEXIBLE_FROM
    buffer = bytearray(INT16.pack(error_code))
    append_string(buffer, name if version >= NULLABLE_NAME_FROM else name or "", flexible=flexible)
    if version >= 10:
        buffer += topic_id.bytes if topic_id is not None else bytes(16)
    if version >= 1:
        buffer.append(is_internal)
    append_count(buffer, partition_count, flexible=flexible)
    after_index = _after_index(version, broker_id, leader_epoch)
    partition = struct.Struct(f">hi{len(after_index)}s")
    buffer += b"".join([partition.pack(0, index, after_index) for index in range(partition_count)])
    if version >= 8:
        buffer += INT32.pack(operations)
    if flexible:
        buffer += _NO_TAGS
    return bytes(buffer)


def _after_index(version: int, broker_id: int, leader_epoch: int) -> bytes:
    """Encode a partition's fields after its index, which are the same for all."""
    flexible = version >= FLEXIBLE_FROM
    buffer = bytearray(INT32.pack(broker_id))
    if version >= 7:
        buffer += INT32.pack(leader_epoch)
    for _replicas_and_in_sync in range(2):
        append_count(buffer, 1, flexible=flexible)
        buffer += INT32.pack(broker_id)
    if version >= 5:
        append_count(buffer, 0, flexible=flexible)
    if flexible:
        buffer += _NO_TAGS
    return bytes(buffer)


class PartitionEntry(NamedTuple):
    """A partition of a cluster; leader and epoch are -1 if there is none."""

    error_code: int
    partition: int
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]


def encode_topic_of_brokers(
    version: int,
    error_code: int,
    name: str,
    topic_id: UUID,
    partitions: Sequence[PartitionEntry],
    *,
    is_internal: bool,
    operations: int,
) -> bytes:
    """Encode one topic whose partitions have different brokers."""
    flexible = version >= FLEXIBLE_FROM
    buffer = bytearray(INT16.pack(error_code))
    append_string(buffer, name, flexible=flexible)
    if version >= 10:
        buffer += topic_id.bytes
    if version >= 1:
        buffer.append(is_internal)
    append_count(buffer, len(partitions), flexible=flexible)
    for partition in partitions:
        _append_partition(buffer, version, partition)
    if version >= 8:
        buffer += INT32.pack(operations)
    if flexible:
        buffer += _NO_TAGS
    return bytes(buffer)


def _append_partition(buffer: bytearray, version: int, partition: PartitionEntry) -> None:
    flexible = version >= FLEXIBLE_FROM
    buffer += INT16.pack(partition.error_code) + INT32.pack(partition.partition) + INT32.pack(partition.leader)
    if version >= 7:
        buffer += INT32.pack(partition.leader_epoch)
    lists = (partition.replicas, partition.isr, partition.offline)
    for brokers in lists if version >= 5 else lists[:2]:
        append_count(buffer, len(brokers), flexible=flexible)
        buffer += struct.pack(f">{len(brokers)}i", *brokers)
    if flexible:
        buffer += _NO_TAGS
