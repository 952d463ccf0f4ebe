"""Offsets that transactions have committed and whose outcome is still open.

A pending offset becomes the group's when its transaction commits, unless a later record has set that offset since,
and is dropped when it aborts (Kafka's OffsetMetadataManager). A removal takes the pending ones with it.
"""

from collections.abc import Iterator

from onceflow.broker.groups.records import OffsetCommit

Place = tuple[str, str, int]
"""Group, topic, partition."""


class PendingOffsets:
    """By producer id, and by the place that they are meant for."""

    def __init__(self) -> None:
        self._commits: dict[int, dict[Place, OffsetCommit]] = {}
        self._producers: dict[Place, set[int]] = {}
        self._places: dict[str, set[tuple[str, int]]] = {}

    def add(self, producer_id: int, commit: OffsetCommit) -> None:
        """Keep `commit` until the producer's transaction ends."""
        place = _place(commit)
        self._commits.setdefault(producer_id, {})[place] = commit
        self._producers.setdefault(place, set()).add(producer_id)
        self._places.setdefault(commit.group, set()).add(place[1:])

    def remove(self, removal: OffsetCommit) -> None:
        """Drop what every transaction has pending at the place of `removal`."""
        place = _place(removal)
        for producer_id in list(self._producers.get(place, ())):
            self._drop(producer_id, place)

    def end(self, producer_id: int) -> list[OffsetCommit]:
        """What the producer had pending, which it has no longer."""
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

    def of_group(self, group: str) -> frozenset[tuple[str, int]]:
        """(topic, partition) of each offset that the group has pending."""
        return frozenset(self._places.get(group, ()))


def _place(commit: OffsetCommit) -> Place:
    return commit.group, commit.topic, commit.partition
