"""Responses to a group's requests over a socket, each compared with Apache Kafka 4.1.1.

With ONCEFLOW_TEST_BOOTSTRAP the whole module runs against that Kafka (with group.initial.rebalance.delay.ms=0).
"""

from collections.abc import Iterator

import pytest

from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.groups.raw_group import RawGroup, subscription
from tests.broker.raw_client import milliseconds

NONE = ErrorCode.none
RANGE = "range"


@pytest.fixture
def group(bootstrap: str, topic: str) -> Iterator[RawGroup]:
    """A group that no other test uses, and three partitions of `topic`."""
    with RawGroup(bootstrap, f"group of {topic}") as group:
        group.client().create_topic(topic, 3)
        yield group


def alone(group: RawGroup, metadata: bytes = b"m") -> str:
    """Join one member to a stable group in generation 1; return its id."""
    member_id = group.enter(protocols=[(RANGE, metadata)])
    assert group.joined().generation_id == 1
    assert group.sync(1, member_id, assignments={member_id: b"assigned"}).assignment == b"assigned"
    return member_id


def test_requests_refused_by_every_group(group: RawGroup) -> None:
    assert group.join(session_ms=5999).error_code == ErrorCode.invalid_session_timeout
    assert group.join(session_ms=1_800_001).error_code == ErrorCode.invalid_session_timeout
    assert group.join("member-1").error_code == ErrorCode.unknown_member_id
    assert group.join(protocols=()).error_code == ErrorCode.inconsistent_group_protocol
    assert group.join(protocol_type="").error_code == ErrorCode.inconsistent_group_protocol
    invalid = ErrorCode.invalid_group_id
    with RawGroup(group.bootstrap, "") as nameless:
        assert nameless.join().error_code == invalid
        assert nameless.beat(1, "m") == invalid
        assert nameless.sync(1, "m").error_code == invalid
        assert nameless.leave(("m", None)) == [("", None, invalid)]
        assert nameless.client().ask(apis.LEAVE_GROUP, 2, group_id="", member_id="m").error_code == invalid
        assert nameless.delete_offsets([("t", [0])]) == (invalid, {})


def test_requests_about_a_missing_group(group: RawGroup, topic: str) -> None:
    assert group.beat(1, "m") == ErrorCode.unknown_member_id
    assert group.leave(("m", None), ("", "i")) == [
        ("m", None, ErrorCode.unknown_member_id),
        ("", "i", ErrorCode.unknown_member_id),
    ]
    assert group.offsets() == {}
    assert group.offsets([(topic, [0])]) == {(topic, 0): (-1, 0)}
    assert group.commit(topic, generation=3, member_id="m") == ErrorCode.illegal_generation
    assert group.delete() == {group.group_id: ErrorCode.group_id_not_found}
    assert group.delete_offsets([(topic, [0])]) == (ErrorCode.group_id_not_found, {})
    described = group.describe()
    assert (described.error_code, described.group_state, described.members) == (NONE, "Dead", ())
    assert group.listed() == []


def test_a_generation_before_and_after_its_sync(group: RawGroup, topic: str) -> None:
    member_id = group.enter()
    joined = group.joined()
    assert (joined.error_code, joined.leader, joined.skip_assignment) == (NONE, member_id, False)
    described = group.describe()
    assert (described.group_state, described.protocol_type, described.protocol_data) == (
        "CompletingRebalance",
        "consumer",
        "",
    )
    assert (described.members[0].client_id, described.members[0].client_host) == ("raw", "/127.0.0.1")
    assert (described.members[0].member_metadata, described.members[0].member_assignment) == (b"", b"")
    assert group.commit(topic, generation=1, member_id=member_id) == ErrorCode.rebalance_in_progress
    assert group.join(member_id) == joined, "the same response again, for a lost one"
    assert group.sync(1, member_id, assignments={member_id: b"assigned"}).assignment == b"assigned"
    assert group.sync(1, member_id).assignment == b"assigned"
    described = group.describe()
    assert (described.group_state, described.protocol_data) == ("Stable", RANGE)
    assert (described.members[0].member_metadata, described.members[0].member_assignment) == (b"m", b"assigned")
    for states in ((), ("stable",), ("STABLE", "nonsense")):
        assert group.listed(*states) == [("consumer", "Stable")]
    assert group.listed("Empty") == []


def test_sync_checks_protocol_and_generation(group: RawGroup) -> None:
    member_id = group.enter()
    group.joined()
    inconsistent = ErrorCode.inconsistent_group_protocol
    assert group.sync(1, member_id, protocol=None, protocol_type=None).error_code == inconsistent
    assert group.sync(1, member_id, protocol="sticky").error_code == inconsistent
    assert group.sync(1, member_id, protocol_type="connect").error_code == inconsistent
    assert group.sync(0, member_id).error_code == ErrorCode.illegal_generation
    assert group.sync(1, "stranger").error_code == ErrorCode.unknown_member_id


def test_members_that_may_commit_and_heartbeat(group: RawGroup, topic: str) -> None:
    member_id = alone(group)
    assert group.beat(1, member_id) == NONE
    assert group.beat(0, member_id) == ErrorCode.illegal_generation
    assert group.beat(1, "stranger") == ErrorCode.unknown_member_id
    assert group.beat(1, member_id, "instance") == ErrorCode.unknown_member_id
    assert group.commit(topic, 5, generation=1, member_id=member_id) == NONE
    assert group.commit(topic, 5, generation=0, member_id=member_id) == ErrorCode.illegal_generation
    assert group.commit(topic, 5, partition=9, generation=1, member_id=member_id) == 3
    assert group.commit(topic, 5) == ErrorCode.unknown_member_id
    assert group.commit(topic, 5, member_id=member_id) == ErrorCode.illegal_generation
    assert group.commit(topic, 5, instance="instance") == ErrorCode.unknown_member_id
    for protocols, kind in (((("sticky", b"m"),), "consumer"), (((RANGE, b"m"),), "connect")):
        refused = group.join(member_id, protocols=protocols, protocol_type=kind)
        assert refused.error_code == ErrorCode.inconsistent_group_protocol
    assert group.delete("no-such-group") == {
        group.group_id: ErrorCode.non_empty_group,
        "no-such-group": ErrorCode.group_id_not_found,
    }


def test_any_client_commits_to_an_empty_group(group: RawGroup, topic: str) -> None:
    member_id = alone(group)
    group.commit(topic, 5, generation=1, member_id=member_id)
    assert group.leave((member_id, None)) == [(member_id, None, NONE)]
    described = group.describe()
    assert (described.group_state, described.protocol_type, described.members) == ("Empty", "consumer", ())
    assert group.commit(topic, 6, partition=1) == NONE
    assert group.commit(topic, 7, partition=2, member_id="anybody") == NONE
    assert group.commit(topic, 7, partition=2, generation=1, member_id=member_id) == ErrorCode.unknown_member_id
    assert group.beat(2, member_id) == ErrorCode.unknown_member_id
    assert group.join(member_id).error_code == ErrorCode.unknown_member_id
    assert group.offsets() == {(topic, 0): (5, 0), (topic, 1): (6, 0), (topic, 2): (7, 0)}
    response = group.delete_offsets([(topic, [0, 7]), ("no-such-topic", [0])])
    assert response == (NONE, {(topic, 0): 0, (topic, 7): 3, ("no-such-topic", 0): 3})
    assert group.delete_offsets([(topic, [0])]) == (NONE, {(topic, 0): 0}), "a repetition is allowed"
    assert set(group.offsets()) == {(topic, 1), (topic, 2)}
    assert group.delete(group.group_id) == {group.group_id: NONE}
    assert (group.offsets(), group.describe().group_state) == ({}, "Dead")


def test_offsets_in_use_cannot_be_deleted(group: RawGroup, topic: str) -> None:
    member_id = alone(group, subscription(topic))
    group.commit(topic, 5, generation=1, member_id=member_id)
    response = group.delete_offsets([(topic, [0, 1])])
    assert response == (NONE, {(topic, 0): 86, (topic, 1): 86})
    group.send_join(member_id, protocols=[(RANGE, subscription("another"))])
    assert group.joined().generation_id == 2
    assert group.delete_offsets([(topic, [0])]) == (NONE, {(topic, 0): 0})
    assert group.offsets() == {}


def test_an_unreadable_subscription_includes_every_topic(group: RawGroup, topic: str) -> None:
    alone(group, b"m")
    assert group.delete_offsets([(topic, [0])]) == (NONE, {(topic, 0): 86})


@pytest.mark.parametrize(
    ("metadata", "error_code"),
    [
        ("x" * 4096, 0),
        ("x" * 4097, 12),
        ("é" * 4096, 0),
        ("\N{GRINNING FACE}" * 2048, 0),
        ("\N{GRINNING FACE}" * 2049, 12),
        (None, 0),
    ],
    ids=["4096", "4097", "4096 of two bytes", "2048 of two units", "2049 of two units", "none"],
)
def test_size_of_an_offsets_metadata(group: RawGroup, topic: str, metadata: str | None, error_code: int) -> None:
    assert group.commit(topic, metadata=metadata) == error_code


def test_a_committing_consumer_has_a_group(group: RawGroup, topic: str) -> None:
    assert group.commit(topic, 3) == NONE
    assert group.commit(topic, 4, partition=1, version=3, retention_ms=3_600_000) == NONE
    assert group.commit("no-such-topic") == ErrorCode.unknown_topic_or_partition
    assert group.listed() == [("", "Empty")]
    assert group.offsets() == {(topic, 0): (3, 0), (topic, 1): (4, 0)}
    with RawGroup(group.bootstrap, "") as nameless:
        assert nameless.commit(topic, 8) == NONE, "as of old"
        assert nameless.offsets([(topic, [0])]) == {(topic, 0): (8, 0)}
        assert nameless.delete() == {"": NONE}


def test_offsets_of_several_groups(group: RawGroup, topic: str) -> None:
    group.commit(topic, 3, metadata="note")
    asked = [
        {"group_id": group.group_id, "topics": [{"name": topic, "partition_indexes": [0, 7]}]},
        {"group_id": "no-such-group", "topics": None},
    ]
    response = group.client().ask(apis.OFFSET_FETCH, 8, groups=asked, require_stable=True)
    assert [group.error_code for group in response.groups] == [NONE, NONE]
    partitions = response.groups[0].topics[0].partitions
    assert [(partition.committed_offset, partition.metadata) for partition in partitions] == [(3, "note"), (-1, "")]
    assert response.groups[1].topics == ()
    for version in (1, 5, 7):
        topics = [{"name": topic, "partition_indexes": [0]}] if version < 2 else None
        response = group.client().ask(apis.OFFSET_FETCH, version, group_id=group.group_id, topics=topics)
        assert response.topics[0].partitions[0].committed_offset == 3


def test_offsets_and_groups_in_every_version(group: RawGroup, topic: str) -> None:
    group.commit(topic, 3, metadata="note")
    group.commit(topic, 4, partition=2, metadata=None)
    asked = [{"name": topic, "partition_indexes": [2, 0, 7]}]
    for version in range(1, 9):
        fields = {"group_id": group.group_id, "topics": asked}
        response = group.client().ask(apis.OFFSET_FETCH, version, **({"groups": [fields]} if version == 8 else fields))
        fetched = response.groups[0] if version == 8 else response
        assert getattr(fetched, "error_code", NONE) == NONE
        assert [topic.name for topic in fetched.topics] == [topic]
        partitions = fetched.topics[0].partitions
        assert {partition.error_code for partition in partitions} == {NONE}
        assert {getattr(partition, "committed_leader_epoch", -1) for partition in partitions} == {-1}
        places = [
            (partition.partition_index, partition.committed_offset, partition.metadata) for partition in partitions
        ]
        assert places == [(2, 4, ""), (0, 3, "note"), (7, -1, "")]
    for version in range(6):
        response = group.client().ask(apis.LIST_GROUPS, version)
        assert response.error_code == NONE
        (listed,) = (entry for entry in response.groups if entry.group_id == group.group_id)
        assert (listed.protocol_type, getattr(listed, "group_state", "Empty")) == ("", "Empty")
        assert getattr(listed, "group_type", "classic") == "classic"
    for version in range(7):
        authorized = {"include_authorized_operations": False} if version >= 3 else {}
        asked_groups = [group.group_id, "none"]
        groups = group.client().ask(apis.DESCRIBE_GROUPS, version, groups=asked_groups, **authorized).groups
        assert [(group.group_id, group.group_state) for group in groups] == [
            (group.group_id, "Empty"),
            ("none", "Dead"),
        ]


def test_a_missing_group_from_version_6(group: RawGroup) -> None:
    for version, code in ((5, NONE), (6, ErrorCode.group_id_not_found)):
        response = group.client().ask(
            apis.DESCRIBE_GROUPS, version, groups=["none"], include_authorized_operations=False
        )
        (described,) = response.groups
        assert (described.error_code, described.group_state) == (code, "Dead")
        assert version < 6 or described.error_message


def test_groups_are_listed_by_type(group: RawGroup) -> None:
    alone(group)
    for types, is_listed in (((), True), (("Classic",), True), (("consumer",), False), (("nonsense",), False)):
        response = group.client().ask(apis.LIST_GROUPS, 5, states_filter=(), types_filter=types)
        assert response.error_code == NONE
        assert (group.group_id in [group.group_id for group in response.groups]) is is_listed


def test_authorized_operations_on_request(group: RawGroup) -> None:
    asked = {"groups": [group.group_id], "include_authorized_operations": True}
    for version in range(3, 6):
        response = group.client().ask(apis.DESCRIBE_GROUPS, version, **asked)
        assert response.groups[0].authorized_operations == 3400


def test_assigned_ids_exclude_instance_ids(group: RawGroup) -> None:
    pending = group.join().member_id
    assert group.join(pending, instance="i").error_code == ErrorCode.unknown_server_error
    assert group.join(pending).generation_id == 1


def test_unused_member_ids_leave_groups_empty(group: RawGroup, topic: str) -> None:
    member_id = alone(group)
    pending = group.join(on="p").member_id
    assert group.leave((member_id, None)) == [(member_id, None, NONE)]
    while group.describe().group_state == "PreparingRebalance":
        pass
    assert group.describe().group_state == "Empty"
    assert group.commit(topic) == NONE
    assert group.join(pending, on="p").generation_id == 3


def test_a_rebalance_of_two(group: RawGroup, topic: str) -> None:
    first = alone(group)
    second = group.enter(on="b")
    while group.describe().group_state != "PreparingRebalance":
        pass
    assert group.beat(1, first) == ErrorCode.rebalance_in_progress
    assert group.sync(1, first).error_code == ErrorCode.rebalance_in_progress
    assert group.commit(topic, generation=1, member_id=first) == NONE
    joined = group.join(first)
    assert {member.member_id for member in joined.members} == {first, second}
    follower = group.joined(on="b")
    assert (follower.generation_id, follower.leader, follower.members) == (2, first, ())
    group.send_sync(2, second, on="b")
    assert group.sync(2, first, assignments={first: b"A"}).assignment == b"A"
    assert group.synced(on="b").assignment == b"", "the leader gave it nothing"
    again = group.join(second, on="b")
    assert (again.generation_id, again.members) == (2, ()), "a follower that joins again has lost its response"
    assert group.leave((first, None), ("stranger", None), (second, "instance")) == [
        (first, None, NONE),
        ("stranger", None, ErrorCode.unknown_member_id),
        (second, "instance", ErrorCode.unknown_member_id),
    ]
    assert group.beat(2, second) == ErrorCode.rebalance_in_progress


def test_a_rebalance_before_the_assignment(group: RawGroup) -> None:
    member_id = alone(group)
    group.join(member_id)
    assert [member.member_assignment for member in group.describe().members] == [b"assigned"], (
        "that of the generation before"
    )
    group.send_join(on="b", version=3)
    while group.describe().group_state != "PreparingRebalance":
        pass
    assert {member.member_assignment for member in group.describe().members} == {b""}
    group.join(member_id)
    assert group.joined(on="b", version=3).generation_id == 3


def two_static(group: RawGroup) -> tuple[str, str]:
    """Join instances a, the leader, and b to a stable group in generation 2; return their member ids."""
    first = group.join(on="a", instance="a").member_id
    assert first.startswith("a-")
    group.send_join(on="b", instance="b")
    while group.describe().group_state != "PreparingRebalance":
        pass
    group.join(first, on="a", instance="a")
    second = group.joined(on="b").member_id
    group.send_sync(2, second, on="b", instance="b")
    group.sync(2, first, on="a", instance="a", assignments={first: b"A", second: b"B"})
    assert group.synced(on="b").assignment == b"B"
    return first, second


def test_a_static_member_returns(group: RawGroup, topic: str) -> None:
    first, old = two_static(group)
    back = group.join(on="b", instance="b")
    new = back.member_id
    assert new != old
    assert (back.generation_id, back.leader, back.members, back.skip_assignment) == (2, first, (), False)
    fenced = ErrorCode.fenced_instance_id
    assert [group.beat(2, value, "b") for value in (old, new)] == [fenced, NONE]
    assert [group.beat(2, value) for value in (old, new)] == [ErrorCode.unknown_member_id, NONE]
    assert group.sync(2, old, instance="b").error_code == fenced
    assert group.sync(2, new, instance="b").assignment == b"B"
    assert group.commit(topic, generation=2, member_id=old, instance="b") == fenced
    assert group.commit(topic, generation=2, member_id=new, instance="b") == NONE
    assert group.join(old, instance="b").error_code == fenced
    assert group.join(new, instance="another").error_code == ErrorCode.unknown_member_id
    assert {member.group_instance_id for member in group.describe().members} == {"a", "b"}


def test_a_static_leader_returns(group: RawGroup) -> None:
    first, second = two_static(group)
    back = group.join(on="a", instance="a")
    assert (back.generation_id, back.leader, back.skip_assignment) == (2, back.member_id, True)
    assert {member.member_id: member.group_instance_id for member in back.members} == {back.member_id: "a", second: "b"}
    older = group.join(on="a", instance="a", version=5)
    assert (older.generation_id, older.leader, older.members) == (2, back.member_id, ()), "it does not lead, so to say"
    assert first not in (back.member_id, older.member_id)


def test_static_members_leave_by_instance_id(group: RawGroup) -> None:
    first, second = two_static(group)
    new = group.join(on="b", instance="b").member_id
    assert group.leave((second, "b"), (new, "x"), ("", "x"), ("", None)) == [
        (second, "b", ErrorCode.fenced_instance_id),
        (new, "x", ErrorCode.unknown_member_id),
        ("", "x", ErrorCode.unknown_member_id),
        ("", None, ErrorCode.unknown_member_id),
    ]
    assert group.describe().group_state == "Stable"
    assert group.leave(("", "a"), ("", "b")) == [("", "a", NONE), ("", "b", NONE)]
    assert group.describe().group_state == "Empty"
    assert group.beat(2, first) == ErrorCode.unknown_member_id


def test_a_repeated_instance_id_fences_the_waiter(group: RawGroup) -> None:
    first = group.join(on="a", instance="a").member_id
    group.send_join(on="b", instance="i")
    while group.describe().group_state != "PreparingRebalance":
        pass
    group.send_join(on="c", instance="i")
    assert group.joined(on="b").error_code == ErrorCode.fenced_instance_id
    assert len(group.join(first, on="a", instance="a").members) == 2
    assert group.joined(on="c").generation_id == 2


def test_pending_transactional_offsets_are_unstable(group: RawGroup, topic: str) -> None:
    group.commit(topic, 3)
    client = group.client()
    coordinator = client.ask(apis.FIND_COORDINATOR, 2, key=topic, key_type=1)
    while coordinator.error_code:
        coordinator = client.ask(apis.FIND_COORDINATOR, 2, key=topic, key_type=1)
    made = client.ask(apis.INIT_PRODUCER_ID, 1, transactional_id=topic, transaction_timeout=milliseconds(30_000))
    producer = {"transactional_id": topic, "producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    assert client.ask(apis.ADD_OFFSETS_TO_TXN, 2, group_id=group.group_id, **producer).error_code == NONE
    place = {"partition_index": 0, "committed_offset": 8, "committed_leader_epoch": -1, "committed_metadata": ""}
    response = client.ask(
        apis.TXN_OFFSET_COMMIT,
        2,
        group_id=group.group_id,
        topics=[{"name": topic, "partitions": [place]}],
        **producer,
    )
    assert response.topics[0].partitions[0].error_code == NONE
    assert group.offsets([(topic, [0, 1])], stable=True) == {(topic, 0): (-1, 88), (topic, 1): (-1, 0)}
    assert group.offsets(stable=True) == {(topic, 0): (-1, 88)}
    assert group.offsets() == {(topic, 0): (3, 0)}
    assert client.ask(apis.END_TXN, 2, committed=True, **producer).error_code == NONE
    offsets = {(topic, 0): (-1, 88)}
    while offsets == {(topic, 0): (-1, 88)}:
        offsets = group.offsets(stable=True)
    assert offsets == {(topic, 0): (8, 0)}
