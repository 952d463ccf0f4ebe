"""Assignment of new partitions to brokers, as in kafka.admin.AdminUtils.assignReplicasToBrokers without racks."""

from collections.abc import Sequence


def assign_replicas(
    brokers: Sequence[int], count: int, replication_factor: int, *, start: int, shift: int, first: int = 0
) -> list[tuple[int, ...]]:
    """Return the replicas of `count` partitions from number `first` on; the first of each is its preferred leader.

    Leaders go round the sorted brokers from position `start`. The other replicas follow in a distance that begins with
    `shift` and grows with each round, so that those of one leader are spread too.
    """
    assigned = []
    for index in range(first, first + count):
        if index and index % len(brokers) == 0:
            shift += 1
        leader = (index + start) % len(brokers)
        others = [_follower(leader, shift, number, len(brokers)) for number in range(replication_factor - 1)]
        assigned.append(tuple(brokers[position] for position in (leader, *others)))
    return assigned


def _follower(leader: int, shift: int, number: int, broker_count: int) -> int:
    return (leader + 1 + (shift + number) % (broker_count - 1)) % broker_count
