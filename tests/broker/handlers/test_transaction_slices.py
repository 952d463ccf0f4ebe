"""Answers about many transactions are made in slices: the loop turns in between, the work of a turn is bounded."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.broker.handlers import transaction_admin as admin_handlers
from onceflow.broker.loop import slices
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import DrivenBroker
from tests.broker.handlers.test_group_slices import counted
from tests.broker.raw_client import RawClient, connected
from tests.broker.transactions.transactional_client import TransactionalClient

IDS = [f"x{number}" for number in range(40)]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RawClient]:
    with DrivenBroker(tmp_path / "data") as broker, connected(broker.bootstrap) as client:
        client.create_topic("t", 40)
        for number, transactional_id in enumerate(IDS):
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
    response = client.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=IDS)
    return [state.transactional_id for state in response.transaction_states]


def describe_producers(client: RawClient) -> list[str]:
    asked = [{"name": "t", "partition_indexes": list(range(40))}]
    (topic,) = client.ask(apis.DESCRIBE_PRODUCERS, 0, topics=asked).topics
    assert all(len(partition.active_producers) == 1 for partition in topic.partitions)
    return [f"x{partition.partition_index}" for partition in topic.partitions]


@pytest.mark.parametrize(
    ("ask", "element", "work"),
    [
        (list_transactions, "_listed", admin_handlers.WORK_PER_LISTED),
        (describe_transactions, "_described", admin_handlers.WORK_PER_DESCRIBED),
        (describe_producers, "_append_described_partition", 2),
    ],
)
def test_many_transactions_are_answered_some_in_each_turn(
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[RawClient], list[str]],
    element: str,
    work: int,
) -> None:
    monkeypatch.setattr(slices, "WORK_PER_TURN", 10 * work)
    turns = counted(monkeypatch, admin_handlers, element)
    assert sorted(ask(client)) == sorted(IDS)
    assert sum(turns) == len(IDS)
    assert 8 <= max(turns) <= 10
