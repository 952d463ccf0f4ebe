"""The group coordinator alone: requests in, records and answers out, time moved by hand."""

import itertools
import uuid
from collections.abc import Sequence

import pytest

from onceflow.broker.groups import records as group_records
from onceflow.broker.groups.coordinator import GroupCoordinator, JoinRequest, Outcome, SyncRequest
from onceflow.broker.groups.group import GroupState, JoinAnswer, SyncAnswer
from onceflow.broker.groups.records import GroupMetadata, GroupRecord, MemberMetadata, OffsetCommit
from onceflow.broker.metadata_records import UnknownRecord
from onceflow.testing import ManualClock
from onceflow.wire.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 60_000


class Scene:
    """A coordinator whose outcomes are carried out at once; `answers` by the name that a request was given."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        numbers = itertools.count(1)
        self.groups = GroupCoordinator(self.clock, make_uuid=lambda: uuid.UUID(int=next(numbers)))
        self.log: list[tuple[bytes, bytes | None]] = []
        self.answers: dict[str, JoinAnswer | SyncAnswer] = {}

    def carry_out(self, outcome: Outcome) -> None:
        for record in outcome.records:
            self.log.append(group_records.encode(record))
            self.groups.replay(record)
        for answer in outcome.answers:
            answer()

    def join(
        self, name: str, member_id: str = "", *, protocols: Sequence[str] = ("range",), known: bool = False
    ) -> JoinAnswer | None:
        request = JoinRequest(
            "g", member_id, name, "/host", SESSION_MS, REBALANCE_MS, "consumer",
            tuple((each, f"{name} {each}".encode()) for each in protocols), known,
        )  # fmt: skip
        self.answers.pop(name, None)
        self.carry_out(self.groups.join(request, lambda answer: self.answers.__setitem__(name, answer)))
        answer = self.answers.get(name)
        assert answer is None or isinstance(answer, JoinAnswer)
        return answer

    def sync(self, name: str, member_id: str, generation: int, **assignments: bytes) -> SyncAnswer | None:
        by_member = {self.member_id(each): assignment for each, assignment in assignments.items()}
        request = SyncRequest("g", generation, member_id, "consumer", None, by_member)
        self.answers.pop(name, None)
        self.carry_out(self.groups.sync(request, lambda answer: self.answers.__setitem__(name, answer)))
        answer = self.answers.get(name)
        assert answer is None or isinstance(answer, SyncAnswer)
        return answer

    def member_id(self, name: str) -> str:
        return next(each.member_id for each in self.groups.groups["g"].members.values() if each.client_id == name)

    def advance(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        for outcome in self.groups.expire():
            self.carry_out(outcome)

    def beat(self, *names: str) -> list[ErrorCode]:
        group = self.groups.groups["g"]
        return [self.groups.heartbeat("g", self.member_id(name), group.generation) for name in names]

    def two_members(self) -> tuple[str, str]:
        """A stable group of `a`, the leader, and `b`, in generation 2; their member ids."""
        self.join("a")
        first = self.member_id("a")
        assert self.join("b") is None
        second = self.member_id("b")
        self.join("a", first)
        assert self.sync("b", second, 2) is None
        self.sync("a", first, 2, a=b"for a", b=b"for b")
        return first, second

    def replayed(self) -> GroupCoordinator:
        """What a restart makes of the log."""
        fresh = GroupCoordinator(self.clock)
        for key, value in self.log:
            fresh.replay(group_records.decode(key, value))
        return fresh


def test_two_members_get_what_the_leader_assigned() -> None:
    scene = Scene()
    scene.two_members()
    synced = {name: each.assignment for name, each in scene.answers.items() if isinstance(each, SyncAnswer)}
    assert synced == {"a": b"for a", "b": b"for b"}
    assert scene.groups.groups["g"].state is GroupState.STABLE


def test_the_protocol_is_one_that_all_know_and_most_prefer() -> None:
    scene = Scene()
    scene.join("a", protocols=("x", "y", "z"))
    scene.join("b", protocols=("y", "x"))
    answer = scene.join("a", scene.member_id("a"), protocols=("y", "x", "z"))
    assert answer is not None
    assert answer.protocol == "y"
    assert dict(answer.members)[scene.member_id("b")] == b"b y"
    refused = scene.join("c", protocols=("z",))
    assert refused is not None
    assert refused.error_code == ErrorCode.inconsistent_group_protocol


def test_a_restart_finds_the_group_as_it_was() -> None:
    scene = Scene()
    first, second = scene.two_members()
    scene.carry_out(Outcome(records=[OffsetCommit("g", "t", 0, 5, 0, "note", 1), OffsetCommit("g", "t", 1, 6)]))
    scene.carry_out(Outcome(records=[OffsetCommit("g", "t", 1, None)]))
    after, before = scene.replayed().groups["g"], scene.groups.groups["g"]
    assert (after.state, after.generation, after.leader) == (GroupState.STABLE, 2, first)
    assert {each.member_id: each.assignment for each in after.members.values()} == {first: b"for a", second: b"for b"}
    assert after.offsets == before.offsets == {("t", 0): OffsetCommit("g", "t", 0, 5, 0, "note", 1)}


def test_a_restarted_group_goes_on_with_heartbeats_and_expires_who_sends_none() -> None:
    scene = Scene()
    scene.two_members()
    scene.groups = scene.replayed()
    scene.advance(SESSION_MS - 1)
    assert scene.beat("a") == [ErrorCode.none]
    scene.advance(2)
    assert scene.beat("a") == [ErrorCode.rebalance_in_progress]
    joined = scene.join("a", scene.member_id("a"))
    assert joined is not None
    assert (joined.generation, len(joined.members)) == (3, 1)


def test_a_silent_leader_is_replaced() -> None:
    scene = Scene()
    _first, second = scene.two_members()
    scene.advance(SESSION_MS // 2)
    scene.beat("b")
    scene.advance(SESSION_MS // 2)
    joined = scene.join("b", second)
    assert joined is not None
    assert (joined.leader, joined.generation) == (second, 3)


def test_who_does_not_join_in_time_is_left_behind() -> None:
    scene = Scene()
    _first, second = scene.two_members()
    assert scene.join("c") is None
    for _ in range(REBALANCE_MS // 5000 - 1):
        scene.advance(5000)
        scene.beat("a", "b")
    assert scene.join("b", second) is None
    scene.advance(5000)
    for name in ("b", "c"):
        answer = scene.answers[name]
        assert isinstance(answer, JoinAnswer)
        assert (answer.error_code, answer.generation, answer.leader) == (ErrorCode.none, 3, second)


def test_who_joins_but_does_not_sync_in_time_is_left_behind() -> None:
    scene = Scene()
    first, second = scene.two_members()
    assert scene.join("a", first) is None
    assert scene.join("b", second) is not None
    assert scene.join("b", second) is not None, "the generation's answer again, for one that was lost"
    assert scene.sync("b", second, 3) is None
    for _ in range(REBALANCE_MS // 5000):
        scene.advance(5000)
        if first in scene.groups.groups["g"].members:
            scene.beat("a")
    answer = scene.answers["b"]
    assert isinstance(answer, SyncAnswer)
    assert answer.error_code == ErrorCode.rebalance_in_progress
    assert list(scene.groups.groups["g"].members) == [second]


def test_the_last_member_leaves_an_empty_group_that_anybody_may_commit_to() -> None:
    scene = Scene()
    first, second = scene.two_members()
    assert scene.groups.commit_error("g", "", -1) == ErrorCode.unknown_member_id
    error_codes, outcome = scene.groups.leave("g", [first, second, "stranger"])
    scene.carry_out(outcome)
    assert error_codes == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_member_id]
    assert scene.groups.commit_error("g", "", -1) == ErrorCode.none
    assert scene.replayed().groups["g"].state is GroupState.EMPTY


def test_a_rebalance_refuses_who_waits_for_assignments() -> None:
    scene = Scene()
    first, second = scene.two_members()
    scene.join("a", first)
    scene.join("b", second)
    assert scene.sync("b", second, 3) is None
    scene.join("c")
    answer = scene.answers["b"]
    assert isinstance(answer, SyncAnswer)
    assert answer.error_code == ErrorCode.rebalance_in_progress


def test_a_member_id_that_is_never_used_is_forgotten_with_its_group() -> None:
    scene = Scene()
    required = scene.join("a", known=True)
    assert required is not None
    assert required.error_code == ErrorCode.member_id_required
    assert "g" in scene.groups.groups
    scene.advance(SESSION_MS)
    assert scene.groups.groups == {}
    late = scene.join("a", required.member_id, known=True)
    assert late is not None
    assert late.error_code == ErrorCode.unknown_member_id


def test_deleting_a_topic_takes_its_offsets_out_of_every_group() -> None:
    scene = Scene()
    commits: list[GroupRecord] = [OffsetCommit(group, topic, 0, 1) for group in "gh" for topic in ("gone", "kept")]
    scene.carry_out(Outcome(records=commits))
    scene.carry_out(Outcome(records=scene.groups.decide_forget(lambda topic: topic == "gone")))
    for coordinator in (scene.groups, scene.replayed()):
        assert [list(coordinator.groups[group].offsets) for group in "gh"] == [[("kept", 0)]] * 2


@pytest.mark.parametrize(
    "record",
    [
        OffsetCommit("gröup", "topic", 7, 2**40, 3, "note ✓", 1_700_000_000_000),
        OffsetCommit("g", "t", 0, None),
        GroupMetadata("g", "consumer", 4, None, None, 5, ()),
        GroupMetadata("g", "consumer", 4, "range", "m", 5, (MemberMetadata("m", "c", "/h", 1, 2, b"\x00s", b""),)),
    ],
)
def test_records_come_back_as_they_were(record: GroupRecord) -> None:
    assert group_records.decode(*group_records.encode(record)) == record


def test_a_record_of_a_later_release_is_refused() -> None:
    key, value = group_records.encode(OffsetCommit("g", "t", 0, 5))
    assert value is not None
    with pytest.raises(UnknownRecord, match="key version 9"):
        group_records.decode(b"\x00\x09" + key[2:], value)
    with pytest.raises(UnknownRecord, match="value version 4"):
        group_records.decode(key, b"\x00\x04" + value[2:])
