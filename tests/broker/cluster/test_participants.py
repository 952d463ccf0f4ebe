"""Markers of transactions for partitions that the controller has not announced to this broker yet."""

from collections.abc import Callable, Sequence
from unittest.mock import Mock

from onceflow.broker.cluster.participants import ClusterParticipants
from onceflow.wire.markers import ProducerMarker

MARKER = ProducerMarker(producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=True)


class StandInTopics:
    """Topics in ZooKeeper, of which each is known to this broker once it was read by its name."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.known: set[str] = set()

    def when_read(self, topics: Sequence[str], read: Callable[[], None]) -> None:
        self.known.update(name for name in topics if name in self.names)
        read()

    def has_partition(self, topic: str, _index: int) -> bool:
        return topic in self.known


def marked(topics: StandInTopics) -> list[bool]:
    """Return the result of a marker for `visits-1`."""
    partitions, view = Mock(), Mock()
    partitions.get.return_value = view.state.return_value = None
    participants = ClusterParticipants(1, Mock(), partitions, view, topics, topics.has_partition)
    results: list[bool] = []
    participants.mark(MARKER, ("visits", 1), results.append)
    return results


def test_a_new_partitions_marker_is_written_later() -> None:
    """ZooKeeper's event about the topic may not have been handled yet."""
    assert marked(StandInTopics("visits")) == [False]


def test_a_deleted_topic_needs_no_marker() -> None:
    assert marked(StandInTopics()) == [True]
