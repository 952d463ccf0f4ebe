"""Searches by time. They read and may decompress batches, so they run in a thread that may block.

The log's owner creates a search (`VisibleLog.search_timestamp`), which fixes the segments and the visible part of
each; running it changes nothing. It ends after one batch with a late enough timestamp. It reads only the headers of
earlier batches, and decompresses at most `batch_unpacked_bytes_max` bytes of that one. Running it raises CorruptBatch,
or OSError, for instance where retention has removed a segment meanwhile.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter

from onceflow.log.segment import Segment

TimeSearch = Callable[[], tuple[int, int] | None]
"""(timestamp, offset), or None if no visible record has such a timestamp."""


def first_at_or_after(
    timestamp_ms: int, offset_begin: int, segments: Sequence[tuple[Segment, int]], unpacked_bytes_max: int
) -> tuple[int, int] | None:
    """Return the first record that is late enough in ordered segments, each with the position where its visible part
    ends."""
    for segment, end in segments:
        if segment.max_timestamp_ms < timestamp_ms:
            continue
        record_time = segment.find_timestamp(timestamp_ms, offset_begin, end, unpacked_bytes_max)
        if record_time is not None:
            return record_time
    return None


def latest(
    known: tuple[int, int], offset_end: int, segments: Sequence[tuple[Segment, int]], unpacked_bytes_max: int
) -> tuple[int, int] | None:
    """Return the latest record of a log's segments, each with the end of its visible part; the first of equals.

    `known` is (timestamp, last offset of its batch) of the latest visible batch in the last segment, which grows, and
    in those whose own latest batch is not visible yet. Visible is what is below `offset_end`.
    """
    latest_of_segments = [(segment.max_timestamp_ms, segment.max_timestamp_offset) for segment, _ in segments[:-1]]
    visible = [candidate for candidate in latest_of_segments if candidate[1] < offset_end]
    timestamp_ms, last_offset = max([*visible, known], key=itemgetter(0))
    if timestamp_ms < 0:
        return None
    candidates = (candidate for candidate in segments if candidate[0].base_offset <= last_offset)
    segment, end = max(candidates, key=_base_offset)
    span = segment.find(last_offset, end)
    times = segment.times_at(*span, unpacked_bytes_max) if span is not None else ()
    return max(times, key=itemgetter(0), default=None)


def _base_offset(candidate: tuple[Segment, int]) -> int:
    return candidate[0].base_offset
