"""The archive's events as `onceflow.clicks.time_queries.Numbers`, restricted to some values of dimensions."""

from collections.abc import Callable, Sequence

from onceflow.clicks.analytics import ValueCounts
from onceflow.clicks.queries import Events, Row, Selection
from onceflow.clicks.time_queries import Numbers
from onceflow.clicks.windows import Window, WindowCounts


class ArchivedNumbers(Numbers):
    """Numbers of the events that have these values; dimensions have the names that the job gives them."""

    def __init__(self, events: Events, where: Sequence[tuple[str, str]], field: Callable[[str], str]) -> None:
        """`field` returns the archive's name of a dimension."""
        self._events = events
        self.field = field
        self.where = [(field(name), value) for name, value in where]
        """The restrictions, with the archive's names."""

    def newest_ms(self) -> int:
        """Return the newest time of an event; 0 without events."""
        return self._events.newest_ms or 0

    def oldest_ms(self) -> int:
        """Return the oldest time of an event; the newest one if all are in the log."""
        return self._events.oldest_ms or self.newest_ms()

    def rounded(self, begin_ms: int, end_ms: int) -> Window:
        """Return this very time."""
        return Window(begin_ms, max(begin_ms, end_ms))

    def count_windows(
        self, chosen: Sequence[Window], *, by: str | None = None, values: int | None = None, users: bool = False
    ) -> list[WindowCounts]:
        """Return the counts of windows that have events."""
        field = None if by is None else self.field(by)
        return self._events.windows(chosen, self.where, by=field, values=values, users=users)

    def top_between(self, dimension: str, window: Window, count: int) -> list[ValueCounts]:
        """Return the values with most clicks in a time."""
        return self._top(dimension, window.start_ms, window.end_ms, count)

    def top_of_all(self, dimension: str, count: int) -> list[ValueCounts]:
        """Return the values with most clicks of all time."""
        return self._top(dimension, None, None, count)

    def timeline(
        self, uid: str, begin_ms: int | None, end_ms: int | None, count: int, before: tuple[int, int, int] | None
    ) -> list[Row]:
        """Return the newest events of one user, newest first."""
        selection = Selection(begin_ms, end_ms, self.where)
        return self._events.timeline(uid, selection, count=count, before=before)

    def _top(self, dimension: str, begin_ms: int | None, end_ms: int | None, count: int) -> list[ValueCounts]:
        selection = Selection(begin_ms, end_ms, self.where)
        rows = self._events.top(self.field(dimension), selection, count=count)
        return [ValueCounts(**row) for row in rows]
