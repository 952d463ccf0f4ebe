"""Answers about many groups or offsets are made in slices: the loop turns in between, the work of a turn is bounded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.handlers import group_admin as admin_handlers
from onceflow.broker.handlers import group_offsets as offset_handlers
from onceflow.broker.loop import slices
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import DrivenBroker
from tests.broker.groups.raw_group import RawGroup
from tests.broker.turn_counts import counted

GROUPS = [f"g{number}" for number in range(40)]
WORK_PER_TURN = 60


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RawGroup]:
    with DrivenBroker(tmp_path / "data") as broker, RawGroup(broker.bootstrap, "g0") as group:
        group.client().create_topic("t")
        for group_id in GROUPS:
            group.group_id = group_id
            assert group.commit("t", 5, metadata="note") == ErrorCode.none
        monkeypatch.setattr(slices, "WORK_PER_TURN", WORK_PER_TURN)
        yield group


def list_groups(group: RawGroup) -> list[str]:
    return [listed.group_id for listed in group.client().ask(apis.LIST_GROUPS, 4).groups]


def describe_groups(group: RawGroup) -> list[str]:
    asked = {"groups": GROUPS, "include_authorized_operations": False}
    return [described.group_id for described in group.client().ask(apis.DESCRIBE_GROUPS, 5, **asked).groups]


def fetch_offsets(group: RawGroup) -> list[str]:
    asked = [{"group_id": group_id, "topics": None} for group_id in GROUPS]
    groups = group.client().ask(apis.OFFSET_FETCH, 8, groups=asked, require_stable=False).groups
    assert {group.topics[0].partitions[0].committed_offset for group in groups} == {5}
    return [group.group_id for group in groups]


@pytest.mark.parametrize(
    ("ask", "module", "name", "work"),
    [
        (list_groups, admin_handlers, "_listed", admin_handlers.WORK_PER_LISTED_GROUP),
        (describe_groups, admin_handlers, "_described", admin_handlers.WORK_PER_GROUP),
        (fetch_offsets, offset_handlers, "_offsets", offset_handlers.WORK_PER_OFFSET * 3),
    ],
    ids=["list", "describe", "fetch"],
)
def test_the_groups_of_a_turn_are_bounded(
    group: RawGroup,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[RawGroup], list[str]],
    module: Any,
    name: str,
    work: int,
) -> None:
    turns = counted(monkeypatch, module, name)
    assert ask(group) == GROUPS
    assert sum(turns) == len(GROUPS)
    assert max(turns) <= WORK_PER_TURN // work + 1


def test_groups_that_are_not_listed_cost_work_too(group: RawGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = counted(monkeypatch, admin_handlers, "_listed")
    assert group.client().ask(apis.LIST_GROUPS, 4, states_filter=("Stable",)).groups == ()
    assert len(turns) > 1
    assert sum(turns) == 0
