"""Offsets that transactions commit to groups: pending, then committed or dropped; the same after each restart."""

from pathlib import Path

import pytest

from onceflow.broker.groups.outcome import Outcome
from onceflow.broker.groups.records import GroupRemoval, OffsetCommit
from onceflow.wire.errors import ErrorCode
from tests.broker.groups.scene import Scene
from tests.broker.groups.stored import Stored, commits, run

P, Q = 1000, 1001
"""Producer ids."""


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_apply_after_commit(tmp_path: Path, commit: bool, restarts: bool) -> None:
    async def test() -> None:
        stored = Stored(tmp_path)
        assert await stored.record(*commits(1)) == ErrorCode.none
        assert await stored.record_transactional(P, *commits(7, 8)) == ErrorCode.none
        if restarts:
            await stored.crash()
        assert stored.offsets() == {0: 1}
        assert [stored.groups.pending.has("g", "t", index) for index in (0, 1, 2)] == [True, True, False]
        assert await stored.complete(P, commit=commit) == ErrorCode.none
        if restarts:
            await stored.crash()
        assert stored.offsets() == ({0: 7, 1: 8} if commit else {0: 1})
        assert not stored.groups.pending.has("g", "t", 0)
        assert await stored.complete(P, commit=commit) == ErrorCode.none, "it may be repeated"
        await stored.reopen()
        assert stored.offsets() == ({0: 7, 1: 8} if commit else {0: 1})
        await stored.group_commit.close()

    run(test)


def test_later_plain_commit_wins(tmp_path: Path) -> None:
    async def test() -> None:
        stored = Stored(tmp_path)
        await stored.record_transactional(P, *commits(7))
        await stored.record(*commits(9))
        assert stored.groups.pending.has("g", "t", 0), "until the transaction ends, whatever its offset is worth"
        await stored.complete(P, commit=True)
        assert stored.offsets() == {0: 9}
        await stored.reopen()
        assert stored.offsets() == {0: 9}
        await stored.group_commit.close()

    run(test)


def test_later_transactional_commit_wins(tmp_path: Path) -> None:
    async def test() -> None:
        stored = Stored(tmp_path)
        await stored.record_transactional(P, *commits(7))
        await stored.record_transactional(Q, *commits(8))
        await stored.complete(Q, commit=True)
        assert stored.groups.pending.has("g", "t", 0)
        await stored.complete(P, commit=True)
        assert stored.offsets() == {0: 8}
        assert not stored.groups.pending.has("g", "t", 0)
        await stored.reopen()
        assert stored.offsets() == {0: 8}
        await stored.group_commit.close()

    run(test)


def test_deleted_group_drops_pending_offsets(tmp_path: Path) -> None:
    async def test() -> None:
        stored = Stored(tmp_path)
        await stored.record_transactional(P, *commits(7))
        await stored.record_transactional(P + 1, *commits(8))
        records = stored.groups.decide_delete("g")
        assert records == [OffsetCommit("g", "t", 0, None), GroupRemoval("g")]
        await stored.record(*records)
        for _ in range(2):
            assert not stored.groups.pending.has("g", "t", 0)
            assert "g" not in stored.groups.groups
            await stored.reopen()
        await stored.complete(P, commit=True)
        assert stored.offsets() == {}
        await stored.group_commit.close()

    run(test)


def test_a_deleted_topic_takes_pending_offsets_along() -> None:
    scene = Scene()
    scene.groups.replay_transactional(P, OffsetCommit("g", "deleted", 0, 5))
    scene.groups.replay_transactional(P, OffsetCommit("g", "kept", 0, 6))
    for records in scene.groups.decide_delete_topic_offsets(lambda topic: topic == "deleted"):
        scene.execute(Outcome(records=records))
    scene.groups.replay_marker(P, commit=True)
    assert list(scene.group.offsets) == [("kept", 0)]


def test_transaction_end_waits_for_loading(tmp_path: Path) -> None:
    async def test() -> None:
        stored = Stored(tmp_path)
        for _ in range(3000):
            stored.requests.record(commits(1), lambda _code: None)
        await stored.record_transactional(P, *commits(7))
        await stored.reopen()
        assert stored.requests.is_loading
        results: list[ErrorCode] = []
        stored.requests.complete_transaction(P, 0, commit=True)
        stored.requests.when_synced(results.append)
        assert results == []
        while stored.requests.load_slice():
            assert results == []
        await stored.synced()
        assert results == [ErrorCode.none]
        assert stored.offsets() == {0: 7}
        await stored.reopen()
        while stored.requests.load_slice():
            pass
        assert stored.offsets() == {0: 7}
        await stored.group_commit.close()

    run(test)


def test_who_may_commit_in_a_transaction() -> None:
    scene = Scene()
    asked = scene.groups.transactional_commit_error
    assert asked("g", "", -1, None) == ErrorCode.none, "a group that does not exist"
    assert asked("g", "m", 1, None) == ErrorCode.illegal_generation
    first, second = scene.two_members(instance="i")
    assert asked("g", second, 2, None) == ErrorCode.none
    assert asked("g", first, 2, "i") == ErrorCode.none
    assert asked("g", second, 1, None) == ErrorCode.illegal_generation
    assert asked("g", "stranger", 2, None) == ErrorCode.unknown_member_id
    assert asked("g", second, 2, "i") == ErrorCode.fenced_instance_id
    assert asked("g", "", -1, None) == ErrorCode.none, "versions before 3 name no member, in any state"
    scene.join("a", first, instance="i")
    scene.join("b", second)
    assert asked("g", second, 3, None) == ErrorCode.none, "while a plain commit gets REBALANCE_IN_PROGRESS"
    assert scene.groups.commit_error("g", second, 3) == ErrorCode.rebalance_in_progress
