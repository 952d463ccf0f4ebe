"""Copies of fetched batches, ready to be produced: pure, without I/O.

A batch is copied as it is, compressed records included, if its records have consecutive offsets and timestamps of their
own. Other batches are encoded again: compacted ones, those with log-append time (a producer may not send it,
org.apache.kafka.storage.internals.log.LogValidator), those that begin before the position, and small ones, which are
joined. They keep their codec unless another one is requested.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onceflow.client.cluster import Fetched
from onceflow.client.records import committed_batches
from onceflow.wire.batch import BatchHeader, Record, decode_batch, encode_batch
from onceflow.wire.codecs import Codec

SMALL_BATCH_BYTES = 16 * 1024
"""Batches below this size are joined: each costs a request."""
JOINED_BYTES = 256 * 1024
"""Keys and values of records that are encoded as one batch."""
RECORD_OVERHEAD_BYTES = 32


class SourceRange(NamedTuple):
    """`length` records at consecutive offsets of the source."""

    offset: int
    length: int


class Copy(NamedTuple):
    """An encoded batch and the source's offsets of its records, in order."""

    batch: bytearray
    ranges: tuple[SourceRange, ...]


def copies(fetched: Fetched, begin: int, codec: Codec | None) -> Iterator[Copy]:
    """Yield copies of one fetch's committed records from `begin` on, encoded with `codec` (None: that of the source).

    Raises MalformedBatch, DecompressionTooLarge.
    """
    joined = _Joined()
    for position, header in committed_batches(fetched):
        if header.last_offset < begin:
            continue
        if _is_plain(header, begin, codec) and header.size_bytes >= SMALL_BATCH_BYTES:
            yield from joined.take()
            batch = bytearray(fetched.records[position : position + header.size_bytes])
            yield Copy(batch, (SourceRange(header.base_offset, header.record_count),))
            continue
        for record in decode_batch(fetched.records, position):
            if record.offset >= begin:
                yield from joined.add(record, header.codec if codec is None else codec)
    yield from joined.take()


def _is_plain(header: BatchHeader, begin: int, codec: Codec | None) -> bool:
    """Return whether a producer could have sent the batch in this form, with this codec, from `begin` on."""
    return (
        header.base_offset >= begin
        and header.record_count == header.last_offset_delta + 1
        and not header.is_log_append_time
        and header.delete_horizon_ms is None
        and codec in (None, header.codec)
    )


class _Joined:
    """Records of small batches that become one."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._size_bytes = 0
        self._codec = Codec.NONE

    def add(self, record: Record, codec: Codec) -> Iterator[Copy]:
        size_bytes = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
        size_bytes += sum(len(name) + len(content or b"") for name, content in record.headers)
        if codec is not self._codec or self._size_bytes + size_bytes > JOINED_BYTES:
            yield from self.take()
        self._codec = codec
        self._records.append(record)
        self._size_bytes += size_bytes

    def take(self) -> Iterator[Copy]:
        records, self._records, self._size_bytes = self._records, [], 0
        if records:
            numbered = [record._replace(offset=index) for index, record in enumerate(records)]
            yield Copy(encode_batch(numbered, codec=self._codec), _ranges(records))


def _ranges(records: Sequence[Record]) -> tuple[SourceRange, ...]:
    ranges: list[SourceRange] = []
    for record in records:
        if ranges and ranges[-1].offset + ranges[-1].length == record.offset:
            ranges[-1] = SourceRange(ranges[-1].offset, ranges[-1].length + 1)
        else:
            ranges.append(SourceRange(record.offset, 1))
    return tuple(ranges)
