"""Group state after power cuts: acknowledged state survives, and no response reveals undurable state."""

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from onceflow.broker.groups.shards import GroupShards
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, WireError
from tests.broker.driven_broker import PoweredBroker, hung_up_without_power
from tests.broker.groups.raw_group import RawGroup

NONE = ErrorCode.none


class Steps:
    """Each a request that changes a group for good: `do` says whether it was acknowledged, `is_done` whether it is so.

    A group `g` of two static members, `a` and `b`, in generation 2, and offset 5 in topic `t`.
    """

    def __init__(self, powered: PoweredBroker, group_id: str) -> None:
        self.group_id = group_id
        with RawGroup(powered.bootstrap, group_id) as group:
            self.first = group.join(on="a", instance="a").member_id
            group.send_join(on="b", instance="b")
            while group.describe().group_state != "PreparingRebalance":
                pass
            group.join(self.first, on="a", instance="a")
            self.second = group.joined(on="b").member_id
            assert group.commit("t", 5, generation=2, member_id=self.first) == ErrorCode.rebalance_in_progress
            assignments = {self.first: b"A", self.second: b"B"}
            assert group.sync(2, self.first, on="a", instance="a", assignments=assignments).error_code == NONE
            assert group.commit("t", 5, generation=2, member_id=self.first) == NONE

    def commit(self, group: RawGroup) -> bool:
        return group.commit("t", 6, generation=2, member_id=self.first) == NONE

    def is_committed(self, group: RawGroup) -> bool:
        return group.offsets()["t", 0][0] == 6

    def delete_offset(self, group: RawGroup) -> bool:
        # Former members subscribe to nothing.
        if group.leave(("", "a"), ("", "b")) != [("", "a", NONE), ("", "b", NONE)]:
            return False
        return group.delete_offsets([("t", [0])]) == (NONE, {("t", 0): 0})

    def is_offset_deleted(self, group: RawGroup) -> bool:
        return ("t", 0) not in group.offsets()

    def leave(self, group: RawGroup) -> bool:
        return group.leave(("", "a"), ("", "b")) == [("", "a", NONE), ("", "b", NONE)]

    def is_left(self, group: RawGroup) -> bool:
        return bool(group.describe().group_state == "Empty")

    def come_back(self, group: RawGroup) -> bool:
        return bool(group.join(on="back", instance="b").error_code == NONE)

    def is_back(self, group: RawGroup) -> bool:
        return group.beat(2, self.second, "b") == ErrorCode.fenced_instance_id

    def delete(self, group: RawGroup) -> bool:
        return self.leave(group) and group.delete() == {self.group_id: NONE}

    def is_deleted(self, group: RawGroup) -> bool:
        return bool(group.describe().group_state == "Dead") and group.offsets() == {}


@pytest.mark.parametrize(
    ("do", "is_done"),
    [
        (Steps.commit, Steps.is_committed),
        (Steps.leave, Steps.is_left),
        (Steps.come_back, Steps.is_back),
        (Steps.delete_offset, Steps.is_offset_deleted),
        (Steps.delete, Steps.is_deleted),
    ],
    ids=["commit", "leave", "come back", "delete an offset", "delete"],
)
def test_acknowledged_state_survives_power_cut(
    powered: PoweredBroker, do: Callable[[Steps, RawGroup], bool], is_done: Callable[[Steps, RawGroup], bool]
) -> None:
    with RawGroup(powered.bootstrap, "none") as group:
        group.client().create_topic("t")
    outcomes = set()
    for operations in range(6):
        steps = Steps(powered, f"g{operations}")
        acknowledged = False
        with RawGroup(powered.bootstrap, steps.group_id) as group:
            clients = group.client(), group.client("back")
            powered.disk.cut_power_after(operations)
            with hung_up_without_power(powered.disk, *clients), suppress(OSError, WireError):
                acknowledged = do(steps, group)
        powered.power_cycle(operations, drop_all=True)
        with RawGroup(powered.bootstrap, steps.group_id) as group:
            done = is_done(steps, group)
            assert done or not acknowledged, f"after {operations} operations of the disk"
            outcomes.add((acknowledged, done))
    assert {(True, True), (False, False)} <= outcomes


def test_no_response_reveals_unsynced_state(powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with RawGroup(powered.bootstrap, "g") as group:
        group.client().create_topic("t")
        disk_fails = threading.Event()

        def fail(_file: object) -> None:
            disk_fails.wait(10)
            raise OSError("the disk is gone")

        monkeypatch.setattr("onceflow.testing.disk._FaultyFile.sync_data", fail)
        place = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
        group.client("commit").send(
            apis.OFFSET_COMMIT,
            8,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": "t", "partitions": [place]}],
        )
        fetch, describe, listing = (group.client(item) for item in ("fetch", "describe", "list"))
        fetch.send(apis.OFFSET_FETCH, 7, group_id="g", topics=None)
        describe.send(apis.DESCRIBE_GROUPS, 5, groups=["g"], include_authorized_operations=False)
        listing.send(apis.LIST_GROUPS, 4)
        assert group.beat(1, "m") == ErrorCode.unknown_member_id, "the others have been read by now"
        disk_fails.set()
        unavailable = ErrorCode.coordinator_not_available
        assert group.client("commit").receive(apis.OFFSET_COMMIT, 8).topics[0].partitions[0].error_code == unavailable
        assert fetch.receive(apis.OFFSET_FETCH, 7).error_code == unavailable
        assert describe.receive(apis.DESCRIBE_GROUPS, 5).groups[0].error_code == unavailable
        assert listing.receive(apis.LIST_GROUPS, 4).error_code == unavailable


def test_response_reveals_nothing_appended_meanwhile(powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with RawGroup(powered.bootstrap, "late") as group:
        group.client().create_topic("t")
        syncs = [threading.Event(), threading.Event()]
        numbers = iter(range(2))
        monkeypatch.setattr("onceflow.testing.disk._FaultyFile.sync_data", lambda _file: syncs[next(numbers)].wait(10))
        commit = {
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [
                {
                    "name": "t",
                    "partitions": [{"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}],
                }
            ],
        }
        group.client("early").send(apis.OFFSET_COMMIT, 8, group_id="early", **commit)
        fetch, describe, listing = (group.client(entry) for entry in ("fetch", "describe", "list"))
        fetch.send(apis.OFFSET_FETCH, 8, groups=[{"group_id": "late", "topics": None}])
        describe.send(apis.DESCRIBE_GROUPS, 5, groups=["late"], include_authorized_operations=False)
        listing.send(apis.LIST_GROUPS, 4)
        assert group.beat(1, "m") == ErrorCode.unknown_member_id, "the others have been read by now"
        group.client("commit").send(apis.OFFSET_COMMIT, 8, group_id="late", **commit)
        assert group.beat(1, "m") == ErrorCode.unknown_member_id
        syncs[0].set()
        assert fetch.receive(apis.OFFSET_FETCH, 8).groups[0].topics == ()
        assert describe.receive(apis.DESCRIBE_GROUPS, 5).groups[0].group_state == "Dead"
        assert [item.group_id for item in listing.receive(apis.LIST_GROUPS, 4).groups] == ["early"]
        syncs[1].set()
        assert group.client("commit").receive(apis.OFFSET_COMMIT, 8).topics[0].partitions[0].error_code == NONE


def test_group_deletion_is_reported_when_durable(powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with RawGroup(powered.bootstrap, "g") as group:
        group.client().create_topic("t")
        assert group.commit("t") == NONE
        disk_fails = threading.Event()

        def fail(_file: object) -> None:
            disk_fails.wait(10)
            raise OSError("the disk is gone")

        monkeypatch.setattr("onceflow.testing.disk._FaultyFile.sync_data", fail)
        first, second = group.client("first"), group.client("second")
        first.send(apis.DELETE_GROUPS, 2, groups_names=["g"])
        assert group.beat(1, "m") == ErrorCode.unknown_member_id, "the other has been read by now"
        second.send(apis.DELETE_GROUPS, 2, groups_names=["g"])
        assert group.beat(1, "m") == ErrorCode.unknown_member_id
        disk_fails.set()
        for client in (first, second):
            (result,) = client.receive(apis.DELETE_GROUPS, 2).results
            assert result.error_code == ErrorCode.coordinator_not_available


def test_other_requests_served_while_groups_load(powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    loading = ErrorCode.coordinator_load_in_progress
    loaders: list[GroupShards] = []
    with RawGroup(powered.bootstrap, "g") as group:
        group.client().create_topic("t")
        for offset in range(300):
            assert group.commit("t", offset, metadata="x" * 1000) == NONE
    monkeypatch.setattr(GroupShards, "load", lambda shards: loaders.append(shards))
    powered.power_cycle(1, drop_all=True)
    with RawGroup(powered.bootstrap, "g") as group:
        assert group.commit("t", 1) == loading
        assert group.join().error_code == loading
        assert group.sync(1, "m").error_code == loading
        assert group.beat(1, "m") == NONE, "as Kafka, which takes every member to be alive meanwhile"
        assert group.delete() == {"g": loading}
        assert group.delete_offsets([("t", [0])]) == (loading, {})
        assert group.describe().error_code == loading
        assert group.client().ask(apis.LIST_GROUPS, 4).error_code == loading
        assert group.client().ask(apis.LEAVE_GROUP, 5, group_id="g", members=[]).error_code == loading
        fetched = group.client().ask(apis.OFFSET_FETCH, 8, groups=[{"group_id": "g", "topics": None}])
        assert fetched.groups[0].error_code == loading
        group.client().create_topic("made meanwhile".replace(" ", "-"))
        steps = powered.call(lambda _: _steps(loaders[0]))
        assert steps > 2
        assert group.offsets() == {("t", 0): (299, 0)}
        assert group.commit("t", 300) == NONE


def _steps(shards: GroupShards) -> int:
    """The manual steps that the loop takes by itself otherwise."""
    steps = 0
    while shards.at(0).load_slice():
        steps += 1
    return steps
