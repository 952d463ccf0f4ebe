"""Record batch format 2 (KIP-98; org.apache.kafka.common.record.DefaultRecordBatch and DefaultRecord).

A batch is a header of 61 bytes followed by its records, which may be compressed as one block:

    offset  size  field
         0     8  base offset                 outside the CRC, patched by the broker
         8     4  batch length                bytes that follow this field: size of the batch - 12
        12     4  partition leader epoch      outside the CRC, patched by the broker
        16     1  magic                       2
        17     4  CRC-32C                     of everything from byte 21 on
        21     2  attributes                  bits 0-2 codec, 3 log-append time, 4 transactional, 5 control,
                                      6 base timestamp is a delete horizon (KIP-534, set by compaction)
        23     4  last offset delta
        27     8  base timestamp, ms
        35     8  max timestamp, ms           the timestamp of every record under log-append time
        43     8  producer id                 -1: none
        51     2  producer epoch
        53     4  base sequence
        57     4  record count
        61        records

A record: varint length of the rest, attributes (int8, 0), varint timestamp delta, varint offset delta, key and value
each with a varint length (-1: null), varint header count, each header a key and a value in the same way. All
varints are zig-zag. The hot path of a broker needs only `read_header`, `check_batch` and `patch_offset`.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

from onceflow.wire.codecs import Codec, compress, decompress, unpacked_chunks
from onceflow.wire.crc32c import crc32c
from onceflow.wire.errors import CorruptBatch, MalformedBatch

HEADER_BYTES = 61
RECORD_BYTES_MIN = 7
"""Size of the smallest record: one byte each for length, attributes, two deltas, no key, no value and no headers."""
MAGIC = 2
SEQUENCE_MAX = 2**31 - 1
SIZE_BYTES_MAX = 64 * 1024 * 1024

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_OVERHEAD_BYTES = 12
_CRC_POSITION = 17
CRC_BEGIN = 21
"""Start of the bytes that the CRC covers, up to the end of the batch."""
_MAX_TIMESTAMP_POSITION = 35
_EPOCH_POSITION = 12
_PRODUCER = struct.Struct(">qhi")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_PRODUCER_POSITION = 43

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40
_TIMESTAMP_MIN = -(2**63)
_TIMESTAMP_MAX = 2**63 - 1
_HEAD_BYTES_MAX = 40
"""Upper bound of the size of a record's length, attributes, two deltas and the first byte of its key's length."""


class BatchHeader(NamedTuple):
    """The 61 bytes before a batch's records; immutable. Timestamps are in ms since 1970."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return self.batch_length + _LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """Offset of the last record in the original batch; compaction may have removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap from `SEQUENCE_MAX` to 0."""
        return self.base_sequence + self.last_offset_delta & SEQUENCE_MAX

    @property
    def codec(self) -> Codec:
        """Codec of the records. Raises MalformedBatch for the three numbers without a codec."""
        try:
            return Codec(self.attributes & _CODEC_MASK)
        except ValueError as error:
            raise MalformedBatch(
                f"batch at offset {self.base_offset}: codec {self.attributes & _CODEC_MASK} does not exist"
            ) from error

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker set the timestamps (KIP-32): each record has `max_timestamp`."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction (KIP-98), like a marker."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether its record is for client libraries and not for their users (`onceflow.wire.markers`)."""
        return bool(self.attributes & _CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which compaction may remove the batch's tombstones or its marker; None: no pass has read them
        yet."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None


class Record(NamedTuple):
    """One record with its absolute offset; the timestamp is in milliseconds since the epoch, UTC."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`, unchecked. Raises MalformedBatch if fewer than 61 bytes are left."""
    try:
        # `_make` without its check of the length: this is on the path of every batch.
        return tuple.__new__(BatchHeader, _HEADER.unpack_from(buffer, position))
    except struct.error as error:
        raise MalformedBatch(
            f"position {position}: {len(memoryview(buffer)) - position} bytes left, a batch header has {HEADER_BYTES}"
        ) from error


def check_batch(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Check that the bytes at `position` are the whole batch that `header` describes. Raises CorruptBatch.

    Compares magic, length, CRC-32C and that the records fit between base offset and last offset (compaction leaves
    fewer, even none). The stricter rules for clients' batches are in the log.
    """
    view = memoryview(buffer)
    end = position + header.batch_length + _LENGTH_OVERHEAD_BYTES
    if header.magic != MAGIC:
        raise CorruptBatch(f"{_at(position, header)}: magic {header.magic}, only {MAGIC} is served")
    if header.batch_length < HEADER_BYTES - _LENGTH_OVERHEAD_BYTES or end > len(view):
        raise CorruptBatch(
            f"{_at(position, header)}: length {header.batch_length} where {len(view) - position - 12} bytes are left"
        )
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptBatch(
            f"{_at(position, header)}: {header.record_count} records, last offset delta {header.last_offset_delta}"
        )
    crc = crc32c(view[position + CRC_BEGIN : end])
    if crc != header.crc:
        raise wrong_crc(position, header, crc)


def wrong_crc(position: int, header: BatchHeader, computed: int) -> CorruptBatch:
    """Return the error for a batch whose CRC-32C is not the one in its header."""
    return CorruptBatch(f"{_at(position, header)}: CRC {computed:08x} computed, {header.crc:08x} stored")


def patch_offset(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch in place; the CRC covers neither."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + _EPOCH_POSITION, leader_epoch)


def batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch; ignore a last one that is cut, like Kafka's consumers.

    Raises MalformedBatch for an invalid length or a magic other than 2. Nothing else is checked.
    """
    size_bytes = len(memoryview(buffer))
    position = 0
    while position + HEADER_BYTES <= size_bytes:
        header = read_header(buffer, position)
        if header.batch_length < HEADER_BYTES - _LENGTH_OVERHEAD_BYTES or header.magic != MAGIC:
            raise MalformedBatch(f"{_at(position, header)}: length {header.batch_length}, magic {header.magic}")
        end = position + header.batch_length + _LENGTH_OVERHEAD_BYTES
        if end > size_bytes:
            return
        yield position, header
        position = end


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
) -> bytearray:
    """Encode one batch of `records` (at least one, offsets ascending), which determine base offset and timestamps."""
    if not records:
        raise ValueError("a batch has at least one record")
    first = records[0]
    body = bytearray()
    for record in records:
        append_record(body, record, first)
    attributes = codec | _TRANSACTIONAL * transactional | _CONTROL * control
    packed = body if codec is Codec.NONE else compress(codec, body)
    batch = bytearray(
        _HEADER.pack(
            first.offset,
            HEADER_BYTES - _LENGTH_OVERHEAD_BYTES + len(packed),
            leader_epoch,
            MAGIC,
            0,
            attributes,
            records[-1].offset - first.offset,
            first.timestamp_ms,
            max(record.timestamp_ms for record in records),
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    )
    batch += packed
    write_crc(batch, 0)
    return batch


def unsealed_batch(
    packed: Buffer, *, codec: Codec, record_count: int, base_timestamp_ms: int, max_timestamp_ms: int
) -> bytearray:
    """Build a batch around encoded records, compressed by `codec`, without producer and CRC; `patch_producer` adds
    them."""
    view = memoryview(packed)
    batch = bytearray(
        _HEADER.pack(
            0,
            HEADER_BYTES - _LENGTH_OVERHEAD_BYTES + view.nbytes,
            -1,
            MAGIC,
            0,
            codec,
            record_count - 1,
            base_timestamp_ms,
            max_timestamp_ms,
            -1,
            -1,
            -1,
            record_count,
        )
    )
    batch += view
    return batch


def patch_producer(
    batch: bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
) -> None:
    """Write a producer into a whole batch, in place, and update the CRC."""
    attributes = struct.unpack_from(">H", batch, CRC_BEGIN)[0] & ~_TRANSACTIONAL
    struct.pack_into(">H", batch, CRC_BEGIN, attributes | _TRANSACTIONAL * transactional)
    _PRODUCER.pack_into(batch, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    write_crc(batch, 0)


def encode_retained(
    header: BatchHeader, records: Sequence[Record], *, delete_horizon_ms: int | None = None
) -> bytearray:
    """Encode the batch of `header` with the `records` that compaction keeps, perhaps none.

    First and last offset, producer and sequences stay (MemoryRecords.filterTo). With a horizon the base timestamp
    becomes that, and the records' timestamps stay unchanged. Without records it is a bare header.
    """
    attributes = header.attributes
    base_timestamp, max_timestamp = header.base_timestamp, header.max_timestamp
    if not records:
        attributes &= ~(_CODEC_MASK | _DELETE_HORIZON)
        base_timestamp = max_timestamp
    elif not header.is_log_append_time:
        max_timestamp = max(record.timestamp_ms for record in records)
    if records and delete_horizon_ms is not None:
        attributes |= _DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    body = bytearray()
    base = Record(header.base_offset, base_timestamp, None, None)
    for record in records:
        append_record(body, record, base)
    codec = Codec(attributes & _CODEC_MASK)
    packed = body if codec is Codec.NONE else compress(codec, body)
    batch = bytearray(
        _HEADER.pack(
            *header._replace(
                batch_length=HEADER_BYTES - _LENGTH_OVERHEAD_BYTES + len(packed),
                crc=0,
                attributes=attributes,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                record_count=len(records),
            )
        )
    )
    batch += packed
    write_crc(batch, 0)
    return batch


def stamp_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Set the timestamps of the batch from `position` to the buffer's end (LogAppendTime), and update the CRC."""
    attributes = struct.unpack_from(">H", buffer, position + CRC_BEGIN)[0] | _LOG_APPEND_TIME
    struct.pack_into(">H", buffer, position + CRC_BEGIN, attributes)
    struct.pack_into(">q", buffer, position + _MAX_TIMESTAMP_POSITION, now_ms)
    write_crc(buffer, position)


def write_crc(buffer: bytearray | memoryview, position: int) -> None:
    """Write the CRC-32C of the batch from `position` to the buffer's end."""
    struct.pack_into(">I", buffer, position + _CRC_POSITION, crc32c(memoryview(buffer)[position + CRC_BEGIN :]))


def decode_batch(buffer: Buffer, position: int = 0, *, size_bytes_max: int = SIZE_BYTES_MAX) -> list[Record]:
    """Return the records of the batch at `position`, control records included, with absolute offsets; the CRC is not
    checked.

    Raises MalformedBatch if the bytes do not match the header, DecompressionTooLarge above `size_bytes_max`.
    """
    return list(decoded_records(buffer, position, size_bytes_max=size_bytes_max))


def decoded_records(buffer: Buffer, position: int = 0, *, size_bytes_max: int = SIZE_BYTES_MAX) -> Iterator[Record]:
    """Yield the records of `decode_batch` one after the other. Raises as it does, as far as it is read."""
    header = read_header(buffer, position)
    body = records_of(buffer, position, header, size_bytes_max=size_bytes_max)
    count = begin = 0
    try:
        while count < header.record_count:
            record, begin = _read_record(body, begin, header)
            count += 1
            yield record
    except (IndexError, UnicodeDecodeError) as error:
        raise MalformedBatch(f"{_at(position, header)}: record {count}: {error}") from error
    if begin != len(body) or header.record_count < 0:
        raise MalformedBatch(
            f"{_at(position, header)}: {header.record_count} records take {begin} of {len(body)} bytes"
        )


def record_times(
    buffer: Buffer, position: int = 0, *, size_bytes_max: int = SIZE_BYTES_MAX
) -> Iterator[tuple[int, int]]:
    """Yield (timestamp in ms, offset) of each record of the batch at `position`, skipping keys and values.

    Raises MalformedBatch, DecompressionTooLarge, as far as it is read.
    """
    header = read_header(buffer, position)
    body = records_of(buffer, position, header, size_bytes_max=size_bytes_max)
    end = 0
    try:
        for _ in range(header.record_count):
            size_bytes, begin = _read_varint(body, end)
            end = begin + size_bytes
            timestamp_delta, begin = _read_varint(body, begin + 1)
            offset_delta, begin = _read_varint(body, begin)
            if not begin <= end <= len(body):
                raise IndexError(f"a record of {size_bytes} bytes where it ends at byte {end} of {len(body)}")
            yield _timestamp_ms(header, begin, timestamp_delta), header.base_offset + offset_delta
    except IndexError as error:
        raise MalformedBatch(f"{_at(position, header)}: {error}") from error


class RecordHeads(NamedTuple):
    """Properties of some records of a batch, read from their heads."""

    have_keys: bool
    """Whether each has a key."""
    earliest_ms: int
    """The earliest timestamp that is not negative; -1 if there is none."""


def record_heads(buffer: Buffer, position: int = 0, *, size_bytes_max: int) -> Iterator[RecordHeads]:
    """Yield the heads of the batch's records at `position`, one decompressed piece after the other.

    Keys and values are skipped, so a batch costs little memory regardless of its uncompressed size. Raises
    MalformedBatch if the bytes do not match the header, DecompressionTooLarge above `size_bytes_max`.
    """
    header = read_header(buffer, position)
    packed = _packed_records(buffer, position, header)
    if header.codec is Codec.NONE:
        size_bytes_max = len(packed)
    left = header.record_count
    held, begin = b"", 0
    try:
        for chunk in unpacked_chunks(header.codec, packed, size_bytes_max=size_bytes_max):
            # A record's head may span two pieces; its key and value may end pieces later.
            held, begin = (held[begin:] + chunk, 0) if begin < len(held) else (chunk, begin - len(held))
            heads, count, begin = _heads_in(held, begin, len(held) - _HEAD_BYTES_MAX, left, header.base_timestamp)
            left -= count
            if not left and begin < len(held):
                raise IndexError(f"{len(held) - begin} bytes or more follow the {header.record_count} records")
            yield heads
        heads, count, begin = _heads_in(held, begin, len(held), left, header.base_timestamp)
        yield heads
        if count < left or begin != len(held):
            raise IndexError(f"{left - count} records of {header.record_count} left at byte {begin} of {len(held)}")
    except IndexError as error:
        raise MalformedBatch(f"{_at(position, header)}: {error}") from error


def _heads_in(held: bytes, begin: int, stop: int, left: int, base_ms: int) -> tuple[RecordHeads, int, int]:
    """Return (heads, number of records, start of the next one) of at most `left` records that start before `stop`.

    The bytes of a varint are read inline: a call for each costs more than the rest.
    """
    have_keys, earliest_delta_ms, count = True, _TIMESTAMP_MAX, 0
    while begin < stop and count < left:
        size_bytes = held[begin]
        at = begin + 1
        if size_bytes > 0x7F:
            size_bytes, at = _read_varint(held, begin)
        elif size_bytes & 1:
            raise IndexError(f"a record of length {-(size_bytes >> 1) - 1}")
        else:
            size_bytes >>= 1
        begin = at + size_bytes
        delta_ms = held[at + 1]
        if delta_ms > 0x7F:
            delta_ms, key = _read_varint(held, at + 1)
        else:
            delta_ms, key = delta_ms >> 1 ^ -(delta_ms & 1), at + 2
        if base_ms + delta_ms >= 0 and delta_ms < earliest_delta_ms:
            earliest_delta_ms = delta_ms
        while held[key] > 0x7F:
            key += 1
        key += 1
        # A zig-zag number is odd if it is negative, like the length of a null key.
        if held[key] & 1:
            have_keys = False
        if not key - at < size_bytes or key - at > _HEAD_BYTES_MAX:
            raise IndexError(f"a record of length {size_bytes}")
        count += 1
    earliest_ms = base_ms + earliest_delta_ms if earliest_delta_ms != _TIMESTAMP_MAX else -1
    return RecordHeads(have_keys, earliest_ms), count, begin


def records_of(buffer: Buffer, position: int, header: BatchHeader, *, size_bytes_max: int) -> memoryview:
    """Return the uncompressed record bytes of one batch; a view of `buffer` if nothing was compressed."""
    packed = _packed_records(buffer, position, header)
    if header.codec is Codec.NONE:
        return packed
    return memoryview(decompress(header.codec, packed, size_bytes_max=size_bytes_max))


def _packed_records(buffer: Buffer, position: int, header: BatchHeader) -> memoryview:
    end = position + header.size_bytes
    view = memoryview(buffer)
    if header.size_bytes < HEADER_BYTES or end > len(view):
        raise MalformedBatch(
            f"{_at(position, header)}: {header.size_bytes} bytes where {len(view) - position} are left"
        )
    return view[position + HEADER_BYTES : end]


def _at(position: int, header: BatchHeader) -> str:
    return f"batch at position {position}, base offset {header.base_offset}"


def _append_varint(buffer: bytearray, value: int) -> None:
    value = value << 1 ^ value >> 63
    while value > 0x7F:
        buffer.append(value & 0x7F | 0x80)
        value >>= 7
    buffer.append(value)


def _append_bytes(buffer: bytearray, value: bytes | bytearray | None) -> None:
    if value is None:
        _append_varint(buffer, -1)
    else:
        _append_varint(buffer, len(value))
        buffer += value


def append_record(body: bytearray, record: Record, first: Record) -> None:
    """Append a record of a batch that begins with `first`."""
    rest = bytearray(1)
    _append_varint(rest, record.timestamp_ms - first.timestamp_ms)
    _append_varint(rest, record.offset - first.offset)
    _append_bytes(rest, record.key)
    _append_bytes(rest, record.value)
    _append_varint(rest, len(record.headers))
    for name, value in record.headers:
        _append_bytes(rest, name.encode())
        _append_bytes(rest, value)
    _append_bytes(body, rest)


def _read_varint(view: memoryview | bytes, position: int) -> tuple[int, int]:
    # Nearly all have one or two bytes. The loop takes twice as long for them.
    value = view[position]
    if value < 0x80:
        return value >> 1 ^ -(value & 1), position + 1
    byte = view[position + 1]
    if byte < 0x80:
        value = value & 0x7F | byte << 7
        return value >> 1 ^ -(value & 1), position + 2
    value = 0
    for shift in range(0, 70, 7):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), position
    raise IndexError(f"the varint that ends at byte {position} has more than ten bytes")


def _read_bytes(view: memoryview, position: int) -> tuple[bytes | None, int]:
    size_bytes = view[position]
    if size_bytes < 0x80:  # As `_read_varint`, without a call on the path of every record.
        size_bytes, position = size_bytes >> 1 ^ -(size_bytes & 1), position + 1
    else:
        size_bytes, position = _read_varint(view, position)
    if size_bytes == -1:
        return None, position
    end = position + size_bytes
    if size_bytes < 0 or end > len(view):
        raise IndexError(f"byte {position}: a length of {size_bytes} where {len(view) - position} bytes are left")
    return bytes(view[position:end]), end


def _read_record(body: memoryview, position: int, header: BatchHeader) -> tuple[Record, int]:
    size_bytes, position = _read_varint(body, position)
    end = position + size_bytes
    if size_bytes < 0 or end > len(body):
        raise IndexError(f"byte {position}: a length of {size_bytes} where {len(body) - position} bytes are left")
    timestamp_delta, position = _read_varint(body, position + 1)
    offset_delta, position = _read_varint(body, position)
    key, position = _read_bytes(body, position)
    value, position = _read_bytes(body, position)
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if body[position]:
        headers, position = _read_headers(body, position, end)
    else:
        position += 1
    if position != end:
        raise IndexError(f"its fields end at byte {position}, not at {end}")
    timestamp_ms = _timestamp_ms(header, position, timestamp_delta)
    # `Record(*fields)` without a call in Python.
    fields = (header.base_offset + offset_delta, timestamp_ms, key, value, headers)
    return tuple.__new__(Record, fields), end


def _read_headers(body: memoryview, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _read_varint(body, position)
    if not 0 <= count <= end - position:
        raise IndexError(f"byte {position}: {count} headers where {end - position} bytes are left")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(body, position)
        content, position = _read_bytes(body, position)
        if name is None:
            raise IndexError(f"byte {position}: a header without a key")
        headers.append((str(name, "utf-8"), content))
    return tuple(headers), position


def _timestamp_ms(header: BatchHeader, position: int, delta_ms: int) -> int:
    appended = header.attributes & _LOG_APPEND_TIME
    timestamp_ms = header.max_timestamp if appended else header.base_timestamp + delta_ms
    if not _TIMESTAMP_MIN <= timestamp_ms <= _TIMESTAMP_MAX:
        raise IndexError(f"byte {position}: a timestamp of {timestamp_ms} ms is more than 64 bits")
    return timestamp_ms
