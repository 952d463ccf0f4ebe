"""The visible part of a log, which ends at the high watermark: reads, searches by time, aborted transactions."""

from functools import partial
from operator import itemgetter

from onceflow.log.config import LogConfig
from onceflow.log.errors import OffsetOutOfRange
from onceflow.log.segment import NO_TIMESTAMP, Segment, Slice
from onceflow.log.segments import Segments
from onceflow.log.time_search import TimeSearch, first_at_or_after, latest
from onceflow.log.transactions import OpenTransactions, aborted_between

_NO_WAITING_READER = (-1, -1, 0)


class VisibleLog:
    """The part of a log that readers see; it belongs to the log's thread."""

    def __init__(self, name: str, config: LogConfig, segments: Segments, transactions: OpenTransactions) -> None:
        self.name = name
        self.config = config
        self._segments = segments
        self._transactions = transactions
        active = segments.active
        self.advance(active, active.size_bytes, (NO_TIMESTAMP, 0), segments.end_offset)
        self.follow_segments()

    def advance(self, active: Segment, size_bytes: int, max_timestamp: tuple[int, int], offset_end: int) -> None:
        """Move the high watermark to `offset_end`, which is at `size_bytes` of segment `active`."""
        self._active = active
        self._bytes_of_active = size_bytes
        self.max_timestamp = max_timestamp
        """(timestamp, last offset of its batch) of the latest batch that became visible since the start."""
        self.high_watermark = offset_end
        self._transactions.forget_ended(offset_end)

    def advance_to(self, offset: int) -> None:
        """Move the high watermark of a replica to `offset`, at most the log's end; it may be in the middle of a batch,
        which is not visible then."""
        segment = self._segments.at(max(offset, self._segments.bases[0]))
        if segment is self._active and offset >= self.high_watermark:
            position, latest = self._bytes_of_active, self.max_timestamp
        else:
            indexed = segment.offset_index.position_for_offset(offset)
            position = segment.verified_position(indexed, segment.size_bytes, offset)
            latest = self.max_timestamp if offset >= self.high_watermark else (NO_TIMESTAMP, 0)
        while position < segment.size_bytes:
            header = segment.header_at(position)
            if header.last_offset >= offset:
                break
            latest = max(latest, (header.max_timestamp, header.last_offset), key=itemgetter(0))
            position += header.size_bytes
        self.advance(segment, position, latest, offset)

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction has durably ended; readers of committed data stop here (Kafka's
        UnifiedLog)."""
        unstable = self._transactions.first_unstable_offset
        if unstable < 0:
            return self.high_watermark
        return min(max(unstable, self._segments.start_offset), self.high_watermark)

    def read(
        self, offset: int, size_bytes_max: int, *, offset_end: int | None = None, at_least_one_batch: bool = True
    ) -> Slice | None:
        """Return whole batches of one segment, from the one that contains `offset`, ending at or before `offset_end`.

        `offset_end` is the high watermark by default, and never more. The first batch is returned even if it is larger
        than `size_bytes_max`, unless `at_least_one_batch` is false. None: there is nothing to read. Raises
        OffsetOutOfRange, CorruptBatch where the file was damaged while it was open.
        """
        segments = self._segments
        if not segments.start_offset <= offset <= segments.end_offset:
            raise OffsetOutOfRange(self.name, offset, segments.start_offset, segments.end_offset)
        visible = self.high_watermark if offset_end is None else min(offset_end, self.high_watermark)
        if offset >= visible:
            if offset == self.high_watermark:
                self._waited_at = (offset, self._active.base_offset, self._bytes_of_active)
            return None
        number = segments.number_at(offset)
        segment = segments.in_order[number]
        end = self._bytes_of(segment)
        if visible < self.high_watermark:
            beyond = segment.find(visible, end)
            end = beyond[0] if beyond is not None else end
        waited_offset, waited_base, position = self._waited_at
        is_known = offset == waited_offset and segment.base_offset == waited_base
        if is_known and position < end <= position + size_bytes_max:
            return Slice(segment.file, position, end - position, self._has_visible_after(number, visible))
        span = segment.find(offset, end, begin=position if is_known else None)
        if span is None:
            return None
        begin, first_bytes = span
        if end - begin > size_bytes_max:
            if first_bytes > size_bytes_max:
                if not at_least_one_batch:
                    return None
                is_cut = begin + first_bytes < end or self._has_visible_after(number, visible)
                return Slice(segment.file, begin, first_bytes, is_cut)
            end = segment.last_boundary(begin + first_bytes, begin + size_bytes_max, end)
            return Slice(segment.file, begin, end - begin, is_cut=True)
        return Slice(segment.file, begin, end - begin, self._has_visible_after(number, visible))

    def read_beyond(self, offset: int, size_bytes_max: int, *, at_least_one_batch: bool) -> Slice | None:
        """Return whole batches for another replica, as `read` does, up to the log's end: it may copy what is not synced
        here yet. Raises OffsetOutOfRange, CorruptBatch."""
        segments = self._segments
        if not segments.start_offset <= offset <= segments.end_offset:
            raise OffsetOutOfRange(self.name, offset, segments.start_offset, segments.end_offset)
        number = segments.number_at(offset)
        segment = segments.in_order[number]
        end, has_later = segment.size_bytes, number + 1 < len(segments.in_order)
        span = segment.find(offset, end)
        if span is None:
            return None
        begin, first_bytes = span
        if end - begin <= size_bytes_max:
            return Slice(segment.file, begin, end - begin, has_later)
        if first_bytes > size_bytes_max:
            return Slice(segment.file, begin, first_bytes, is_cut=True) if at_least_one_batch else None
        return Slice(
            segment.file,
            begin,
            segment.last_boundary(begin + first_bytes, begin + size_bytes_max, end) - begin,
            is_cut=True,
        )

    def _has_visible_after(self, number: int, visible: int) -> bool:
        """Return whether the segment after that one has batches below offset `visible`."""
        bases = self._segments.bases
        return number + 1 < len(bases) and bases[number + 1] < visible

    def _bytes_of(self, segment: Segment) -> int:
        """Return the bytes of a segment below the high watermark."""
        if segment is self._active:
            return self._bytes_of_active
        return segment.size_bytes if segment.base_offset < self.high_watermark else 0

    def aborted_transactions(self, offset_begin: int, offset_end: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions that may have records in a range, by marker.

        The range is from `offset_begin` up to, not including, `offset_end`.
        """
        number = max(self._segments.number_at(offset_begin), 0)
        indexes = [segment.transaction_index for segment in self._segments.in_order[number:]]
        return aborted_between(indexes, offset_begin, offset_end)

    def aborted_in(self, offset: int, data: Slice | None) -> list[tuple[int, int]]:
        """Return `aborted_transactions` for the result of `read(offset, …)`."""
        if data is None:
            return []
        segments = self._segments
        number = segments.number_at(offset)
        if not any(segment.transaction_index.count for segment in segments.in_order[number:]):
            return []
        offset_end = segments.in_order[number].offset_beyond(data.position + data.size_bytes)
        return self.aborted_transactions(offset, segments.end_of(number) if offset_end is None else offset_end)

    def segment_starts(self) -> list[tuple[int, int]]:
        """Return (first offset, latest timestamp or -1) of each segment that starts below the high watermark, in
        order."""
        start = self._segments.start_offset
        visible = [segment for segment in self._segments if segment.base_offset <= self.high_watermark]
        return [(max(segment.base_offset, start), segment.max_timestamp_ms) for segment in visible]

    def search_timestamp(self, timestamp_ms: int) -> TimeSearch:
        """Search the (timestamp, offset) of the first visible record with a timestamp ≥ `timestamp_ms`."""
        return partial(
            first_at_or_after,
            timestamp_ms,
            self._segments.start_offset,
            self._with_visible_bytes(),
            self.config.batch_unpacked_bytes_max,
        )

    def search_max_timestamp(self) -> TimeSearch:
        """Search the visible record with the latest timestamp (ListOffsets -3), the first of equals."""
        return partial(
            latest,
            self.max_timestamp,
            self.high_watermark,
            self._with_visible_bytes(),
            self.config.batch_unpacked_bytes_max,
        )

    def _with_visible_bytes(self) -> list[tuple[Segment, int]]:
        return [(segment, self._bytes_of(segment)) for segment in self._segments]

    def follow_segments(self) -> None:
        """Forget what was known of segments that were deleted or replaced."""
        self._waited_at = _NO_WAITING_READER
        """(offset, base offset of its segment, position) where a reader reached the end: its next read starts there."""
        self.max_timestamp = self._max_timestamp_of_active()

    def _max_timestamp_of_active(self) -> tuple[int, int]:
        """Return the active segment's latest timestamp if it is visible; other segments' timestamps are read when
        needed."""
        active = self._segments.active
        is_visible = active.max_timestamp_offset < self.high_watermark
        return (active.max_timestamp_ms, active.max_timestamp_offset) if is_visible else (NO_TIMESTAMP, 0)
