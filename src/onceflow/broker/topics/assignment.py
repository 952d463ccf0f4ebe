"""Assignment of new partitions to brokers, as in org.apache.kafka.admin.AdminUtils.assignReplicasToBrokers."""

from collections.abc import Mapping, Sequence


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


def assign_to_racks(
    racks: Mapping[int, str], count: int, replication_factor: int, *, start: int, shift: int, first: int = 0
) -> list[tuple[int, ...]]:
    """Return the replicas of partitions as `assign_replicas`, each in another rack as long as there are others.

    `racks` has the rack of each broker. Leaders go round the brokers with alternating racks.
    """
    brokers = alternating(racks)
    rack_count = len(set(racks.values()))
    assigned = []
    for index in range(first, first + count):
        if index and index % len(brokers) == 0:
            shift += 1
        leader = (index + start) % len(brokers)
        replicas = [brokers[leader]]
        number = 0
        while len(replicas) < replication_factor:
            broker = brokers[_follower(leader, shift * rack_count, number, len(brokers))]
            number += 1
            used = {racks[replica] for replica in replicas}
            if broker not in replicas and (racks[broker] not in used or len(used) == rack_count):
                replicas.append(broker)
        assigned.append(tuple(replicas))
    return assigned


def alternating(racks: Mapping[int, str]) -> list[int]:
    """Return the brokers, one of each rack in turn (AdminUtils.getRackAlternatedBrokerList)."""
    left = {rack: sorted(broker for broker in racks if racks[broker] == rack) for rack in sorted(set(racks.values()))}
    brokers: list[int] = []
    while len(brokers) < len(racks):
        brokers += [of_rack.pop(0) for of_rack in left.values() if of_rack]
    return brokers
