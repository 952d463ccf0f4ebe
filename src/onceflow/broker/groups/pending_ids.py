"""Member ids that were assigned but not used yet (KIP-394).

Their number is bounded, per group and over all groups: another id replaces the oldest one. A client whose id was
withdrawn gets UNKNOWN_MEMBER_ID and asks for another, so a flood of requests does not lock other clients out.
"""

from collections import OrderedDict

from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups.deadlines import Deadlines
from onceflow.broker.groups.group import Group


class PendingIds:
    """All pending member ids, the oldest first; the group also has its own."""

    def __init__(self, config: BrokerConfig, deadlines: Deadlines) -> None:
        self._config = config
        self._deadlines = deadlines
        self._groups: OrderedDict[str, Group] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: Group, member_id: str, session_timeout_ms: int) -> None:
        """Keep an id until it is used or its session timeout expires."""
        self._groups[member_id] = group
        group.pending_ids[member_id] = None
        self._deadlines.start(group.group_id, member_id, session_timeout_ms)

    def remove(self, group: Group, member_id: str) -> bool:
        """Remove an id; return False if it is not the group's."""
        if member_id not in group.pending_ids:
            return False
        del group.pending_ids[member_id]
        del self._groups[member_id]
        self._deadlines.cancel(group.group_id, member_id)
        return True

    def surplus(self, group: Group) -> tuple[Group, str] | None:
        """Return the group and the id to withdraw if the last one exceeded a limit."""
        if len(group.pending_ids) > self._config.group_pending_ids_max:
            return group, next(iter(group.pending_ids))
        if len(self._groups) > self._config.groups_pending_ids_max:
            member_id, oldest = next(iter(self._groups.items()))
            return oldest, member_id
        return None
