"""Consumers of two groups come, go and lose their sessions while brokers die."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

from onceflow.client.cluster import LATEST
from onceflow.client.cluster import Cluster as Client
from onceflow.testing import Cluster
from onceflow.testing.registry import MemoryRegistry
from tests.client.classic.zookeeper_members import PARTITIONS, TOPIC, Member, Read, check_reads, send, wait_until

SEED = 20261127
STEPS = 8
MEMBERS_MAX = 4
MESSAGES = 5


class Group:
    """Members of a group, and what they have read, in order."""

    def __init__(self, registry: MemoryRegistry, name: str) -> None:
        self.members: list[Member] = []
        self.read: list[Read] = []
        self.broken: set[int] = set()
        """Members that were killed, or whose session has ended."""
        self.killed: list[Member] = []
        self._registry = registry
        self._name = name
        self._numbers = count()
        self._number_of: dict[Member, int] = {}

    def join(self) -> None:
        number = next(self._numbers)
        member = Member(
            self._registry,
            self._name,
            lambda: None,
            on_message=lambda place, offset: self.read.append((number, place[1], offset)),
        )
        self._number_of[member] = number
        self.members.append(member.start())

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        member.stop()

    def expire(self, member: Member) -> None:
        self.broken.add(self._number_of[member])
        member.session.expire()

    def kill(self, member: Member) -> None:
        self.broken.add(self._number_of[member])
        self.members.remove(member)
        self.killed.append(member)
        member.kill()

    def stop(self) -> None:
        for member in (*self.members, *self.killed):
            member.stop()


def test_storm_reads_everything_in_order() -> None:
    """Each message is read by both groups, once unless the member that read it lost its session."""
    chance = random.Random(SEED)
    with ExitStack() as stack:
        brokers = stack.enter_context(Cluster(3))
        brokers.create_topic(TOPIC, PARTITIONS)
        assert brokers._registry is not None
        groups = [Group(brokers._registry, name) for name in ("counting", "archiving")]
        for group in groups:
            stack.callback(group.stop)
            group.join()
        for step in range(STEPS):
            group = chance.choice(groups)
            actions: list[Callable[[], None]] = [group.join] if len(group.members) < MEMBERS_MAX else []
            if len(group.members) > 1:
                member = chance.choice(group.members)
                actions += [lambda: group.leave(member), lambda: group.kill(member)]  # noqa: B023
            actions.append(lambda: group.expire(chance.choice(group.members)))  # noqa: B023
            if step % 4 == 3:
                broker_id = chance.choice([number for number in brokers.brokers if number != brokers.controller])
                brokers.kill(broker_id)
                send(brokers, MESSAGES)
                brokers.start_broker(broker_id)
            chance.choice(actions)()
            send(brokers, MESSAGES)
        with Client(brokers.bootstrap_servers) as client:
            latest = client.list_offsets(TOPIC, dict.fromkeys(range(PARTITIONS), LATEST))
        ends = {partition: at.offset for partition, at in latest.items()}
        total = {(partition, offset) for partition, end in ends.items() for offset in range(end)}
        for group in groups:
            wait_until(lambda: {(partition, offset) for _, partition, offset in group.read} == total)  # noqa: B023
            assert [error for member in group.members for error in member.errors] == []
        for group in groups:
            check_reads(group.read, group.broken, ends)
