"""Partitions of a group's consumers: every member computes the same assignment (kafka.consumer.PartitionAssignor)."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple, TypeAlias

from onceflow.wire import TopicPartition


class ThreadId(NamedTuple):
    """One stream of a consumer. Its text is the value of an owner's node."""

    consumer: str
    number: int

    def __str__(self) -> str:
        return f"{self.consumer}-{self.number}"


Assignment: TypeAlias = dict[TopicPartition, ThreadId]
Assign: TypeAlias = Callable[[Mapping[str, Mapping[str, int]], Mapping[str, Sequence[int]]], Assignment]
"""Strategy: arguments are each member's streams by topic, and the partitions of each topic."""


def assign_range(members: Mapping[str, Mapping[str, int]], partitions: Mapping[str, Sequence[int]]) -> Assignment:
    """Give each stream of a topic a run of its partitions; the first (partitions mod streams) get one more."""
    assignment: Assignment = {}
    for topic, threads in _threads_by_topic(members).items():
        places = [(topic, index) for index in sorted(partitions.get(topic, ()))]
        count, more = divmod(len(places), len(threads))
        start = 0
        for position, thread in enumerate(threads):
            end = start + count + (position < more)
            assignment.update(dict.fromkeys(places[start:end], thread))
            start = end
    return assignment


def assign_round_robin(members: Mapping[str, Mapping[str, int]], partitions: Mapping[str, Sequence[int]]) -> Assignment:
    """Deal the partitions of all topics out to the streams in turn, in the order of their hash."""
    by_topic = _threads_by_topic(members)
    threads = sorted({thread for threads in by_topic.values() for thread in threads}, key=str)
    places = [(topic, index) for topic in by_topic for index in partitions.get(topic, ())]
    assignment: Assignment = {}
    turn = cycle(threads)
    for topic, index in sorted(places, key=lambda place: (_java_hash(f"{place[0]}-{place[1]}"), place)):
        assignment[topic, index] = next(thread for thread in turn if thread in by_topic[topic])
    return assignment


def _threads_by_topic(members: Mapping[str, Mapping[str, int]]) -> dict[str, list[ThreadId]]:
    by_topic: dict[str, list[ThreadId]] = {}
    for consumer, topics in members.items():
        for topic, streams in topics.items():
            by_topic.setdefault(topic, []).extend(ThreadId(consumer, number) for number in range(streams))
    return {topic: sorted(threads, key=str) for topic, threads in by_topic.items() if threads}


def _java_hash(text: str) -> int:
    """Return `String.hashCode()`."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
