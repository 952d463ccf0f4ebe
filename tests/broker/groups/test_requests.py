"""Between coordinator and log: loading in slices, time-outs, what is too large, expiry."""

import asyncio
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from onceflow.broker.groups import coordinator
from onceflow.broker.groups.members import JoinResponse, SyncResponse
from onceflow.broker.groups.outcome import JoinRequest, SyncRequest
from onceflow.broker.groups.records import GroupMetadata, OffsetCommit
from onceflow.broker.groups.states import GroupState
from onceflow.broker.storage.state_log import StateLog
from onceflow.log.config import LogConfig
from onceflow.log.errors import StorageFailed
from onceflow.wire.errors import ErrorCode
from tests.broker.groups.stored import Stored, commits, run


def test_long_log_is_loaded_in_slices(tmp_path: Path) -> None:
    async def test() -> None:
        stored = Stored(tmp_path)
        assert not stored.requests.is_loading, "an empty log is loaded at once"
        for number in range(3000):
            stored.requests.record(commits(number), lambda _code: None)
        await stored.reopen()
        loaded: list[int | None] = []
        stored.requests.when_loaded(lambda: loaded.append(stored.offsets()[0]))
        slices = 0
        while stored.requests.load_slice():
            slices += 1
            assert stored.requests.error_code == ErrorCode.coordinator_load_in_progress
            assert await stored.record(*commits(5)) == ErrorCode.coordinator_load_in_progress
            assert loaded == []
        assert slices > 3
        assert loaded == [2999]
        assert stored.requests.error_code == ErrorCode.none
        assert await stored.record(*commits(5)) == ErrorCode.none
        await stored.group_commit.close()

    run(test)


def test_sessions_begin_when_the_groups_are_loaded(tmp_path: Path) -> None:
    async def test() -> None:
        stored = Stored(tmp_path)
        join(stored)
        sync(stored, [])
        for number in range(3000):
            stored.requests.record(commits(number), lambda _code: None)
        await stored.reopen()
        stored.requests.load_slice()
        stored.clock.advance_ms(60_000)
        stored.requests.expire()
        while stored.requests.load_slice():
            pass
        stored.requests.expire()
        assert stored.state is GroupState.STABLE
        stored.clock.advance_ms(10_000)
        stored.requests.expire()
        assert stored.state.value == "Empty"
        await stored.group_commit.close()

    run(test)


@pytest.mark.parametrize(
    "error", [None, StorageFailed("full"), ZeroDivisionError("unforeseen")], ids=["well", "full", "bug"]
)
def test_offsets_are_deleted_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    async def test() -> None:
        stored = Stored(tmp_path)
        monkeypatch.setattr(coordinator, "OFFSETS_DELETED_AT_ONCE", 10)
        for number in range(50):
            await stored.record(*commits(1, 2, group=f"g{number}"), OffsetCommit(f"g{number}", "kept", 0, 3))
        results: list[ErrorCode] = []
        stored.requests.delete_offsets_of_topics({"t"}, results.append)
        left = []
        while not results:
            left.append(sum(len(group.offsets) > 1 for group in stored.groups.groups.values()))
            await asyncio.sleep(0)
            if error is not None and len(left) == 3:
                monkeypatch.setattr(StateLog, "append", Mock(side_effect=error))
        if error is None:
            assert left[:6] == [50, 45, 40, 35, 30, 25]
            assert results == [ErrorCode.none]
            await stored.crash()
            assert {place for group in stored.groups.groups.values() for place in group.offsets} == {("kept", 0)}
        else:
            assert results != [ErrorCode.none]
            assert len(left) == 4, "nothing is tried after the error"
        await stored.group_commit.close()

    run(test)


def test_offsets_expire_in_slices(tmp_path: Path) -> None:
    async def test() -> None:
        stored = Stored(tmp_path, offsets_retention_ms=1000)
        for number in range(1000):
            await stored.record(*commits(1, group=f"g{number}", at_ms=stored.clock.now_ms()))
        stored.clock.advance_ms(stored.config.offsets_retention_check_interval_ms)
        calls = 0
        while stored.groups.groups:
            before = len(stored.groups.groups)
            stored.requests.expire()
            assert 0 < before - len(stored.groups.groups) <= 500
            calls += 1
        assert calls > 2
        await stored.group_commit.close()

    run(test)


def test_delayed_response_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        stored = Stored(tmp_path, offsets_commit_timeout_ms=5000)
        disk_responds = threading.Event()
        sync_data = type(stored.disk.open(tmp_path / "x", create=True)).sync_data
        monkeypatch.setattr(
            "onceflow.testing.disk._FaultyFile.sync_data", lambda file: disk_responds.wait(10) and sync_data(file)
        )
        results: list[ErrorCode] = []
        stored.requests.record(commits(1), results.append)
        stored.clock.advance_ms(4999)
        stored.requests.expire()
        assert results == []
        stored.clock.advance_ms(1)
        stored.requests.expire()
        assert results == [ErrorCode.coordinator_not_available]
        disk_responds.set()
        await stored.synced()
        assert results == [ErrorCode.coordinator_not_available]
        assert stored.offsets() == {0: 1}
        assert await stored.record(*commits(2)) == ErrorCode.none
        await stored.group_commit.close()

    run(test)


def join(stored: Stored) -> str:
    """One member of group `g`, which leads it; its id."""
    responses: list[JoinResponse] = []
    request = JoinRequest("g", "", "c", "/h", 10_000, 10_000, "consumer", (("range", b""),), False)
    stored.requests.execute(stored.groups.join(request, responses.append))
    return next(iter(stored.groups.groups["g"].members))


def sync(stored: Stored, responses: list[SyncResponse], assignment: bytes = b"") -> None:
    group = stored.groups.groups["g"]
    member_id = next(iter(group.members))
    request = SyncRequest("g", group.generation, member_id, None, None, {member_id: assignment})
    stored.requests.execute(stored.groups.sync(request, responses.append))


def test_too_large_group_gets_permanent_error(tmp_path: Path) -> None:
    async def test() -> None:
        stored = Stored(tmp_path, LogConfig(message_bytes_max=1000))
        join(stored)
        await stored.synced()
        responses: list[SyncResponse] = []
        sync(stored, responses, b"x" * 1000)
        assert responses == [SyncResponse(ErrorCode.unknown_server_error)], "as Kafka responses"
        group = stored.groups.groups["g"]
        assert group.state is GroupState.PREPARING_REBALANCE, "the members are to join again"
        too_long = OffsetCommit("g", "t", 0, 1, 0, "x" * 1000)
        assert await stored.record(too_long) == ErrorCode.unknown_server_error
        assert await stored.record(*commits(1)) == ErrorCode.none
        await stored.group_commit.close()

    run(test)


def check_expiry(stored: Stored, *, after_ms: int) -> dict[int, int | None]:
    """Return the remaining offsets after this time and a check for expired ones."""
    stored.clock.advance_ms(after_ms)
    stored.requests.expire()
    return stored.offsets()


def keeping_for_100_s(directory: Path) -> Stored:
    """Return groups that check for expired offsets every second."""
    return Stored(directory, offsets_retention_ms=100_000, offsets_retention_check_interval_ms=1000)


def test_offsets_without_group_expire_after_commit(tmp_path: Path) -> None:
    async def test() -> None:
        stored = keeping_for_100_s(tmp_path)
        begin_ms = stored.clock.now_ms()
        await stored.record(*commits(1, 1, at_ms=begin_ms))
        await stored.record(OffsetCommit("g", "t", 1, 2, 0, "", begin_ms + 50_000))
        assert check_expiry(stored, after_ms=99_999) == {0: 1, 1: 2}
        assert check_expiry(stored, after_ms=1000) == {1: 2}
        await stored.synced()
        await stored.crash()
        assert stored.offsets() == {1: 2}, "it is recorded"
        assert check_expiry(stored, after_ms=50_000) == {}
        assert "g" not in stored.groups.groups, "a group without members and offsets is dead"
        await stored.synced()
        await stored.reopen()
        assert "g" not in stored.groups.groups
        await stored.group_commit.close()

    run(test)


def test_offset_with_expiry_time_expires_then(tmp_path: Path) -> None:
    async def test() -> None:
        stored = keeping_for_100_s(tmp_path)
        now_ms = stored.clock.now_ms()
        await stored.record(
            OffsetCommit("g", "t", 0, 1, -1, "", now_ms, now_ms + 5000),
            OffsetCommit("g", "t", 1, 1, -1, "", now_ms, now_ms + 500_000),
        )
        await stored.reopen()
        assert check_expiry(stored, after_ms=5000) == {1: 1}
        assert check_expiry(stored, after_ms=490_000) == {1: 1}
        assert check_expiry(stored, after_ms=5000) == {}
        await stored.group_commit.close()

    run(test)


def test_offsets_expire_after_last_member_left(tmp_path: Path) -> None:
    async def test() -> None:
        stored = keeping_for_100_s(tmp_path)
        old_ms = stored.clock.now_ms() - 1_000_000
        join(stored)
        sync(stored, [])
        await stored.record(*commits(1, at_ms=old_ms))
        # The member's metadata cannot be decoded as a subscription: its topics are unknown, so all offsets stay.
        stored.groups.groups["g"].members[next(iter(stored.groups.groups["g"].members))].session_timeout_ms = 10**9
        stored.groups.begin()
        assert check_expiry(stored, after_ms=200_000) == {0: 1}
        group = stored.groups.groups["g"]
        stored.groups.deadlines.start("g", next(iter(group.members)), 0)
        stored.requests.expire()
        assert group.state is GroupState.EMPTY
        assert check_expiry(stored, after_ms=99_999) == {0: 1}
        await stored.record_transactional(7, OffsetCommit("g", "t", 0, 5))
        assert check_expiry(stored, after_ms=2000) == {0: 1}, "a transaction has an offset pending there"
        await stored.complete(7, commit=False)
        assert check_expiry(stored, after_ms=1000) == {}
        await stored.group_commit.close()

    run(test)


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def test_offsets_of_unsubscribed_topics_expire(tmp_path: Path) -> None:
    async def test() -> None:
        stored = keeping_for_100_s(tmp_path)
        now_ms = stored.clock.now_ms()
        request = JoinRequest("g", "", "c", "/h", 10**6, 10**6, "consumer", (("range", subscription("read")),), False)
        stored.requests.execute(stored.groups.join(request, lambda _response: None))
        sync(stored, [])
        await stored.record(
            OffsetCommit("g", "read", 0, 1, -1, "", now_ms), OffsetCommit("g", "left", 1, 1, -1, "", now_ms)
        )
        for restarts in (True, False):
            assert check_expiry(stored, after_ms=49_999) == {0: 1, 1: 1}
            if restarts:
                await stored.reopen()
        assert check_expiry(stored, after_ms=1000) == {0: 1}
        await stored.group_commit.close()

    run(test)


def test_deleted_stable_group_stays_deleted(tmp_path: Path) -> None:
    """Compaction may have removed the record of the empty group in between."""

    async def test() -> None:
        stored = Stored(tmp_path)
        join(stored)
        sync(stored, [])
        await stored.record(*stored.groups.decide_delete("g"))
        await stored.reopen()
        assert stored.groups.groups == {}
        await stored.record(GroupMetadata("g", "consumer", 1, None, None, 5, ()))
        assert stored.groups.groups["g"].state is GroupState.EMPTY
        await stored.group_commit.close()

    run(test)
