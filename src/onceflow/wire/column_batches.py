"""Encoder of Arrow columns as record batches, without a Python step per row; the reverse of `wire.columns`.

The fields of all rows before key, value and headers are built as one matrix of bytes, from which a mask selects
those of a row's varints; pyarrow then joins them with keys, values and headers into record bodies, and puts these
into the order of their partitions. A batch is a header of 61 bytes and a slice of the result.

A batch is written without producer: `wire.batch.patch_producer` writes id, epoch, sequence and the CRC without reading
the records.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onceflow.errors import OnceflowError
from onceflow.wire.batch import HEADER_BYTES, unsealed_batch
from onceflow.wire.codecs import Codec, compress
from onceflow.wire.columns import HEADERS_TYPE

BATCH_BYTES = 512 * 1024
"""Maximum uncompressed size of a batch's records."""

Vector = NDArray[np.int64]

_MASK = np.uint32(0xFFFFFFFF)
_MULTIPLIER = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_VARINT_BYTES_MAX = 10


class Unencodable(OnceflowError):
    """A row that cannot become a record, with its number."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


class RecordColumns(NamedTuple):
    """Rows to encode, columns of one length: `key` and `value` pa.binary(), nullable; `timestamps_ms` since 1970.

    `headers` is of `columns.HEADERS_TYPE`, nullable; None if no row has any.
    """

    key: Any
    value: Any
    timestamps_ms: Vector
    headers: Any = None


class EncodedBatch(NamedTuple):
    """One record batch for one partition; `data` is complete except for producer and CRC."""

    partition: int
    record_count: int
    data: bytearray


def encode_columns(
    rows: RecordColumns,
    partitions: Vector,
    *,
    codec: Codec = Codec.NONE,
    batch_bytes: int = BATCH_BYTES,
    batch_bytes_max: int,
) -> Iterator[EncodedBatch]:
    """Yield the rows as batches, by partition and in row order within each.

    A batch ends before its uncompressed size would exceed `batch_bytes`; a longer row has a batch of its own. No batch
    is larger than `batch_bytes_max`, the topic's `max.message.bytes`; one that compression makes larger stays
    uncompressed. Raises Unencodable for a record that is too large by itself, for a header without a key, and for a
    timestamp before 1970.
    """
    row_count = len(partitions)
    if row_count == 0:
        return
    if (rows.timestamps_ms < 0).any():
        row = int(np.argmax(rows.timestamps_ms < 0))
        raise Unencodable(row, f"timestamp {rows.timestamps_ms[row]} ms is before 1970, which Kafka does not accept")
    order = np.argsort(partitions, kind="stable")
    header_counts, headers = _headers(rows.headers, row_count)
    sizes = _sizes_max(rows, header_counts, headers)[order]
    cuts = _cuts(partitions[order], sizes, min(batch_bytes, batch_bytes_max) - HEADER_BYTES)
    timestamps = rows.timestamps_ms[order]
    bodies, ends = _bodies(rows, header_counts, headers, order, cuts)
    for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        body = bodies[ends[begin] : ends[end]]
        span = timestamps[begin:end]
        data = _batch(body, span, codec, batch_bytes_max)
        if len(data) > batch_bytes_max:
            reason = f"a record of {len(data)} bytes, where the topic's max.message.bytes is {batch_bytes_max}"
            raise Unencodable(int(order[begin]), reason)
        yield EncodedBatch(int(partitions[order[begin]]), end - begin, data)


def partitions_of_keys(keys: Any, partition_count: int) -> Vector:
    """Return the partition where Java's default partitioner puts each key of a pa.binary() column, -1 for null."""
    placed = (murmur2_of_keys(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partition_count
    return np.where(_nulls(keys), -1, placed)


def murmur2_of_keys(keys: Any) -> NDArray[np.uint32]:
    """Return `wire.murmur2.murmur2` of each key, one vector step for four bytes of all keys; a null is hashed as
    empty."""
    begins, lengths = _bounds(keys)
    # Four more bytes, so that the words at the end of the last key can be read.
    data = np.frombuffer(_data(keys) + bytes(4), dtype=np.uint8)
    state = _SEED ^ lengths.astype(np.uint32)
    with np.errstate(over="ignore"):
        for word_number in range(int(lengths.max(initial=0)) // 4):
            going = lengths >= 4 * (word_number + 1)
            word = _words(data, begins[going] + 4 * word_number) * _MULTIPLIER
            word = (word ^ word >> np.uint32(24)) * _MULTIPLIER
            state[going] = state[going] * _MULTIPLIER ^ word
        rest = lengths % 4
        going = rest > 0
        kept = _MASK >> (np.uint32(32) - np.uint32(8) * rest[going].astype(np.uint32))
        last = _words(data, begins[going] + (lengths - rest)[going]) & kept
        state[going] = (state[going] ^ last) * _MULTIPLIER
        state = (state ^ state >> np.uint32(13)) * _MULTIPLIER
    return state ^ state >> np.uint32(15)


def _words(data: NDArray[np.uint8], positions: Vector) -> NDArray[np.uint32]:
    """Return the little-endian 32-bit word at each position."""
    words: NDArray[np.uint32] = np.lib.stride_tricks.as_strided(
        data[:4].view("<u4"), shape=(len(data) - 3,), strides=(1,), writeable=False
    )[positions]
    return words


# The bytes before the payload


class _Varints(NamedTuple):
    """One varint of every row: its bytes, of which a row uses the first `widths`."""

    matrix: NDArray[np.uint8]
    widths: Vector


def _varints(values: Vector) -> _Varints:
    """Return the zig-zag varints of int64 values."""
    unsigned = ((values << 1) ^ (values >> 63)).astype(np.uint64)
    widths = _widths(unsigned)
    width_max = int(widths.max(initial=1))
    matrix = np.empty((len(values), width_max), dtype=np.uint8)
    for place in range(width_max):
        byte = (unsigned >> np.uint64(7 * place)).astype(np.uint8) & np.uint8(0x7F)
        matrix[:, place] = byte | ((widths > place + 1) * 0x80).astype(np.uint8)
    return _Varints(matrix, widths)


def _widths(unsigned: NDArray[np.uint64]) -> Vector:
    """Return the size of each varint: one more byte from 2^7, from 2^14, and so on."""
    widths = np.ones(len(unsigned), dtype=np.int64)
    highest = int(unsigned.max(initial=0))
    for place in range(1, _VARINT_BYTES_MAX):
        if highest >> (7 * place) == 0:
            break
        widths += unsigned >= np.uint64(1 << (7 * place))
    return widths


def _width(values: Vector) -> Vector:
    return _widths(((values << 1) ^ (values >> 63)).astype(np.uint64))


def _joined(parts: list[_Varints], attributes_behind: int | None = None) -> Any:
    """Join each row's varints to a pa.binary() column; record attributes (0) follow the numbered part."""
    matrices: list[NDArray[np.uint8]] = []
    masks: list[NDArray[np.bool_]] = []
    for number, part in enumerate(parts):
        matrices.append(part.matrix)
        masks.append(np.arange(part.matrix.shape[1]) < part.widths[:, None])
        if number == attributes_behind:
            matrices.append(np.zeros((len(part.widths), 1), dtype=np.uint8))
            masks.append(np.ones((len(part.widths), 1), dtype=bool))
    mask = np.concatenate(masks, axis=1)
    return _binary(np.concatenate(matrices, axis=1)[mask], mask.sum(axis=1))


def _binary(data: NDArray[np.uint8], lengths: Vector) -> Any:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


# Bodies


def _bodies(
    rows: RecordColumns, header_counts: Vector, headers: Any, order: Vector, cuts: Vector
) -> tuple[memoryview, Vector]:
    """Return (all record bodies in `order`, their starts and, last, the end of the last one)."""
    counts = np.diff(cuts)
    first_of_batch = np.repeat(cuts[:-1], counts)
    deltas = np.empty(len(order), dtype=np.int64)
    deltas[order] = np.arange(len(order)) - first_of_batch
    times = np.empty(len(order), dtype=np.int64)
    times[order] = rows.timestamps_ms[order] - rows.timestamps_ms[order][first_of_batch]
    key_lengths, value_lengths = _lengths(rows.key), _lengths(rows.value)
    head = [_varints(times), _varints(deltas), _varints(key_lengths)]
    middle, counted = _varints(value_lengths), _varints(header_counts)
    lengths = 1 + sum(part.widths for part in [*head, middle, counted])
    lengths += np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0)
    pieces = [_filled(rows.key), _joined([middle]), _filled(rows.value), _joined([counted])]
    if headers is not None:
        lengths += _bounds(headers)[1]
        pieces.append(headers)
    prefix = _joined([_varints(lengths), *head], attributes_behind=0)
    joined = pc.binary_join_element_wise(prefix, *pieces, pa.scalar(b"", pa.binary()))
    if (np.diff(order) < 0).any():
        joined = joined.take(pa.array(order))
    begins, sizes = _bounds(joined)
    return memoryview(joined.buffers()[2]), np.append(begins, begins[-1] + sizes[-1])


def _headers(headers: Any, row_count: int) -> tuple[Vector, Any]:
    """Return (number of headers of each row, their bytes as a pa.binary() column or None)."""
    if headers is None:
        return np.zeros(row_count, dtype=np.int64), None
    assert headers.type.equals(HEADERS_TYPE), headers.type
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    pairs = headers.flatten()
    if not len(pairs):
        return counts, None
    names, values = pairs.field(0).cast(pa.binary()), pairs.field(1)
    without_key = _nulls(names) | _nulls(pairs)
    ends = np.cumsum(counts)
    if without_key.any():
        raise Unencodable(int(np.searchsorted(ends, np.argmax(without_key), side="right")), "a header without a key")
    name_lengths, value_lengths = _varints(_lengths(names)), _varints(_lengths(values))
    joined = pc.binary_join_element_wise(
        _joined([name_lengths]), names, _joined([value_lengths]), _filled(values), pa.scalar(b"", pa.binary())
    )
    begins, sizes = _bounds(joined)
    bounds = np.append(begins, begins[-1] + sizes[-1])
    offsets = bounds[np.concatenate(([0], ends))].astype(np.int32)
    return counts, pa.Array.from_buffers(
        pa.binary(), row_count, [None, pa.py_buffer(offsets), joined.buffers()[2]], null_count=0
    )


def _sizes_max(rows: RecordColumns, header_counts: Vector, headers: Any) -> Vector:
    """Return the maximum size of each record, wherever the batches are cut: no delta is longer than the range."""
    key_lengths, value_lengths = _lengths(rows.key), _lengths(rows.value)
    longest = np.array([rows.timestamps_ms.max() - rows.timestamps_ms.min(), len(rows.timestamps_ms)], dtype=np.int64)
    sizes = 1 + _width(longest).sum() + _width(key_lengths) + _width(value_lengths) + _width(header_counts)
    sizes = sizes + np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0)
    if headers is not None:
        sizes = sizes + _bounds(headers)[1]
    return np.asarray(sizes + _width(sizes), dtype=np.int64)


def _cuts(partitions: Vector, sizes: Vector, body_bytes_max: int) -> Vector:
    """Return the starts of batches, and the number of rows: at each new partition, and before a batch would be too
    large."""
    bounds = np.append(np.nonzero(np.diff(partitions, prepend=partitions[0] - 1))[0], len(partitions))
    ends = np.cumsum(sizes)
    cuts = []
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        position = begin
        while position < end:
            cuts.append(position)
            before = int(ends[position]) - int(sizes[position])
            fitting = int(np.searchsorted(ends, before + body_bytes_max, side="right"))
            position = min(max(fitting, position + 1), end)
    return np.array([*cuts, len(partitions)], dtype=np.int64)


def _batch(body: memoryview, timestamps: Vector, codec: Codec, batch_bytes_max: int) -> bytearray:
    packed: Any = body
    used = Codec.NONE
    if codec is not Codec.NONE:
        packed = compress(codec, body)
        used = codec
        if len(packed) > len(body) and HEADER_BYTES + len(packed) > batch_bytes_max:
            packed, used = body, Codec.NONE
    return unsealed_batch(
        packed,
        codec=used,
        record_count=len(timestamps),
        base_timestamp_ms=int(timestamps[0]),
        max_timestamp_ms=int(timestamps.max()),
    )


# Content of pyarrow's arrays


def _bounds(column: Any) -> tuple[Vector, Vector]:
    """Return (start, length) of each value in the column's data buffer; a null has no bytes."""
    raw = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    offsets: Vector = raw.astype(np.int64)
    lengths: Vector = offsets[1:] - offsets[:-1]
    if column.null_count:
        lengths = np.where(_nulls(column), 0, lengths)
    return offsets[:-1], lengths


def _data(column: Any) -> bytes:
    data = column.buffers()[2]
    return b"" if data is None else data.to_pybytes()


def _lengths(column: Any) -> Vector:
    """Return the size of each value, -1 for a null."""
    lengths = _bounds(column)[1]
    return np.where(_nulls(column), -1, lengths) if column.null_count else lengths


def _nulls(column: Any) -> NDArray[np.bool_]:
    nulls: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _filled(column: Any) -> Any:
    return column.fill_null(b"") if column.null_count else column
