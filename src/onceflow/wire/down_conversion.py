"""Down-conversion: a record batch as messages of format 0 or 1, for consumers before Kafka 0.11 (RecordsUtil).

A compressed batch becomes one wrapper with the same codec. An uncompressed one becomes single messages, from the offset
that the reader asked for. Offsets stay. Record headers are dropped, and control batches left out; format 0 drops
timestamps too, and format 1 has none before 1970 (Kafka fails at such a record). zstd is younger than both formats.
"""

from collections.abc import Iterator

from typing_extensions import Buffer

from onceflow.wire.batch import Record, check_batch, decoded_records, read_header
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import DecompressionTooLarge, WireError
from onceflow.wire.message_sets import NO_TIMESTAMP, encode_message, encode_wrapper

_STEP = b""


class InconvertibleCodec(WireError):
    """The formats before record batches do not have this codec (UNSUPPORTED_COMPRESSION_TYPE)."""


def down_convert(batch: Buffer, magic: int, offset_begin: int, *, size_bytes_max: int) -> Iterator[bytes]:
    """Yield the messages of a whole batch in format `magic`, in steps: an empty piece is a step without a message.

    `size_bytes_max` bounds the records of a compressed batch and their messages, before compression. Raises
    InconvertibleCodec, CorruptBatch, MalformedBatch, DecompressionTooLarge, as far as it is read.
    """
    header = read_header(batch)
    check_batch(batch, 0, header)
    if header.is_control:
        return
    is_append_time = header.is_log_append_time and magic > 0
    if header.codec is Codec.ZSTD:
        raise InconvertibleCodec(f"batch at offset {header.base_offset}: zstd cannot be converted to format {magic}")
    if header.codec is not Codec.NONE:
        yield from _wrapped(batch, magic, header.codec, is_append_time, size_bytes_max)
        return
    for record in decoded_records(batch):
        if record.offset < offset_begin:
            yield _STEP
        else:
            yield encode_message(_with_valid_time(record), magic, is_append_time=is_append_time)


def _wrapped(batch: Buffer, magic: int, codec: Codec, is_append_time: bool, size_bytes_max: int) -> Iterator[bytes]:
    """Yield a step for each record, then the wrapper of all; nothing for a batch that compaction emptied."""
    inner = bytearray()
    base_offset, last_offset, latest_ms = -1, -1, NO_TIMESTAMP
    for record in decoded_records(batch, size_bytes_max=size_bytes_max):
        if base_offset < 0:
            base_offset = record.offset if magic else 0
        last_offset, latest_ms = record.offset, max(latest_ms, record.timestamp_ms)
        relative = _with_valid_time(record._replace(offset=record.offset - base_offset))
        inner += encode_message(relative, magic, is_append_time=is_append_time)
        if len(inner) > size_bytes_max:
            raise DecompressionTooLarge(
                f"messages of format {magic} up to offset {last_offset} take more than {size_bytes_max} bytes"
            )
        yield _STEP
    if inner:
        whole = Record(last_offset, latest_ms, None, bytes(inner))
        yield encode_wrapper(whole, magic, codec, is_append_time=is_append_time)


def _with_valid_time(record: Record) -> Record:
    return record if record.timestamp_ms >= NO_TIMESTAMP else record._replace(timestamp_ms=NO_TIMESTAMP)
