"""Coordinators of several partitions, with another replica: what waits for it, and what ends with the leadership."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from onceflow.broker.cluster.replicas import Lag, LeaderState
from onceflow.broker.cluster.replication import Led
from onceflow.broker.groups.members import JoinResponse, SyncResponse
from onceflow.broker.groups.outcome import JoinRequest, SyncRequest
from onceflow.broker.groups.requests import GroupRequests
from onceflow.broker.groups.shards import GroupShards
from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.partitions import Partition, Partitions
from onceflow.broker.storage.state_log import NotLeading, StateLog
from onceflow.broker.topics import shards
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC
from onceflow.log.config import LogConfig
from onceflow.log.partition import PartitionLog
from onceflow.testing import FaultyDisk, ManualClock
from onceflow.wire.errors import ErrorCode
from tests.broker.groups.scene import CONFIG
from tests.broker.groups.stored import commits

NONE = ErrorCode.none
AWAY = ErrorCode.coordinator_not_available
MOVED = ErrorCode.not_coordinator
COUNT = 2
LOG = LogConfig(cleanup_delete=False, cleanup_compact=True, min_insync_replicas=2)


class Epoch(NamedTuple):
    """State of a partition led by broker 1, with broker 2 in sync."""

    leader_epoch: int
    isr: tuple[int, ...] = (1, 2)
    partition_epoch: int = 0
    replicas: tuple[int, ...] = (1, 2)
    leader: int = 1


class Leadership:
    """A broker's logs, its coordinators, and the follower that fetches when the test says so."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        self.deferred = DeferredCalls()
        self.group_commit = GroupCommit(self.deferred, lambda: True, lambda: None)
        self.partitions = Partitions()
        disk = FaultyDisk(root)
        config = replace(CONFIG, **settings)
        self.shards = GroupShards(config, self.clock, self._new_log, lambda: COUNT)
        self.partitions.roles[GROUP_OFFSETS_TOPIC] = self.shards
        for index in range(COUNT):
            path = root / f"{GROUP_OFFSETS_TOPIC}-{index}"
            log = PartitionLog.open(path, LOG, disk=disk, clock=self.clock, clean=False, is_replica=True)
            self.partitions.host(GROUP_OFFSETS_TOPIC, index, log)

    def _new_log(self, partition: Partition) -> StateLog:
        return StateLog(partition, self.clock, self.group_commit)

    # The interface that a Led needs

    def now_ms(self) -> float:
        return self.clock.monotonic() * 1000

    def is_alive(self, _broker_id: int) -> bool:
        return True

    def alter(self, _request: object, _altered: object) -> None:
        """The controller does not respond."""

    def partition(self, index: int) -> Partition:
        partition = self.partitions.hosted(GROUP_OFFSETS_TOPIC, index)
        assert partition is not None
        return partition

    def lead(self, index: int, epoch: int = 1) -> GroupRequests:
        """Begin an epoch as `cluster.replication` does."""
        partition = self.partition(index)
        log = partition.log
        log.wait_for_replicas(log.log_start_offset)
        state = LeaderState(1, Epoch(epoch), Lag(), epoch_start_offset=log.log_end_offset, now_ms=0)
        log.begin_epoch(epoch)
        partition.leader_epoch = epoch
        replication: Any = self
        partition.replica = Led(replication, partition, UUID(int=1), state)
        self.partitions.lead(GROUP_OFFSETS_TOPIC, index, epoch)
        return self.shards.at(index)

    def resign(self, index: int) -> None:
        self.partitions.resign(GROUP_OFFSETS_TOPIC, index)

    async def replicate(self, index: int) -> None:
        """Sync, and let the follower fetch from the log's end."""
        await self.group_commit._idle.wait()
        led = self.partition(index).replica
        assert isinstance(led, Led)
        led.fetched(2, self.partition(index).log.log_end_offset)

    def name(self, index: int) -> str:
        """Return a group of a partition."""
        return next(name for name in "abcdef" if self.shards.partition_of(name) == index)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(_awaited(test))


async def _awaited(test: Callable[[], Awaitable[None]]) -> None:
    await test()


def offsets(shard: GroupRequests, group: str) -> list[int | None]:
    return [commit.offset for commit in shard.groups.groups[group].offsets.values()]


def join_request(group: str, member_id: str = "", *, requires_id: bool = False) -> JoinRequest:
    return JoinRequest(group, member_id, "c", "/h", 10_000, 60_000, "consumer", (("range", b"m"),), requires_id)


def test_commit_waits_for_the_replicas(tmp_path: Path) -> None:
    async def test() -> None:
        broker = Leadership(tmp_path)
        shard, group = broker.lead(0), broker.name(0)
        codes: list[ErrorCode] = []
        shard.record(commits(5, group=group), codes.append)
        read: list[ErrorCode] = []
        shard.settle_in_time(read.append)
        await broker.group_commit._idle.wait()
        assert (codes, read) == ([], []), "it is synced here only"
        await broker.replicate(0)
        assert (codes, read) == ([NONE], [NONE])
        shard.record(commits(6, group=group), codes.append)
        await broker.group_commit._idle.wait()
        broker.clock.advance_ms(5001)
        broker.shards.expire()
        assert codes == [NONE, AWAY]
        await broker.replicate(0)
        assert codes == [NONE, AWAY], "responded to once"
        await broker.group_commit.close()

    run(test)


def test_commit_needs_enough_replicas(tmp_path: Path) -> None:
    async def test() -> None:
        broker = Leadership(tmp_path)
        shard, group = broker.lead(0), broker.name(0)
        led = broker.partition(0).replica
        assert isinstance(led, Led)
        led.state.update(Epoch(1, isr=(1,), partition_epoch=1), 0)
        codes: list[ErrorCode] = []
        shard.record(commits(5, group=group), codes.append)
        shard.record_transactional(1, 0, commits(5, group=group), codes.append)
        assert codes == [AWAY, AWAY]
        assert broker.partition(0).log.log_end_offset == 0
        assert not shard.groups.groups
        await broker.group_commit.close()

    run(test)


def test_resignation_ends_what_waits(tmp_path: Path) -> None:
    async def test() -> None:
        broker = Leadership(tmp_path)
        shard, group = broker.lead(0), broker.name(0)
        joined: list[JoinResponse] = []
        synced: list[SyncResponse] = []
        codes: list[ErrorCode] = []
        shard.execute(shard.groups.join(join_request(group), joined.append))
        await broker.replicate(0)
        (first,) = joined
        shard.execute(shard.groups.sync(SyncRequest(group, 1, first.member_id, None, None, {}), synced.append))
        shard.execute(shard.groups.join(join_request(group), joined.append))
        shard.execute(shard.groups.join(join_request(group, requires_id=True), joined.append))
        shard.record(commits(5, group=group), codes.append)
        end = broker.partition(0).log.log_end_offset
        broker.resign(0)
        await asyncio.sleep(0)
        assert [response.error_code for response in synced] == [MOVED]
        assert [response.error_code for response in joined[1:]] == [MOVED, MOVED]
        assert codes == [MOVED]
        assert shard.error_code is MOVED
        assert broker.shards.of(group).error_code is MOVED
        shard.record(commits(6, group=group), codes.append)
        assert codes == [MOVED, MOVED]
        with pytest.raises(NotLeading):
            shard.complete_transaction(7, 0, commit=True)
        assert broker.shards.here() == []
        assert shard.groups.memory.used_bytes == 0
        assert not len(shard.groups.pending_ids)
        assert broker.partition(0).log.log_end_offset == end, "nothing is appended to another broker's log"
        await broker.group_commit.close()

    run(test)


def test_new_leader_loads_up_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are not on all replicas yet are the new leader's too, and shown when they are."""
    monkeypatch.setattr(shards, "SLICE_BYTES", 300)

    async def test() -> None:
        broker = Leadership(tmp_path)
        shard, group = broker.lead(0), broker.name(0)
        codes: list[ErrorCode] = []
        for offset in range(20):
            shard.record(commits(offset, group=group), codes.append)
        shard.record_transactional(7, 0, commits(98, 99, group=group), codes.append)
        broker.resign(0)
        assert {*codes} == {MOVED}
        other = broker.lead(1)
        shard = broker.lead(0, epoch=2)
        assert shard.error_code is ErrorCode.coordinator_load_in_progress
        assert other.error_code is NONE, "its log is empty"
        read: list[ErrorCode] = []
        shard.settle_in_time(read.append)
        turns = 0
        while shard.error_code:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 5
        assert offsets(shard, group) == [19]
        assert shard.groups.pending.has(group, "t", 1)
        assert not read
        await broker.replicate(0)
        assert read == [NONE]
        shard.complete_transaction(7, 0, commit=True, coordinator_epoch=3)
        assert offsets(shard, group) == [98, 99]
        await broker.group_commit.close()

    run(test)


def test_resignation_ends_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shards, "SLICE_BYTES", 300)

    async def test() -> None:
        broker = Leadership(tmp_path)
        shard, group = broker.lead(0), broker.name(0)
        for offset in range(20):
            shard.record(commits(offset, group=group), lambda _code: None)
        broker.resign(0)
        shard = broker.lead(0, epoch=2)
        await asyncio.sleep(0)
        end = broker.partition(0).log.log_end_offset
        codes: list[ErrorCode] = []
        shard.complete_transaction(7, 0, commit=True)
        shard.when_synced(codes.append)
        shard.delete_offsets_of_topics({"t"}, codes.append)
        broker.resign(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert codes == [MOVED, NONE], "this broker has nothing to delete any more"
        assert broker.partition(0).log.log_end_offset == end
        assert not caplog.records
        await broker.group_commit.close()

    run(test)


def test_limits_hold_over_all_shards(tmp_path: Path) -> None:
    async def test() -> None:
        broker = Leadership(tmp_path, groups_pending_ids_max=2)
        first, second = broker.lead(0), broker.lead(1)
        joined: list[JoinResponse] = []
        for shard, index in ((first, 0), (second, 1), (second, 1)):
            shard.execute(shard.groups.join(join_request(broker.name(index), requires_id=True), joined.append))
        assert [response.error_code for response in joined] == [ErrorCode.member_id_required] * 3
        assert broker.name(0) not in first.groups.groups, "the oldest id was its only use"
        assert len(second.groups.groups[broker.name(1)].pending_ids) == 2
        assert first.groups.memory is second.groups.memory
        broker.clock.advance_ms(11_000)
        broker.shards.expire()
        assert broker.shards.count() == 0
        await broker.group_commit.close()

    run(test)
