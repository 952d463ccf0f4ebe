"""State of the replicas of a cluster's partitions, in the words of Kafka's TopicCommand."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from onceflow.client.metadata import NO_LEADER, TopicMetadata


class Problem(StrEnum):
    """State of a partition that needs attention, the worst first (org.apache.kafka.tools.TopicCommand)."""

    OFFLINE = "offline"
    """No replica leads it: it cannot be read or written."""
    BELOW_MIN_ISR = "below-min-isr"
    """Fewer replicas are in sync than min.insync.replicas: acks=all is refused."""
    UNDER_REPLICATED = "under-replicated"
    """Some replicas are not in sync: fewer failures are survived."""
    NOT_PREFERRED = "not-preferred"
    """Another replica than the first leads it: the load may be uneven."""


SERIOUS = frozenset({Problem.OFFLINE, Problem.BELOW_MIN_ISR, Problem.UNDER_REPLICATED})
"""Problems of a cluster that is not healthy."""


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """Replicas of one partition; `leader` is -1 without one."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    in_sync_min: int

    def problems(self) -> Iterator[Problem]:
        """Yield the partition's problems, the worst first."""
        if self.leader == NO_LEADER:
            yield Problem.OFFLINE
        if len(self.in_sync) < self.in_sync_min:
            yield Problem.BELOW_MIN_ISR
        if len(self.in_sync) < len(self.replicas):
            yield Problem.UNDER_REPLICATED
        if self.leader not in (NO_LEADER, self.replicas[0]):
            yield Problem.NOT_PREFERRED


def partitions_of(topics: Iterable[TopicMetadata], in_sync_min: Mapping[str, int]) -> Iterator[PartitionReplicas]:
    """Yield the partitions of the topics; `in_sync_min` has the topics' min.insync.replicas."""
    for topic in topics:
        for index, leader in topic.partitions.items():
            yield PartitionReplicas(
                topic.name,
                index,
                leader,
                topic.replicas[index],
                topic.in_sync_replicas[index],
                in_sync_min.get(topic.name, 1),
            )
