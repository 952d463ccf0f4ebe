"""The leader's state machine: high watermark, in-sync replicas, and what the controller is asked for."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from onceflow.broker.cluster import replication as cluster_replication
from onceflow.broker.cluster.fetcher import Backoff, Fetcher, FetchLimits
from onceflow.broker.cluster.replicas import UNKNOWN_OFFSET, Follower, Lag, LeaderState
from onceflow.broker.cluster.replication import Altered, Committed, IsrRequest, Led, Replication
from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.storage.partitions import Partition
from onceflow.log.config import LogConfig
from onceflow.log.partition import PartitionLog
from onceflow.testing import FaultyDisk, ManualClock
from onceflow.wire.errors import ErrorCode
from tests.log.partition_logs import batch

LAG = Lag(time_max_ms=1000, messages_max=100)


class State(NamedTuple):
    """State of a partition led by broker 1."""

    isr: tuple[int, ...] = (1, 2, 3)
    partition_epoch: int = 0
    replicas: tuple[int, ...] = (1, 2, 3)
    leader: int = 1
    leader_epoch: int = 5


def leader(isr: tuple[int, ...] = (1, 2, 3), *, start: int = 10) -> LeaderState:
    return LeaderState(1, State(isr), LAG, epoch_start_offset=start, now_ms=0)


def wanted(
    state: LeaderState,
    now_ms: float,
    *,
    end: int = 10,
    high_watermark: int = 10,
    dead: int = 0,
    removes: bool = True,
) -> list[int] | None:
    isr = state.want(end, high_watermark, now_ms, lambda broker_id: broker_id != dead, removes=removes)
    return None if isr is None else sorted(isr)


def high_watermark(state: LeaderState, stored: int, end: int, min_isr: int, now_ms: float, *, dead: int = 0) -> int:
    return state.high_watermark(stored, end, min_isr, now_ms, lambda broker_id: broker_id != dead)


def test_high_watermark_is_minimum_of_ends() -> None:
    state = leader()
    assert high_watermark(state, 20, 20, 1, 0) == UNKNOWN_OFFSET, "no follower has fetched yet"
    state.fetched(2, 15, 20, 1)
    state.fetched(3, 12, 20, 1)
    assert high_watermark(state, 20, 20, 1, 1) == 12
    state.fetched(3, 20, 20, 2)
    assert high_watermark(state, 20, 20, 1, 2) == 15
    assert high_watermark(state, 14, 20, 1, 2) == 14, "what this broker has synced counts too"
    assert not state.fetched(4, 20, 20, 2)


def test_high_watermark_waits_for_joining_replicas() -> None:
    state = leader((1, 2))
    state.fetched(2, 20, 20, 1)
    assert high_watermark(state, 20, 20, 1, 1) == 20, "broker 3 is far behind"
    state.fetched(3, 20, 20, 1)
    state.fetched(2, 25, 25, 2)
    assert high_watermark(state, 25, 25, 1, 2) == 20, "broker 3 is about to join"
    assert high_watermark(state, 25, 25, 1, 2, dead=3) == 25
    assert high_watermark(state, 25, 25, 1, 5000) == 25


def test_high_watermark_stops_below_min_isr() -> None:
    state = leader((1,))
    assert high_watermark(state, 20, 20, 2, 0) == UNKNOWN_OFFSET
    assert high_watermark(state, 20, 20, 1, 0) == 20
    alone = LeaderState(1, State((1,), replicas=(1,)), LAG, epoch_start_offset=0, now_ms=0)
    assert high_watermark(alone, 20, 20, 2, 0) == 20, "there are fewer replicas than min.insync.replicas"


def test_slow_replicas_leave_the_set() -> None:
    state = leader()
    for now_ms in (100, 900):
        state.fetched(2, 10, 10, now_ms)
        state.fetched(3, 10, 10, now_ms)
    state.fetched(3, 12, 12, 1800)
    assert wanted(state, 1800, end=12) is None
    assert wanted(state, 1901, end=12) == [1, 3]
    assert wanted(state, 5000, end=12) is None, "one request at a time"
    assert state.maximal_isr == {1, 2, 3}
    state.altered((1, 3), 5, 1)
    assert (state.isr, state.maximal_isr, state.partition_epoch) == ({1, 3}, {1, 3}, 1)


def test_a_removed_replica_joins_after_fetching() -> None:
    """It has what the high watermark needs, which stands still below min.insync.replicas; but it does not fetch."""
    state = leader((1, 2), start=5)
    state.fetched(2, 8, 8, 0)
    assert wanted(state, 1001, high_watermark=8) == [1]
    state.altered([1], state.leader_epoch, 1)
    assert wanted(state, 1002, high_watermark=8) is None
    state.fetched(2, 9, 10, 1003)
    assert wanted(state, 1003, high_watermark=8, removes=False) == [1, 2]


def test_fetches_remove_no_replica() -> None:
    """A replica that catches up in small steps would leave and join with each fetch."""
    state = leader((1, 2))
    state.fetched(2, 8, 8, 0)
    assert wanted(state, 1001, removes=False) is None
    assert wanted(state, 1001) == [1]


def test_replica_that_lacks_too_much_leaves() -> None:
    state = leader()
    state.fetched(2, 10, 10, 0)
    state.fetched(3, 111, 111, 0)
    assert wanted(state, 0, end=110) is None
    assert wanted(state, 0, end=111) == [1, 3]


def test_constant_load_counts_as_caught_up() -> None:
    """A follower that is always at the leader's end of its last fetch is in sync, as in Kafka."""
    follower = Follower(caught_up_ms=0)
    for step in range(1, 20):
        follower.fetched(10 * step, 10 * (step + 1), step * 400)
    assert follower.is_caught_up(1000, 19 * 400, LAG._replace(messages_max=10**6))
    follower.fetched(191, 300, 20 * 400)
    assert not follower.is_caught_up(1000, 22 * 400, LAG._replace(messages_max=10**6))


@pytest.mark.parametrize(("offset", "joins"), [(9, False), (10, False), (11, False), (12, True)])
def test_replica_joins_at_start_of_epoch(offset: int, joins: bool) -> None:
    state = leader((1, 2), start=12)
    state.fetched(2, 20, 20, 0)
    state.fetched(3, offset, 20, 0)
    assert wanted(state, 0, end=20, high_watermark=11) == ([1, 2, 3] if joins else None)


def test_dead_replicas_do_not_join() -> None:
    state = leader((1, 2))
    state.fetched(2, 10, 10, 0)
    state.fetched(3, 10, 10, 0)
    assert wanted(state, 0, dead=3) is None
    assert wanted(state, 0) is None, "it may return with an empty disk"
    state.fetched(3, 10, 10, 0)
    assert wanted(state, 0) == [1, 2, 3]
    state.refused()
    assert wanted(state, 0) == [1, 2, 3]


def test_records_wait_for_both_sets() -> None:
    state = leader((1, 2))
    state.fetched(2, 15, 15, 0)
    state.fetched(3, 12, 15, 0)
    assert wanted(state, 0, end=15, high_watermark=12) == [1, 2, 3]
    assert high_watermark(state, 15, 15, 1, 9000) == 12, "the controller may have added broker 3"


def test_a_wish_outlives_the_present_state() -> None:
    """The next controller sends it again, and may still carry out the wish."""
    state = leader((1, 2))
    state.fetched(3, 10, 10, 0)
    assert wanted(state, 0) == [1, 2, 3]
    state.update(State((1, 2)), 0)
    state.altered((1, 2), 5, 0)
    assert state.maximal_isr == {1, 2, 3}
    state.update(State((1, 2), partition_epoch=1), 0)
    assert state.maximal_isr == {1, 2}


def test_older_states_are_ignored() -> None:
    state = leader()
    state.altered((1, 2), 5, 3)
    state.update(State((1,), partition_epoch=2), 0)
    state.altered((1,), 4, 9)
    assert (state.isr, state.partition_epoch) == ({1, 2}, 3)
    state.update(State((1, 4), partition_epoch=4, replicas=(1, 4)), 7)
    assert (state.isr, set(state.followers)) == ({1, 4}, {4})
    assert state.followers[4].caught_up_ms == 7


def replication_of_broker_1(
    clock: ManualClock, *, stored_high_watermark: int = 0, alter_partition: Any = None
) -> Replication:
    """Replication of `t-0` without a network."""
    stood_in: Any = SimpleNamespace(follow=lambda *_arguments: None, remove=lambda _place, removed: removed())
    stood_in.alter_partition = alter_partition
    return Replication(
        1,
        stood_in,
        lag=LAG,
        clock=clock,
        deferred=DeferredCalls(),
        is_alive=lambda _broker_id: True,
        controller=stood_in,
        stored_high_watermark=lambda topic, index: {("t", 0): stored_high_watermark}[topic, index],
    )


@pytest.mark.parametrize("leads", [True, False])
def test_stored_high_watermark_holds_after_a_start(tmp_path: Path, leads: bool) -> None:
    """A power cut leaves more records on the disk than readers may see; the file says how many they are."""
    disk, clock = FaultyDisk(tmp_path), ManualClock()

    def opened() -> PartitionLog:
        return PartitionLog.open(tmp_path / "t-0", LogConfig(), disk=disk, clock=clock, clean=False, is_replica=True)

    log = opened()
    for value in (b"first", b"second", b"third"):
        log.append(batch(value, timestamp_ms=0))
    log.close()
    partition = Partition("t", 0, opened())
    replication = replication_of_broker_1(clock, stored_high_watermark=2)
    state: Any = State()
    if leads:
        replication.lead(partition, UUID(int=1), state, lambda: None)
    else:
        replication.follow(partition, state)
    assert (partition.log.high_watermark, partition.log.log_end_offset) == (2, 3)
    partition.log.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    """An empty log of a replica."""
    disk = FaultyDisk(tmp_path)
    opened = PartitionLog.open(
        tmp_path / "t-0", LogConfig(), disk=disk, clock=ManualClock(), clean=True, is_replica=True
    )
    yield opened
    opened.close()


def led_by(replication: Replication, log: PartitionLog, state: State) -> Led:
    """Let broker 1 lead the partition."""
    partition = Partition("t", 0, log)
    replication.lead(partition, UUID(int=1), state, lambda: None)
    led = replication.led(partition)
    assert led is not None
    return led


@pytest.mark.parametrize(
    ("error_code", "is_certain", "is_repeated"),
    [
        (ErrorCode.ineligible_replica, True, False),
        (ErrorCode.not_controller, False, True),
        (ErrorCode.network_exception, False, True),
        (ErrorCode.stale_broker_epoch, False, True),
        (ErrorCode.fenced_leader_epoch, False, False),
        (ErrorCode.invalid_update_version, False, False),
    ],
)
def test_records_wait_until_the_outcome_is_known(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, error_code: ErrorCode, is_certain: bool, is_repeated: bool
) -> None:
    """A controller that was replaced says NOT_CONTROLLER; what it wrote before may let broker 3 lead."""
    monkeypatch.setattr(cluster_replication, "RETRY_S", 0)
    asked: list[tuple[IsrRequest, Altered]] = []
    replication = replication_of_broker_1(ManualClock(), alter_partition=lambda *request: asked.append(request))

    async def lead() -> int:
        led = led_by(replication, log, State((1, 2)))
        led.fetched(3, 0)
        ((request, altered),) = asked
        assert request.isr == [1, 2, 3]
        altered(error_code)
        for _ in range(3):
            await asyncio.sleep(0)
        assert led.state.maximal_isr == ({1, 2} if is_certain else {1, 2, 3})
        return len(asked)

    assert asyncio.run(lead()) == (2 if is_repeated else 1)


def test_a_follower_joins_after_another(log: PartitionLog) -> None:
    """It has caught up while the controller was asked for the other one; it does not fetch again before it joins."""
    asked: list[tuple[IsrRequest, Altered]] = []
    replication = replication_of_broker_1(ManualClock(), alter_partition=lambda *request: asked.append(request))
    led = led_by(replication, log, State((1,)))
    led.fetched(2, 0)
    led.fetched(3, 0)
    ((first, altered),) = asked
    assert first.isr == [1, 2]
    altered(Committed([1, 2], led.state.leader_epoch, 1))
    assert [request.isr for request, _altered in asked] == [[1, 2], [1, 2, 3]]


def test_late_refusal_does_not_end_another_wish(log: PartitionLog) -> None:
    asked: list[tuple[IsrRequest, Altered]] = []
    replication = replication_of_broker_1(ManualClock(), alter_partition=lambda *request: asked.append(request))
    led = led_by(replication, log, State((1, 2)))
    led.fetched(3, 0)
    led.state.update(State((1, 2), partition_epoch=1), 0)
    led.fetched(3, 0)
    (_, refused), (second, _) = asked
    assert (second.isr, second.partition_epoch) == ([1, 2, 3], 1)
    refused(ErrorCode.ineligible_replica)
    assert led.state.maximal_isr == {1, 2, 3}


def test_delays_of_a_fetcher_grow() -> None:
    backoff = Backoff(300)
    assert [backoff.next_seconds() for _ in range(5)] == [0.05, 0.1, 0.2, 0.3, 0.3]
    backoff.reset()
    assert backoff.next_seconds() == 0.05
    assert [Backoff(0).next_seconds(), Backoff(20).next_seconds()] == [0, 0.02]


def test_failures_after_responses_slow_a_fetcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk stops it when it has what it asked for."""
    delays: list[float] = []
    next_seconds = Backoff.next_seconds

    def recorded(backoff: Backoff) -> float:
        delays.append(next_seconds(backoff))
        return 0

    async def fail(_starts: object) -> None:
        raise OSError("disk full")

    async def respond(_fetcher: Fetcher, _asked: object) -> Any:
        fetched = {"topic": "t", "partition": 0, "error_code": 0, "diverging_epoch": None, "records": b""}
        return SimpleNamespace(partitions=[SimpleNamespace(**fetched, high_watermark=0, log_start_offset=3)])

    async def run() -> None:
        fetchers: Any = SimpleNamespace(limits=FetchLimits(backoff_ms=300), broker_id=1, is_current=lambda _: True)
        fetchers.connect, fetchers.address_of, fetchers.advance_start = None, lambda _broker: None, fail
        log = SimpleNamespace(high_watermark=5, log_start_offset=0, durability=SimpleNamespace(stored_offset=10))
        log.advance_high_watermark = lambda _offset: None
        partition = SimpleNamespace(watchers={})
        following: Any = SimpleNamespace(place=("t", 0), retry_at=0.0, is_stored=True, log=log, partition=partition)
        following.leader_epoch, following.backoff = 1, Backoff(300)
        fetcher = Fetcher(fetchers, 2)
        fetcher.add(following)
        for _turn in range(100):
            await asyncio.sleep(0)
        fetcher.close()

    monkeypatch.setattr(Backoff, "next_seconds", recorded)
    monkeypatch.setattr(Fetcher, "_fetch", respond)
    asyncio.run(run())
    assert delays[:5] == [0.05, 0.1, 0.2, 0.3, 0.3]
