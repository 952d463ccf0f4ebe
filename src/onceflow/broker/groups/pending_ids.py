"""Member ids that were assigned but not used yet (KIP-394).

Their number is bounded, per group and over all groups of the broker: another id replaces the oldest one. A client
whose id was withdrawn gets UNKNOWN_MEMBER_ID and asks for another, so a flood of requests does not lock other clients
out.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups.deadlines import Deadlines
from onceflow.broker.groups.group import Group

AllPendingIds: TypeAlias = OrderedDict[str, tuple["PendingIds", Group]]
"""Pending member ids of all coordinators of a broker, the oldest first."""


class PendingIds:
    """Pending member ids of a coordinator; the group also has its own."""

    def __init__(self, config: BrokerConfig, deadlines: Deadlines, every: AllPendingIds) -> None:
        """`every` has the ids of the broker's other coordinators too."""
        self._config = config
        self._deadlines = deadlines
        self._all = every
        self.on_withdrawn: Callable[[Group], None] = lambda _group: None
        """Called with a group of which another coordinator has withdrawn an id."""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, group: Group, member_id: str, session_timeout_ms: int) -> None:
        """Keep an id until it is used or its session timeout expires."""
        self._all[member_id] = self, group
        group.pending_ids[member_id] = None
        self._deadlines.start(group.group_id, member_id, session_timeout_ms)

    def remove(self, group: Group, member_id: str) -> bool:
        """Remove an id; return False if it is not the group's."""
        if member_id not in group.pending_ids:
            return False
        del group.pending_ids[member_id]
        del self._all[member_id]
        self._deadlines.cancel(group.group_id, member_id)
        return True

    def surplus(self, group: Group) -> "tuple[PendingIds, Group, str] | None":
        """Return the id to withdraw, with its group and owner, if the last one exceeded a limit."""
        if len(group.pending_ids) > self._config.group_pending_ids_max:
            return self, group, next(iter(group.pending_ids))
        if len(self._all) > self._config.groups_pending_ids_max:
            member_id, (owner, oldest) = next(iter(self._all.items()))
            return owner, oldest, member_id
        return None
