"""Assignments of partitions to the streams of a group."""

import pytest

from onceflow.client.registry.assignment import Assign, ThreadId, assign_range, assign_round_robin


def owners(assign: Assign, members: dict[str, dict[str, int]], partitions: dict[str, list[int]]) -> dict[str, str]:
    return {f"{topic}-{index}": str(thread) for (topic, index), thread in assign(members, partitions).items()}


def test_range_is_the_articles_example() -> None:
    """Two consumers with two streams each and five partitions (kafka.consumer.RangeAssignor)."""
    assert owners(assign_range, {"c2": {"t": 2}, "c1": {"t": 2}}, {"t": [4, 3, 2, 1, 0]}) == {
        "t-0": "c1-0",
        "t-1": "c1-0",
        "t-2": "c1-1",
        "t-3": "c2-0",
        "t-4": "c2-1",
    }


def test_range_treats_each_topic_alone() -> None:
    members = {"a": {"t": 1, "u": 1}, "b": {"t": 1}, "c": {"missing": 1}}
    assert owners(assign_range, members, {"t": [0, 1, 2], "u": [0]}) == {
        "t-0": "a-0",
        "t-1": "a-0",
        "t-2": "b-0",
        "u-0": "a-0",
    }


def test_streams_are_sorted_as_texts() -> None:
    """Stream 10 is before stream 2, as in Kafka."""
    assignment = assign_range({"c": {"t": 11}}, {"t": list(range(11))})
    assert [assignment["t", index].number for index in range(11)] == [0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9]


def test_round_robin_deals_by_hash() -> None:
    """The hashes of "b-9", "b-10" and "a-0" in Java are 95381, 2957056 and 94412."""
    members = {"x": {"a": 1, "b": 1}, "y": {"b": 1}}
    assert list(owners(assign_round_robin, members, {"a": [0], "b": [9, 10]}).items()) == [
        ("a-0", "x-0"),
        ("b-9", "y-0"),
        ("b-10", "x-0"),
    ]


def test_round_robin_skips_streams_without_the_topic() -> None:
    members = {"x": {"a": 1}, "y": {"b": 1}}
    assert owners(assign_round_robin, members, {"a": [0, 1], "b": [0]}) == {"a-0": "x-0", "a-1": "x-0", "b-0": "y-0"}


@pytest.mark.parametrize("assign", [assign_range, assign_round_robin])
def test_every_partition_has_one_owner(assign: Assign) -> None:
    members = {f"c{number}": {"t": number % 3 + 1, "u": 1} for number in range(7)}
    partitions = {"t": list(range(40)), "u": list(range(3))}
    assignment = assign(members, partitions)
    assert assignment.keys() == {(topic, index) for topic, numbers in partitions.items() for index in numbers}
    for (topic, _), thread in assignment.items():
        assert isinstance(thread, ThreadId) and thread.number < members[thread.consumer][topic]
