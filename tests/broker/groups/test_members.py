"""Members are counted as they come and leave, and what they take of memory is bounded."""

import asyncio
from collections.abc import ValuesView

import pytest

from onceflow.broker.groups import requests
from onceflow.broker.groups.group import SUBSCRIPTIONS_BYTES_MAX, subscribed_topics
from onceflow.broker.groups.members import JoinResponse, Member, MemberMemory, Members
from onceflow.broker.groups.outcome import JoinRequest, Leaving
from onceflow.wire.errors import ErrorCode
from tests.broker.groups.raw_group import subscription
from tests.broker.groups.scene import REBALANCE_MS, SESSION_MS, Scene

KIB = 1024


def a_member(name: str, *protocols: str) -> Member:
    pairs = tuple((protocol, protocol.encode()) for protocol in protocols)
    return Member(name, name, "/host", SESSION_MS, REBALANCE_MS, pairs)


def test_common_protocols_follow_every_change() -> None:
    memory = MemberMemory(2**31)
    members = Members(memory)
    first, second = a_member("a", "range", "sticky"), a_member("b", "range", "range", "roundrobin")
    members.add(first)
    assert members.common_protocols() == {"range", "sticky"}
    members.add(second)
    assert members.common_protocols() == {"range"}
    assert members.all_support_one_of((("other", b""), ("range", b"")))
    assert not members.all_support_one_of((("sticky", b""), ("roundrobin", b"")))
    members.subscribe(second, (("sticky", b""),))
    assert members.common_protocols() == {"sticky"}
    members.remove("a")
    members.remove("b")
    assert not members.common_protocols()
    assert memory.used_bytes == 0


def test_waiting_joins_are_counted_once() -> None:
    members = Members(MemberMemory(2**31))
    member = a_member("a", "range")
    members.add(member)
    for _ in range(2):
        members.await_join(member, lambda _response: None)
        assert members.joined_count == 1
    assert members.take_join_reply(member) is not None
    assert members.take_join_reply(member) is None
    assert members.joined_count == 0
    members.await_join(member, lambda _response: None)
    members.remove("a")
    assert members.joined_count == 0


def test_a_join_looks_at_no_other_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a rebalance waits, a further JoinGroup must not cost the more the more members there are."""
    scene = Scene(group_members_max=10_000)
    scene.join("first")
    scene.join("second")
    looks = 0
    values = Members.values

    def counted(members: Members) -> ValuesView[Member]:
        nonlocal looks
        looks += 1
        return values(members)

    monkeypatch.setattr(Members, "values", counted)
    for number in range(200):
        assert scene.join(f"member {number}") is None
    assert looks == 0


def join(
    scene: Scene, group_id: str, size_bytes: int, member_id: str = "", *, requires_known_member_id: bool = False
) -> JoinResponse:
    """The response to a member whose subscription has this size, in a group of its own."""
    responses: list[JoinResponse] = []
    request = JoinRequest(
        group_id, member_id, "client", "/host", SESSION_MS, REBALANCE_MS, "consumer", (("range", bytes(size_bytes)),),
        requires_known_member_id=requires_known_member_id,
    )  # fmt: skip
    scene.execute(scene.groups.join(request, responses.append))
    return responses[0]


def test_a_subscription_has_a_bound() -> None:
    scene = Scene(group_subscription_bytes_max=100 * KIB)
    assert join(scene, "g", 100 * KIB).error_code == ErrorCode.message_too_large
    assert not scene.groups.groups
    assert join(scene, "g", 99 * KIB).error_code == ErrorCode.none


def test_all_subscriptions_together_have_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    """Members that do not fit wait; existing members may join again, and leaving members free memory."""
    scene = Scene(groups_memory_bytes_max=300 * KIB)
    first, second = (join(scene, f"group {number}", 120 * KIB) for number in range(2))
    assert (first.error_code, second.error_code) == (ErrorCode.none, ErrorCode.none)
    for _ in range(3):
        assert join(scene, "group 2", 120 * KIB).error_code == ErrorCode.coordinator_not_available
    assert len(caplog.records) == 1, "logged once"
    assert join(scene, "group 0", 120 * KIB, first.member_id).error_code == ErrorCode.none
    assert join(scene, "group 0", 200 * KIB, first.member_id).error_code == ErrorCode.coordinator_not_available
    _codes, outcome = scene.groups.leave("group 0", [Leaving(first.member_id)])
    scene.execute(outcome)
    assert join(scene, "group 2", 120 * KIB).error_code == ErrorCode.none
    assert scene.groups.memory.used_bytes <= 300 * KIB
    scene.advance(REBALANCE_MS)
    scene.advance(REBALANCE_MS)
    assert scene.groups.memory.used_bytes == 0


def test_limits_apply_to_pending_member() -> None:
    """Its first JoinGroup, which only gets the id, may have asked for less."""
    scene = Scene(group_subscription_bytes_max=200 * KIB, groups_memory_bytes_max=100 * KIB)
    given = join(scene, "g", 0, requires_known_member_id=True)
    assert given.error_code == ErrorCode.member_id_required
    assert join(scene, "g", 200 * KIB, given.member_id).error_code == ErrorCode.message_too_large
    assert join(scene, "g", 150 * KIB, given.member_id).error_code == ErrorCode.coordinator_not_available
    assert scene.groups.memory.used_bytes == 0
    assert join(scene, "g", 50 * KIB, given.member_id).error_code == ErrorCode.none, "its id is still good"


def test_assignments_count_too() -> None:
    scene = Scene(groups_memory_bytes_max=100 * KIB)
    scene.join("a")
    response = scene.sync("a", scene.member_id("a"), 1, a=bytes(100 * KIB))
    assert response is not None
    assert response.error_code == ErrorCode.coordinator_not_available
    response = scene.sync("a", scene.member_id("a"), 1, a=bytes(50 * KIB))
    assert response is not None
    assert response.error_code == ErrorCode.none
    assert 50 * KIB < scene.groups.memory.used_bytes < 60 * KIB
    assert scene.replayed().memory.used_bytes == pytest.approx(scene.groups.memory.used_bytes, abs=200)


def test_thousands_of_members_need_little_memory() -> None:
    """The bound over all groups limits their number as well."""
    scene = Scene(groups_memory_bytes_max=200 * KIB)
    responses = [join(scene, f"group {number}", 0).error_code for number in range(200)]
    assert 0 < responses.count(ErrorCode.none) < 150
    assert responses[-1] == ErrorCode.coordinator_not_available


def test_large_subscriptions_are_not_read() -> None:
    """Which topics such a group reads is not known; one subscription of many members is read once."""
    topics = [f"topic-{number}" for number in range(1000)]
    assert subscribed_topics([subscription(*topics)] * 1000) == frozenset(topics)
    large = [subscription("x" * 200, f"y{number}") for number in range(SUBSCRIPTIONS_BYTES_MAX // 200)]
    assert subscribed_topics(large) is None


def test_responses_are_sent_in_slices() -> None:
    """One that fails takes none of the others with it."""
    sent: list[int] = []

    def send(number: int) -> None:
        if number == 3:
            raise ValueError("it cannot be encoded")
        sent.append(number)

    async def test() -> list[int]:
        count = 2 * requests.RESPONSES_AT_ONCE + 1
        requests._send_in_turns(iter([lambda number=number: send(number) for number in range(count)]))  # type: ignore[misc]
        counts = [len(sent)]
        while counts[-1:] != counts[-2:-1]:
            await asyncio.sleep(0)
            counts.append(len(sent))
        return counts[:-1]

    count = requests.RESPONSES_AT_ONCE
    assert asyncio.run(test()) == [count - 1, 2 * count - 1, 2 * count]
    assert sent == [number for number in range(2 * count + 1) if number != 3]
