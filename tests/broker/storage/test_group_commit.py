"""A sync that could not begin is retried; its waiters get their result when it did."""

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.storage import group_commit
from onceflow.broker.storage.group_commit import GroupCommit


class PartitionOnATroubledDisk:
    """Its first `troubled` rounds do not move the high watermark, as with a directory that cannot be opened."""

    replica = None

    def __init__(self, troubled: int) -> None:
        self.troubled = troubled
        self.rounds = 0
        self.settled = asyncio.Event()
        self.failed = asyncio.Event()
        self.durability: Any = SimpleNamespace(
            synced_offset=0,
            stored_offset=0,
            unfinished_seals=0,
            failure=None,
            has_flush_policy=False,
            begin_sync=self.begin,
            end_sync=self.end,
            fail_sync=lambda _error: None,
        )
        self.log: Any = SimpleNamespace(durability=self.durability, segments=SimpleNamespace(end_offset=1))

    def begin(self) -> Any:
        point = SimpleNamespace(offset_end=1, directory="d", run=lambda: None, problem=None, is_first=False)
        point.postpone = lambda problem: setattr(point, "problem", problem)
        return point

    def end(self, point: Any) -> None:
        self.rounds += 1
        if self.rounds > self.troubled and point.problem is None:
            self.durability.synced_offset = point.offset_end

    def settle(self) -> None:
        self.settled.set()

    def fail(self, _code: object) -> None:
        self.failed.set()


async def committed(troubled: int) -> PartitionOnATroubledDisk:
    commit, partition = GroupCommit(DeferredCalls(), lambda: True, lambda: None), PartitionOnATroubledDisk(troubled)
    commit.request(partition)  # type: ignore[arg-type]
    waiting = [asyncio.ensure_future(event.wait()) for event in (partition.settled, partition.failed)]
    _, pending = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await commit.close()
    return partition


def test_an_unstarted_sync_is_retried() -> None:
    partition = asyncio.run(committed(troubled=2))
    assert (partition.rounds, partition.settled.is_set(), partition.failed.is_set()) == (3, True, False)


def test_a_never_starting_sync_fails_its_waiters(monkeypatch: Any) -> None:
    monkeypatch.setattr(group_commit, "RETRY_S", 0.001)
    partition = asyncio.run(committed(troubled=10**6))
    assert (partition.settled.is_set(), partition.failed.is_set()) == (False, True)


def test_an_unawaited_sync_is_not_forgotten() -> None:
    """It has no round of its own at once, and one a moment later if nothing else is requested."""

    async def run() -> PartitionOnATroubledDisk:
        commit, partition = GroupCommit(DeferredCalls(), lambda: True, lambda: None), PartitionOnATroubledDisk(0)
        commit.request_soon(partition)  # type: ignore[arg-type]
        commit.request_soon(partition)  # type: ignore[arg-type]
        assert not commit._is_running
        await asyncio.wait_for(partition.settled.wait(), 10)
        await commit.close()
        return partition

    assert asyncio.run(run()).rounds == 1


@pytest.mark.parametrize("has_flush_policy", [True, False])
def test_an_unawaited_sync_joins_the_next_round(monkeypatch: pytest.MonkeyPatch, has_flush_policy: bool) -> None:
    """A flush policy is not delayed further: it says itself what may wait."""
    monkeypatch.setattr(group_commit, "SOON_S", 3600)

    async def run() -> PartitionOnATroubledDisk:
        commit, partition = GroupCommit(DeferredCalls(), lambda: True, lambda: None), PartitionOnATroubledDisk(0)
        partition.durability.has_flush_policy = has_flush_policy
        commit.request_soon(partition)  # type: ignore[arg-type]
        assert commit._is_running is has_flush_policy
        commit.request(partition)  # type: ignore[arg-type]
        await asyncio.wait_for(partition.settled.wait(), 10)
        await commit.close()
        return partition

    assert asyncio.run(run()).rounds == 1


def test_put_off_syncs_end_with_their_partition() -> None:
    """A deleted partition and a closed broker leave no timer."""

    async def run() -> None:
        commit, deleted, kept = (
            GroupCommit(DeferredCalls(), lambda: True, lambda: None),
            PartitionOnATroubledDisk(0),
            PartitionOnATroubledDisk(0),
        )
        commit.request_soon(deleted)  # type: ignore[arg-type]
        commit.request_soon(kept)  # type: ignore[arg-type]
        timers = list(commit._timers.values())
        commit.forget(deleted)  # type: ignore[arg-type]
        await commit.close()
        assert all(timer.cancelled() for timer in timers)
        assert not commit._timers

    asyncio.run(run())


@pytest.mark.parametrize("is_put_off", [True, False])
def test_a_deleted_partitions_round_is_dropped(caplog: pytest.LogCaptureFixture, is_put_off: bool) -> None:
    """While its directory is removed, neither a failed sync nor one that could not begin is logged."""

    async def run() -> None:
        commit, partition = (
            GroupCommit(DeferredCalls(), lambda: True, lambda: None),
            PartitionOnATroubledDisk(troubled=10**6),
        )
        begin = partition.begin

        def begin_and_forget() -> Any:
            point = begin()
            point.run = fail
            asyncio.get_running_loop().call_soon(commit.forget, partition)  # type: ignore[arg-type]
            return point

        partition.durability.begin_sync = begin_and_forget
        commit.request(partition)  # type: ignore[arg-type]
        await commit.close()
        assert not commit._retried_rounds
        assert not partition.failed.is_set()
        assert not partition.settled.is_set()

    def fail() -> None:
        if not is_put_off:
            raise FileNotFoundError(errno.ENOENT, "deleted")

    asyncio.run(run())
    assert not caplog.records


def test_a_round_without_a_descriptor_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, failures = os.pipe, [OSError(errno.EMFILE, "Too many open files")] * 2

    def scarce() -> tuple[int, int]:
        if failures:
            raise failures.pop()
        return pipe()

    async def test() -> PartitionOnATroubledDisk:
        monkeypatch.setattr(os, "pipe", scarce)
        return await committed(troubled=0)

    partition = asyncio.run(test())
    assert (partition.rounds, partition.settled.is_set(), partition.failed.is_set()) == (3, True, False)
