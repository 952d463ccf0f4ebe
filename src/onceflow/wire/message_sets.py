"""Message sets, Kafka's record formats 0 and 1, from before record batches (Kafka's class LegacyRecord).

Entries end to end, each one message:

    offset  size  field
         0     8  offset
         8     4  size            bytes that follow this field
        12     4  CRC-32          of everything from byte 16 on (the zlib polynomial; format 2 has CRC-32C)
        16     1  magic           0 or 1
        17     1  attributes      bits 0-2 codec (none, gzip, snappy, lz4), 3 log-append time (format 1)
        18     8  timestamp, ms   only in format 1
        18/26  4  key length      -1: null
               …  key
               4  value length    -1: null
               …  value

A compressed set is one entry, the wrapper, whose value is the compressed inner set. The wrapper has the offset of the
last inner message. Inside, format 0 has absolute offsets, format 1 relative ones, from 0 (KIP-31): the difference
between the wrapper's offset and the last inner one is added to each. Under log-append time the wrapper's timestamp is
that of every message (KIP-32). LZ4 in format 0 has a wrong header checksum (`onceflow.wire.lz4_header`). A wrapper in
a wrapper is refused, as by Kafka.

The broker stores only format 2 (`onceflow.wire.batch`). It converts to these formats for old consumers
(`onceflow.wire.down_conversion`).
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

from onceflow.wire import lz4_header
from onceflow.wire.batch import SIZE_BYTES_MAX, Record
from onceflow.wire.codecs import Codec, compress, decompress
from onceflow.wire.errors import CorruptBatch, MalformedBatch

NO_TIMESTAMP = -1
MAGIC_MAX = 1
PREFIX_BYTES = 18
"""Size of offset, size, CRC, magic and attributes, which start both formats."""
OFFSET_AND_SIZE_BYTES = 12

_PREFIX = struct.Struct(">qiIbb")
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_CRC_BEGIN = 16
_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


class EntryHeader(NamedTuple):
    """Fields before an entry's key; the timestamp is -1 in format 0."""

    offset: int
    size: int
    crc: int
    magic: int
    attributes: int
    timestamp_ms: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole entry."""
        return self.size + OFFSET_AND_SIZE_BYTES

    @property
    def codec(self) -> Codec:
        """Codec of the value. Raises MalformedBatch for a codec that these formats do not have."""
        number = self.attributes & _CODEC_MASK
        if number >= len(_CODECS):
            raise MalformedBatch(f"message at offset {self.offset}: format {self.magic} has no codec {number}")
        return _CODECS[number]

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker set the timestamp (KIP-32); only in format 1."""
        return self.magic > 0 and bool(self.attributes & _LOG_APPEND_TIME)


def read_header(buffer: Buffer, position: int = 0) -> EntryHeader:
    """Read the header at `position`, unchecked except for its size. Raises MalformedBatch."""
    try:
        offset, size, crc, magic, attributes = _PREFIX.unpack_from(buffer, position)
        (timestamp_ms,) = _TIMESTAMP.unpack_from(buffer, position + PREFIX_BYTES) if magic else (NO_TIMESTAMP,)
    except struct.error as error:
        left_bytes = len(memoryview(buffer)) - position
        raise MalformedBatch(f"position {position}: {left_bytes} bytes left, too few for a message's header") from error
    return EntryHeader(offset, size, crc, magic, attributes, timestamp_ms)


def check_entry(buffer: Buffer, position: int, header: EntryHeader) -> None:
    """Check that the bytes at `position` are the whole entry that `header` describes. Raises CorruptBatch."""
    view = memoryview(buffer)
    end = position + header.size_bytes
    if not 0 <= header.magic <= MAGIC_MAX:
        raise CorruptBatch(f"{_at(position, header)}: magic {header.magic}, a message set has 0 or 1")
    if header.size_bytes < _entry_bytes_min(header.magic) or end > len(view):
        left_bytes = len(view) - position - OFFSET_AND_SIZE_BYTES
        raise CorruptBatch(f"{_at(position, header)}: size {header.size} where {left_bytes} bytes are left")
    crc = zlib.crc32(view[position + _CRC_BEGIN : end])
    if crc != header.crc:
        raise CorruptBatch(f"{_at(position, header)}: CRC {crc:08x} computed, {header.crc:08x} stored")


def entries(buffer: Buffer) -> Iterator[tuple[int, EntryHeader]]:
    """Yield (position, header) of each whole entry, wrappers unopened; ignore a last one that is cut, like Kafka.

    Raises MalformedBatch for a magic other than 0 or 1 or an invalid size. Nothing else is checked.
    """
    size_bytes = len(memoryview(buffer))
    position = 0
    while position + _entry_bytes_min(0) <= size_bytes:
        header = read_header(buffer, position)
        if not 0 <= header.magic <= MAGIC_MAX or header.size_bytes < _entry_bytes_min(header.magic):
            raise MalformedBatch(f"{_at(position, header)}: size {header.size}, magic {header.magic}")
        if position + header.size_bytes > size_bytes:
            return
        yield position, header
        position += header.size_bytes


def decode_entry(buffer: Buffer, position: int = 0, *, size_bytes_max: int = SIZE_BYTES_MAX) -> list[Record]:
    """Return the message at `position`, or those inside a wrapper, with absolute offsets; all CRCs are checked.

    Raises CorruptBatch, MalformedBatch, and DecompressionTooLarge above `size_bytes_max`.
    """
    header = read_header(buffer, position)
    check_entry(buffer, position, header)
    key, value = _key_and_value(memoryview(buffer), position, header)
    if header.codec is Codec.NONE:
        return [Record(header.offset, header.timestamp_ms, key, value)]
    if value is None:
        raise MalformedBatch(f"{_at(position, header)}: a compressed set without a value")
    inner = _unpacked(header, value, size_bytes_max)
    records = [_inner_record(inner, begin, entry, header) for begin, entry in _inner_entries(inner, position, header)]
    shift = header.offset - records[-1].offset if header.magic else 0
    return [record._replace(offset=record.offset + shift) for record in records]


def decode(buffer: Buffer, *, size_bytes_max: int = SIZE_BYTES_MAX) -> list[Record]:
    """Return all messages of a set, wrappers opened, each at most `size_bytes_max` uncompressed. Raises as
    `decode_entry`."""
    view = memoryview(buffer)
    return [
        record
        for position, header in entries(view)
        for record in decode_entry(view[: position + header.size_bytes], position, size_bytes_max=size_bytes_max)
    ]


def encode(
    records: Sequence[Record], *, magic: int, codec: Codec = Codec.NONE, log_append_time_ms: int | None = None
) -> bytes:
    """Encode a message set in format `magic`; with a codec, one wrapper around all messages.

    Raises ValueError for headers, which the formats do not have, and for a log-append time in format 0.
    """
    if not 0 <= magic <= MAGIC_MAX or codec not in _CODECS or not records:
        raise ValueError(f"not a valid message set: {len(records)} records, format {magic}, codec {codec!r}")
    if any(record.headers for record in records) or (log_append_time_ms is not None and not magic):
        raise ValueError("formats 0 and 1 have no record headers, format 0 has no timestamps")
    is_append_time = log_append_time_ms is not None
    dated = [_dated(record, log_append_time_ms) for record in records]
    if codec is Codec.NONE:
        return b"".join(encode_message(record, magic, is_append_time=is_append_time) for record in dated)
    begin = records[0].offset if magic else 0
    inner = b"".join(
        encode_message(record._replace(offset=record.offset - begin), magic, is_append_time=is_append_time)
        for record in dated
    )
    last = Record(dated[-1].offset, max(record.timestamp_ms for record in dated), None, inner)
    return encode_wrapper(last, magic, codec, is_append_time=is_append_time)


def encode_message(record: Record, magic: int, *, is_append_time: bool) -> bytes:
    """Encode one message, without the record's headers."""
    return _entry(
        record.offset, record.timestamp_ms, record.key, record.value, magic, is_append_time * _LOG_APPEND_TIME
    )


def encode_wrapper(inner: Record, magic: int, codec: Codec, *, is_append_time: bool) -> bytes:
    """Encode the wrapper with the offset and the timestamp of `inner`, whose value is the uncompressed inner set."""
    assert inner.value is not None
    attributes = is_append_time * _LOG_APPEND_TIME | codec
    return _entry(inner.offset, inner.timestamp_ms, None, _packed(codec, magic, inner.value), magic, attributes)


def _entry(
    offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, magic: int, attributes: int
) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += _TIMESTAMP.pack(timestamp_ms)
    body += _with_length(key) + _with_length(value)
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def _dated(record: Record, log_append_time_ms: int | None) -> Record:
    return record if log_append_time_ms is None else record._replace(timestamp_ms=log_append_time_ms)


def _with_length(data: bytes | None) -> bytes:
    return _LENGTH.pack(-1) if data is None else _LENGTH.pack(len(data)) + data


def _packed(codec: Codec, magic: int, inner: bytes) -> bytes:
    packed = compress(codec, inner)
    return lz4_header.with_kafkas_checksum(packed) if codec is Codec.LZ4 and not magic else packed


def _unpacked(header: EntryHeader, value: bytes, size_bytes_max: int) -> bytes:
    packed = lz4_header.with_right_checksum(value) if header.codec is Codec.LZ4 and not header.magic else value
    return decompress(header.codec, packed, size_bytes_max=size_bytes_max)


def _inner_entries(inner: bytes, position: int, wrapper: EntryHeader) -> list[tuple[int, EntryHeader]]:
    messages = list(entries(inner))
    end = messages[-1][0] + messages[-1][1].size_bytes if messages else 0
    if not messages or end != len(inner):
        raise MalformedBatch(f"{_at(position, wrapper)}: its messages take {end} of {len(inner)} bytes")
    return messages


def _inner_record(inner: bytes, position: int, header: EntryHeader, wrapper: EntryHeader) -> Record:
    check_entry(inner, position, header)
    if header.magic != wrapper.magic or header.codec is not Codec.NONE:
        raise MalformedBatch(
            f"{_at(position, header)}, inside the one at offset {wrapper.offset}: magic {header.magic} in"
            f" {wrapper.magic}, codec {header.codec.name.lower()}; a set inside is plain and of the same format"
        )
    key, value = _key_and_value(memoryview(inner), position, header)
    timestamp_ms = wrapper.timestamp_ms if wrapper.is_log_append_time else header.timestamp_ms
    return Record(header.offset, timestamp_ms, key, value)


def _key_and_value(view: memoryview, position: int, header: EntryHeader) -> tuple[bytes | None, bytes | None]:
    end = position + header.size_bytes
    key, begin = _read_bytes(view[:end], position + PREFIX_BYTES + (_TIMESTAMP.size if header.magic else 0))
    value, begin = _read_bytes(view[:end], begin)
    if begin != end:
        raise MalformedBatch(f"{_at(position, header)}: its value ends at byte {begin}, not at {end}")
    return key, value


def _read_bytes(view: memoryview, position: int) -> tuple[bytes | None, int]:
    left_bytes = len(view) - position - _LENGTH.size
    size_bytes = _LENGTH.unpack_from(view, position)[0] if left_bytes >= 0 else -2
    if not -1 <= size_bytes <= left_bytes:
        raise MalformedBatch(f"byte {position}: a length of {size_bytes} where {max(left_bytes, 0)} bytes are left")
    begin = position + _LENGTH.size
    if size_bytes == -1:
        return None, begin
    return bytes(view[begin : begin + size_bytes]), begin + size_bytes


def _entry_bytes_min(magic: int) -> int:
    return PREFIX_BYTES + 2 * _LENGTH.size + (_TIMESTAMP.size if magic else 0)


def _at(position: int, header: EntryHeader) -> str:
    return f"message at position {position}, offset {header.offset}"
