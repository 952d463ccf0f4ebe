"""Assignment of partitions to brokers: the results of kafka.admin.AdminUtils of Apache Kafka 3.9.1."""

import pytest

from onceflow.broker.topics.assignment import assign_replicas

BROKERS = (1, 2, 3, 5, 8)


@pytest.mark.parametrize(
    ("count", "replication_factor", "start", "first", "expected"),
    [
        (12, 3, 2, 0, "312 523 835 158 281 325 538 851 182 213 358 581"),
        (7, 2, 1, 4, "13 28 31 52 83 15 21"),
        (6, 1, 4, 0, "8 1 2 3 5 8"),
    ],
)
def test_assignment_is_kafkas(count: int, replication_factor: int, start: int, first: int, expected: str) -> None:
    assigned = assign_replicas(BROKERS, count, replication_factor, start=start, shift=start, first=first)
    assert assigned == [tuple(map(int, brokers)) for brokers in expected.split()]


def test_one_broker_gets_everything() -> None:
    assert assign_replicas((7,), 3, 1, start=0, shift=0) == [(7,)] * 3
