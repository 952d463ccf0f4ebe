"""Which offsets have been kept long enough (org.apache.kafka.coordinator.group.OffsetMetadataManager).

An offset with an expiry time of its own (OffsetCommit 2 to 4) expires at that time. Any other does
`offsets.retention.minutes` after: its group became empty; its commit, where the group never had members; its commit,
in a stable group of consumers. In all other states nothing expires, nor does an offset in a topic to which a member
subscribes, nor one where a transaction has an offset pending.
"""

from collections.abc import Callable

from onceflow.broker.groups.group import Group
from onceflow.broker.groups.records import OffsetCommit
from onceflow.broker.groups.states import GroupState


def _kept_since(group: Group) -> Callable[[OffsetCommit], int] | None:
    """From when on an offset of the group is kept without being used; None: it is used."""
    if not group.protocol_type:
        return lambda commit: commit.commit_timestamp_ms
    if group.state is GroupState.EMPTY:
        empty_since_ms = group.recorded_ms
        return lambda commit: empty_since_ms if empty_since_ms >= 0 else commit.commit_timestamp_ms
    if group.state is GroupState.STABLE and group.uses_consumer_protocol and group.subscribed is not None:
        return lambda commit: commit.commit_timestamp_ms
    return None


def expired(group: Group, pending: frozenset[tuple[str, int]], now_ms: int, retention_ms: int) -> list[OffsetCommit]:
    """The group's commits that are to be taken away now."""
    since = _kept_since(group)
    if since is None:
        return []

    def is_over(commit: OffsetCommit) -> bool:
        if commit.expire_timestamp_ms >= 0:
            return now_ms >= commit.expire_timestamp_ms
        return now_ms - since(commit) >= retention_ms

    return [
        commit
        for place, commit in group.offsets.items()
        if place not in pending and not group.is_subscribed(commit.topic) and is_over(commit)
    ]
