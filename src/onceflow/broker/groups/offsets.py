"""Pending offsets of transactions, and the expiry of committed offsets.

A pending offset becomes the group's when its transaction commits, unless a later record has set that offset since. It
is dropped when the transaction aborts, or when the offset is deleted (OffsetMetadataManager of Kafka's
org.apache.kafka.coordinator.group).

An offset with an expiry time of its own (OffsetCommit 2 to 4) expires at that time. Any other expires
`offsets.retention.minutes` after its group became empty; after its commit, if the group never had members; or after its
commit, in a stable group of consumers. Nothing expires in the other states, in a topic to which a member subscribes, or
while a transaction has an offset pending there.
"""

from collections.abc import Callable, Iterator

from onceflow.broker.groups.group import Group
from onceflow.broker.groups.records import OffsetCommit
from onceflow.broker.groups.states import GroupState
from onceflow.wire import TopicPartition

Place = tuple[str, str, int]
"""Group, topic, partition."""


class PendingOffsets:
    """Pending offsets by producer id, and by place."""

    def __init__(self) -> None:
        self._commits: dict[int, dict[Place, OffsetCommit]] = {}
        self._producers: dict[Place, set[int]] = {}
        self._places: dict[str, set[TopicPartition]] = {}

    def add(self, producer_id: int, commit: OffsetCommit) -> None:
        """Keep `commit` until the producer's transaction ends."""
        place = _place(commit)
        self._commits.setdefault(producer_id, {})[place] = commit
        self._producers.setdefault(place, set()).add(producer_id)
        self._places.setdefault(commit.group, set()).add(place[1:])

    def remove(self, removal: OffsetCommit) -> None:
        """Drop what any transaction has pending at the place of `removal`."""
        place = _place(removal)
        for producer_id in list(self._producers.get(place, ())):
            self._drop(producer_id, place)

    def end(self, producer_id: int) -> list[OffsetCommit]:
        """Remove and return the producer's pending offsets."""
        commits = list(self._commits.get(producer_id, {}).values())
        for commit in commits:
            self._drop(producer_id, _place(commit))
        return commits

    def _drop(self, producer_id: int, place: Place) -> None:
        group, topic, partition = place
        commits, producers = self._commits[producer_id], self._producers[place]
        del commits[place]
        producers.discard(producer_id)
        if not commits:
            del self._commits[producer_id]
        if not producers:
            del self._producers[place]
            places = self._places[group]
            places.discard((topic, partition))
            if not places:
                del self._places[group]

    def __iter__(self) -> Iterator[Place]:
        return iter(self._producers)

    def has(self, group: str, topic: str, partition: int) -> bool:
        return (group, topic, partition) in self._producers

    def of_group(self, group: str) -> frozenset[TopicPartition]:
        """Return (topic, partition) of each pending offset of the group."""
        return frozenset(self._places.get(group, ()))


def _place(commit: OffsetCommit) -> Place:
    return commit.group, commit.topic, commit.partition


def _kept_since(group: Group) -> Callable[[OffsetCommit], int] | None:
    """Return a function of a commit to the start of its retention; None if no offset of the group can expire."""
    if not group.protocol_type:
        return lambda commit: commit.commit_timestamp_ms
    if group.state is GroupState.EMPTY:
        empty_since_ms = group.recorded_ms
        return lambda commit: empty_since_ms if empty_since_ms >= 0 else commit.commit_timestamp_ms
    if group.state is GroupState.STABLE and group.uses_consumer_protocol and group.subscribed is not None:
        return lambda commit: commit.commit_timestamp_ms
    return None


def expired(group: Group, pending: frozenset[TopicPartition], now_ms: int, retention_ms: int) -> list[OffsetCommit]:
    """Return the group's expired commits."""
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
