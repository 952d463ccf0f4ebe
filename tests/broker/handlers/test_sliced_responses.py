"""Responses about many groups, offsets or transactions are built in slices: the work of each turn is bounded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.handlers import group_admin, group_offsets, transaction_admin
from onceflow.broker.loop import slices
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import DrivenBroker
from tests.broker.groups.raw_group import RawGroup
from tests.broker.raw_client import RawClient, connected
from tests.broker.transactions.transactional_client import TransactionalClient
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
        (list_groups, group_admin, "_listed", group_admin.WORK_PER_LISTED_GROUP),
        (describe_groups, group_admin, "_described", group_admin.WORK_PER_GROUP),
        (fetch_offsets, group_offsets, "_offsets", group_offsets.WORK_PER_OFFSET * 3),
    ],
    ids=["list", "describe", "fetch"],
)
def test_groups_in_a_turn_are_bounded(
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


def test_unlisted_groups_count_as_work(group: RawGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = counted(monkeypatch, group_admin, "_listed")
    assert group.client().ask(apis.LIST_GROUPS, 4, states_filter=("Stable",)).groups == ()
    assert len(turns) > 1
    assert sum(turns) == 0


TRANSACTIONAL_IDS = [f"x{number}" for number in range(40)]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RawClient]:
    with DrivenBroker(tmp_path / "data") as broker, connected(broker.bootstrap) as client:
        client.create_topic("t", 40)
        for number, transactional_id in enumerate(TRANSACTIONAL_IDS):
            producer = TransactionalClient(client, transactional_id)
            producer.init_until_done()
            assert producer.add(("t", number)) == ErrorCode.none
            assert producer.produce("t", b"v", partition=number) == ErrorCode.none
        yield client


def list_transactions(client: RawClient) -> list[str]:
    response = client.ask(
        apis.LIST_TRANSACTIONS, 1, state_filters=("Ongoing", "no state"), producer_id_filters=(), duration_filter=-1
    )
    assert response.unknown_state_filters == ("no state",)
    return [state.transactional_id for state in response.transaction_states]


def describe_transactions(client: RawClient) -> list[str]:
    response = client.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=TRANSACTIONAL_IDS)
    return [state.transactional_id for state in response.transaction_states]


def describe_producers(client: RawClient) -> list[str]:
    asked = [{"name": "t", "partition_indexes": list(range(40))}]
    (topic,) = client.ask(apis.DESCRIBE_PRODUCERS, 0, topics=asked).topics
    assert all(len(partition.active_producers) == 1 for partition in topic.partitions)
    return [f"x{partition.partition_index}" for partition in topic.partitions]


@pytest.mark.parametrize(
    ("ask", "element", "work"),
    [
        (list_transactions, "_listed", transaction_admin.WORK_PER_LISTED),
        (describe_transactions, "_described", transaction_admin.WORK_PER_DESCRIBED),
        (describe_producers, "_append_described_partition", 2),
    ],
)
def test_transactions_in_a_turn_are_bounded(
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[RawClient], list[str]],
    element: str,
    work: int,
) -> None:
    monkeypatch.setattr(slices, "WORK_PER_TURN", 10 * work)
    turns = counted(monkeypatch, transaction_admin, element)
    assert sorted(ask(client)) == sorted(TRANSACTIONAL_IDS)
    assert sum(turns) == len(TRANSACTIONAL_IDS)
    assert 8 <= max(turns) <= 10
