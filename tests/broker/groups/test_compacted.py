"""The cleaner takes old records out of `__consumer_offsets`, and a restart finds the same groups as before."""

import random
from pathlib import Path

import pytest

from onceflow.broker.groups.records import GroupMetadata, OffsetCommit
from onceflow.log.config import LogConfig
from onceflow.wire.errors import ErrorCode
from tests.broker.groups.stored import Stored, run
from tests.log.compactions import compact

SMALL = LogConfig(segment_bytes=1000, cleanup_compact=True, cleanup_delete=False, delete_retention_ms=0)
GROUPS = ("g", "h", "i")


def known(stored: Stored) -> dict[str, object]:
    """All that a restart must find: of each group its generation and offsets, and what transactions have pending."""
    groups = {
        group_id: (group.generation, {place: commit.offset for place, commit in group.offsets.items()})
        for group_id, group in stored.groups.groups.items()
        if group.offsets or group.recorded_ms >= 0
    }
    return {**groups, "pending": sorted(stored.groups.pending)}


async def change(stored: Stored, seed: random.Random, open_transactions: set[int]) -> None:
    """One thing that may happen to a group."""
    group_id, partition, number = seed.choice(GROUPS), seed.randrange(3), seed.randrange(1000)
    commit = OffsetCommit(group_id, "t", partition, number)
    what = seed.randrange(7)
    if what < 2:
        await stored.record(commit)
    elif what < 4:
        producer_id = seed.randrange(3)
        open_transactions.add(producer_id)
        await stored.record_transactional(producer_id, commit)
    elif what == 4 and open_transactions:
        producer_id = open_transactions.pop()
        await stored.complete(producer_id, commit=seed.random() < 0.6)
    elif what == 5:
        await stored.record(GroupMetadata(group_id, "consumer", number, None, None, 5, ()))
    elif group_id in stored.groups.groups and seed.random() < 0.4:
        assert await stored.record(*stored.groups.decide_delete(group_id)) == ErrorCode.none


@pytest.mark.parametrize("seed", range(6))
def test_groups_survive_compaction_and_restart(tmp_path: Path, seed: int) -> None:
    async def test() -> None:
        chance, open_transactions = random.Random(seed), set[int]()
        stored, removed_bytes = Stored(tmp_path, SMALL), 0
        for _ in range(5):
            for _ in range(40):
                await change(stored, chance, open_transactions)
            before, size_bytes = known(stored), stored.partition.log.segments.size_bytes
            await stored.synced()
            stored.clock.advance_ms(1000)
            for _ in range(2):
                compact(stored.partition.log, disk=stored.disk, now_ms=stored.clock.now_ms())
            removed_bytes += size_bytes - stored.partition.log.segments.size_bytes
            await stored.crash()
            assert known(stored) == before, f"seed {seed}"
        assert removed_bytes > 0
        await stored.group_commit.close()

    run(test)
