"""The table of a group's states, and the page with its picture."""

from pathlib import Path

import pytest

from onceflow.broker.groups import states
from onceflow.broker.groups.group import Group
from onceflow.broker.groups.members import MemberMemory, Members
from onceflow.broker.groups.states import NEXT_STATES, GroupState


def test_the_page_of_groups_is_what_the_table_says() -> None:
    written = (Path(__file__).parents[3] / "docs" / "groups.md").read_text()
    assert written == states.page(), "run: .venv/bin/python -m onceflow.broker.groups.states > docs/groups.md"


def test_every_state_is_reached_and_has_a_way_to_the_end() -> None:
    reached = {GroupState.EMPTY}
    for _ in GroupState:
        reached |= {following for state in reached for following in NEXT_STATES[state]}
    assert reached == set(GroupState)
    assert [state for state, nexts in NEXT_STATES.items() if not nexts] == [GroupState.DEAD]


def test_a_state_that_the_table_does_not_allow_is_refused() -> None:
    with pytest.raises(AssertionError, match="Empty → CompletingRebalance"):
        Group("g", Members(MemberMemory(1))).move(GroupState.COMPLETING_REBALANCE)
