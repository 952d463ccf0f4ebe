"""The table of a group's states, and the page with its picture."""

from pathlib import Path

import pytest

from onceflow.broker.groups import states
from onceflow.broker.groups.group import Group
from onceflow.broker.groups.members import MemberMemory, Members
from onceflow.broker.groups.states import NEXT_STATES, GroupState


def test_page_is_generated_from_table() -> None:
    written = (Path(__file__).parents[3] / "docs" / "groups.md").read_text()
    assert written == states.page(), "run: .venv/bin/python -m onceflow.broker.groups.states > docs/groups.md"


def test_every_state_leads_to_dead() -> None:
    reached = {GroupState.EMPTY}
    for _ in GroupState:
        reached |= {following for state in reached for following in NEXT_STATES[state]}
    assert reached == set(GroupState)
    assert [state for state, nexts in NEXT_STATES.items() if not nexts] == [GroupState.DEAD]


def test_invalid_transition_is_refused() -> None:
    with pytest.raises(AssertionError, match="Empty → CompletingRebalance"):
        Group("g", Members(MemberMemory(1))).move(GroupState.COMPLETING_REBALANCE)
