"""What the members of a group have read, step by step, while they come and go: each record once, by its holder.

A client's program says after each step, in a line, what each member holds and what it has read since the last step.
In each step every partition gets RECORDS more records, numbered from 0 in each; the partitions of a member that has
left get theirs before another has taken over, so that the committed offsets alone say where that one begins.
"""

from collections.abc import Sequence
from typing import Any

PARTITIONS = 4
RECORDS = 30
STEPS = {"one": 1, "two": 2, "one left": 1}
"""How many members there are in each."""


def assert_each_record_was_read_once(told: Sequence[dict[str, Any]]) -> None:
    """The last line has the group's offsets."""
    *steps, offsets = told
    assert [(step["step"], len(step["members"])) for step in steps] == [*STEPS.items()]
    for place, step in enumerate(steps):
        numbers = range(RECORDS * place, RECORDS * (place + 1))
        held = [partition for member in step["members"] for partition in member["held"]]
        assert sorted(held) == [*range(PARTITIONS)], step["step"]
        for member in step["members"]:
            wanted = [[partition, number] for partition in sorted(member["held"]) for number in numbers]
            assert len(member["held"]) == PARTITIONS // len(step["members"]), step["step"]
            assert sorted(member["read"], key=lambda read: read[0]) == wanted, step["step"]
    assert offsets == {"committed": [RECORDS * len(STEPS)] * PARTITIONS}
