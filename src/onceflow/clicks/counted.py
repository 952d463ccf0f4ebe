"""Measures of a job, from its marker, and the buckets of them that retention keeps."""

from collections.abc import Sequence

from onceflow.clicks.events import TIME_FIELD
from onceflow.clicks.measures import MeasureSettings
from onceflow.clicks.moments import iso_text
from onceflow.clicks.plan import parse_plan
from onceflow.clicks.results import MarkerView
from onceflow.clicks.windows import WIDTHS, Bucket, Width
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

NO_EVENT = "no event is counted yet"


class NotCounted(OnceflowError):
    """A number that the job does not count, or not yet."""


class Removed(OnceflowError):
    """A number that needs buckets which retention has deleted."""


class Counted:
    """Counted parts of a marker's job, and the buckets that retention keeps."""

    def __init__(self, marker: MarkerView) -> None:
        plan = parse_plan(marker.plan)
        self._measures = MeasureSettings() if plan is None else plan.measures
        self.time_field = TIME_FIELD if plan is None else plan.time_field
        self._marker = marker

    @property
    def measures(self) -> MeasureSettings:
        return self._measures

    @property
    def topic(self) -> str | None:
        """Topic of the events; None before the first micro-batch."""
        return next(iter(self._marker.offsets), None)

    @property
    def newest_ms(self) -> int | None:
        """The newest time of an event; None if the job has counted no time."""
        newest = self._marker.fields.get("newest_ms")
        return int(newest) if newest else None

    @property
    def is_timed(self) -> bool:
        return self._measures.is_timed

    @property
    def has_sessions(self) -> bool:
        """Whether sessions are counted, and there is an event."""
        return self._measures.sessions and self.newest_ms is not None

    def require_time(self) -> None:
        """Raise NotCounted if the job has no newest time."""
        if not self._measures.is_timed:
            raise NotCounted(f"the job counts no time: {Remedy.COUNT_OVER_TIME}")
        if self.newest_ms is None:
            raise NotCounted(NO_EVENT)

    def require(self, part: str, dimension: str | None = None) -> None:
        """Raise NotCounted if the job does not count `over_time`, `sessions` or a dimension."""
        if not getattr(self._measures, part):
            raise NotCounted(f"the job counts no {part.replace('over_time', 'time')}: {Remedy.COUNT_OVER_TIME}")
        if self.newest_ms is None:
            raise NotCounted(NO_EVENT)
        if dimension is not None:
            self.require_dimension(dimension)

    def require_dimension(self, dimension: str) -> None:
        """Raise NotCounted if the job does not count a dimension."""
        if dimension not in self._measures.dimensions:
            known = ", ".join(self._measures.dimensions)
            raise NotCounted(f"the job does not count by {dimension!r}, only by {known}: {Remedy.COUNT_OVER_TIME}")

    @property
    def session_gap_ms(self) -> int:
        return self._measures.session_gap_ms

    def floor_ms(self, target: str) -> int:
        """Return the start of the oldest bucket that retention keeps."""
        retention_ms, newest_ms = self._measures.retention_of(target), self.newest_ms
        return 0 if retention_ms is None or newest_ms is None else newest_ms - retention_ms

    def refuse_removed(self, buckets: Sequence[Bucket], target: str, remedy: Remedy = Remedy.WHOLE_HOURS) -> None:
        """Raise Removed if retention has removed one of these buckets; `{}` in the target is the bucket's width."""
        for bucket in buckets:
            floor_ms = self.floor_ms(target.format(bucket.width.name))
            if bucket.start_ms < floor_ms:
                oldest_ms = bucket.width.start_of(floor_ms + bucket.width.ms - 1)
                raise Removed(
                    f"this time needs the {bucket.width.name} from {iso_text(bucket.start_ms)} on, and retention keeps "
                    f"those from {iso_text(oldest_ms)} on: {remedy}"
                )

    def smallest_kept(self, at_ms: int) -> Width:
        """Return the smallest bucket that retention keeps at a time."""
        kept = (width for width in WIDTHS if width.start_of(at_ms) >= self.floor_ms(width.name))
        return next(kept, WIDTHS[-1])

    def rounded_down(self, at_ms: int) -> int:
        """Return the start of the smallest bucket that is kept at a time."""
        return self.smallest_kept(at_ms).start_of(at_ms)


def newest_ms(marker: MarkerView) -> int:
    """Return the newest time of an event, at least to the minute, of a job that counts time."""
    return int(marker.fields["newest_ms"])
