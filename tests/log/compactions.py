"""Helpers of the compaction tests: keyed batches, one pass as the broker runs it, a log as a table of its keys."""

from collections.abc import Iterator, Sequence

from onceflow.log.compaction import Compactable, Compaction, measure
from onceflow.log.disk import Disk, RealDisk
from onceflow.log.partition import PartitionLog
from onceflow.log.swap import remove_retired, replace
from onceflow.wire.batch import BatchHeader, Record, batches, decode_batch, encode_batch
from tests.log.partition_logs import NOW_MS

KeyValue = tuple[str, str | None]


def keyed(
    *pairs: KeyValue, timestamp_ms: int = NOW_MS, producer_id: int = -1, epoch: int = 0, sequence: int = 0,
    transactional: bool = False,
) -> bytearray:  # fmt: skip
    """Return one batch as a client sends it; a value of None is a tombstone."""
    records = [
        Record(offset, timestamp_ms, key.encode(), None if value is None else value.encode())
        for offset, (key, value) in enumerate(pairs)
    ]
    if producer_id < 0:
        return encode_batch(records)
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )


def compactable(log: PartitionLog, clean_end: int = 0) -> Compactable:
    segments = log.segments.finished()
    end = log.segments.end_of(len(segments) - 1)
    begin = clean_end if log.log_start_offset <= clean_end <= end else log.log_start_offset
    return Compactable(log.name, log.directory, log.config, segments, end, begin, log.visible.last_stable_offset)


def compact(
    log: PartitionLog, *, disk: Disk | None = None, clean_end: int = 0, now_ms: int = NOW_MS, keys_max: int = 1000,
    removes: bool = True,
) -> int:  # fmt: skip
    """Run one pass; return where the next one starts."""
    disk = disk or RealDisk()
    dirt = measure(compactable(log, clean_end), now_ms)
    aborted = [transaction for segment in log.segments for transaction in segment.transaction_index.since(0)]
    running = Compaction(
        dirt,
        disk=disk,
        now_ms=now_ms,
        keys_max=keys_max,
        aborted=aborted,
        last_batches=log.producers.snapshot().last_batches(),
    )
    for cleaned in running.run():
        if cleaned is not None:
            new, retired = replace(disk, log.directory, cleaned.old, cleaned.offset_end)
            log.replace_segments(cleaned.old, new)
            if removes:
                remove_retired(disk, retired)
    return running.offset_end


def stored(log: PartitionLog) -> Iterator[tuple[BatchHeader, Sequence[Record]]]:
    """Yield every visible batch, read as a consumer reads."""
    offset = log.log_start_offset
    while (fetched := log.visible.read(offset, 1 << 20)) is not None:
        data = fetched.read()
        for position, header in batches(data):
            yield header, decode_batch(data, position)
            offset = header.last_offset + 1


def offsets(log: PartitionLog) -> list[int]:
    """Return the offset of every remaining record, markers excluded."""
    return [record.offset for header, records in stored(log) if not header.is_control for record in records]


def table(log: PartitionLog) -> dict[str, str]:
    """Return key → value as a reader of committed data sees the whole log."""
    aborted = log.visible.aborted_transactions(log.log_start_offset, log.high_watermark)
    known: dict[str, str] = {}
    ends = {(producer_id, first): _marker_after(log, producer_id, first) for producer_id, first in aborted}
    for header, records in stored(log):
        if header.is_control or any(
            producer_id == header.producer_id and first <= header.base_offset < end
            for (producer_id, first), end in ends.items()
        ):
            continue
        for record in records:
            key = (record.key or b"").decode()
            if record.value is None:
                known.pop(key, None)
            else:
                known[key] = record.value.decode()
    return known


def _marker_after(log: PartitionLog, producer_id: int, offset: int) -> int:
    for header, _records in stored(log):
        if header.is_control and header.producer_id == producer_id and header.base_offset > offset:
            return header.base_offset
    raise AssertionError(f"producer {producer_id} has no marker after {offset}")
