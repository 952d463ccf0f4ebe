"""Searches by time. They read batches and may decompress them, so a thread that may block runs them.

A search is made by the log's owner (`PartitionLog.search_timestamp`), who fixes the segments and how much of each is
visible; running it changes nothing. It ends after one batch that is dated late enough: of earlier ones only the
headers are read, and of that one at most `batch_unpacked_bytes_max` bytes are unpacked. Running it raises
CorruptBatch, or OSError, for instance where retention has removed a segment meanwhile.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter

from onceflow.log.segment import Segment

TimeSearch = Callable[[], tuple[int, int] | None]
"""(timestamp, offset), or None where no visible record is dated so."""


def first_at_or_after(
    timestamp_ms: int, offset_begin: int, segments: Sequence[tuple[Segment, int]], unpacked_bytes_max: int
) -> tuple[int, int] | None:
    """In segments, each with the position where what is visible of it ends, in order."""
    for segment, end in segments:
        if segment.max_timestamp_ms < timestamp_ms:
            continue
        found = segment.find_timestamp(timestamp_ms, offset_begin, end, unpacked_bytes_max)
        if found is not None:
            return found
    return None


def latest(
    known: tuple[int, int], offset_end: int, segments: Sequence[tuple[Segment, int]], unpacked_bytes_max: int
) -> tuple[int, int] | None:
    """In all segments of a log, each with the position where what is visible of it ends; the first of equals.

    `known` is (timestamp, last offset of its batch) of the latest that is visible of the last segment, which grows,
    and of those whose own latest batch is not visible yet, which is what is below `offset_end`.
    """
    dated = [(each.max_timestamp_ms, each.max_timestamp_offset) for each, _ in segments[:-1]]
    timestamp_ms, last_offset = max([*(each for each in dated if each[1] < offset_end), known], key=itemgetter(0))
    if timestamp_ms < 0:
        return None
    segment, end = max((each for each in segments if each[0].base_offset <= last_offset), key=_base_offset)
    found = segment.find(last_offset, end)
    times = segment.times_at(*found, unpacked_bytes_max) if found is not None else ()
    return max(times, key=itemgetter(0), default=None)


def _base_offset(candidate: tuple[Segment, int]) -> int:
    return candidate[0].base_offset
