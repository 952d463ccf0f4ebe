"""Problems of partitions whose replicas need attention."""

import pytest

from onceflow.client.metadata import TopicMetadata
from onceflow.client.replication import PartitionReplicas, Problem, partitions_of


@pytest.mark.parametrize(
    ("leader", "in_sync", "in_sync_min", "problems"),
    [
        (3, (3, 1, 2), 2, []),
        (1, (1, 2, 3), 2, [Problem.NOT_PREFERRED]),
        (3, (3, 1), 2, [Problem.UNDER_REPLICATED]),
        (3, (3,), 2, [Problem.BELOW_MIN_ISR, Problem.UNDER_REPLICATED]),
        (-1, (3,), 1, [Problem.OFFLINE, Problem.UNDER_REPLICATED]),
        (-1, (), 1, [Problem.OFFLINE, Problem.BELOW_MIN_ISR, Problem.UNDER_REPLICATED]),
        (3, (3, 1, 2), 4, [Problem.BELOW_MIN_ISR]),
    ],
)
def test_problems_are_those_of_kafka(
    leader: int, in_sync: tuple[int, ...], in_sync_min: int, problems: list[Problem]
) -> None:
    assert list(PartitionReplicas("visits", 0, leader, (3, 1, 2), in_sync, in_sync_min).problems()) == problems


def test_partitions_have_the_minimum_of_their_topic() -> None:
    topics = [
        TopicMetadata(name, None, {0: 1, 1: 2}, False, {0: (1, 2), 1: (2, 1)}, {0: (1, 2), 1: (2,)})
        for name in ("visits", "clicks")
    ]
    assert [
        (partition.topic, partition.partition, partition.in_sync, partition.in_sync_min)
        for partition in partitions_of(topics, {"visits": 2})
    ] == [("visits", 0, (1, 2), 2), ("visits", 1, (2,), 2), ("clicks", 0, (1, 2), 1), ("clicks", 1, (2,), 1)]
