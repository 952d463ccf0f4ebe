"""Fetchers: a truncation beside the controller's next requests, and logs that nothing shows to be a part of another."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from onceflow.broker.cluster import fetcher
from onceflow.broker.cluster.fetcher import Fetcher, Fetchers, FetchLimits, may_lack_records
from onceflow.broker.cluster.replicas import Lag
from onceflow.broker.cluster.replication import Replication
from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.loop.work_thread import WorkThread
from onceflow.broker.storage.partitions import Partitions
from onceflow.log.partition import PartitionLog
from onceflow.testing import ManualClock
from tests.broker.cluster.test_replicas import State
from tests.log.partition_logs import batch, open_log, sync

DIVERGING = SimpleNamespace(
    topic="t",
    partition=0,
    error_code=0,
    diverging_epoch=(0, 5),
    records=b"",
    high_watermark=0,
    log_start_offset=0,
)


def filled_log(directory: Path) -> PartitionLog:
    log = open_log(directory, is_replica=True)
    log.begin_epoch(0)
    for _ in range(10):
        log.append(batch(b"x"))
    sync(log)
    return log


@pytest.mark.parametrize("follows_another", [False, True])
def test_leading_waits_for_a_truncation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follows_another: bool) -> None:
    """Its end would remove the epoch of the new leader."""
    log = filled_log(tmp_path / "t-0")
    partitions = Partitions()
    partitions.host("t", 0, log)
    partition = partitions.hosted("t", 0)
    assert partition is not None
    responses = [SimpleNamespace(partitions=[DIVERGING])]

    async def respond(_fetcher: Fetcher, _asked: Any) -> Any:
        return responses.pop() if responses else await asyncio.Event().wait()

    async def close() -> None:
        """Do nothing."""

    async def lead_meanwhile() -> None:
        unused: Any = None
        thread, gate = WorkThread("housekeeping"), threading.Event()
        fetchers = Fetchers(
            1,
            FetchLimits(),
            group_commit=unused,
            thread=thread,
            address_of=lambda _broker: None,
            advance_start=unused,
            is_busy=lambda _partition: False,
            lower_offsets=lambda _topic, _index, _offset: None,
        )
        controller: Any = SimpleNamespace(alter_partition=None, close=close)
        replication = Replication(
            1,
            fetchers,
            lag=Lag(),
            clock=ManualClock(),
            deferred=DeferredCalls(),
            is_alive=lambda _broker: True,
            controller=controller,
            stored_high_watermark=lambda _topic, _index: 10,
        )
        assert partition is not None
        replication.follow(partition, State(isr=(2, 3), leader=2, leader_epoch=1))
        blocked = thread.submit(gate.wait)
        while not log.is_truncating:
            await asyncio.sleep(0)
        if follows_another:
            replication.follow(partition, State(isr=(3,), leader=3, leader_epoch=2))
        led = asyncio.Event()
        replication.lead(partition, uuid4(), State(isr=(1,), leader_epoch=3), led.set)
        assert not led.is_set()
        gate.set()
        await led.wait()
        assert blocked.done()
        await replication.close()
        thread.shutdown()

    monkeypatch.setattr(fetcher.Fetcher, "_fetch", respond)
    asyncio.run(lead_meanwhile())
    assert (log.log_end_offset, log.epochs.latest) == (5, 3)


def test_an_empty_log_may_lack_records(tmp_path: Path) -> None:
    """Its epochs are lost with its records, so it cannot be compared with the leader's."""
    log = filled_log(tmp_path / "t-0")
    assert not may_lack_records(log, 0)
    log.segments.start_offset = 10
    assert not may_lack_records(log, 3), "the last epoch is known, and compared by the leader"
    log.close()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n3 10\n")
    empty = open_log(tmp_path / "t-0", is_replica=True, clean=True, log_start_offset=10)
    assert [may_lack_records(empty, start) for start in (-1, 3, 10, 11)] == [False, True, False, False]
