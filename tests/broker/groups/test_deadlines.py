"""Group timeouts cost nothing until they are due, and unused member ids are bounded."""

from onceflow.broker.groups.deadlines import PHASE, STALE_ENTRIES_KEPT, Deadlines
from onceflow.broker.groups.members import JoinResponse
from onceflow.broker.groups.outcome import JoinRequest, Leaving
from onceflow.broker.groups.states import GroupState
from onceflow.testing import ManualClock
from onceflow.wire.errors import ErrorCode
from tests.broker.groups.scene import REBALANCE_MS, SESSION_MS, Scene

ALL = 1000


def test_deadlines_are_due_in_their_order() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    for member_id, duration_ms in (("late", 300), ("soon", 100), ("later", 400), (PHASE, 200)):
        deadlines.start("g", member_id, duration_ms)
    assert deadlines.take_due(ALL) == {}
    clock.advance_ms(350)
    assert deadlines.take_due(2) == {"g": ["soon", PHASE]}, "at most two"
    assert deadlines.take_due(ALL) == {"g": ["late"]}
    assert len(deadlines) == 1


def test_a_deadline_moves_both_ways() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    for member_id in ("postponed", "earlier", "cancelled"):
        deadlines.start("g", member_id, 1000)
    deadlines.start("g", "postponed", 3000)
    deadlines.start("g", "earlier", 500)
    deadlines.cancel("g", "cancelled")
    deadlines.cancel("g", "cancelled")
    clock.advance_ms(500)
    assert deadlines.take_due(ALL) == {"g": ["earlier"]}
    clock.advance_ms(2000)
    assert deadlines.take_due(ALL) == {}
    clock.advance_ms(500)
    assert deadlines.take_due(ALL) == {"g": ["postponed"]}
    assert not len(deadlines)


def test_heartbeats_and_short_visits_leave_nothing() -> None:
    """Postponing adds no entry to the heap; entries of members that left are dropped long before their time."""
    clock = ManualClock()
    deadlines = Deadlines(clock)
    for number in range(10 * STALE_ENTRIES_KEPT):
        clock.advance_ms(1)
        deadlines.start("g", "beats", 1_800_000)
        deadlines.start("g", f"visitor {number}", 1_800_000)
        deadlines.cancel("g", f"visitor {number}")
    assert len(deadlines) == 1
    assert len(deadlines._heap) <= STALE_ENTRIES_KEPT + 3


def ask_for_id(scene: Scene, group_id: str, name: str) -> str:
    """The member id that a JoinGroup without one gets."""
    responses: list[JoinResponse] = []
    request = JoinRequest(
        group_id,
        "",
        name,
        "/host",
        SESSION_MS,
        REBALANCE_MS,
        "consumer",
        (("range", b""),),
        requires_known_member_id=True,
    )
    scene.execute(scene.groups.join(request, responses.append))
    assert responses[0].error_code == ErrorCode.member_id_required
    return responses[0].member_id


def test_a_group_keeps_its_latest_pending_ids() -> None:
    scene = Scene(group_pending_ids_max=3)
    ids = [ask_for_id(scene, "g", f"client {number}") for number in range(5)]
    assert list(scene.group.pending_ids) == ids[2:]
    refused = scene.join("client 0", ids[0])
    assert refused is not None
    assert refused.error_code == ErrorCode.unknown_member_id
    scene.join("client 4", ids[4])
    assert scene.joined("client 4").error_code == ErrorCode.none
    assert list(scene.group.pending_ids) == ids[2:4]


def test_all_groups_keep_latest_pending_ids() -> None:
    """A group of which nothing is left is deleted with its last id."""
    scene = Scene(groups_pending_ids_max=10)
    for number in range(100):
        ask_for_id(scene, f"group {number}", "client")
    assert list(scene.groups.groups) == [f"group {number}" for number in range(90, 100)]
    assert len(scene.groups.pending_ids) == len(scene.groups.deadlines) == 10
    scene.advance(SESSION_MS)
    assert not scene.groups.groups
    assert not len(scene.groups.deadlines)


def test_rebalance_ignores_withdrawn_id() -> None:
    scene = Scene(groups_pending_ids_max=1)
    first = ask_for_id(scene, "g", "a")
    scene.join("a", first)
    ask_for_id(scene, "g", "never comes")
    assert scene.join("a", first, note="changed") is None
    ask_for_id(scene, "other", "b")
    assert scene.joined("a").generation == 2


def test_leaving_withdraws_a_pending_id() -> None:
    scene = Scene()
    assert scene.leave(Leaving(ask_for_id(scene, "g", "a"))) == [ErrorCode.none]
    assert not scene.groups.groups
    assert not len(scene.groups.deadlines)


def test_members_leave_no_deadlines_behind() -> None:
    scene = Scene()
    first, second = scene.two_members()
    scene.leave(Leaving(first), Leaving(second))
    scene.advance(REBALANCE_MS)
    assert scene.group.state is GroupState.EMPTY
    assert not len(scene.groups.deadlines)


def test_record_of_empty_generation_is_retried() -> None:
    """Its append fails twice: the group is looked at again."""
    scene = Scene()
    scene.join("a")
    _error_codes, outcome = scene.groups.leave("g", [Leaving(scene.member_id("a"))])
    assert len(outcome.records) == 1
    for _ in range(2):
        scene.clock.advance_ms(1000)
        (outcome,) = scene.groups.expire()
        assert len(outcome.records) == 1
    scene.execute(outcome)
    assert scene.group.state is GroupState.EMPTY


def test_many_due_deadlines_are_spread_over_turns() -> None:
    scene = Scene(group_pending_ids_max=20_000)
    for number in range(7000):
        ask_for_id(scene, "g", f"{number}")
    scene.advance(SESSION_MS)
    assert len(scene.groups.pending_ids) == 2000
    scene.advance(0)
    assert not scene.groups.groups
