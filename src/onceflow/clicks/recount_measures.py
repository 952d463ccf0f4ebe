"""Second implementation of a job's measures for `verify`: plain dictionaries over single events.

Nothing here is imported from `onceflow.clicks.measures`, `windows` or `columns`, and nothing is merged: a user's
sessions come from one pass over the user's sorted events.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from onceflow.clicks.recount import dimension_values, event_ms

WIDTH_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
RANKED = ("hour", "day")

Bucket = tuple[str, int, str]
"""Target, start in ms, and group: "" or `DIMENSION=VALUE`."""


class MeasureRecount:
    """Dimensions and numbers over time of valid events, added one by one in any order; `plan` is the marker's."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.no_time = 0
        self.future = 0
        self.dimensions: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Dimension → value → clicks, without `os`."""
        self.sums: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        """(target, start) → name → amount, of hashes and rankings."""
        self.users: defaultdict[Bucket, set[str]] = defaultdict(set)
        self._events: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._plan = plan

    @property
    def is_timed(self) -> bool:
        return bool(self._plan["over_time"] or self._plan["sessions"])

    def add(self, value: bytes, timestamp_ms: int, uid: str, clicks: int) -> None:
        """Add one valid event."""
        values = dimension_values(value, self._plan["dimensions"])
        for name, text in values.items():
            if name != "os":
                self.dimensions[name][text] += clicks
        if not self.is_timed:
            return
        at_ms, problem = event_ms(value, self._plan["time_field"], timestamp_ms)
        self.no_time += problem == "no-time"
        self.future += problem == "future"
        if self._plan["sessions"]:
            self._events[uid].append((at_ms, clicks))
        if not self._plan["over_time"]:
            return
        for width, width_ms in WIDTH_MS.items():
            start = at_ms // width_ms * width_ms
            self.sums[width, start].update(events=1, clicks=clicks)
            self.users[f"{width}-users", start, ""].add(uid)
            for name, text in values.items():
                self.sums[f"{width}:{name}", start].update({f"events:{text}": 1, f"clicks:{text}": clicks})
                self.users[f"{width}-users", start, f"{name}={text}"].add(uid)
            if width in RANKED:
                self.sums[f"{width}-top", start].update({uid: clicks})

    def sessions(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield user, start, end, events and clicks of each session."""
        gap_ms = self._plan["session_gap_ms"]
        for uid, events in self._events.items():
            events.sort()
            first = 0
            for at in range(1, len(events) + 1):
                if at == len(events) or events[at][0] - events[at - 1][0] > gap_ms:
                    part = events[first:at]
                    yield uid, part[0][0], part[-1][0], len(part), sum(clicks for _, clicks in part)
                    first = at
