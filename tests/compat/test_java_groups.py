"""The Java client's consumers in groups: each assignor while members come and go, static members, positions."""

from itertools import pairwise
from typing import Any

import pytest

from tests.compat.java_programs import JavaPrograms
from tests.compat.known_differences import KNOWN_DIFFERENCES

Step = dict[str, Any]
STEPS = ["one", "two", "three", "one left", "two left"]


def run_assignor(java: JavaPrograms, topic: str, assignor: str) -> list[Step]:
    """Return the steps, after a check that each record was read once and each partition had one owner."""
    *steps, records = java.run("Groups", topic, "assignor", assignor)
    assert records == {"sent": 1000, "same": True}
    assert [step["step"] for step in steps] == STEPS
    every = sorted(f"{name}-{partition}" for name in (topic, f"{topic}-b") for partition in range(4))
    for step in steps:
        assert sorted(name for held in step["held"].values() for name in held) == every
        assert step["lost"] == 0
    return steps


def shares(step: Step) -> list[int]:
    return [len(held) for held in step["held"].values()]


def test_range(java: JavaPrograms, topic: str) -> None:
    """Each topic separately: the first members, in the order of their ids, have one partition more.

    The ids start with the client's id, and member-three comes before member-two.
    """
    steps = run_assignor(java, topic, "RangeAssignor")
    assert [shares(step) for step in steps] == [[8], [4, 4], [4, 2, 2], [4, 4], [8]]
    assert steps[2]["held"]["member-one"] == sorted(f"{name}-{p}" for name in (topic, f"{topic}-b") for p in (0, 1))
    assert steps[2]["held"]["member-three"] == [f"{topic}-2", f"{topic}-b-2"]
    assert steps[2]["held"]["member-two"] == [f"{topic}-3", f"{topic}-b-3"]


def test_round_robin(java: JavaPrograms, topic: str) -> None:
    """All partitions in one round: every third one for each of three members."""
    steps = run_assignor(java, topic, "RoundRobinAssignor")
    assert [shares(step) for step in steps] == [[8], [4, 4], [3, 2, 3], [4, 4], [8]]
    assert steps[2]["held"]["member-one"] == [f"{topic}-0", f"{topic}-3", f"{topic}-b-2"]


def kept(before: Step, after: Step, member: str) -> set[str]:
    return set(before["held"][member]) & set(after["held"][member])


@pytest.mark.parametrize("assignor", ["StickyAssignor", "CooperativeStickyAssignor"])
def test_sticky(java: JavaPrograms, topic: str, assignor: str) -> None:
    """A member keeps as much as its new share allows; cooperative members revoke nothing else, eager ones all."""
    steps = run_assignor(java, topic, assignor)
    assert [sorted(shares(step)) for step in steps] == [[8], [4, 4], [2, 3, 3], [4, 4], [8]]
    for before, after in pairwise(steps):
        for member in set(before["held"]) & set(after["held"]):
            held, share = before["held"][member], len(after["held"][member])
            assert len(kept(before, after, member)) == min(len(held), share), (before, after)
            moved = max(len(held) - share, 0)
            assert after["revoked"][member] == (moved if assignor.startswith("Cooperative") else len(held))


def test_static_members(java: JavaPrograms, topic: str) -> None:
    """One that returns has its partitions without a rebalance, a twin fences it, and an administrator removes it."""
    both, back, noticed, fenced, removed = java.run("Groups", topic, "static")
    assert back["held"] == both["held"]
    assert noticed == {"sameGeneration": True, "noticed": 0}
    assert fenced == {"fenced": "FencedInstanceIdException"}
    assert removed["held"] == {"one": [f"{topic}-{partition}" for partition in range(4)]}


def test_positions(java: JavaPrograms, topic: str) -> None:
    """Offsets by time, start and end, seeks, a pause, and commits that another consumer of the group reads."""
    located, moved, committed, continued = java.run("Groups", topic, "positions")
    assert located == {
        "times": {"-1": [0, 0], "0": [0, 0], "1": [1, 1000], "50500": [51, 51000], "99000": [99, 99000], "99001": None},
        "empty": True,
        "begin": 0,
        "end": 100,
    }
    assert moved == {"sought": "42", "end": 100, "begun": "0", "paused": 0, "resumed": "1", "lag": 98}
    assert committed == {"committed": 7, "metadata": "seven", "none": True}
    assert continued == {"continued": "7", "topics": 2}


def test_a_pattern_finds_new_topics(java: JavaPrograms, topic: str) -> None:
    """The second topic joins; one that does not match stays out."""
    before, after = java.run("Groups", topic, "pattern")
    assert before["held"] == {"one": [f"{topic}-1-0"]}
    assert after["held"] == {"one": [f"{topic}-1-0", f"{topic}-2-0", f"{topic}-2-1"]}


def test_missing_and_deleted_offsets(java: JavaPrograms, topic: str) -> None:
    """Without auto.offset.reset the consumer gets an error; otherwise it starts at the log's start, or its end."""
    assert java.run("Groups", topic, "reset") == [
        {"without": "NoOffsetForPartitionException"},
        {"deleted": "OffsetOutOfRangeException"},
        {"next": "4"},
        {"policy": "earliest", "position": 4},
        {"policy": "latest", "position": 10},
    ]


def test_a_member_that_does_not_poll(java: JavaPrograms, topic: str) -> None:
    """Its partitions move to the other one, its commit fails, and it may return."""
    _both, remaining, commit, _back, lost = java.run("Groups", topic, "evicted")
    assert remaining["held"] == {"other": [f"{topic}-0", f"{topic}-1"]}
    assert commit == {"commit": "CommitFailedException"}
    assert lost == {"lost": 1}


def test_the_next_consumer_protocol_is_refused(java: JavaPrograms, topic: str) -> None:
    """A known difference: KIP-848's protocol is not supported, and the client reports that instead of waiting."""
    assert "group.protocol=consumer" in KNOWN_DIFFERENCES
    assert java.run("Groups", topic, "consumer-protocol") == [{"error": "UnsupportedVersionException"}]
