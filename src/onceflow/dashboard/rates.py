"""Events counted per second, in buckets of ten seconds; no I/O.

A micro-batch's events belong to the bucket in which it finished. A bucket is shown after it closes and does not change
then: it closes CLOSING_MS after its end, when every batch that finished in it has been read. A bucket is unknown (None)
before the oldest batch, or if older batches of it may have left the history. A bucket without a batch is 0.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Protocol

STEP_MS = 10_000
CLOSING_MS = 3_000
"""A batch is read within a second after its end."""
SHOWN_MS_MAX = 600_000
SHOWN_MS_MIN = 120_000
AVERAGE_MS = 60_000
GAP_MS_DEFAULT = 5_000
"""Default trigger interval, used when there is only one batch."""


class FinishedBatch(Protocol):
    """Part of `onceflow.clicks.results.HistoryEntry` used here."""

    @property
    def finished_ms(self) -> int: ...
    @property
    def events(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Rates:
    """Events per second, one value per `step_ms` starting at `begin_ms`, and the mean of the last minute."""

    begin_ms: int
    step_ms: int
    per_second: list[float | None]
    last_minute: float | None


def usual_gap_ms(finishes_ms: Sequence[int]) -> int:
    """Return the median time between consecutive finish times; they are given oldest first."""
    gaps = [later - earlier for earlier, later in pairwise(finishes_ms) if later > earlier]
    return max(1, round(median(gaps))) if gaps else GAP_MS_DEFAULT


def rates(batches: Sequence[FinishedBatch], now_ms: int, *, is_whole: bool = True) -> Rates:
    """Return the rates of the last two to ten minutes, as far back as the batches reach.

    `is_whole` is true if no earlier batch is missing.
    """
    end_ms = _bucket_ms(now_ms - CLOSING_MS)
    known_ms = _known_begin_ms(batches, is_whole=is_whole)
    shown_ms = SHOWN_MS_MIN if known_ms is None else min(max(end_ms - known_ms, SHOWN_MS_MIN), SHOWN_MS_MAX)
    begin_ms = end_ms - shown_ms
    events: Counter[int] = Counter()
    for batch in batches:
        events[_bucket_ms(batch.finished_ms)] += batch.events
    values = [
        None if known_ms is None or bucket_ms < known_ms else round(events[bucket_ms] * 1_000 / STEP_MS, 3)
        for bucket_ms in range(begin_ms, end_ms, STEP_MS)
    ]
    known = [value for value in values[-AVERAGE_MS // STEP_MS :] if value is not None]
    return Rates(begin_ms, STEP_MS, values, round(sum(known) / len(known), 3) if known else None)


def _known_begin_ms(batches: Sequence[FinishedBatch], *, is_whole: bool) -> int | None:
    if not batches:
        return None
    oldest_ms = _bucket_ms(min(batch.finished_ms for batch in batches))
    return oldest_ms if is_whole else oldest_ms + STEP_MS


def _bucket_ms(at_ms: int) -> int:
    return at_ms // STEP_MS * STEP_MS
