"""Deadlines of all groups: sessions of members, pending member ids, phases of rebalances.

A deadline costs nothing until it is due. Postponing one, as every heartbeat does, changes a number; its heap entry
moves only when the previous time is reached.
"""

import heapq
import itertools
from dataclasses import dataclass

from onceflow.broker.groups.group import Group
from onceflow.broker.groups.members import Member
from onceflow.log.clock import Clock

PHASE = ""
"""Stands for a member id: the deadline of the group's current phase."""
STALE_ENTRIES_KEPT = 1000

Key = tuple[str, str]
"""Group id and member id."""


@dataclass(slots=True)
class _Deadline:
    at_seconds: float
    entry_seconds: float
    """Time of its heap entry, never later than the deadline."""


class Deadlines:
    """One deadline per key; a new one replaces the previous one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadlines: dict[Key, _Deadline] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._numbers = itertools.count()
        self.taken_count = 0
        """Deadlines that the last `take_due` returned."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def restart_session(self, group: Group, member: Member) -> None:
        """Restart the member's session timeout."""
        self.start(group.group_id, member.member_id, member.session_timeout_ms)

    def start(self, group_id: str, member_id: str, duration_ms: int) -> None:
        """Set a deadline after `duration_ms`; `member_id` may be PHASE."""
        key = (group_id, member_id)
        at_seconds = self._clock.monotonic() + duration_ms / 1000
        deadline = self._deadlines.get(key)
        if deadline is None:
            self._deadlines[key] = _Deadline(at_seconds, at_seconds)
            self._push(at_seconds, key)
            return
        deadline.at_seconds = at_seconds
        if at_seconds < deadline.entry_seconds:
            deadline.entry_seconds = at_seconds
            self._push(at_seconds, key)

    def cancel(self, group_id: str, member_id: str) -> None:
        """Remove a deadline, if there is one."""
        self._deadlines.pop((group_id, member_id), None)

    def is_set(self, group_id: str, member_id: str) -> bool:
        return (group_id, member_id) in self._deadlines

    def take_due(self, count_max: int) -> dict[str, list[str]]:
        """Remove at most `count_max` due deadlines and return their member ids by group id."""
        now_seconds = self._clock.monotonic()
        due: dict[str, list[str]] = {}
        self.taken_count = 0
        while self.taken_count < count_max and self._heap and self._heap[0][0] <= now_seconds:
            entry_seconds, _number, key = heapq.heappop(self._heap)
            deadline = self._deadlines.get(key)
            if deadline is None or deadline.entry_seconds != entry_seconds:
                continue
            if deadline.at_seconds > now_seconds:
                deadline.entry_seconds = deadline.at_seconds
                self._push(deadline.at_seconds, key)
                continue
            del self._deadlines[key]
            due.setdefault(key[0], []).append(key[1])
            self.taken_count += 1
        return due

    def _push(self, at_seconds: float, key: Key) -> None:
        heapq.heappush(self._heap, (at_seconds, next(self._numbers), key))
        if len(self._heap) > 2 * len(self._deadlines) + STALE_ENTRIES_KEPT:
            # Entries of members that join and leave within their session timeout must not accumulate.
            self._heap = [(value.entry_seconds, next(self._numbers), key) for key, value in self._deadlines.items()]
            heapq.heapify(self._heap)
