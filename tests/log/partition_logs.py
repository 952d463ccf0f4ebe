"""Helpers of the log tests: batches, opening a log, and reading everything back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from onceflow.log.config import LogConfig
from onceflow.log.disk import Disk, RealDisk
from onceflow.log.partition import PartitionLog
from onceflow.testing import ManualClock
from onceflow.wire.batch import Record, batches, decode_batch, encode_batch

NOW_MS = 1_700_000_000_000


def batch(
    *values: bytes, timestamp_ms: int = NOW_MS, producer_id: int = -1, producer_epoch: int = 0, sequence: int = 0
) -> bytearray:
    """Return one batch as a client sends it: base offset 0, one millisecond between its records."""
    records = [Record(i, timestamp_ms + i, b"key", value) for i, value in enumerate(values)]
    if producer_id < 0:
        return encode_batch(records)
    return encode_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence)


def open_log(
    directory: Path,
    *,
    clean: bool = False,
    disk: Disk | None = None,
    clock: ManualClock | None = None,
    topic_id: UUID | None = None,
    log_start_offset: int = 0,
    is_replica: bool = False,
    **settings: Any,
) -> PartitionLog:
    return PartitionLog.open(
        directory,
        LogConfig(**settings),
        disk=disk or RealDisk(),
        clock=clock or ManualClock(NOW_MS),
        clean=clean,
        topic_id=topic_id,
        log_start_offset=log_start_offset,
        is_replica=is_replica,
    )


def sync(log: PartitionLog) -> None:
    point = log.durability.begin_sync()
    if point is not None:
        point.run()
        log.durability.end_sync(point)


def records(log: PartitionLog, size_bytes_max: int = 1 << 20) -> Iterator[Record]:
    """Yield every visible record, read as a consumer reads."""
    offset = log.log_start_offset
    while (fetched := log.visible.read(offset, size_bytes_max)) is not None:
        data = fetched.read()
        assert len(data) == fetched.size_bytes
        read_bytes = 0
        for position, header in batches(data):
            yield from decode_batch(data, position)
            read_bytes += header.size_bytes
            offset = header.last_offset + 1
        assert read_bytes == fetched.size_bytes, "a slice holds whole batches"


def values(log: PartitionLog) -> list[bytes | None]:
    """Return the visible values in order, after checking that offsets have no gap."""
    visible = list(records(log))
    assert [record.offset for record in visible] == list(range(log.log_start_offset, log.high_watermark))
    return [record.value for record in visible]


def open_transactions(log: PartitionLog) -> dict[int, int]:
    """Return the first offset of each open transaction by producer id."""
    first_offsets = {state.producer_id: state.current_transaction_first_offset for state in log.producers.states()}
    return {producer_id: offset for producer_id, offset in first_offsets.items() if offset >= 0}
