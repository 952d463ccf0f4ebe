"""Records read by a group's members, step by step, while members come and go: each once, by its partition's owner.

After each step a client's program prints a line with each member's partitions and the records read since the last step.
In each step every partition gets RECORDS more records, numbered from 0 in each. The partitions of a member that left
get theirs before another member takes over, so that the committed offsets alone determine its start.
"""

from collections.abc import Sequence
from typing import Any

PARTITIONS = 4
RECORDS = 30
STEPS = {"one": 1, "two": 2, "one left": 1}
"""Number of members in each step."""


def assert_each_record_was_read_once(output: Sequence[dict[str, Any]]) -> None:
    """Check the steps; the last line has the group's offsets."""
    *steps, offsets = output
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
