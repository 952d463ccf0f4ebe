"""The controller's decisions, without sockets: elections, in-sync replicas, topics, and the order of requests."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest

from onceflow.broker.cluster import decision
from onceflow.broker.cluster.controller import AlteredPartition, Controller, PartitionImage
from onceflow.broker.cluster.decision import Decision, Unclean, Write
from onceflow.broker.cluster.state import Elected, LiveBroker, Replicas, State, elect_offline
from onceflow.broker.config import Endpoint
from onceflow.wire.apis import LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA
from onceflow.wire.errors import ErrorCode
from onceflow.wire.inter_broker import LEADER_DURING_DELETE, NO_LEADER

TOPIC_ID = UUID(int=7)
EPOCH = 5


def broker(broker_id: int, epoch: int | None = None) -> LiveBroker:
    address = Endpoint(f"host-{broker_id}", 9092 + broker_id)
    return LiveBroker(broker_id, 100 + broker_id if epoch is None else epoch, (address,), ("PLAINTEXT",))


def brokers(*broker_ids: int) -> list[LiveBroker]:
    return [broker(broker_id) for broker_id in broker_ids]


def images(*partitions: Sequence[int]) -> dict[int, PartitionImage]:
    """Return new partitions with these replicas."""
    return {index: PartitionImage(Replicas(tuple(replicas)), None) for index, replicas in enumerate(partitions)}


def elected(live: Iterable[int], *partitions: Sequence[int], unclean: bool = False) -> tuple[Controller, Decision]:
    """Return a controller with topic `clicks`, created while brokers 1 to 3 were live, and what a failure causes."""
    controller = Controller(1, EPOCH, is_unclean_allowed=lambda _topic: unclean)
    controller.begin(brokers(1, 2, 3), {}, ())
    controller.add_partitions("clicks", TOPIC_ID, images(*partitions))
    return controller, controller.brokers_changed(brokers(*live))


def state(controller: Controller, index: int = 0) -> tuple[int, int, tuple[int, ...], int]:
    partition = controller.states["clicks", index]
    return partition.leader, partition.leader_epoch, partition.isr, partition.version


def sent(decided: Decision, api_key: int) -> dict[int, Any]:
    """Return the last request of an API to each broker."""
    return {request.broker_id: request.message for request in decided.requests if request.api_key == api_key}


def test_first_live_replica_leads_a_new_partition() -> None:
    controller = Controller(1, EPOCH, is_unclean_allowed=lambda _topic: False)
    controller.begin(brokers(1, 3), {}, ())
    decided = controller.add_partitions("clicks", TOPIC_ID, images((2, 3, 1), (2,)))
    assert state(controller) == (3, 0, (3, 1), 0)
    assert decided.writes == (Write(("clicks", 0), State(3, 0, (3, 1), EPOCH, 0), is_new=True),)
    assert sent(decided, LEADER_AND_ISR).keys() == sent(decided, UPDATE_METADATA).keys() == {1, 3}
    (topic,) = sent(decided, LEADER_AND_ISR)[3].topic_states
    assert [(p.partition_index, p.leader, p.replicas, p.is_new) for p in topic.partition_states] == [
        (0, 3, (2, 3, 1), True)
    ]
    (leader,) = sent(decided, LEADER_AND_ISR)[1].live_leaders
    assert (leader.broker_id, leader.host_name, leader.port) == (3, "host-3", 9095)
    assert ("clicks", 1) not in controller.states


def test_partition_without_replicas_waits_for_one() -> None:
    controller, _ = elected([1], [2])
    controller.add_partitions("clicks", TOPIC_ID, {1: PartitionImage(Replicas((3,)), None)})
    assert ("clicks", 1) not in controller.states
    decided = controller.brokers_changed(brokers(1, 3))
    assert state(controller, 1) == (3, 0, (3,), 0)
    assert Write(("clicks", 1), State(3, 0, (3,), EPOCH, 0), is_new=True) in decided.writes


def test_dead_leader_is_replaced_from_the_isr() -> None:
    controller, decided = elected([2, 3], [1, 2, 3])
    assert state(controller) == (2, 1, (2, 3), 1)
    assert [(write.state.version, write.is_new) for write in decided.writes] == [(1, False)]
    assert sent(decided, LEADER_AND_ISR).keys() == {2, 3}
    (topic,) = sent(decided, UPDATE_METADATA)[2].topic_states
    assert topic.partition_states[0].offline_replicas == (1,)


def test_dead_follower_leaves_the_isr() -> None:
    controller, _ = elected([1, 2], [1, 2, 3])
    assert state(controller) == (1, 1, (1, 2), 1)


def test_last_in_sync_replica_is_kept() -> None:
    controller, _ = elected([2, 3], [1])
    assert state(controller) == (NO_LEADER, 1, (1,), 1)
    controller.brokers_changed(brokers(3))
    assert state(controller) == (NO_LEADER, 1, (1,), 1)
    decided = controller.brokers_changed([broker(1, 900), broker(3)])
    assert state(controller) == (1, 2, (1,), 2)
    assert [request.broker_epoch for request in decided.requests if request.broker_id == 1] == [900] * 3


@pytest.mark.parametrize("unclean", [False, True])
def test_unclean_election_only_where_allowed(unclean: bool) -> None:
    controller, _ = elected([1, 2, 3], [1, 2], unclean=unclean)
    controller.alter_partitions(1, 101, {("clicks", 0): AlteredPartition(0, (1,), 0)})
    decided = controller.brokers_changed(brokers(2, 3))
    assert decided.unclean == ((Unclean(("clicks", 0), 2, (1,)),) if unclean else ())
    partition = controller.states["clicks", 0]
    assert (partition.leader, partition.isr, partition.is_recovering) == (
        (2, (2,), True) if unclean else (NO_LEADER, (1,), False)
    )


def test_an_unclean_leader_is_alone_in_sync() -> None:
    assert elect_offline([1, 2, 3], [1], {2, 3}, unclean=True) == Elected(2, (2,), is_unclean=True)


def test_a_configuration_allows_an_unclean_election() -> None:
    """Only partitions of that topic get a leader."""
    allowed: set[str] = set()
    controller = Controller(1, EPOCH, is_unclean_allowed=lambda name: name in allowed)
    state_of_dead = State(1, 0, (1,), EPOCH, 0)
    images_of_dead = {0: PartitionImage(Replicas((1, 2)), state_of_dead)}
    topics = {name: (UUID(int=number), images_of_dead) for number, name in enumerate(("clicks", "visits"))}
    controller.begin(brokers(2), topics, ())
    assert controller.config_changed("clicks") == Decision()
    allowed |= {"clicks", "visits"}
    decided = controller.config_changed("clicks")
    assert [(write.place, write.state.leader) for write in decided.writes] == [(("clicks", 0), 2)]
    assert decided.unclean == (Unclean(("clicks", 0), 2, (1,)),)


def test_a_bounce_is_seen_by_its_epoch() -> None:
    controller, _ = elected([1, 2, 3], [2, 1])
    decided = controller.brokers_changed([broker(1), broker(2, 500), broker(3)])
    assert state(controller) == (1, 1, (1,), 1)
    assert {request.broker_epoch for request in decided.requests if request.broker_id == 2} == {500}


def test_a_bounced_only_replica_leads_again() -> None:
    controller, _ = elected([1, 2, 3], [2])
    decided = controller.brokers_changed([broker(1), broker(2, 500), broker(3)])
    assert [(write.state.leader, write.state.version) for write in decided.writes] == [(NO_LEADER, 1), (2, 2)]
    (topic,) = sent(decided, LEADER_AND_ISR)[2].topic_states
    assert [(p.leader_epoch, p.partition_epoch) for p in topic.partition_states] == [(2, 2)]


def test_requests_are_in_kafkas_order() -> None:
    controller, _ = elected([1, 2], [1, 2, 3], [3, 1])
    controller.delete_topic("clicks")
    controller.add_partitions("visits", UUID(int=8), images((3, 1)))
    decided = controller.brokers_changed(brokers(1, 2, 3))
    to_new = [request.api_key for request in decided.requests if request.broker_id == 3]
    assert to_new == [UPDATE_METADATA, LEADER_AND_ISR, UPDATE_METADATA, STOP_REPLICA]


def test_topic_is_deleted_when_every_replica_is() -> None:
    controller, _ = elected([1, 2, 3], [1, 2], [3])
    controller.brokers_changed(brokers(1, 2))
    decided = controller.delete_topic("clicks")
    assert not controller.delete_topic("clicks").requests
    (topic,) = sent(decided, UPDATE_METADATA)[1].topic_states
    assert {partition.leader for partition in topic.partition_states} == {LEADER_DURING_DELETE}
    (stopped,) = sent(decided, STOP_REPLICA)[2].topic_states
    assert [(p.partition_index, p.delete_partition, p.leader_epoch) for p in stopped.partition_states] == [
        (0, True, -2)
    ]
    assert 1 not in sent(decided, STOP_REPLICA)
    assert not controller.own_replicas_deleted("clicks")
    assert not controller.replica_deleted("clicks", 0, 2)
    assert sent(controller.brokers_changed(brokers(1, 2, 3)), STOP_REPLICA).keys() == {3}
    assert controller.replica_deleted("clicks", 1, 3)
    controller.topic_deleted("clicks")
    assert not controller.replicas and not controller.states


@pytest.mark.parametrize(
    ("broker_id", "epoch", "wish", "expected"),
    [
        (1, 999, AlteredPartition(0, (1,), 0), ErrorCode.stale_broker_epoch),
        (9, 109, AlteredPartition(0, (1,), 0), ErrorCode.stale_broker_epoch),
        (1, 101, AlteredPartition(0, (1,), 7), ErrorCode.not_controller),
        (1, 101, AlteredPartition(1, (1,), 0), ErrorCode.not_controller),
        (1, 101, AlteredPartition(-1, (1,), 0), ErrorCode.fenced_leader_epoch),
        (1, 101, AlteredPartition(0, (1,), -1), ErrorCode.invalid_update_version),
        (1, 101, AlteredPartition(0, (1,), 0, is_recovering=True), ErrorCode.invalid_request),
        (2, 102, AlteredPartition(0, (2,), 0), ErrorCode.invalid_request),
        (1, 101, AlteredPartition(0, (1, 9), 0), ErrorCode.invalid_request),
        (1, 101, AlteredPartition(0, (1, 2), -1), State(1, 0, (1, 2), EPOCH, 0)),
        (1, 101, AlteredPartition(0, (1,), 0), State(1, 0, (1,), EPOCH, 1)),
    ],
)
def test_alter_partition(broker_id: int, epoch: int, wish: AlteredPartition, expected: ErrorCode | State) -> None:
    controller, _ = elected([1, 2, 3], [1, 2])
    _decision, results = controller.alter_partitions(broker_id, epoch, {("clicks", 0): wish})
    assert (results if isinstance(results, ErrorCode) else results["clicks", 0]) == expected


def test_replica_that_shuts_down_is_not_eligible() -> None:
    controller, _ = elected([1, 2, 3], [1, 2, 3])
    controller.alter_partitions(1, 101, {("clicks", 0): AlteredPartition(0, (1,), 0)})
    controller.shut_down(3, 103)
    _decision, results = controller.alter_partitions(1, 101, {("clicks", 0): AlteredPartition(0, (1, 3), 1)})
    assert results == {("clicks", 0): ErrorCode.ineligible_replica}


def test_leaders_move_before_a_shutdown() -> None:
    controller, _ = elected([1, 2, 3], [1, 2, 3], [2, 1], [1])
    decided, remaining = controller.shut_down(1, 101)
    assert remaining == []
    assert state(controller) == (2, 1, (2, 3), 1)
    assert state(controller, 1) == (2, 1, (2,), 1)
    assert state(controller, 2) == (1, 0, (1,), 0)
    (stopped,) = sent(decided, STOP_REPLICA)[1].topic_states
    assert [(p.partition_index, p.delete_partition) for p in stopped.partition_states] == [(1, False)]
    assert controller.shut_down(1, 9)[1] is ErrorCode.stale_broker_epoch
    assert controller.shut_down(9, 9)[1] is ErrorCode.broker_not_available


def test_shutdown_reports_what_it_cannot_move() -> None:
    controller, _ = elected([1, 2, 3], [1, 2])
    controller.alter_partitions(1, 101, {("clicks", 0): AlteredPartition(0, (1,), 0)})
    assert controller.shut_down(1, 101)[1] == [("clicks", 0)]


def test_elections_by_request() -> None:
    controller, _ = elected([2, 3], [1, 2], [2, 3])
    places = [("clicks", 0), ("clicks", 1), ("other", 0)]
    _decision, results = controller.elect_leaders(places, unclean=False)
    assert list(results.values()) == [
        ErrorCode.preferred_leader_not_available,
        ErrorCode.election_not_needed,
        ErrorCode.unknown_topic_or_partition,
    ]
    controller.brokers_changed(brokers(1, 2, 3))
    controller.alter_partitions(2, 102, {("clicks", 0): AlteredPartition(1, (2, 1), 1)})
    decided, results = controller.elect_leaders(places[:1], unclean=False)
    assert results == {("clicks", 0): ErrorCode.none}
    assert state(controller) == (1, 2, (2, 1), 3)
    assert len(decided.writes) == 1


def test_unclean_election_by_request() -> None:
    controller, _ = elected([1, 2, 3], [1, 2])
    controller.alter_partitions(1, 101, {("clicks", 0): AlteredPartition(0, (1,), 0)})
    assert controller.elect_leaders([("clicks", 0)], unclean=True)[1] == {("clicks", 0): ErrorCode.election_not_needed}
    controller.brokers_changed(brokers(2, 3))
    assert controller.elect_leaders([("clicks", 0)], unclean=True)[1] == {("clicks", 0): ErrorCode.none}
    assert controller.states["clicks", 0].is_recovering


def test_new_controller_repairs_what_the_former_left() -> None:
    controller = Controller(2, 6, is_unclean_allowed=lambda _topic: False)
    partitions = {
        0: PartitionImage(Replicas((1, 2)), State(1, 3, (1, 2), EPOCH, 8)),
        1: PartitionImage(Replicas((2, 3)), State(2, 0, (2, 3), EPOCH, 0)),
        2: PartitionImage(Replicas((3,)), None),
    }
    decided = controller.begin(brokers(2, 3), {"clicks": (TOPIC_ID, partitions)}, ["absent"], former_start=200)
    assert {write.place[1]: write for write in decided.writes} == {
        0: Write(("clicks", 0), State(2, 4, (2,), 6, 9), is_new=False),
        2: Write(("clicks", 2), State(3, 0, (3,), 6, 0), is_new=True),
    }
    (topic,) = sent(decided, LEADER_AND_ISR)[3].topic_states
    assert [partition.partition_index for partition in topic.partition_states] == [1, 2]
    (topic,) = sent(decided, UPDATE_METADATA)[3].topic_states
    assert sorted(partition.partition_index for partition in topic.partition_states) == [0, 1, 2]
    assert {request.message.controller_epoch for request in decided.requests} == {6}


def test_restarted_leaders_begin_an_epoch() -> None:
    """A leader that registered in the former term may have restarted unnoticed."""
    controller = Controller(2, 6, is_unclean_allowed=lambda _topic: False)
    partitions = {
        0: PartitionImage(Replicas((1, 2)), State(1, 3, (1, 2), EPOCH, 8)),
        1: PartitionImage(Replicas((2, 1)), State(2, 0, (2, 1), EPOCH, 0)),
        2: PartitionImage(Replicas((1,)), State(1, 0, (1,), EPOCH, 0)),
    }
    registered = [broker(1, 60), broker(2, 40)]
    decided = controller.begin(registered, {"clicks": (TOPIC_ID, partitions)}, (), former_start=50)
    assert decided.writes == (Write(("clicks", 0), State(1, 4, (1, 2), 6, 9), is_new=False),)


def test_interrupted_deletions_continue() -> None:
    controller = Controller(2, 6, is_unclean_allowed=lambda _topic: False)
    image = PartitionImage(Replicas((2, 3)), State(2, 0, (2, 3), EPOCH, 0))
    decided = controller.begin(brokers(2, 3), {"clicks": (TOPIC_ID, {0: image})}, ["clicks"])
    assert sent(decided, STOP_REPLICA).keys() == {3}
    assert controller.deleting == {"clicks": {(0, 2), (0, 3)}}
    assert LEADER_AND_ISR not in {request.api_key for request in decided.requests}


def test_a_broker_gets_everything_again() -> None:
    controller, _ = elected([1, 2, 3], [1, 2], [3])
    controller.add_partitions("visits", UUID(int=8), images((2,)))
    controller.delete_topic("visits")
    decided = controller.refresh(2)
    assert {request.broker_id for request in decided.requests} == {2}
    assert not decided.writes
    ((topic,), (stopped,)) = (sent(decided, key)[2].topic_states for key in (LEADER_AND_ISR, STOP_REPLICA))
    assert ([p.partition_index for p in topic.partition_states], stopped.topic_name) == ([0], "visits")


def test_many_partitions_take_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "PARTITIONS_IN_A_REQUEST", 2)
    controller = Controller(1, EPOCH, is_unclean_allowed=lambda _topic: False)
    controller.begin(brokers(1), {}, ())
    added = controller.add_partitions("clicks", TOPIC_ID, images(*[[1]] * 5))
    for api_key in (LEADER_AND_ISR, UPDATE_METADATA):
        messages = [request.message for request in added.requests if request.api_key == api_key]
        states = [[p.partition_index for topic in m.topic_states for p in topic.partition_states] for m in messages]
        assert states == [[0, 1], [2, 3], [4]]


def test_imbalance_is_counted_by_broker() -> None:
    controller, _ = elected([2, 3], [1, 2], [1, 2], [1, 3], [2, 1])
    assert controller.imbalanced(0) == []
    controller.brokers_changed(brokers(1, 2, 3))
    assert controller.imbalanced(0) == []
    for index, leader in enumerate((2, 2, 3)):
        epoch, version = controller.states["clicks", index].leader_epoch, controller.states["clicks", index].version
        controller.alter_partitions(
            leader, 100 + leader, {("clicks", index): AlteredPartition(epoch, (leader, 1), version)}
        )
    assert controller.imbalanced(0) == [("clicks", 0), ("clicks", 1), ("clicks", 2)]
    assert controller.imbalanced(100) == []
    controller.elect_leaders([("clicks", 0), ("clicks", 1)], unclean=False)
    assert controller.imbalanced(34) == []
    assert controller.imbalanced(33) == [("clicks", 2)]
    controller.shut_down(1, 101)
    assert controller.imbalanced(0) == []
