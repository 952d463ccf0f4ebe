"""Windows over the buckets of the read model: any length and slide of whole minutes.

A window is half-open, [start, end), and starts at a multiple of its slide since 1970-01-01T00:00Z, as in Spark. It
consists of whole buckets: days where possible, then hours, then minutes at its ends. Its sums are those of the buckets;
its users are the union of theirs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

WINDOWS_MAX = 10_000
BUCKETS_MAX = 200_000
ROWS_MAX = 50_000
"""Maximum of the windows of one query, of their buckets together, and of their rows with the largest values."""


class WrongWindow(OnceflowError):
    """A length or a slide that is not a number of whole minutes, or a slide above the length."""


class TooMuch(OnceflowError):
    """A query whose result, or the reading for it, would exceed a limit."""


@dataclass(frozen=True, slots=True)
class Width:
    """Size of a bucket."""

    name: str
    ms: int

    def start_of(self, time_ms: int) -> int:
        """Return the start of the bucket that a time is in."""
        return time_ms - time_ms % self.ms

    def end_of(self, time_ms: int) -> int:
        """Return the end of the bucket that a time is in."""
        return self.start_of(time_ms) + self.ms


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

    @property
    def size(self) -> int:
        """Number of its buckets."""
        return _cover_size(self.start_ms, self.end_ms, WIDTHS)

    def buckets(self) -> tuple[Bucket, ...]:
        """Return the fewest buckets that are exactly this window, in the order of time."""
        return tuple(_cover(self.start_ms, self.end_ms, WIDTHS))


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """Counts of one window, in total or of one value of a dimension."""

    start_ms: int
    end_ms: int
    value: str | None
    events: int
    clicks: int
    users: int | None
    """None if retention has removed users of the window, or if they were not asked for."""
    users_exact: bool
    """Whether `users` is exact; otherwise it is a HyperLogLog's estimate, with a standard error of 0.81 %."""


def windows_between(begin_ms: int, end_ms: int, length_ms: int, slide_ms: int) -> list[Window]:
    """Return the windows that overlap [begin_ms, end_ms), in the order of time. Raises WrongWindow and TooMuch."""
    for name, value in (("length", length_ms), ("slide", slide_ms)):
        if value < MINUTE.ms or value % MINUTE.ms:
            raise WrongWindow(f"{name} of windows: {value} ms, expected one or more whole minutes")
    if slide_ms > length_ms:
        slide, length = (span_ms // MINUTE.ms for span_ms in (slide_ms, length_ms))
        raise WrongWindow(f"slide of windows: {slide} minutes, expected at most their length, {length}")
    start_ms = (begin_ms - length_ms) // slide_ms * slide_ms + slide_ms
    starts = range(start_ms, end_ms, slide_ms)
    # Not len(): a range of billions has more than len() returns.
    refuse_more_windows(max(0, -(-(end_ms - start_ms) // slide_ms)))
    chosen = [Window(start_ms, start_ms + length_ms) for start_ms in starts]
    refuse_more_buckets(chosen)
    return chosen


def refuse_more_windows(count: int, count_max: int = WINDOWS_MAX) -> None:
    """Raise TooMuch for more windows than one query may have."""
    if count > count_max:
        raise TooMuch(f"these are {count:,} windows, and one query has at most {count_max:,}: {Remedy.ASK_LESS}")


def refuse_more_rows(windows: Sequence[Window], values: int | None) -> None:
    """Raise TooMuch for windows that would have more rows with the largest `values` than one query may return."""
    count = len(windows) * (values or 0)
    if count > ROWS_MAX:
        raise TooMuch(
            f"{len(windows):,} windows with {values} values are {count:,} rows, at most {ROWS_MAX:,} are allowed: "
            f"{Remedy.ASK_LESS}"
        )


def refuse_more_buckets(windows: Iterable[Window]) -> None:
    """Raise TooMuch for windows of more buckets than one query may read."""
    count = sum(window.size for window in windows)
    if count > BUCKETS_MAX:
        raise TooMuch(
            f"these windows have {count:,} buckets, and one query reads at most {BUCKETS_MAX:,}: {Remedy.ASK_LESS}"
        )


def _cover_size(begin_ms: int, end_ms: int, widths: Sequence[Width]) -> int:
    """Return the number of buckets that `_cover` yields."""
    if begin_ms >= end_ms:
        return 0
    *smaller, largest = widths
    first_ms, last_ms = -(-begin_ms // largest.ms) * largest.ms, end_ms // largest.ms * largest.ms
    if not smaller:
        return (last_ms - first_ms) // largest.ms
    if first_ms >= last_ms:
        return _cover_size(begin_ms, end_ms, smaller)
    middle = (last_ms - first_ms) // largest.ms
    return _cover_size(begin_ms, first_ms, smaller) + middle + _cover_size(last_ms, end_ms, smaller)


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
