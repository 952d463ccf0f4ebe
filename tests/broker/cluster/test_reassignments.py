"""Reassignments: replicas are added, then removed; a controller that takes over in the middle completes them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onceflow.broker.cluster.controller import AlteredPartition, Controller, PartitionImage
from onceflow.broker.cluster.decision import Assignment, Decision, Write
from onceflow.broker.cluster.image import StoredTopic, differences, records_of
from onceflow.broker.cluster.state import Replicas, State
from onceflow.broker.storage.partitions import Place
from onceflow.broker.topics.topics import Topics
from onceflow.remedies import Remedy
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests import remedies
from tests.broker.cluster.conftest import Brokers, Tree, create_on
from tests.broker.cluster.test_controller import EPOCH, TOPIC_ID, brokers, sent
from tests.broker.cluster.test_replication import read, send, state
from tests.broker.raw_client import connected, milliseconds

CLICKS: Place = ("clicks", 0)
MOVING = Replicas((3, 1, 2), (3,), (1, 2))


def controller_of(*replicas: int, live: Sequence[int] = (1, 2, 3, 4)) -> Controller:
    """Return a controller with a partition on these brokers, all of them in sync."""
    controller = Controller(1, EPOCH, is_unclean_allowed=lambda _topic: False)
    controller.begin(brokers(*live), {}, ())
    controller.add_partitions("clicks", TOPIC_ID, {0: PartitionImage(Replicas(replicas), None)})
    return controller


def catch_up(controller: Controller, *isr: int) -> Decision:
    """Let the leader report the replicas in sync."""
    state = controller.states[CLICKS]
    wish = AlteredPartition(state.leader_epoch, isr, state.version)
    decision, results = controller.alter_partitions(state.leader, 100 + state.leader, {CLICKS: wish})
    assert isinstance(results, Mapping)
    assert isinstance(results[CLICKS], State)
    return decision


def test_replicas_are_replaced() -> None:
    """The steps are those in the comment of KafkaController.onPartitionReassignment."""
    controller = controller_of(1, 2)
    begun, refusals = controller.reassign({CLICKS: (3, 4)})
    assert refusals == {}
    assert begun.assignments == (Assignment("clicks", TOPIC_ID, {0: Replicas((3, 4, 1, 2), (3, 4), (1, 2))}),)
    assert [write.state for write in begun.writes] == [State(1, 1, (1, 2), EPOCH, 1)]
    assert sent(begun, apis.LEADER_AND_ISR).keys() == {1, 2, 3, 4}
    assert controller.complete_reassignments() == ([], {})
    catch_up(controller, 1, 2, 3, 4)
    (moved, ended), completed = controller.complete_reassignments()
    assert completed == {CLICKS: (3, 4)}
    assert [(write.state.leader, write.state.isr) for write in moved.writes] == [
        (3, (1, 2, 3, 4)),
        (3, (2, 3, 4)),
        (3, (3, 4)),
    ]
    assert sent(moved, apis.LEADER_AND_ISR).keys() == {3, 4}
    stopped = {b: m.topic_states[0].partition_states[0] for b, m in sent(moved, apis.STOP_REPLICA).items()}
    assert {broker_id: state.delete_partition for broker_id, state in stopped.items()} == {1: True, 2: True}
    assert ended.assignments == (Assignment("clicks", TOPIC_ID, {0: Replicas((3, 4))}),)
    assert not controller.reassigning


def test_a_reassignment_is_cancelled() -> None:
    controller = controller_of(1, 2)
    controller.reassign({CLICKS: (2, 3)})
    decision, refusals = controller.reassign({CLICKS: None})
    assert refusals == {}
    assert sent(decision, apis.STOP_REPLICA).keys() == {3}
    (_moved, ended), completed = controller.complete_reassignments()
    assert completed == {CLICKS: (2, 1)}
    assert ended.assignments[0].replicas == {0: Replicas((2, 1))}
    assert controller.states[CLICKS].leader == 1
    assert controller.reassign({CLICKS: None})[1][CLICKS].error_code is ErrorCode.no_reassignment_in_progress


def test_the_last_replica_in_sync_is_kept() -> None:
    """Kafka deletes it, and with it the partition's only copy."""
    controller = controller_of(1, 2)
    controller.reassign({CLICKS: (3,)})
    catch_up(controller, 1, 3)
    controller.brokers_changed(brokers(3))
    assert controller.states[CLICKS].isr == (3,)
    assert controller.reassign({CLICKS: None})[1][CLICKS].error_code is ErrorCode.invalid_replica_assignment


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ((), "Empty replica list specified in partition reassignment."),
        ((1, 1), "Duplicate replica ids in partition reassignment replica list: ArrayBuffer(1, 1)"),
        ((-1,), "Invalid broker id in replica list: ArrayBuffer(-1)"),
        (
            (1, 9),
            (
                "Replica assignment has brokers that are not alive. Replica list: ArrayBuffer(9), live broker list:"
                " Set(1, 2, 3, 4)"
            ),
        ),
    ],
)
def test_wrong_replicas_are_refused(target: Sequence[int], message: str) -> None:
    controller = controller_of(1, 2)
    decision, refusals = controller.reassign({CLICKS: target})
    assert decision == Decision()
    assert refusals[CLICKS] == (ErrorCode.invalid_replica_assignment, message)


def test_an_absent_replica_delays_the_end() -> None:
    controller = controller_of(1)
    controller.reassign({CLICKS: (2,)})
    catch_up(controller, 1, 2)
    controller.brokers_changed(brokers(1))
    assert controller.complete_reassignments() == ([], {})
    controller.brokers_changed(brokers(1, 2))
    catch_up(controller, 1, 2)
    assert controller.complete_reassignments()[1] == {CLICKS: (2,)}


def test_deletion_ends_a_reassignment() -> None:
    controller = controller_of(1, 2)
    controller.reassign({CLICKS: (3,)})
    deleted = controller.delete_topic("clicks")
    assert not controller.reassigning
    assert sent(deleted, apis.STOP_REPLICA).keys() == {2, 3}


def test_a_new_controller_begins_the_next_epoch() -> None:
    """Leaders of Apache Kafka ignore new replicas in an epoch that they know."""
    controller = Controller(1, EPOCH, is_unclean_allowed=lambda _topic: False)
    images = {0: PartitionImage(Replicas((3, 1), (3,), (1,)), State(1, 7, (1,), EPOCH, 9))}
    begun = controller.begin(brokers(1, 3), {"clicks": (TOPIC_ID, images)}, (), former_start=1_000_000)
    assert [write.state for write in begun.writes] == [State(1, 8, (1,), EPOCH, 10)]


def test_members_adopt_the_new_replicas() -> None:
    """The controller decides about them itself."""
    topics = Topics(1, 1, 10)
    before, after = (
        StoredTopic("clicks", TOPIC_ID, {0: replicas}, {}, False) for replicas in (Replicas((1, 2)), MOVING)
    )
    for record in records_of(before):
        topics.replay(record)
    assert differences(topics, after, is_controller=True) == []
    for record in differences(topics, after, is_controller=False):
        topics.replay(record)
    assert topics.by_name["clicks"].replicas == [MOVING.replicas]
    assert topics.by_name["clicks"].partition_count == topics.partition_count == 1


class Registry:
    """Nodes in ZooKeeper after the first writes of some decisions."""

    def __init__(self) -> None:
        self.replicas: dict[int, Replicas] = {}
        self.states: dict[int, State] = {}

    def apply(self, decisions: Sequence[Decision], writes_max: int) -> int:
        """Apply at most `writes_max` writes; return their number."""
        count = 0
        for write in self._writes(decisions):
            if count == writes_max:
                break
            count += 1
            if isinstance(write, Assignment):
                self.replicas = dict(write.replicas)
            else:
                assert write.is_new or write.state.version == self.states[write.place[1]].version + 1
                self.states[write.place[1]] = write.state
        return count

    @staticmethod
    def _writes(decisions: Sequence[Decision]) -> Iterator[Assignment | Write]:
        for decision in decisions:
            yield from decision.assignments
            yield from decision.writes


@pytest.mark.parametrize("seed", range(200))
def test_another_controller_completes_them(seed: int) -> None:
    """Each controller stops after a random number of writes; the next one has only what is in ZooKeeper."""
    random = Random(seed)
    ids = (1, 2, 3, 4)
    origin, target = (tuple(random.sample(ids, random.randint(1, 3))) for _ in range(2))
    stored = Registry()
    stored.replicas = {0: Replicas(origin)}
    stored.states = {0: State(origin[0], 0, origin, EPOCH, 0)}
    epoch, is_asked = EPOCH, False
    while not is_asked or stored.replicas[0] != Replicas(target) or set(stored.states[0].isr) != set(target):
        epoch += 1
        assert epoch < EPOCH + 100
        controller = Controller(1, epoch, is_unclean_allowed=lambda _topic: False)
        images = {0: PartitionImage(stored.replicas[0], stored.states[0])}
        decisions = [controller.begin(brokers(*ids), {"clicks": (TOPIC_ID, images)}, ())]
        if not is_asked:
            decisions.append(controller.reassign({CLICKS: target})[0])
        decisions += controller.complete_reassignments()[0]
        if controller.reassigning and random.random() < 0.7:
            decisions.append(catch_up(controller, *controller.replicas[CLICKS].replicas))
            decisions += controller.complete_reassignments()[0]
        stored.apply(decisions, random.randint(0, 8))
        is_asked = is_asked or stored.replicas[0].target == target
        assert set(stored.states[0].isr) & set(origin + target)
        assert set(stored.states[0].isr) <= set(stored.replicas[0].replicas)
    assert stored.states[0].leader in target


# On three brokers


def reassign(brokers: Brokers, topic: str, replicas: Sequence[int] | None, *, controller: int = 1) -> int:
    partition = {"partition_index": 0, "replicas": replicas}
    with connected(brokers.running[controller].bootstrap_servers) as client:
        topics = [{"name": topic, "partitions": [partition]}]
        response = client.ask(apis.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=milliseconds(30_000), topics=topics)
        if response.error_code:
            return int(response.error_code)
        return int(response.responses[0].partitions[0].error_code)


def reassignments(brokers: Brokers, controller: int = 1) -> dict[str, tuple[Any, Any, Any]]:
    with connected(brokers.running[controller].bootstrap_servers) as client:
        response = client.ask(apis.LIST_PARTITION_REASSIGNMENTS, 0, timeout=milliseconds(30_000), topics=None)
        assert response.error_code == 0
        return {
            topic.name: (partition.replicas, partition.adding_replicas, partition.removing_replicas)
            for topic in response.topics
            for partition in topic.partitions
        }


def assigned(tree: Tree, topic: str) -> list[int]:
    """Return the brokers of a partition, empty during a reassignment."""
    node = tree.json(f"/brokers/topics/{topic}")
    is_reassigned = node["adding_replicas"] or node["removing_replicas"]
    brokers: list[int] = [] if is_reassigned else node["partitions"]["0"]
    return brokers


def hosts(tmp_path: Path, topic: str) -> set[int]:
    return {int(path.parent.name) for path in tmp_path.glob(f"?/{topic}-0")}


def test_partitions_move_with_their_records(brokers: Brokers, tree: Tree, tmp_path: Path) -> None:
    create_on(brokers, "clicks", [1])
    values = [b"%03d" % number for number in range(100)]
    send(brokers.bootstrap, "clicks", values)
    assert reassign(brokers, "clicks", [2, 3], controller=2) == ErrorCode.not_controller
    for replicas in ([2, 3], [3, 1, 2], [3]):
        assert reassign(brokers, "clicks", replicas) == 0
        tree.await_that(partial(lambda wanted: assigned(tree, "clicks") == wanted, replicas))
        tree.await_that(partial(lambda wanted: hosts(tmp_path, "clicks") == set(wanted), replicas))
        state = tree.json("/brokers/topics/clicks/partitions/0/state")
        assert (state["leader"] in replicas, sorted(state["isr"])) == (True, sorted(replicas))
    assert reassignments(brokers) == {}
    brokers.await_leaders("clicks", from_broker=2)
    assert read(brokers.bootstrap, "clicks", 100) == values


def test_a_wish_in_zookeeper_is_followed(brokers: Brokers, tree: Tree, tmp_path: Path) -> None:
    """Kafka's old tools write it there; a request of a client cancels it."""
    create_on(brokers, "clicks", [1])
    brokers.stop(3)
    wish = {"topic": "clicks", "partition": 0, "replicas": [1, 3]}
    unknown = {"topic": "visits", "partition": 0, "replicas": [1]}
    tree.write_json("/admin/reassign_partitions", {"version": 1, "partitions": [wish, unknown]})
    tree.await_that(lambda: reassignments(brokers) == {"clicks": ((1, 3), (3,), ())})
    tree.await_that(lambda: tree.json("/admin/reassign_partitions")["partitions"] == [wish])
    with connected(brokers.running[1].bootstrap_servers) as client:
        more = [{"name": "clicks", "count": 2, "assignments": None}]
        added = client.ask(apis.CREATE_PARTITIONS, 0, topics=more, timeout=milliseconds(1000), validate_only=False)
        assert added.results[0].error_code == ErrorCode.reassignment_in_progress
    assert reassign(brokers, "clicks", None) == 0
    assert not tree.exists("/admin/reassign_partitions")
    tree.await_that(lambda: assigned(tree, "clicks") == [1])
    tree.write_json("/admin/reassign_partitions", {"version": 1, "partitions": [wish]})
    tree.await_that(lambda: "clicks" in reassignments(brokers))
    brokers.start(3)
    tree.await_that(lambda: assigned(tree, "clicks") == [1, 3])
    tree.await_that(lambda: not tree.exists("/admin/reassign_partitions"))


def test_preferred_leaders_by_zookeeper(brokers: Brokers, tree: Tree) -> None:
    create_on(brokers, "clicks", [3, 2])
    state = "/brokers/topics/clicks/partitions/0/state"
    brokers.stop(3)
    tree.await_that(lambda: tree.json(state)["leader"] == 2)
    brokers.start(3)
    tree.await_that(lambda: sorted(tree.json(state)["isr"]) == [2, 3])
    partitions = [{"topic": "clicks", "partition": 0}, {"topic": "visits", "partition": 0}]
    tree.write_json("/admin/preferred_replica_election", {"version": 1, "partitions": partitions})
    tree.await_that(lambda: tree.json(state)["leader"] == 3)
    tree.await_that(lambda: not tree.exists("/admin/preferred_replica_election"))


def test_the_next_controller_continues(brokers: Brokers, tree: Tree, tmp_path: Path) -> None:
    create_on(brokers, "clicks", [2])
    send(brokers.bootstrap, "clicks", [b"first"])
    brokers.stop(3)
    wish = {"topic": "clicks", "partition": 0, "replicas": [3]}
    tree.write_json("/admin/reassign_partitions", {"version": 1, "partitions": [wish]})
    tree.await_that(lambda: "clicks" in reassignments(brokers))
    brokers.stop(1)
    tree.await_that(lambda: brokers.controller(from_broker=2) == 2)
    assert reassignments(brokers, controller=2) == {"clicks": ((3, 2), (3,), (2,))}
    brokers.start(3)
    tree.await_that(lambda: assigned(tree, "clicks") == [3])
    tree.await_that(lambda: hosts(tmp_path, "clicks") == {3})
    brokers.await_leaders("clicks", from_broker=3)
    assert read(brokers.bootstrap, "clicks", 1) == [b"first"]


def test_a_broker_returns_with_a_deleted_topic(
    brokers: Brokers, tree: Tree, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While it was away, its replica moved, the topic was deleted, and its name was used again."""
    create_on(brokers, "clicks", [2, 3])
    send(brokers.bootstrap, "clicks", [b"old"])
    brokers.stop(3)
    assert reassign(brokers, "clicks", [2, 1]) == 0
    tree.await_that(lambda: assigned(tree, "clicks") == [2, 1])
    brokers.delete("clicks")
    tree.await_that(lambda: not tree.exists("/brokers/topics/clicks"))
    brokers.start(3)
    create_on(brokers, "clicks", [2, 3])
    create_on(brokers, "visits", [2, 3])
    tree.await_that(lambda: "clicks-0 cannot be led or followed" in caplog.text)
    brokers.stop(3)
    tree.await_that(lambda: state(tree, "clicks")["isr"] == [2])
    caplog.clear()
    brokers.start(3)
    tree.await_that(lambda: sorted(state(tree, "visits")["isr"]) == [2, 3])
    assert "clicks-0 is not served: " in caplog.text
    assert state(tree, "clicks")["isr"] == [2]
    remedies.find(Remedy.MOVE_AWAY, caplog.text)
    brokers.stop(3)
    (brokers.directory / "3" / "clicks-0").rename(tmp_path / "away")
    brokers.start(3)
    send(brokers.bootstrap, "clicks", [b"new"])
    tree.await_that(lambda: sorted(state(tree, "clicks")["isr"]) == [2, 3])
    assert read(brokers.bootstrap, "clicks", 1) == [b"new"]
