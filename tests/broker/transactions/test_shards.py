"""Coordinators of several partitions: created, loaded and dropped as the broker's leadership changes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.storage.partitions import Partition
from onceflow.broker.storage.state_log import StateLog
from onceflow.broker.topics.internal import partition_of
from onceflow.broker.topics.topics import TRANSACTION_STATE_TOPIC
from onceflow.broker.transactions.coordinator import InitRequest, ProducerRequest, TransactionCoordinator
from onceflow.broker.transactions.requests import Transactions
from onceflow.broker.transactions.shards import TransactionShards
from onceflow.broker.transactions.transaction import Event, TransactionState
from onceflow.log.partition import PartitionLog
from onceflow.wire.errors import ErrorCode
from tests.broker.transactions.simulation import STATE_CONFIG, TIMEOUT_MS, World

PARTITIONS = 4
NONE = ErrorCode.none
AT = ("a", 0)


class Side:
    """One broker's coordinators, on the partition logs of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shards = TransactionShards(self._new_shard, self._new_log, lambda: PARTITIONS)
        self.partitions = [
            Partition(
                TRANSACTION_STATE_TOPIC,
                index,
                PartitionLog.open(
                    world.root / f"{TRANSACTION_STATE_TOPIC}-of-{index}",
                    STATE_CONFIG,
                    disk=world.disk,
                    clock=world.clock,
                    clean=False,
                ),
            )
            for index in range(PARTITIONS)
        ]

    def _new_log(self, partition: Partition) -> StateLog:
        rounds: Any = self.world.rounds
        return StateLog(partition, self.world.clock, rounds)

    def _new_shard(self, state_log: StateLog) -> Transactions:
        return Transactions(
            TransactionCoordinator(self.world.clock, timeout_max_ms=900_000, expiration_ms=10**12),
            state_log,
            self.world.participants,
            self.world._next_producer_id,
            abort_interval_ms=1000,
            expiration_interval_ms=10**9,
        )

    def of(self, transactional_id: str) -> Partition:
        return self.partitions[partition_of(transactional_id, PARTITIONS)]

    def init(self, transactional_id: str) -> list[Any]:
        got: list[Any] = []
        self.shards.init(InitRequest(transactional_id, TIMEOUT_MS), lambda *response: got.append(response))
        return got

    def sync(self) -> None:
        for _ in range(6):
            self.world.rounds.run(whole=True)


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(World(0, tmp_path))


def in_loop(act: Any) -> None:
    async def run() -> None:
        act()
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(run())


def log_end(side: Side) -> int:
    partition = side.world.partitions.get(*AT)
    assert partition is not None
    return partition.log.log_end_offset


def test_requests_without_coordinator_are_refused(side: Side) -> None:
    assert side.init("ann") == [(ErrorCode.not_coordinator, -1, -1)]
    assert side.init("") == [(ErrorCode.invalid_request, -1, -1)]
    got: list[ErrorCode] = []
    side.shards.add(ProducerRequest("ann", 7, 0), frozenset({AT}), got.append)
    side.shards.end_transaction(ProducerRequest("ann", 7, 0), Event.COMMIT, got.append)
    assert got == [ErrorCode.not_coordinator] * 2
    assert side.shards.of("ann").is_elsewhere


def test_loading_refuses_requests(side: Side) -> None:
    in_loop(lambda: side.shards.begin(side.of("ann")))
    assert not side.shards.is_loading, "an empty log is loaded at once"
    side.init("ann")
    side.sync()
    side.shards.end(side.of("ann"))

    def act() -> None:
        side.shards.begin(side.of("ann"))
        assert side.init("ann") == [(ErrorCode.coordinator_load_in_progress, -1, -1)]
        assert side.shards.is_loading
        assert side.shards.of("ann").check_produce(7, 0, "ann", *AT) == ErrorCode.not_enough_replicas

    in_loop(act)
    got = side.init("ann")
    side.sync()
    assert [code for code, _id, _epoch in got] == [NONE]


def test_start_loads_what_already_loads(side: Side) -> None:
    """A broker that starts may lead a partition before it listens."""
    in_loop(lambda: side.shards.begin(side.of("ann")))
    side.init("ann")
    side.sync()
    side.shards.end(side.of("ann"))
    errors: list[object] = []

    def act() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        side.shards.begin(side.of("ann"))
        side.shards.load()

    in_loop(act)
    assert not side.shards.is_loading
    assert errors == []


def test_next_coordinator_knows_the_transaction(side: Side) -> None:
    in_loop(lambda: side.shards.begin(side.of("ann")))
    got = side.init("ann")
    side.sync()
    _code, producer_id, epoch = got[0]
    who = ProducerRequest("ann", producer_id, epoch)
    side.shards.add(who, frozenset({AT}), lambda _code: None)
    side.sync()
    side.shards.end(side.of("ann"))
    assert side.init("ann") == [(ErrorCode.not_coordinator, -1, -1)]
    in_loop(lambda: side.shards.begin(side.of("ann")))
    shard = side.shards.of("ann")
    assert shard.coordinator.transactions["ann"].partitions == {AT}
    assert shard.check_produce(producer_id, epoch, "ann", *AT) == NONE


def test_waiting_requests_end_with_leadership(side: Side) -> None:
    in_loop(lambda: side.shards.begin(side.of("ann")))
    got = side.init("ann")
    assert got == []
    side.shards.end(side.of("ann"))
    side.of("ann").fail(ErrorCode.not_leader_or_follower)
    assert got == [(ErrorCode.not_coordinator, -1, -1)]


def test_prepared_transaction_is_completed_elsewhere(side: Side) -> None:
    """A coordinator that lost its partition writes no markers; the next one does."""
    in_loop(lambda: side.shards.begin(side.of("ann")))
    got = side.init("ann")
    side.sync()
    who = ProducerRequest("ann", *got[0][1:])
    side.shards.add(who, frozenset({AT}), lambda _code: None)
    side.sync()
    written: list[ErrorCode] = []
    side.world.produce(who, AT, b"v", 0, written.append)
    ended: list[ErrorCode] = []
    side.shards.end_transaction(who, Event.ABORT, ended.append)
    side.shards.end(side.of("ann"))
    before = log_end(side)
    side.of("ann").fail(ErrorCode.not_leader_or_follower)
    side.sync()
    assert ended == [ErrorCode.not_coordinator]
    assert log_end(side) == before
    in_loop(lambda: side.shards.begin(side.of("ann")))
    side.sync()
    assert log_end(side) == before + 1
    shard = side.shards.of("ann")
    assert shard.coordinator.transactions["ann"].state is TransactionState.COMPLETE_ABORT


def test_too_few_replicas_change_nothing(side: Side) -> None:
    class TooFew:
        def refusal(self) -> ErrorCode:
            return ErrorCode.not_enough_replicas

        def on_appended(self) -> None: ...

    in_loop(lambda: side.shards.begin(side.of("ann")))
    side.of("ann").replica = TooFew()  # type: ignore[assignment]
    assert side.init("ann") == [(ErrorCode.coordinator_not_available, -1, -1)]
    side.of("ann").replica = None
    shard = side.shards.of("ann")
    assert shard.coordinator.transactions == {}
