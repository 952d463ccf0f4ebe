"""Validation of a client's batch before it is appended (Kafka's LogValidator and UnifiedLog).

Only the header and the CRC are read: records stay opaque, however they are compressed. Their count is checked against
the batch's size (`_count_refusal`). Where a topic's configuration concerns records (compaction needs keys),
`check_records` reads the start of each.
"""

from collections.abc import Iterator

from typing_extensions import Buffer

from onceflow.log.config import INT64_MAX, LogConfig
from onceflow.log.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    MessageTooLarge,
    NotOneBatch,
    RecordListTooLarge,
)
from onceflow.remedies import Remedy
from onceflow.wire import errors as wire_errors
from onceflow.wire.batch import (
    CRC_BEGIN,
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    BatchHeader,
    read_header,
    record_heads,
    wrong_crc,
)
from onceflow.wire.codecs import UNPACKED_PER_BYTE_MAX, Codec
from onceflow.wire.crc32c import crc32c

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_ATTRIBUTES_ACCEPTED = _CODEC_MASK | _TRANSACTIONAL
_CODEC_MAX = max(Codec)
_UNPACKED_PER_BYTE_MAX = tuple(UNPACKED_PER_BYTE_MAX[codec] for codec in Codec)
_MAGIC = 2
_LENGTH_MIN = HEADER_BYTES - 12
"""Length field of a batch without records; it does not count the first 12 bytes."""


def validated_header(
    name: str, buffer: Buffer, position: int, config: LogConfig, now_ms: int, *, by_coordinator: bool = False
) -> BatchHeader:
    """Return the header of the one batch in `buffer` from `position` to its end, after every check.

    `name` is the partition's, for the error message. The broker's own coordinators write transactions without
    sequences. Raises CorruptBatch, InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge.
    """
    try:
        header = read_header(buffer, position)
    except wire_errors.MalformedBatch as error:
        raise NotOneBatch(f"{name}: {error}; send one whole batch per partition") from error
    view = memoryview(buffer)
    size_bytes = len(view) - position
    # This is the hot path of every Produce: the header's fields are unpacked at once.
    (
        base_offset,
        batch_length,
        _leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = header
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    if (
        base_offset
        or batch_length + 12 != size_bytes
        or record_count < 1
        or record_count != last_offset_delta + 1
        or magic != _MAGIC
        or attributes & ~_ATTRIBUTES_ACCEPTED
        or attributes & _CODEC_MASK > _CODEC_MAX
        or record_count * RECORD_BYTES_MIN
        > (size_bytes - HEADER_BYTES) * _UNPACKED_PER_BYTE_MAX[attributes & _CODEC_MASK]
        or (attributes & _CODEC_MASK and record_count * RECORD_BYTES_MIN > config.batch_unpacked_bytes_max)
        or ((max_timestamp > latest_ms or base_timestamp > latest_ms) and not config.log_append_time)
        or size_bytes > config.message_bytes_max
        or size_bytes > config.segment_bytes
        or (
            producer_epoch < 0 or (base_sequence < 0 and not by_coordinator)
            if producer_id >= 0
            else attributes & _TRANSACTIONAL
        )
    ):
        raise _refusal(name, header, size_bytes, config, now_ms)
    computed = crc32c(view[position + CRC_BEGIN :])
    if computed != crc:
        raise CorruptBatch(f"{name}: {wrong_crc(position, header, computed)}; the bytes changed on their way")
    return header


def needs_record_check(config: LogConfig) -> bool:
    """Return whether enforcing a topic's configuration requires reading records."""
    return config.cleanup_compact or (
        config.message_timestamp_before_max_ms != INT64_MAX and not config.log_append_time
    )


def check_records(name: str, buffer: Buffer, position: int, config: LogConfig, now_ms: int) -> None:
    """Check the records of a batch: each has a key if the topic is compacted, and none is too old.

    The batch may be any bytes. Raises InvalidRecord, InvalidTimestamp, CorruptBatch where the records cannot be read,
    MessageTooLarge where their uncompressed size exceeds `batch_unpacked_bytes_max`.
    """
    for _ in record_check(name, buffer, position, config, now_ms):
        pass


def record_check(name: str, buffer: Buffer, position: int, config: LogConfig, now_ms: int) -> Iterator[None]:
    """Run `check_records` in steps of some 16 KiB of uncompressed records."""
    earliest_ms = -1
    if config.message_timestamp_before_max_ms != INT64_MAX and not config.log_append_time:
        earliest_ms = now_ms - config.message_timestamp_before_max_ms
    try:
        for heads in record_heads(buffer, position, size_bytes_max=config.batch_unpacked_bytes_max):
            if config.cleanup_compact and not heads.have_keys:
                raise InvalidRecord(f"{name}: a record has no key, but the topic is compacted; {Remedy.GIVE_KEY}")
            if 0 <= heads.earliest_ms < earliest_ms:
                raise InvalidTimestamp(
                    f"{name}: a record's timestamp is {heads.earliest_ms} ms, the clock is at {now_ms} ms and"
                    f" message.timestamp.before.max.ms is {config.message_timestamp_before_max_ms}"
                )
            yield
    except wire_errors.DecompressionTooLarge as error:
        raise MessageTooLarge(f"{name}: {error} (batch.unpacked.max.bytes)") from error
    except wire_errors.WireError as error:
        raise CorruptBatch(f"{name}: {error}; send record batches of format {_MAGIC}") from error


def _refusal(name: str, header: BatchHeader, size_bytes: int, config: LogConfig, now_ms: int) -> LogError:
    """Return the error of the first failed check, in Kafka's order. The hot path only determines that one failed."""
    codec = header.attributes & _CODEC_MASK
    if header.batch_length < _LENGTH_MIN or not 0 <= header.magic <= _MAGIC:
        return CorruptBatch(f"{name}: {header.batch_length} bytes of format {header.magic} are not a valid batch")
    if header.magic != _MAGIC:
        return NotOneBatch(f"{name}: a batch of format {header.magic}; only format {_MAGIC} is stored")
    if header.batch_length + 12 != size_bytes:
        return NotOneBatch(
            f"{name}: a batch of {header.batch_length + 12} bytes in {size_bytes} bytes; send one batch per partition"
        )
    if header.base_offset:
        return InvalidRecord(f"{name}: base offset {header.base_offset} arrived; a client sends 0")
    if size_bytes > config.message_bytes_max:
        return MessageTooLarge(
            f"{name}: a batch of {size_bytes} bytes, max.message.bytes is {config.message_bytes_max};"
            f" {Remedy.SMALLER_BATCHES}, or {Remedy.RAISE_SETTING}"
        )
    if size_bytes > config.segment_bytes:
        return RecordListTooLarge(
            f"{name}: a batch of {size_bytes} bytes, segment.bytes is {config.segment_bytes}; {Remedy.SMALLER_BATCHES}"
        )
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        return InvalidRecord(
            f"{name}: {header.record_count} records with last offset delta {header.last_offset_delta}; offsets in a"
            " batch are 0, 1, 2 and so on"
        )
    if codec <= _CODEC_MAX:
        refusal = _count_refusal(name, header, size_bytes, config)
        if refusal is not None:
            return refusal
    if header.attributes & _CONTROL:
        return InvalidRecord(f"{name}: a control batch; only a broker writes those")
    if header.attributes & _TRANSACTIONAL and header.producer_id < 0:
        return InvalidRecord(f"{name}: a transactional batch without a producer id; InitProducerId gives one")
    if header.attributes & _LOG_APPEND_TIME:
        return InvalidTimestamp(f"{name}: a batch with log-append time; only a broker sets that")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return InvalidRecord(
            f"{name}: producer {header.producer_id} sent epoch {header.producer_epoch}, sequence"
            f" {header.base_sequence}; neither is negative"
        )
    latest_ms = max(header.max_timestamp, header.base_timestamp)
    if latest_ms - now_ms > config.message_timestamp_after_max_ms and not config.log_append_time:
        return InvalidTimestamp(
            f"{name}: a record's timestamp is {latest_ms} ms, the clock is at {now_ms} ms and"
            f" message.timestamp.after.max.ms is {config.message_timestamp_after_max_ms}"
        )
    return InvalidRecord(f"{name}: attributes {header.attributes:#x}, codec {codec}; unknown bits are not stored")


def _count_refusal(name: str, header: BatchHeader, size_bytes: int, config: LogConfig) -> LogError | None:
    """Return the error for a record count that the batch cannot contain.

    A count moves the log's end and is announced to every reader, so it is checked without decompression. The smallest
    record bounds an uncompressed batch exactly. Compressed records are bounded by the codec's maximum ratio and by
    `batch_unpacked_bytes_max`: a larger count may be valid, and the producer is asked for smaller batches.
    """
    body_bytes = size_bytes - HEADER_BYTES
    unpacked_bytes_min = header.record_count * RECORD_BYTES_MIN
    if unpacked_bytes_min > body_bytes * _UNPACKED_PER_BYTE_MAX[header.codec]:
        return InvalidRecord(
            f"{name}: {header.record_count} records in {body_bytes} bytes ({header.codec.name.lower()}); a record takes"
            f" at least {RECORD_BYTES_MIN} bytes unpacked"
        )
    if header.codec is not Codec.NONE and unpacked_bytes_min > config.batch_unpacked_bytes_max:
        return MessageTooLarge(
            f"{name}: a batch of {header.record_count} records unpacks to {unpacked_bytes_min} bytes or more,"
            f" batch.unpacked.max.bytes is {config.batch_unpacked_bytes_max}; {Remedy.SMALLER_BATCHES},"
            f" or {Remedy.RAISE_SETTING}"
        )
    return None
