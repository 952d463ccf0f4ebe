"""The segments of one log, in order: which of them holds an offset, which never change again, which leave."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from onceflow.log.segment import Segment


class Segments:
    """Never empty; the last one is active, it grows. One thread owns them.

    Both lists are replaced when they change, so that a reader in another thread may hold on to the old ones.
    """

    __slots__ = ("active", "bases", "in_order")

    def __init__(self, in_order: list[Segment]) -> None:
        self._set(in_order)

    def _set(self, in_order: list[Segment]) -> None:
        self.in_order = in_order
        self.bases = [segment.base_offset for segment in in_order]
        self.active = in_order[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.in_order)

    def number_at(self, offset: int) -> int:
        """The number of the segment that holds `offset`, which is not before the first one's base."""
        return bisect_right(self.bases, offset) - 1

    def at(self, offset: int) -> Segment:
        return self.in_order[bisect_right(self.bases, offset) - 1]

    def add(self, active: Segment) -> None:
        """Begins a new segment at the end."""
        self._set([*self.in_order, active])

    def finished(self) -> list[Segment]:
        """From the first one on those that never change again and are on the disk whole."""
        segments = self.in_order
        number = next((n for n, segment in enumerate(segments) if not segment.is_sealed), len(segments))
        return segments[:number]

    def with_ends(self, log_end_offset: int) -> list[tuple[Segment, int]]:
        """Each segment with the offset where it ends. Any thread."""
        segments = self.in_order
        return list(zip(segments, [*(each.base_offset for each in segments[1:]), log_end_offset], strict=True))

    def end_of(self, number: int, log_end_offset: int) -> int:
        """Where the segment of that number ends."""
        return self.bases[number + 1] if number + 1 < len(self.bases) else log_end_offset

    def has_below(self, offset: int) -> bool:
        """Whether a segment lies wholly below `offset`."""
        return self.number_at(offset) > 0

    def take_below(self, offset: int) -> list[Segment]:
        """Takes out the segments wholly below `offset`, except those that are not finished, and returns them."""
        number = max(0, min(self.number_at(offset), len(self.finished())))
        gone = self.in_order[:number]
        if gone:
            self._set(self.in_order[number:])
        return gone

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Puts a segment in the place of its neighbours `old`. Raises ValueError where they are not here."""
        number = self.in_order.index(old[0])
        end = number + len(old)
        if self.in_order[number:end] != list(old):
            raise ValueError(f"the segments from {old[0].base_offset} on are not the ones that {new.path} replaces")
        self._set([*self.in_order[:number], new, *self.in_order[end:]])
