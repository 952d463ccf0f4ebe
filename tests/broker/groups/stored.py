"""Groups with their log on a disk: records are really written, synced and replayed; the clock is moved by hand."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onceflow.broker.groups.coordinator import GroupCoordinator
from onceflow.broker.groups.records import GroupRecord, OffsetCommit
from onceflow.broker.groups.requests import GroupRequests
from onceflow.broker.groups.shards import GroupShards
from onceflow.broker.groups.states import GroupState
from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.partitions import Partition
from onceflow.broker.storage.state_log import StateLog
from onceflow.log.config import LogConfig
from onceflow.log.partition import PartitionLog
from onceflow.testing import FaultyDisk, ManualClock
from onceflow.wire.errors import ErrorCode
from tests.broker.groups.scene import CONFIG


class Stored:
    """Coordinator, requests and log; `reopen` is a restart after a kill, `crash` one after a power cut."""

    def __init__(self, directory: Path, log: LogConfig = LogConfig(), **settings: int) -> None:  # noqa: B008
        self.clock = ManualClock()
        self.disk = FaultyDisk(directory)
        self.config = replace(CONFIG, **settings)  # type: ignore[arg-type]
        self._log_config = log
        self._path = directory / "__consumer_offsets-0"
        self._open()

    def _open(self) -> None:
        log = PartitionLog.open(self._path, self._log_config, disk=self.disk, clock=self.clock, clean=False)
        self.partition = Partition("__consumer_offsets", 0, log)
        self.group_commit = GroupCommit(DeferredCalls(), lambda: True, lambda: None)
        self.groups = GroupCoordinator(self.clock, self.config)
        self.requests = GroupRequests(self.groups, StateLog(self.partition, self.clock, self.group_commit))
        self.requests.load(GroupShards.loaded_at_once_bytes)

    async def synced(self) -> None:
        """Wait until no sync is under way."""
        await self.group_commit._idle.wait()

    async def reopen(self) -> None:
        await self._end()
        self.disk.kill()
        self._open()

    async def crash(self) -> None:
        """All that was not synced is lost."""
        await self._end()
        self.disk.crash(1, drop_all=True)
        self._open()

    async def _end(self) -> None:
        """End the threads without the syncs that they would make."""
        self.disk.cut_power()
        await self.group_commit.close()

    async def record(self, *records: GroupRecord) -> ErrorCode:
        return await self._result(lambda settled: self.requests.record(records, settled))

    async def record_transactional(self, producer_id: int, *records: OffsetCommit) -> ErrorCode:
        return await self._result(lambda settled: self.requests.record_transactional(producer_id, 0, records, settled))

    async def complete(self, producer_id: int, *, commit: bool) -> ErrorCode:
        self.requests.complete_transaction(producer_id, 0, commit=commit)
        return await self._result(self.requests.when_synced)

    @staticmethod
    async def _result(ask: Callable[[Callable[[ErrorCode], None]], None]) -> ErrorCode:
        result: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        ask(result.set_result)
        return await asyncio.wait_for(result, 10)

    @property
    def state(self) -> GroupState:
        return self.groups.groups["g"].state

    def offsets(self, group: str = "g") -> dict[int, int | None]:
        """Partition of topic `t` → committed offset."""
        stored_group = self.groups.groups.get(group)
        return (
            {partition: offset.offset for (_topic, partition), offset in stored_group.offsets.items()}
            if stored_group
            else {}
        )


def run(test: Callable[[], Awaitable[Any]]) -> None:
    """Run the test's coroutine to its end."""
    asyncio.run(_awaited(test))


async def _awaited(test: Callable[[], Awaitable[Any]]) -> None:
    await test()


def commits(*offsets: int, group: str = "g", at_ms: int = 0) -> Sequence[OffsetCommit]:
    """A commit of each offset, in partition 0, 1, … of topic `t`."""
    return [OffsetCommit(group, "t", number, offset, 0, "", at_ms) for number, offset in enumerate(offsets)]
