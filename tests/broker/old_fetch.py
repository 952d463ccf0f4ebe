"""Fetch requests of consumers before Kafka 0.11, versions 0 to 3."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from onceflow.wire import message_sets, old_fetch
from onceflow.wire.batch import Record
from tests.broker.raw_client import RawClient

CORRELATION_ID = 0

Asked = tuple[str, Sequence[tuple[int, int]]]
"""Topic, [(partition, offset)]."""


class Read(NamedTuple):
    """A partition of a response."""

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    records: list[Record]

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]


def request(
    version: int,
    asked: Sequence[Asked],
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 10_000_000,
    replica_id: int = -1,
    correlation_id: int = CORRELATION_ID,
) -> bytes:
    """Return a whole request, size included."""
    body = (
        struct.pack(">hhih", 1, version, correlation_id, 3)
        + b"old"
        + struct.pack(">iii", replica_id, wait_ms, min_bytes)
    )
    if version >= 3:
        body += struct.pack(">i", max_bytes)
    body += struct.pack(">i", len(asked))
    for topic, partitions in asked:
        body += struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">i", len(partitions))
        for partition, offset in partitions:
            body += struct.pack(">iqi", partition, offset, partition_max_bytes)
    return struct.pack(">i", len(body)) + body


def receive(client: RawClient, version: int) -> list[old_fetch.OldTopic]:
    """Return the topics of the next response; none after the broker has closed the connection."""
    frame = client.receive_frame()
    if not frame:
        return []
    return old_fetch.parse_response(version, frame)[1]


def fetch(client: RawClient, version: int, *asked: Asked, **limits: int) -> list[Read]:
    """Send a request and return its partitions."""
    client.socket.sendall(request(version, asked, **limits))
    return read(client, version)


def read(client: RawClient, version: int) -> list[Read]:
    """Return the partitions of the next response, with their messages."""
    return [
        Read(topic, part.partition, part.error_code, part.high_watermark, message_sets.decode(part.records))
        for topic, partitions in receive(client, version)
        for part in partitions
    ]
