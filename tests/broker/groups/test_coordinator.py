"""Joins, syncs, heartbeats and time-outs of a group, decided by the coordinator alone."""

from onceflow.broker.groups.members import JoinResponse, SyncResponse
from onceflow.broker.groups.outcome import Leaving, Outcome, SyncRequest
from onceflow.broker.groups.records import GroupRecord, GroupRemoval, OffsetCommit
from onceflow.broker.groups.states import GroupState
from onceflow.wire.errors import ErrorCode
from tests.broker.groups.scene import REBALANCE_MS, SESSION_MS, Scene


def test_two_members_get_what_the_leader_assigned() -> None:
    scene = Scene()
    scene.two_members()
    synced = {
        name: response.assignment for name, response in scene.responses.items() if isinstance(response, SyncResponse)
    }
    assert synced == {"a": b"for a", "b": b"for b"}
    assert scene.groups.groups["g"].state is GroupState.STABLE


def test_protocol_is_common_and_preferred() -> None:
    scene = Scene()
    scene.join("a", protocols=("x", "y", "z"))
    scene.join("b", protocols=("y", "x"))
    response = scene.join("a", scene.member_id("a"), protocols=("y", "x", "z"))
    assert response is not None
    assert response.protocol == "y"
    assert (scene.member_id("b"), None, b"b y") in response.members
    refused = scene.join("c", protocols=("z",))
    assert refused is not None
    assert refused.error_code == ErrorCode.inconsistent_group_protocol


def test_restart_restores_the_group() -> None:
    scene = Scene()
    first, second = scene.two_members()
    scene.execute(Outcome(records=[OffsetCommit("g", "t", 0, 5, 0, "note", 1), OffsetCommit("g", "t", 1, 6)]))
    scene.execute(Outcome(records=[OffsetCommit("g", "t", 1, None)]))
    after, before = scene.replayed().groups["g"], scene.groups.groups["g"]
    assert (after.state, after.generation, after.leader) == (GroupState.STABLE, 2, first)
    assert {member.member_id: member.assignment for member in after.members.values()} == {
        first: b"for a",
        second: b"for b",
    }
    assert after.offsets == before.offsets == {("t", 0): OffsetCommit("g", "t", 0, 5, 0, "note", 1)}


def test_restarted_group_expires_silent_members() -> None:
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


def test_longest_rebalance_timeout_applies() -> None:
    scene = Scene()
    scene.join("a", rebalance_ms=5000)
    scene.sync("a", scene.member_id("a"), 1)
    assert scene.join("b", rebalance_ms=8000) is None
    scene.advance(5000)
    assert "b" not in scene.responses
    scene.advance(3000)
    assert scene.joined("b").generation == 2


def test_a_commit_keeps_a_member_alive() -> None:
    scene = Scene()
    first, second = scene.two_members()
    scene.advance(SESSION_MS - 1)
    assert scene.groups.commit_error("g", first, 2) == ErrorCode.none
    assert scene.groups.commit_error("g", second, 1) == ErrorCode.illegal_generation
    scene.advance(SESSION_MS - 1)
    assert list(scene.group.members) == [first], "one that is refused is none"


def test_member_that_joins_late_is_removed() -> None:
    scene = Scene()
    _first, second = scene.two_members()
    assert scene.join("c") is None
    for _ in range(REBALANCE_MS // 5000 - 1):
        scene.advance(5000)
        scene.beat("a", "b")
    assert scene.join("b", second) is None
    scene.advance(5000)
    for name in ("b", "c"):
        response = scene.responses[name]
        assert isinstance(response, JoinResponse)
        assert (response.error_code, response.generation, response.leader) == (ErrorCode.none, 3, second)


def test_waiting_member_outlives_its_session() -> None:
    """It waits for the response to its join and cannot send heartbeats meanwhile."""
    scene = Scene()
    first, second = scene.two_members()
    assert scene.join("c") is None
    assert scene.join("b", second) is None
    for _ in range(3):
        scene.advance(SESSION_MS // 2)
        scene.beat("a")
    response = scene.join("a", first)
    assert response is not None
    assert len(response.members) == 3


def test_join_of_leader_starts_rebalance() -> None:
    scene = Scene()
    first, second = scene.two_members()
    assert scene.join("a", first) is None
    assert scene.beat("b") == [ErrorCode.rebalance_in_progress]
    assert scene.join("b", second) is not None
    assert scene.joined("a").generation == 3


def test_rebalance_waits_for_pending_member_id() -> None:
    scene = Scene()
    first, second = scene.two_members()
    assert scene.join("c", known=True) is not None
    assert [scene.join("d"), scene.join("b", second), scene.join("a", first)] == [None] * 3
    scene.advance(SESSION_MS)
    assert [len(scene.joined(name).members) for name in ("a", "b", "d")] == [3, 0, 0]


def test_group_with_pending_offset_is_kept() -> None:
    scene = Scene()
    scene.groups.replay_transactional(7, OffsetCommit("g", "t", 0, 5))
    assert scene.groups.decide_expire(scene.group) == []
    scene.groups.replay_marker(7, commit=False)
    assert scene.groups.decide_expire(scene.group) == [GroupRemoval("g")]


def test_new_group_respects_its_maximum_size() -> None:
    scene = Scene(group_members_max=2, group_initial_rebalance_delay_ms=3000)
    assert [scene.join("a"), scene.join("b")] == [None, None]
    refused = scene.join("c")
    assert refused is not None
    assert refused.error_code == ErrorCode.group_max_size_reached


def test_member_that_syncs_late_is_removed() -> None:
    scene = Scene()
    first, second = scene.two_members()
    assert scene.join("a", first) is None
    assert scene.join("b", second) is not None
    assert scene.join("b", second) is not None, "the generation's response again, for one that was lost"
    assert scene.sync("b", second, 3) is None
    for _ in range(REBALANCE_MS // 5000):
        scene.advance(5000)
        if first in scene.groups.groups["g"].members:
            scene.beat("a")
    response = scene.responses["b"]
    assert isinstance(response, SyncResponse)
    assert response.error_code == ErrorCode.rebalance_in_progress
    assert list(scene.groups.groups["g"].members) == [second]


def test_empty_group_accepts_commits_without_member() -> None:
    scene = Scene()
    first, second = scene.two_members()
    assert scene.groups.commit_error("g", "", -1) == ErrorCode.unknown_member_id
    error_codes = scene.leave(Leaving(first), Leaving(second), Leaving("stranger"))
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
    response = scene.responses["b"]
    assert isinstance(response, SyncResponse)
    assert response.error_code == ErrorCode.rebalance_in_progress


def test_unused_member_id_expires_with_group() -> None:
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


def test_unused_member_ids_leave_groups_empty() -> None:
    scene = Scene()
    first, second = scene.two_members()
    assert scene.join("c", known=True) is not None
    scene.leave(Leaving(first), Leaving(second))
    scene.advance(0)
    assert (scene.group.state, scene.group.generation) == (GroupState.EMPTY, 3)
    assert scene.groups.commit_error("g", "", -1) == ErrorCode.none


def test_new_group_that_all_leave_is_empty() -> None:
    scene = Scene(group_initial_rebalance_delay_ms=3000)
    assert scene.join("a") is None
    scene.leave(Leaving(scene.member_id("a")))
    assert scene.groups.delete_error("g") == ErrorCode.non_empty_group
    for _ in range(REBALANCE_MS // 3000):
        scene.advance(3000)
    assert scene.group.state is GroupState.EMPTY
    assert scene.groups.delete_error("g") == ErrorCode.none


def test_deleted_group_drops_pending_ids() -> None:
    scene = Scene()
    assert scene.join("a", known=True) is not None
    scene.execute(Outcome(records=scene.groups.decide_delete("g")))
    scene.execute(Outcome(records=[OffsetCommit("g", "t", 0, 1)]))
    scene.advance(SESSION_MS)
    assert list(scene.group.offsets) == [("t", 0)]
    scene.execute(Outcome(records=scene.groups.decide_delete("g")))
    assert scene.groups.expire() == []


def test_pending_id_cannot_become_static() -> None:
    scene = Scene()
    scene.two_members(instance="i")
    required = scene.join("c", known=True)
    assert required is not None
    for instance in ("i", "another"):
        refused = scene.join("c", required.member_id, instance=instance)
        assert refused is not None
        assert refused.error_code == ErrorCode.unknown_server_error
    assert len(scene.group.members) == 2


def test_topic_deletion_deletes_offsets_of_groups() -> None:
    scene = Scene()
    commits: list[GroupRecord] = [OffsetCommit(group, topic, 0, 1) for group in "gh" for topic in ("deleted", "kept")]
    scene.execute(Outcome(records=commits))
    for records in scene.groups.decide_delete_topic_offsets(lambda topic: topic == "deleted"):
        scene.execute(Outcome(records=records))
    for coordinator in (scene.groups, scene.replayed()):
        assert [list(coordinator.groups[group].offsets) for group in "gh"] == [[("kept", 0)]] * 2


def test_new_group_waits_for_more_members() -> None:
    scene = Scene(group_initial_rebalance_delay_ms=3000)
    assert scene.join("a") is None
    scene.advance(2000)
    assert scene.join("b") is None
    scene.advance(1000)
    assert "a" not in scene.responses, "b came meanwhile: three seconds more"
    scene.advance(2999)
    assert "a" not in scene.responses
    scene.advance(1)
    assert {scene.joined(name).generation for name in "ab"} == {1}
    assert len(scene.joined("a").members) == 2


def test_rebalance_timeout_ends_initial_wait() -> None:
    scene = Scene(group_initial_rebalance_delay_ms=REBALANCE_MS // 2)
    scene.join("a")
    scene.advance(REBALANCE_MS // 2 - 500)
    scene.join("b")
    scene.advance(500)
    scene.advance(REBALANCE_MS // 2 - 500)
    scene.join("c")
    assert "a" not in scene.responses
    scene.advance(500)
    assert len(scene.joined("a").members) == 3, "the time-out of a minute is over, though c has just come"


def test_full_group_refuses_new_members() -> None:
    scene = Scene(group_members_max=2)
    first, second = scene.two_members()
    refused = scene.join("c")
    assert refused == JoinResponse(ErrorCode.group_max_size_reached)
    required = scene.join("c", known=True)
    assert required == JoinResponse(ErrorCode.group_max_size_reached)
    assert scene.join("a", first) is None, "the leader may rebalance"
    assert scene.join("b", second) is not None
    assert scene.joined("a").generation == 3


def test_silent_new_member_expires() -> None:
    scene = Scene()
    scene.two_members()
    assert scene.join("c") is None
    for _ in range(REBALANCE_MS // 5000 - 1):
        scene.advance(5000)
        scene.beat("a", "b")
    assert "c" not in scene.responses, "longer than its session, but it waits"
    scene.advance(5000)
    assert scene.joined("c").generation == 3


def test_member_without_sync_is_removed() -> None:
    scene = Scene()
    first, second = scene.two_members()
    scene.join("a", first)
    scene.join("b", second)
    scene.sync("a", first, 3, a=b"x")
    for _ in range(REBALANCE_MS // 5000):
        scene.advance(5000)
        scene.beat(*(member.client_id for member in scene.group.members.values()))
    assert list(scene.group.members) == [first]


def test_uncommon_protocols_are_refused() -> None:
    scene = Scene()
    scene.join("a", protocols=("range",))
    response = scene.join("a", scene.member_id("a"), protocols=("sticky",))
    assert response is not None
    assert response.error_code == ErrorCode.inconsistent_group_protocol


def test_simultaneous_leaves_cause_one_rebalance() -> None:
    scene = Scene()
    first, second = scene.two_members()
    assert scene.join("c") is None
    third = scene.member_id("c")
    assert scene.leave(Leaving(second), Leaving(third), Leaving("nobody")) == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
    ]
    assert scene.joined("c").error_code == ErrorCode.unknown_member_id
    joined = scene.join("a", first)
    assert joined is not None
    assert (joined.generation, len(joined.members)) == (3, 1)


def test_unrecorded_generation_starts_rebalance() -> None:
    scene = Scene()
    scene.join("a")
    outcome = scene.groups.sync(SyncRequest("g", 1, scene.member_id("a"), None, None, {}), lambda _response: None)
    assert outcome.undo is not None
    assert outcome.undo().records == []
    assert scene.group.state is GroupState.PREPARING_REBALANCE
    assert scene.beat("a") == [ErrorCode.rebalance_in_progress]
