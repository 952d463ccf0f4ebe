"""Events per second from the micro-batches that Redis says are complete: arithmetic alone.

A micro-batch is known by its finish and its number of events (the difference of its offsets). Its events are spread
evenly over the time since the batch before it finished, but over no more than twice the usual gap: after a silence
the batch holds what came lately, not what came during the silence. A bucket of the series is the part of each span
that falls into it. A time before the oldest batch is unknown (None), a silence after the newest is zero.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Protocol

STEP_MS = 5_000
SHOWN_MS_MAX = 600_000
SHOWN_MS_MIN = 120_000
AVERAGE_MS = 60_000
GAP_MS_DEFAULT = 5_000
"""What one lone batch is taken to span: the default trigger."""


class FinishedBatch(Protocol):
    """What `onceflow.clicks.results.HistoryEntry` offers."""

    @property
    def finished_ms(self) -> int: ...
    @property
    def events(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Events spread evenly over [begin_ms, end_ms)."""

    begin_ms: int
    end_ms: int
    events: int

    def events_within(self, begin_ms: int, end_ms: int) -> float:
        """Return the part of the events that falls into [begin_ms, end_ms)."""
        overlap_ms = min(self.end_ms, end_ms) - max(self.begin_ms, begin_ms)
        return self.events * max(0, overlap_ms) / (self.end_ms - self.begin_ms)


@dataclass(frozen=True, slots=True)
class Rates:
    """A series of events per second, one value each `step_ms` from `begin_ms` on, and the last minute's mean."""

    begin_ms: int
    step_ms: int
    per_second: list[float | None]
    last_minute: float | None


def usual_gap_ms(finishes_ms: Sequence[int]) -> int:
    """Return the median time between one finish and the next, oldest first."""
    gaps = [later - earlier for earlier, later in pairwise(finishes_ms) if later > earlier]
    return max(1, round(median(gaps))) if gaps else GAP_MS_DEFAULT


def rates(newest_first: Sequence[FinishedBatch], now_ms: int) -> Rates:
    """Return the rates of the last two to ten minutes, as far back as the batches tell."""
    spans = _spans(sorted(newest_first, key=lambda batch: batch.finished_ms))
    known_begin_ms = spans[0].begin_ms if spans else now_ms
    known_end_ms = _known_end_ms(spans, now_ms)
    end_ms = known_end_ms // STEP_MS * STEP_MS
    shown_ms = min(max(end_ms - known_begin_ms, SHOWN_MS_MIN), SHOWN_MS_MAX)
    begin_ms = (end_ms - shown_ms) // STEP_MS * STEP_MS
    events = _events_by_bucket(spans, begin_ms)
    values = [
        _per_second(events.get(bucket_ms, 0.0), max(bucket_ms, known_begin_ms), bucket_ms + STEP_MS)
        for bucket_ms in range(begin_ms, end_ms, STEP_MS)
    ]
    average_begin_ms = max(known_begin_ms, known_end_ms - AVERAGE_MS)
    average_events = sum(span.events_within(average_begin_ms, known_end_ms) for span in spans)
    return Rates(begin_ms, STEP_MS, values, _per_second(average_events, average_begin_ms, known_end_ms))


def _spans(batches: Sequence[FinishedBatch]) -> list[Span]:
    finishes_ms = [batch.finished_ms for batch in batches]
    gap_ms = usual_gap_ms(finishes_ms)
    spans = []
    earlier_ms = finishes_ms[0] - gap_ms if finishes_ms else 0
    for batch in batches:
        begin_ms = max(earlier_ms, batch.finished_ms - 2 * gap_ms)
        spans.append(Span(min(begin_ms, batch.finished_ms - 1), batch.finished_ms, batch.events))
        earlier_ms = batch.finished_ms
    return spans


def _known_end_ms(spans: Sequence[Span], now_ms: int) -> int:
    """The newest finish, or now once the next batch is overdue: what it will hold is not known before."""
    if not spans:
        return now_ms
    newest_ms = spans[-1].end_ms
    overdue_ms = newest_ms + 2 * usual_gap_ms([span.end_ms for span in spans])
    return now_ms if now_ms > overdue_ms else newest_ms


def _events_by_bucket(spans: Sequence[Span], shown_begin_ms: int) -> dict[int, float]:
    """Return the events of each shown bucket, by the time in ms at which it begins."""
    events: dict[int, float] = defaultdict(float)
    for span in spans:
        for bucket_ms in range(max(shown_begin_ms, span.begin_ms // STEP_MS * STEP_MS), span.end_ms, STEP_MS):
            events[bucket_ms] += span.events_within(bucket_ms, bucket_ms + STEP_MS)
    return events


def _per_second(events: float, begin_ms: int, end_ms: int) -> float | None:
    return round(events * 1_000 / (end_ms - begin_ms), 3) if begin_ms < end_ms else None
