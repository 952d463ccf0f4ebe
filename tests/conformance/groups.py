"""Groups: members, generations, instances, offsets and administration at their edges."""

from collections.abc import Callable
from typing import Any

from onceflow.wire import apis
from tests.broker.groups.raw_group import subscription
from tests.broker.raw_client import milliseconds
from tests.conformance.side import Side
from tests.conformance.valid_requests import commit_fields, join_fields, stable_member, sync_fields

STRANGER = "stranger"


def joining(*versions: int, **fields: Any) -> Callable[[Side], None]:
    """Send a JoinGroup to a missing group."""

    def case(side: Side) -> None:
        for version in versions or (5, 9):
            side.ask(apis.JOIN_GROUP, version, **{**join_fields(f"{side.group} {version}"), **fields})

    return case


def joining_others(**fields: Any) -> Callable[[Side], None]:
    """Send a JoinGroup to a group that has a member already."""

    def case(side: Side) -> None:
        stable_member(side)
        side.ask(apis.JOIN_GROUP, 9, **{**join_fields(side.group), **fields})

    return case


def joining_again(**fields: Any) -> Callable[[Side], None]:
    """Send a JoinGroup of the group's one member."""

    def case(side: Side) -> None:
        member_id = stable_member(side)
        for version in (4, 9):
            side.ask(apis.JOIN_GROUP, version, **{**join_fields(side.group, member_id), **fields})

    return case


def protocols(*named: tuple[str, bytes]) -> dict[str, Any]:
    return {"protocols": [{"name": name, "metadata": metadata} for name, metadata in named]}


def as_member(api_key: int, *versions: int, member: str = "own", generation: int = 1, **fields: Any) -> Any:
    """Send a Heartbeat, SyncGroup or LeaveGroup in the name of the group's one member, or of another."""

    def case(side: Side) -> None:
        own = stable_member(side)
        asked = {
            "group_id": side.group,
            "generation_id": generation,
            "member_id": own if member == "own" else member,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": (),
            **fields,
        }
        known = {name: value for name, value in asked.items() if api_key == apis.SYNC_GROUP or name in HEARTBEAT}
        for version in versions:
            side.ask(api_key, version, **known)

    return case


HEARTBEAT = ("group_id", "generation_id", "member_id", "group_instance_id")


def in_no_group(side: Side) -> None:
    for group in (side.group, ""):
        who: dict[str, Any] = {"group_id": group, "generation_id": 1, "member_id": "m"}
        side.ask(apis.HEARTBEAT, 4, **who)
        side.ask(apis.SYNC_GROUP, 5, **sync_fields(group, "m"))
        members = [{"member_id": "m", "group_instance_id": None}]
        for version in (2, 5):
            side.ask(apis.LEAVE_GROUP, version, group_id=group, member_id="m", members=members)
        side.ask(apis.OFFSET_FETCH, 8, groups=[{"group_id": group, "topics": None}], require_stable=False)
        for version in (0, 5):
            side.ask(apis.DESCRIBE_GROUPS, version, groups=[group], include_authorized_operations=True)
        side.ask(apis.DELETE_GROUPS, 2, groups_names=[group])
        topics = [{"name": side.topic, "partitions": [{"partition_index": 0}]}]
        side.ask(apis.OFFSET_DELETE, 0, group_id=group, topics=topics)


def before_the_assignment(side: Side) -> None:
    topic = side.create_topic()
    member_id = side.ask_quietly(apis.JOIN_GROUP, 9, **join_fields(side.group)).member_id
    side.ask(apis.JOIN_GROUP, 9, **join_fields(side.group, member_id))
    side.ask(apis.JOIN_GROUP, 9, **join_fields(side.group, member_id))
    who: dict[str, Any] = {"group_id": side.group, "generation_id": 1, "member_id": member_id}
    side.ask(apis.HEARTBEAT, 4, **who)
    generation: dict[str, Any] = {"generation_id_or_member_epoch": 1, "member_id": member_id}
    side.ask(apis.OFFSET_COMMIT, 8, **commit_fields(side.group, topic, **generation))
    side.ask(apis.DESCRIBE_GROUPS, 5, groups=[side.group], include_authorized_operations=False)
    side.ask(apis.DELETE_GROUPS, 2, groups_names=[side.group])
    for fields in (
        {"generation_id": 0},
        {"protocol_name": "sticky"},
        {"protocol_type": "connect"},
        {"assignments": ()},
    ):
        side.ask(apis.SYNC_GROUP, 5, **{**sync_fields(side.group, member_id), **fields})
    side.ask(apis.DESCRIBE_GROUPS, 5, groups=[side.group], include_authorized_operations=False)


def assignments_of_strangers(side: Side) -> None:
    member_id = side.ask_quietly(apis.JOIN_GROUP, 9, **join_fields(side.group)).member_id
    side.ask_quietly(apis.JOIN_GROUP, 9, **join_fields(side.group, member_id))
    given = [{"member_id": value, "assignment": b"x"} for value in (STRANGER, member_id, member_id)]
    side.ask(apis.SYNC_GROUP, 5, **{**sync_fields(side.group, member_id), "assignments": given})
    side.ask(apis.DESCRIBE_GROUPS, 5, groups=[side.group], include_authorized_operations=False)


def leaving(*members: tuple[str, str | None]) -> Callable[[Side], None]:
    """Remove members; `own` is the group's one member."""

    def case(side: Side) -> None:
        own = stable_member(side)
        named = [{"member_id": own if value == "own" else value, "group_instance_id": at} for value, at in members]
        side.ask(apis.LEAVE_GROUP, 5, group_id=side.group, members=named)
        side.until(lambda response: response.groups[0].group_state != "PreparingRebalance", **describing(side))
        side.ask(**describing(side))

    return case


def describing(side: Side, version: int = 5) -> dict[str, Any]:
    return {
        "api_key": apis.DESCRIBE_GROUPS,
        "version": version,
        "groups": [side.group],
        "include_authorized_operations": False,
    }


def a_rebalance_of_two(side: Side) -> None:
    first = stable_member(side)
    second = side.ask_quietly(apis.JOIN_GROUP, 9, on="b", **join_fields(side.group)).member_id
    side.send(apis.JOIN_GROUP, 9, on="b", **join_fields(side.group, second))
    side.until(lambda response: response.groups[0].group_state == "PreparingRebalance", **describing(side))
    side.ask(**describing(side))
    who: dict[str, Any] = {"group_id": side.group, "generation_id": 1, "member_id": first}
    side.ask(apis.HEARTBEAT, 4, **who)
    side.ask(apis.SYNC_GROUP, 5, **sync_fields(side.group, first))
    side.ask(apis.JOIN_GROUP, 9, **join_fields(side.group, first))
    side.receive(apis.JOIN_GROUP, 9, on="b")
    side.send(apis.SYNC_GROUP, 5, on="b", **sync_fields(side.group, second, 2, assignments=()))
    given = [{"member_id": first, "assignment": b"1"}, {"member_id": second, "assignment": b"2"}]
    side.ask(apis.SYNC_GROUP, 5, **sync_fields(side.group, first, 2, assignments=given))
    side.receive(apis.SYNC_GROUP, 5, on="b")
    side.ask(**describing(side))
    for generation in (1, 2, 3):
        side.ask(apis.HEARTBEAT, 4, **{**who, "generation_id": generation})


def static_members(side: Side) -> None:
    static: dict[str, Any] = {"group_instance_id": "i"}
    member_id = side.ask(apis.JOIN_GROUP, 9, **join_fields(side.group, **static)).member_id
    side.ask(apis.SYNC_GROUP, 5, **sync_fields(side.group, member_id, **static))
    replaced = side.ask(apis.JOIN_GROUP, 9, **join_fields(side.group, **static)).member_id
    who: dict[str, Any] = {"group_id": side.group, "generation_id": 1, **static}
    side.ask(apis.HEARTBEAT, 4, **who, member_id=member_id)
    side.ask(apis.HEARTBEAT, 4, **who, member_id=replaced)
    side.ask(apis.SYNC_GROUP, 5, **sync_fields(side.group, member_id, **static))
    side.ask(apis.SYNC_GROUP, 5, **sync_fields(side.group, replaced, **static))
    side.ask(apis.JOIN_GROUP, 9, **join_fields(side.group, member_id, **static))
    side.ask(apis.JOIN_GROUP, 9, **join_fields(side.group, STRANGER, group_instance_id="j"))
    side.ask(**describing(side))
    topic = side.create_topic()
    for value in (member_id, replaced):
        generation: dict[str, Any] = {"generation_id_or_member_epoch": 1, "member_id": value}
        side.ask(apis.OFFSET_COMMIT, 8, **commit_fields(side.group, topic, **generation, **static))
    for value, instance in ((member_id, "i"), ("", "j"), ("", "i")):
        members = [{"member_id": value, "group_instance_id": instance}]
        side.ask(apis.LEAVE_GROUP, 5, group_id=side.group, members=members)


def committing(*versions: int, is_outsider: bool = True, **fields: Any) -> Callable[[Side], None]:
    """Send an OffsetCommit, to a missing group or to one that has a member."""

    def case(side: Side) -> None:
        topic = side.create_topic()
        own = "" if is_outsider else stable_member(side)
        member = {"member_id": own} if fields.get("member_id") == "own" else {}
        for version in versions or (2, 8):
            side.ask(apis.OFFSET_COMMIT, version, **commit_fields(side.group, topic, **{**fields, **member}))
        if is_outsider:
            groups = [{"group_id": side.group, "topics": None}]
            side.ask(apis.OFFSET_FETCH, 8, groups=groups, require_stable=False)

    return case


def places_to_commit(*topics: str, partition: int = 0) -> Callable[[Side], None]:
    """Return the topics of one OffsetCommit; `own` is the case's."""

    def case(side: Side) -> None:
        side.create_topic()
        entry = {"partition_index": partition, "committed_offset": 3, "committed_metadata": ""}
        named = [{"name": topic.replace("own", side.topic), "partitions": [entry]} for topic in topics]
        side.ask(apis.OFFSET_COMMIT, 8, **commit_fields(side.group, "", topics=named))
        groups = [{"group_id": side.group, "topics": None}]
        side.ask(apis.OFFSET_FETCH, 8, groups=groups, require_stable=False)

    return case


def fetching_offsets(side: Side) -> None:
    topic = side.create_topic(2)
    side.ask_quietly(apis.OFFSET_COMMIT, 8, **commit_fields(side.group, topic))
    for name, indexes in ((topic, [0, 1, 9, -1]), (topic, [0, 0]), (topic, []), ("no-such-topic-of-offsets", [0])):
        topics = [{"name": name, "partition_indexes": indexes}]
        for version in (1, 5, 7):
            side.ask(apis.OFFSET_FETCH, version, group_id=side.group, topics=topics, require_stable=True)
        side.ask(apis.OFFSET_FETCH, 8, groups=[{"group_id": side.group, "topics": topics}], require_stable=True)
    for none in (None, ()):
        side.ask(apis.OFFSET_FETCH, 7, group_id=side.group, topics=none, require_stable=False)
        both = [{"group_id": value, "topics": none} for value in (side.group, "no-such-group-of-offsets")]
        side.ask(apis.OFFSET_FETCH, 8, groups=both, require_stable=False)
    twice = [{"group_id": side.group, "topics": None}] * 2
    side.ask(apis.OFFSET_FETCH, 8, groups=twice, require_stable=False)
    side.ask(apis.OFFSET_FETCH, 8, groups=(), require_stable=False)


def deleting_offsets(side: Side) -> None:
    topic = side.create_topic(2)
    member_id = stable_member(side)
    generation: dict[str, Any] = {"generation_id_or_member_epoch": 1, "member_id": member_id}
    side.ask_quietly(apis.OFFSET_COMMIT, 8, **commit_fields(side.group, topic, **generation))

    def delete(*places: tuple[str, int]) -> None:
        topics = [{"name": name, "partitions": [{"partition_index": index}]} for name, index in places]
        side.ask(apis.OFFSET_DELETE, 0, group_id=side.group, topics=topics)

    delete((topic, 0))
    members = [{"member_id": member_id, "group_instance_id": None}]
    side.ask_quietly(apis.LEAVE_GROUP, 5, group_id=side.group, members=members)
    side.until(lambda response: response.groups[0].group_state == "Empty", **describing(side))
    for places in ([(topic, 0)], [(topic, 0)], [(topic, 9)], [("no-such-topic-of-offsets", 0)], [], [(topic, 1)] * 2):
        delete(*places)


def deleting_offsets_of_subscribers(side: Side) -> None:
    topic = side.create_topic()
    named = protocols(("range", subscription(topic)))
    member_id = side.ask_quietly(apis.JOIN_GROUP, 9, **join_fields(side.group, **named)).member_id
    side.ask_quietly(apis.JOIN_GROUP, 9, **join_fields(side.group, member_id, **named))
    side.ask_quietly(apis.SYNC_GROUP, 5, **sync_fields(side.group, member_id))
    for name in (topic, "no-such-topic-of-offsets"):
        topics = [{"name": name, "partitions": [{"partition_index": 0}]}]
        side.ask(apis.OFFSET_DELETE, 0, group_id=side.group, topics=topics)


def listing_groups(side: Side) -> None:
    stable_member(side)
    for states in ((), ("Stable",), ("stable", "STABLE"), ("Empty",), ("Nonsense",), ("Stable", "Nonsense"), ("",)):
        side.ask_about_own(apis.LIST_GROUPS, 4, states_filter=states)


def listing_groups_by_type(side: Side) -> None:
    stable_member(side)
    for types in ((), ("classic",), ("CLASSIC", "x"), ("consumer",), ("share",), ("Nonsense",), ("unknown",), ("",)):
        side.ask_about_own(apis.LIST_GROUPS, 5, states_filter=(), types_filter=types)
    side.ask_about_own(apis.LIST_GROUPS, 5, states_filter=("Stable",), types_filter=("classic",))
    side.ask_about_own(apis.LIST_GROUPS, 5, states_filter=("Empty",), types_filter=("classic",))


def describing_groups(side: Side) -> None:
    stable_member(side)
    for groups in ((), (side.group, side.group), (side.group, "no-such-group", "")):
        for version in (5, 6):
            side.ask(apis.DESCRIBE_GROUPS, version, groups=groups, include_authorized_operations=True)


def deleting_groups(side: Side) -> None:
    topic = side.create_topic()
    side.ask_quietly(apis.OFFSET_COMMIT, 8, **commit_fields(side.group + "-2", topic))
    stable_member(side)
    for groups in ((), (side.group,), ("no-such-group", side.group + "-2", side.group, ""), (side.group + "-2",) * 2):
        side.ask(apis.DELETE_GROUPS, 2, groups_names=groups)


def coordinators(side: Side) -> None:
    for version in (0, 1, 3):
        for key, kind in (("", 0), ("x", 0), ("", 1), ("x", 2), ("x", -1), ("x", 77)):
            if version or not kind:
                side.ask(apis.FIND_COORDINATOR, version, key=key, key_type=kind)
    for keys, kind in (((), 0), (("",), 0), (("x", "x"), 1), (("x", ""), 1), (("x",), 2), (("x", "y"), 77)):
        side.ask(apis.FIND_COORDINATOR, 4, coordinator_keys=keys, key_type=kind)


SESSION = "session_timeout"

CASES: dict[str, Callable[[Side], None]] = {
    "join with a short session": joining(**{SESSION: milliseconds(5999)}),
    "join with a long session": joining(**{SESSION: milliseconds(1_800_001)}),
    "join with a negative session": joining(**{SESSION: milliseconds(-1)}),
    "join with a negative rebalance time-out": joining(rebalance_timeout=milliseconds(-1)),
    "join as a stranger": joining(0, 4, 9, member_id=STRANGER),
    "join a group without a name": joining(0, 9, group_id=""),
    "join without protocols": joining(0, 9, protocols=()),
    "join without a protocol type": joining(0, 9, protocol_type=""),
    "join with an instance without a name": joining(group_instance_id=""),
    "join with an impossible instance": joining(group_instance_id="a/b"),
    "join with an endless instance": joining(group_instance_id="i" * 250),
    "join with a protocol twice": joining(3, **protocols(("range", b"1"), ("range", b"2"))),
    "join in old versions": joining(0, 3),
    "join others with another protocol": joining_others(**protocols(("sticky", b"m"))),
    "join others with another type": joining_others(protocol_type="connect"),
    "join others as a stranger": joining_others(member_id=STRANGER),
    "join others as an unknown instance": joining_others(member_id=STRANGER, group_instance_id="i"),
    "join again": joining_again(),
    "join again with other metadata": joining_again(**protocols(("range", b"other"))),
    "join again with another protocol": joining_again(**protocols(("sticky", b"m"))),
    "join again with another type": joining_again(protocol_type="connect"),
    "join again with an instance": joining_again(group_instance_id="i"),
    "heartbeat of the generation": as_member(apis.HEARTBEAT, 0, 4),
    "heartbeat of an earlier generation": as_member(apis.HEARTBEAT, 0, 4, generation=0),
    "heartbeat of a later generation": as_member(apis.HEARTBEAT, 0, 4, generation=2),
    "heartbeat of a negative generation": as_member(apis.HEARTBEAT, 0, 4, generation=-1),
    "heartbeat of a stranger": as_member(apis.HEARTBEAT, 0, 4, member=STRANGER),
    "heartbeat without a member": as_member(apis.HEARTBEAT, 0, 4, member=""),
    "heartbeat of an instance": as_member(apis.HEARTBEAT, 4, group_instance_id="i"),
    "sync again": as_member(apis.SYNC_GROUP, 0, 5),
    "sync of another generation": as_member(apis.SYNC_GROUP, 0, 5, generation=2),
    "sync of a stranger": as_member(apis.SYNC_GROUP, 0, 5, member=STRANGER),
    "sync without a member": as_member(apis.SYNC_GROUP, 0, 5, member=""),
    "sync of another protocol": as_member(apis.SYNC_GROUP, 5, protocol_name="sticky"),
    "sync of another type": as_member(apis.SYNC_GROUP, 5, protocol_type="connect"),
    "sync without protocol": as_member(apis.SYNC_GROUP, 5, protocol_type=None, protocol_name=None),
    "sync of an instance": as_member(apis.SYNC_GROUP, 5, group_instance_id="i"),
    "requests in no group": in_no_group,
    "requests before the assignment": before_the_assignment,
    "an assignment for strangers": assignments_of_strangers,
    "leave": leaving(("own", None)),
    "leave twice": leaving(("own", None), ("own", None)),
    "leave as a stranger": leaving((STRANGER, None), ("own", None)),
    "leave as an instance": leaving(("", "i"), ("own", "i")),
    "leave without an identity": leaving(("", None)),
    "leave without members": leaving(),
    "a rebalance of two": a_rebalance_of_two,
    "static members": static_members,
    "commit from outside": committing(),
    "commit with a generation to no group": committing(generation_id_or_member_epoch=3, member_id="m"),
    "commit with a member to no group": committing(member_id="m"),
    "commit with an instance to no group": committing(7, group_instance_id="i"),
    "commit to a group without a name": committing(group_id=""),
    "commit a negative offset": committing(place={"committed_offset": -1}),
    "commit an offset of -5": committing(place={"committed_offset": -5}),
    "commit the largest offset": committing(place={"committed_offset": 2**63 - 1}),
    "commit no metadata": committing(place={"committed_metadata": None}),
    "commit as much metadata as may be": committing(place={"committed_metadata": "m" * 4096}),
    "commit more metadata": committing(place={"committed_metadata": "m" * 4097}),
    "commit a leader epoch": committing(6, 8, place={"committed_leader_epoch": 5}),
    "commit a negative leader epoch": committing(6, 8, place={"committed_leader_epoch": -3}),
    "commit an unknown partition": places_to_commit("own", partition=9),
    "commit a negative partition": places_to_commit("own", partition=-1),
    "commit in unknown topics": places_to_commit("no-such-topic-to-commit", "own", "a/b", ""),
    "commit a topic twice": places_to_commit("own", "own"),
    "commit nothing": places_to_commit(),
    "commit as the member": committing(is_outsider=False, generation_id_or_member_epoch=1, member_id="own"),
    "commit as the member of another generation": committing(
        is_outsider=False, generation_id_or_member_epoch=2, member_id="own"
    ),
    "commit as the member without a generation": committing(is_outsider=False, member_id="own"),
    "commit as a stranger": committing(is_outsider=False, generation_id_or_member_epoch=1, member_id=STRANGER),
    "commit as an outsider": committing(is_outsider=False),
    "commit as an outsider with a generation": committing(is_outsider=False, generation_id_or_member_epoch=1),
    "commit as an unknown instance": committing(
        7, 8, is_outsider=False, generation_id_or_member_epoch=1, member_id="own", group_instance_id="i"
    ),
    "fetch offsets": fetching_offsets,
    "delete offsets": deleting_offsets,
    "delete offsets of subscribers": deleting_offsets_of_subscribers,
    "list groups by state": listing_groups,
    "list groups by type": listing_groups_by_type,
    "describe groups": describing_groups,
    "delete groups": deleting_groups,
    "find coordinators": coordinators,
}
