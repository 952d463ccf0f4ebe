"""Records of a partition one by one, for commands that show or check them; Spark reads columns instead."""

import time
from collections.abc import Iterator, Mapping

from onceflow.client.cluster import EARLIEST, FETCH_BYTES, LATEST, Cluster, Fetched
from onceflow.client.errors import OffsetOutOfRange, RequestTimedOut
from onceflow.wire.batch import BatchHeader, Record, batches, decode_batch
from onceflow.wire.markers import decode_marker

_WAIT_MS = 500
_FOLLOW_PAUSE_S = 0.1


def read_records(
    cluster: Cluster, topic: str, partition: int, offset_begin: int, offset_end: int, *, read_committed: bool = True
) -> Iterator[Record]:
    """Yield the records of [offset_begin, offset_end) in order; transactions or compaction may have left gaps.

    Waits for records that are not in the log yet, at most the cluster's `timeout_ms` without progress, then raises
    RequestTimedOut. Raises OffsetOutOfRange when `offset_begin` was deleted, and what `Cluster.fetch` and
    `decode_batch` raise.
    """
    offset = offset_begin
    while offset < offset_end:
        fetched, offset_after = _fetch_some(cluster, topic, partition, offset, offset_end, read_committed)
        yield from committed_records(fetched, offset, offset_end)
        offset = offset_after


def read_partitions(
    cluster: Cluster,
    topic: str,
    begins: Mapping[int, int],
    ends: Mapping[int, int] | None,
    *,
    read_committed: bool = True,
) -> Iterator[tuple[int, Record]]:
    """Yield (partition, record) of several partitions, one fetch each in turn, from `begins` up to `ends` or
    indefinitely.

    Raises OffsetOutOfRange when the log ends before what was read, like that of a recreated topic.
    """
    offsets = dict(begins)
    while True:
        until = _ends(cluster, topic, offsets, read_committed) if ends is None else ends
        behind = [partition for partition, offset in offsets.items() if offset < until[partition]]
        if not behind and ends is not None:
            return
        if not behind:
            time.sleep(_FOLLOW_PAUSE_S)
        for partition in behind:
            begin, end = offsets[partition], until[partition]
            fetched, offsets[partition] = _fetch_some(cluster, topic, partition, begin, end, read_committed)
            for record in committed_records(fetched, begin, end):
                yield partition, record


def _ends(cluster: Cluster, topic: str, offsets: Mapping[int, int], read_committed: bool) -> dict[int, int]:
    latest = cluster.list_offsets(topic, dict.fromkeys(offsets, LATEST), read_committed=read_committed)
    ends = {partition: at.offset for partition, at in latest.items()}
    for partition, offset in offsets.items():
        if ends[partition] < offset:
            start = cluster.list_offsets(topic, {partition: EARLIEST})[partition].offset
            raise OffsetOutOfRange(topic, partition, offset, start, ends[partition])
    return ends


def _fetch_some(
    cluster: Cluster, topic: str, partition: int, offset: int, offset_end: int, read_committed: bool
) -> tuple[Fetched, int]:
    """Return the next records and the offset after them, `offset_end` if none are left below it."""
    # A broker sends a larger first batch anyway, so few offsets need few bytes.
    size_bytes_max = min(FETCH_BYTES, 64 * 1024 + 1024 * (offset_end - offset))
    deadline = time.monotonic() + cluster.timeout_ms / 1000
    while True:
        fetched = cluster.fetch(
            topic, partition, offset, size_bytes_max=size_bytes_max, wait_ms=_WAIT_MS, read_committed=read_committed
        )
        visible_end = fetched.last_stable_offset if read_committed else fetched.high_watermark
        offset_after = next_offset(fetched, offset)
        if offset_after > offset:
            return fetched, offset_after
        if visible_end >= offset_end:
            return fetched, offset_end
        if time.monotonic() > deadline:
            raise RequestTimedOut(
                f"{topic}-{partition}: waited {cluster.timeout_ms} ms at offset {offset} for records up to "
                f"{offset_end}, but the log ends at {visible_end}; has their transaction ended?"
            )


def next_offset(fetched: Fetched, offset: int) -> int:
    """Return the start of the next fetch: after the last complete batch, or `offset` if there is none."""
    for _, header in batches(fetched.records):
        offset = header.last_offset + 1
    return offset


def committed_records(fetched: Fetched, offset_begin: int, offset_end: int) -> Iterator[Record]:
    """Yield one fetch's records within [offset_begin, offset_end), without markers and aborted transactions."""
    for position, header in committed_batches(fetched):
        if header.base_offset >= offset_end:
            return
        if header.last_offset >= offset_begin:
            for record in decode_batch(fetched.records, position):
                if offset_begin <= record.offset < offset_end:
                    yield record


def committed_batches(fetched: Fetched) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of one fetch's whole batches, without markers and aborted transactions.

    A producer's batches are aborted from the transaction's first offset to its abort marker (as in Kafka's
    CompletedFetch).
    """
    waiting = sorted(fetched.aborted, key=lambda aborted: aborted[1])
    aborting: set[int] = set()
    for position, header in batches(fetched.records):
        while waiting and waiting[0][1] <= header.last_offset:
            aborting.add(waiting.pop(0)[0])
        if header.is_control:
            if _is_abort_marker(fetched.records, position):
                aborting.discard(header.producer_id)
        elif not _is_aborted(header, aborting):
            yield position, header


def _is_aborted(header: BatchHeader, aborting: set[int]) -> bool:
    return header.is_transactional and header.producer_id in aborting


def _is_abort_marker(records: memoryview, position: int) -> bool:
    marker = decode_marker(records, position)
    return marker is not None and not marker.commit
