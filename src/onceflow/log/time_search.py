"""Searches by time. They read batches and may decompress them, so a thread that may block runs them.

A search is made by the log's owner (`PartitionLog.search_timestamp`), who fixes the segments and how much of each is
visible; running it changes nothing. It ends after one batch that is dated late enough: of earlier ones only the
headers are read, and of that one at most `onceflow.wire.batch.SIZE_BYTES_MAX` bytes are unpacked. Running it raises
CorruptBatch, or OSError, for instance where retention has removed a segment meanwhile.
"""

from collections.abc import Callable, Sequence

from onceflow.log.segment import Segment

TimeSearch = Callable[[], tuple[int, int] | None]
"""(timestamp, offset), or None where no visible record is dated so."""


def first_at_or_after(
    timestamp_ms: int, offset_begin: int, candidates: Sequence[tuple[Segment, int]]
) -> tuple[int, int] | None:
    """In segments, each with the position where what is visible of it ends, in order."""
    for segment, end in candidates:
        found = segment.find_timestamp(timestamp_ms, offset_begin, end)
        if found is not None:
            return found
    return None


def latest_of_batch(segment: Segment, last_offset: int, end: int) -> tuple[int, int] | None:
    """In the batch that ends with `last_offset`; the first of equals."""
    found = segment.find(last_offset, end)
    times = segment.times_at(*found) if found is not None else ()
    return max(times, key=lambda item: item[0], default=None)
