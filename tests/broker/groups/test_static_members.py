"""Static members (KIP-345), decided by the coordinator alone."""

from onceflow.broker.groups.members import JoinResponse
from onceflow.broker.groups.outcome import Leaving
from onceflow.broker.groups.states import GroupState
from onceflow.wire.errors import ErrorCode
from tests.broker.groups.scene import REBALANCE_MS, SESSION_MS, Scene


def test_static_member_returns_without_rebalance() -> None:
    scene = Scene()
    scene.join("a")
    first = scene.member_id("a")
    scene.join("b", instance="i")
    scene.join("a", first)
    old = scene.member_id("b")
    assert old.startswith("i-"), "Kafka names a static member by its instance"
    scene.sync("b", old, 2, "i")
    scene.sync("a", first, 2, a=b"for a", b=b"for b")
    response = scene.join("b", instance="i")
    assert response is not None
    new = response.member_id
    assert new != old
    assert (response.error_code, response.generation, response.leader, response.members) == (
        ErrorCode.none,
        2,
        first,
        (),
    )
    assert scene.group.state is GroupState.STABLE
    synced = scene.sync("b", new, 2, "i")
    assert synced is not None
    assert synced.assignment == b"for b"
    assert scene.beat("a") == [ErrorCode.none]


def test_old_id_of_static_member_is_fenced() -> None:
    scene = Scene()
    old, _second = scene.two_members(instance="i")
    response = scene.join("a", instance="i")
    assert response is not None
    groups = scene.groups
    assert groups.heartbeat("g", old, 2, "i") == ErrorCode.fenced_instance_id
    assert groups.heartbeat("g", old, 2) == ErrorCode.unknown_member_id
    assert groups.heartbeat("g", response.member_id, 2, "j") == ErrorCode.unknown_member_id
    assert groups.commit_error("g", old, 2, "i") == ErrorCode.fenced_instance_id
    assert groups.transactional_commit_error("g", old, 2, "i") == ErrorCode.fenced_instance_id
    synced = scene.sync("old", old, 2, "i")
    assert synced is not None
    assert synced.error_code == ErrorCode.fenced_instance_id
    rejoined = scene.join("old", old, instance="i")
    assert rejoined is not None
    assert rejoined.error_code == ErrorCode.fenced_instance_id
    assert scene.leave(Leaving(old, "i")) == [ErrorCode.fenced_instance_id]


def test_returning_leader_skips_assignment() -> None:
    scene = Scene()
    first, _second = scene.two_members(instance="i")
    response = scene.join("a", instance="i")
    assert response is not None
    assert (response.leader, response.members) == (first, ()), "before version 9: the old id, which nobody has"
    response = scene.join("a", instance="i", skip=True)
    assert response is not None
    assert (response.leader, response.skip_assignment) == (response.member_id, True)
    assert [instance for _member_id, instance, _metadata in response.members] == [None, "i"]
    assert scene.group.leader == response.member_id


def test_second_join_fences_waiting_static_member() -> None:
    scene = Scene()
    scene.two_members()
    assert scene.join("c", instance="i") is None
    assert scene.join("d", instance="i") is None
    assert scene.joined("c").error_code == ErrorCode.fenced_instance_id
    assert len(scene.group.members) == 3


def test_changed_assignor_starts_rebalance() -> None:
    scene = Scene()
    scene.join("a", instance="i", protocols=("range", "sticky"))
    scene.sync("a", scene.member_id("a"), 1, "i", a=b"x")
    again = scene.join("a", instance="i", protocols=("range", "sticky"), note=" changed")
    assert again is not None
    assert again.generation == 1, "other metadata, the same assignor"
    other = scene.join("a", instance="i", protocols=("sticky", "range"))
    assert other is not None
    assert other.generation == 2


def test_return_before_assignment_restarts_rebalance() -> None:
    scene = Scene()
    first, second = scene.two_members(instance="i")
    scene.join("a", first, instance="i")
    scene.join("b", second)
    assert scene.sync("b", second, 3) is None
    assert scene.join("a", instance="i") is None
    assert scene.synced("b").error_code == ErrorCode.rebalance_in_progress
    scene.join("b", second)
    assert scene.joined("a").generation == 4


def test_missing_static_member_stays_until_timeout() -> None:
    scene = Scene()
    scene.join("a")
    first = scene.member_id("a")
    scene.join("b", instance="i")
    scene.join("a", first)
    scene.sync("a", first, 2, a=b"for a", b=b"for b")
    scene.advance(SESSION_MS - 1)
    scene.beat("a", "b")
    assert scene.join("c") is None
    scene.join("a", first)
    scene.advance(SESSION_MS - 1)
    assert "a" not in scene.responses, "b is missing and static: everybody waits for it"
    scene.advance(1)
    assert len(scene.joined("a").members) == 2, "its session is over"


def test_missing_static_members_alone_make_no_generation() -> None:
    scene = Scene()
    scene.join("a", instance="i")
    first = scene.member_id("a")
    scene.sync("a", first, 1, "i", a=b"x")
    scene.join("b")
    assert scene.leave(Leaving(scene.member_id("b"))) == [ErrorCode.none]
    for _ in range(REBALANCE_MS // 5000):
        scene.advance(5000)
        assert scene.beat("a") == [ErrorCode.rebalance_in_progress]
    assert (scene.group.generation, scene.group.state) == (1, GroupState.PREPARING_REBALANCE)
    response = scene.join("a", first, instance="i")
    assert response is not None
    assert response.generation == 2


def test_static_member_is_removed_by_instance() -> None:
    scene = Scene()
    _first, second = scene.two_members(instance="i")
    assert scene.leave(Leaving("", "i"), Leaving("", "j"), Leaving("", None)) == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    response = scene.join("b", second)
    assert isinstance(response, JoinResponse)
    assert (response.leader, len(response.members)) == (second, 1)


def test_restart_restores_static_members() -> None:
    scene = Scene()
    scene.two_members(instance="i")
    response = scene.join("a", instance="i")
    assert response is not None
    scene.groups = scene.replayed()
    assert scene.group.static_members == {"i": response.member_id}
    assert scene.group.leader == response.member_id
    assert scene.group.members[response.member_id].assignment == b"for a"
    again = scene.join("a", instance="i")
    assert again is not None
    assert again.generation == 2, "no rebalance after a restart either"
