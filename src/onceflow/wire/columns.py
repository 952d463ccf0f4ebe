"""Decoder of record batches to Arrow columns, without a Python step per row except one jump from record to record.

All batches of one fetched partition are one job: their headers are walked, their records found by the length in
front of each, and then each field is read for all records at once as numpy vectors. Keys and values are gathered by
pyarrow from the response itself (or, where a batch was compressed, from the unpacked bytes).
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import Buffer

from onceflow.wire.batch import (
    HEADER_BYTES,
    SIZE_BYTES_MAX,
    BatchHeader,
    batches,
    check_batch,
    decode_batch,
    records_of,
)
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import MalformedBatch, MalformedFrame
from onceflow.wire.primitives import read_uvarint

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""Columns of `decode_columns`. timestampType is Spark's: 0 create time, 1 log-append time."""

SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS_TYPE))

_MARKER_BYTES_MAX = 1024
_ARROW_BYTES_MAX = 2**31 - 1
_MICROSECONDS = 1000
_MILLISECONDS_MAX = (2**63 - 1) // _MICROSECONDS

Positions = NDArray[np.int64]


class DecodedColumns(NamedTuple):
    """Columns of the records in the requested range, and the start of the next decode or fetch."""

    columns: Any  # pyarrow.RecordBatch
    next_offset: int


class _Records(NamedTuple):
    """Records of the chosen batches: those of batch i are in data[begins[i]:ends[i]]."""

    data: Buffer
    headers: list[BatchHeader]
    begins: list[int]
    ends: list[int]


def decode_columns(
    buffer: Buffer,
    *,
    offset_begin: int,
    offset_end: int,
    aborted: Sequence[tuple[int, int]] = (),
    size_bytes_max: int = SIZE_BYTES_MAX,
    include_headers: bool = False,
) -> DecodedColumns:
    """Decode one fetched partition's records with offsets in [offset_begin, offset_end) to columns (SCHEMA).

    Control batches and the batches of `aborted` transactions (producer id, first offset; from the fetch response) are
    skipped. A last batch that is cut is ignored. One batch may decompress to `size_bytes_max` bytes, and no further
    batch is decoded after that many: call again with `offset_begin=next_offset` and the same buffer until
    `next_offset` no longer moves, then fetch.

    Timestamps beyond int64 microseconds become the nearest representable ones. Raises CorruptBatch,
    MalformedBatch, DecompressionTooLarge.
    """
    view = memoryview(buffer)
    next_offset = offset_begin
    chosen: list[tuple[int, BatchHeader, memoryview]] = []
    unpacked_bytes = 0
    for position, header, visible in _with_visibility(view, aborted):
        if header.base_offset >= offset_end or unpacked_bytes >= size_bytes_max:
            break
        if header.last_offset < offset_begin:
            continue
        check_batch(view, position, header)
        if visible:
            body = records_of(view, position, header, size_bytes_max=size_bytes_max)
            unpacked_bytes += len(body)
            chosen.append((position, header, body))
        next_offset = header.last_offset + 1
    records = _gather(view, chosen)
    if memoryview(records.data).nbytes > _ARROW_BYTES_MAX:
        raise ValueError(f"{memoryview(records.data).nbytes} bytes of records are more than an Arrow column may hold")
    try:
        columns = _columns(records, offset_begin, offset_end, include_headers=include_headers)
    except MalformedBatch as error:
        raise MalformedBatch(f"batches at offsets {offset_begin} to {next_offset}: {error}") from error
    return DecodedColumns(columns, next_offset)


def _with_visibility(view: memoryview, aborted: Sequence[tuple[int, int]]) -> Iterator[tuple[int, BatchHeader, bool]]:
    """Yield (position, header, whether its records are visible) of each batch, by the rule of Kafka's consumer.

    A producer's transactional batches are invisible from the first offset of its aborted transaction up to its abort
    marker (org.apache.kafka.clients.consumer.internals.CompletedFetch); a commit marker changes nothing.
    """
    waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    for position, header in batches(view):
        while waiting and waiting[-1][1] <= header.last_offset:
            aborting.add(waiting.pop()[0])
        if header.is_control:
            if header.producer_id in aborting and _is_abort_marker(view, position):
                aborting.remove(header.producer_id)
            yield position, header, False
        else:
            yield position, header, not (header.is_transactional and header.producer_id in aborting)


def _is_abort_marker(view: memoryview, position: int) -> bool:
    """Return whether a control record's key, two int16, has version and type 0: an abort."""
    records = decode_batch(view, position, size_bytes_max=_MARKER_BYTES_MAX)
    return bool(records) and records[0].key is not None and records[0].key[2:4] == b"\x00\x00"


def _gather(view: memoryview, chosen: list[tuple[int, BatchHeader, memoryview]]) -> _Records:
    """Collect the records' bytes: uncompressed batches in place; if any is compressed, all are joined."""
    headers = [header for _, header, _ in chosen]
    if all(header.codec is Codec.NONE for header in headers):
        begins = [position + HEADER_BYTES for position, _, _ in chosen]
        return _Records(view, headers, begins, [position + header.size_bytes for position, header, _ in chosen])
    ends = list(accumulate(len(body) for _, _, body in chosen))
    return _Records(b"".join(body for _, _, body in chosen), headers, [0, *ends[:-1]], ends)


def _columns(records: _Records, offset_begin: int, offset_end: int, *, include_headers: bool) -> Any:
    positions, counts = _record_positions(records)
    headers = records.headers
    fields = _Fields(np.frombuffer(memoryview(records.data), dtype=np.uint8), positions)
    milliseconds = fields.varint() + np.repeat(_int64(header.base_timestamp for header in headers), counts)
    appended = np.repeat(np.array([header.is_log_append_time for header in headers], dtype=bool), counts)
    milliseconds = np.where(
        appended, np.repeat(_int64(header.max_timestamp for header in headers), counts), milliseconds
    )
    offsets = fields.varint() + np.repeat(_int64(header.base_offset for header in headers), counts)
    wanted = (offsets >= offset_begin) & (offsets < offset_end)
    if not wanted.all():
        fields.keep(wanted)
        milliseconds, appended, offsets = milliseconds[wanted], appended[wanted], offsets[wanted]
    source = pa.py_buffer(records.data)
    arrays = [_binary(source, *fields.sized()), _binary(source, *fields.sized())]
    header_counts = fields.counts()
    arrays += [pa.array(offsets), _timestamps(milliseconds), pa.array(appended.astype(np.int32))]
    if not include_headers:
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    arrays.append(_headers(source, fields, header_counts))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA_WITH_HEADERS)


def _record_positions(records: _Records) -> tuple[Positions, list[int]]:
    """Return (position of each record's length, number of records of each batch).

    This is the only loop over rows: a record's position depends on the one before it.
    """
    data = memoryview(records.data)
    positions: list[int] = []
    append = positions.append
    for header, position, end in zip(records.headers, records.begins, records.ends, strict=True):
        before = len(positions)
        try:
            while position < end:
                append(position)
                length = data[position]
                position += 1
                if length > 0x7F:
                    byte = data[position]
                    position += 1
                    length += (byte - 1) << 7
                    if byte > 0x7F:
                        length, position = read_uvarint(data, position - 2)
                position += length >> 1
        except (IndexError, MalformedFrame) as error:
            raise MalformedBatch(f"batch at offset {header.base_offset}: a record's length is cut") from error
        if position != end or len(positions) - before != header.record_count:
            raise MalformedBatch(
                f"batch at offset {header.base_offset}: its records are not the {header.record_count} announced"
            )
    return np.array(positions, dtype=np.int64), [header.record_count for header in records.headers]


class _Fields:
    """Cursor into every record at once: each method reads the next field of all records as one vector."""

    def __init__(self, data: NDArray[np.uint8], positions: Positions) -> None:
        """Read the length before each record and skip its attributes, which are always 0."""
        self._data = data
        self._positions = positions
        self._stops = np.full(len(positions), len(data), dtype=np.int64)
        self._stops = self.varint() + self._positions
        self._positions = self._positions + 1

    def keep(self, wanted: NDArray[np.bool_]) -> None:
        """Continue with the chosen records only."""
        self._positions, self._stops = self._positions[wanted], self._stops[wanted]

    def varint(self) -> Positions:
        """Read the zig-zag varint of every record, int64."""
        self._require(self._positions < self._stops)
        byte = self._data[self._positions]
        value = (byte & 0x7F).astype(np.uint64)
        self._positions = self._positions + 1
        going = np.nonzero(byte > 0x7F)[0]
        for shift in range(7, 70, 7):
            if not going.size:
                break
            self._require(self._positions[going] < self._stops[going])
            byte = self._data[self._positions[going]]
            value[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            self._positions[going] += 1
            going = going[byte > 0x7F]
        self._require(not going.size)
        return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)

    def sized(self) -> tuple[Positions, Positions, NDArray[np.bool_]]:
        """Read (start, end, is null) of a key, value or header part."""
        lengths = self.varint()
        begins = self._positions
        self._require((lengths >= -1) & (lengths <= self._stops - begins))
        self._positions = begins + np.maximum(lengths, 0)
        return begins, self._positions, lengths == -1

    def counts(self) -> Positions:
        """Read the number of headers; a record without any ends here."""
        counts = self.varint()
        left_bytes = self._stops - self._positions
        self._require((counts >= 0) & (counts <= left_bytes) & ((counts > 0) | (left_bytes == 0)))
        return counts

    def of(self, chosen: Positions) -> "_Fields":
        """Return a separate cursor for the chosen records (indexes)."""
        fields = copy(self)
        fields._positions, fields._stops = self._positions[chosen], self._stops[chosen]
        return fields

    def put(self, chosen: Positions, fields: "_Fields") -> None:
        """Move the chosen records to the position of `fields`."""
        self._positions[chosen] = fields._positions

    def require_end(self) -> None:
        """Raise MalformedBatch unless every record ends here."""
        self._require(self._positions == self._stops)

    def _require(self, fits: Any) -> None:
        if not np.all(fits):
            raise MalformedBatch("a record's fields do not add up to its length")


def _int64(values: Iterable[int]) -> Positions:
    return np.fromiter(values, dtype=np.int64)


def _timestamps(milliseconds: Positions) -> Any:
    held = np.clip(milliseconds, -_MILLISECONDS_MAX, _MILLISECONDS_MAX)
    return pa.array(held * _MICROSECONDS).cast(SCHEMA.field("timestamp").type)


def _binary(source: Any, begins: Positions, ends: Positions, nulls: NDArray[np.bool_]) -> Any:
    """Return one binary value for each [begin, end) of `source`, gathered by pyarrow.

    An array over `source` whose offsets are begin, end, begin, end ... has the values as its even elements.
    """
    bounds = np.empty(2 * len(begins) + 1, dtype=np.int32)
    bounds[0:-1:2] = begins
    bounds[1::2] = ends
    bounds[-1] = bounds[-2] if len(begins) else 0
    spread = pa.Array.from_buffers(pa.binary(), 2 * len(begins), [None, pa.py_buffer(bounds), source])
    even = np.arange(0, 2 * len(begins), 2, dtype=np.int64)
    return spread.take(pa.array(even, mask=nulls if nulls.any() else None))


def _headers(source: Any, fields: _Fields, counts: Positions) -> Any:
    """Return the headers column: header i of all records that have one is read at once, then put into record order."""
    parts = []
    for number in range(int(counts.max(initial=0))):
        rows = np.nonzero(counts > number)[0]
        cursor = fields.of(rows)
        parts.append((rows, *cursor.sized(), *cursor.sized()))
        fields.put(rows, cursor)
    fields.require_end()
    if any(nulls.any() for _, _, _, nulls, *_ in parts):
        raise MalformedBatch("a record header has no key")
    if not parts:
        return pa.array([[]] * len(counts), type=HEADERS_TYPE)
    rows, *bounds = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(rows, kind="stable")
    names = _binary(source, *(bound[order] for bound in bounds[:3]))
    values = _binary(source, *(bound[order] for bound in bounds[3:]))
    try:
        names = names.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise MalformedBatch(f"a record header's key: {error}") from error
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(np.concatenate(([0], np.cumsum(counts))).astype(np.int32), pairs, type=HEADERS_TYPE)
