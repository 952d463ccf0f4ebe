"""Ordered segments of one log: lookup by offset, finished ones, removal."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from onceflow.log.segment import Segment


class Segments:
    """Segments in order, never empty, and the offsets where their log starts and ends.

    The last segment is active and grows. One thread owns them. Both lists are replaced when they change, so that a
    reader in another thread may keep the old ones.
    """

    __slots__ = ("active", "bases", "end_offset", "in_order", "start_offset")

    def __init__(self, in_order: list[Segment], start_offset: int, end_offset: int) -> None:
        self.start_offset = start_offset
        """First offset of the log, which may be in the middle of the first segment."""
        self.end_offset = end_offset
        """Offset of the next record."""
        self._set(in_order)

    def _set(self, in_order: list[Segment]) -> None:
        self.in_order = in_order
        self.bases = [segment.base_offset for segment in in_order]
        self.active = in_order[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.in_order)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.in_order)

    def number_at(self, offset: int) -> int:
        """Return the number of the segment that contains `offset`, which is not before the first one's base."""
        return bisect_right(self.bases, offset) - 1

    def at(self, offset: int) -> Segment:
        return self.in_order[bisect_right(self.bases, offset) - 1]

    def add(self, active: Segment) -> None:
        """Start a new segment at the end."""
        self._set([*self.in_order, active])

    def finished(self) -> list[Segment]:
        """Return the first segments, those that never change again and are completely durable."""
        segments = self.in_order
        number = next((n for n, segment in enumerate(segments) if not segment.is_sealed), len(segments))
        return segments[:number]

    def with_ends(self) -> list[tuple[Segment, int]]:
        """Return each segment with its end offset. Any thread."""
        segments = self.in_order
        return list(zip(segments, [*(segment.base_offset for segment in segments[1:]), self.end_offset], strict=True))

    def end_of(self, number: int) -> int:
        """Return the end offset of the segment of that number."""
        return self.bases[number + 1] if number + 1 < len(self.bases) else self.end_offset

    def has_below_start(self) -> bool:
        """Return whether a segment is wholly below the log's start."""
        return self.number_at(self.start_offset) > 0

    def remove_below_start(self) -> list[Segment]:
        """Remove the segments wholly below the log's start, except unfinished ones, and return them."""
        number = max(0, min(self.number_at(self.start_offset), len(self.finished())))
        removed = self.in_order[:number]
        if removed:
            self._set(self.in_order[number:])
        return removed

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the neighbours `old` by a segment. Raises ValueError if they have left the log."""
        number = self.in_order.index(old[0])
        end = number + len(old)
        if self.in_order[number:end] != list(old):
            raise ValueError(f"the segments from {old[0].base_offset} on are not those that {new.path} replaces")
        self._set([*self.in_order[:number], new, *self.in_order[end:]])
