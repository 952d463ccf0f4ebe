"""Windows over the buckets of the read model: any length and slide of whole minutes.

A window is half-open, [start, end), and starts at a multiple of its slide since 1970-01-01T00:00Z, as in Spark. It
consists of whole buckets: days where possible, then hours, then minutes at its ends. Its sums are those of the buckets;
its users are the union of theirs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onceflow.errors import OnceflowError


class WrongWindow(OnceflowError):
    """A length or a slide that is not a number of whole minutes, or a slide above the length."""


@dataclass(frozen=True, slots=True)
class Width:
    """Size of a bucket."""

    name: str
    ms: int

    def start_of(self, time_ms: int) -> int:
        """Return the start of the bucket that a time is in."""
        return time_ms - time_ms % self.ms


MINUTE = Width("minute", 60_000)
HOUR = Width("hour", 3_600_000)
DAY = Width("day", 86_400_000)
WIDTHS = (MINUTE, HOUR, DAY)
"""All sizes, each a multiple of the one before."""


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """The time from `start_ms` to `start_ms + width.ms`, end exclusive."""

    start_ms: int
    width: Width

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.width.ms


@dataclass(frozen=True, slots=True)
class Window:
    """Half-open time in ms since 1970."""

    start_ms: int
    end_ms: int

    def buckets(self) -> tuple[Bucket, ...]:
        """Return the fewest buckets that are exactly this window, in the order of time."""
        return tuple(_cover(self.start_ms, self.end_ms, WIDTHS))


def windows_between(begin_ms: int, end_ms: int, length_ms: int, slide_ms: int) -> Iterator[Window]:
    """Yield the windows that overlap [begin_ms, end_ms), in the order of time. Raises WrongWindow."""
    for name, value in (("length", length_ms), ("slide", slide_ms)):
        if value < MINUTE.ms or value % MINUTE.ms:
            raise WrongWindow(f"{name} of windows: {value} ms, expected one or more whole minutes")
    if slide_ms > length_ms:
        raise WrongWindow(f"slide of windows: {slide_ms} ms, expected at most their length of {length_ms} ms")
    start_ms = (begin_ms - length_ms) // slide_ms * slide_ms + slide_ms
    while start_ms < end_ms:
        yield Window(start_ms, start_ms + length_ms)
        start_ms += slide_ms


def _cover(begin_ms: int, end_ms: int, widths: Sequence[Width]) -> Iterator[Bucket]:
    """Yield the whole buckets of the largest width, between what smaller ones cover at both ends."""
    if begin_ms >= end_ms:
        return
    *smaller, largest = widths
    first_ms, last_ms = -(-begin_ms // largest.ms) * largest.ms, end_ms // largest.ms * largest.ms
    if first_ms >= last_ms:
        yield from _cover(begin_ms, end_ms, smaller)
        return
    yield from _cover(begin_ms, first_ms, smaller)
    for start_ms in range(first_ms, last_ms, largest.ms):
        yield Bucket(start_ms, largest)
    yield from _cover(last_ms, end_ms, smaller)
