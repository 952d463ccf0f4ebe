"""Requests between brokers, from a socket: what a broker refuses, and what a controller responds."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from onceflow.broker.cluster import nodes, view
from onceflow.broker.cluster.watch import Watch
from onceflow.log.checkpoint import encode_uuid
from onceflow.testing import Broker
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.conftest import Tree
from tests.broker.raw_client import RawClient, batch_of, connected

UNKNOWN_EPOCH = -1
TOPIC = "visits"


@pytest.fixture
def broker(new_broker: Callable[..., Broker]) -> Iterator[Broker]:
    with new_broker() as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with connected(broker.bootstrap_servers) as opened:
        yield opened


def topic_id(tree: Tree) -> UUID:
    return nodes.decode_uuid(TOPIC, tree.json(f"/brokers/topics/{TOPIC}")["topic_id"])


def epoch_of(tree: Tree) -> int:
    epoch: int = tree.client.get(f"{tree.chroot}/brokers/ids/1")[1].czxid
    return epoch


def lead(client: RawClient, wanted: UUID, *, controller_epoch: int = 1, broker_epoch: int = -1, **changes: Any) -> Any:
    """Ask the broker to lead the topic's partition, with some fields changed."""
    state = {
        "partition_index": 0,
        "controller_epoch": controller_epoch,
        "leader": 1,
        "leader_epoch": 0,
        "isr": (1,),
        "partition_epoch": 0,
        "replicas": (1,),
        **changes,
    }
    return client.ask(
        apis.LEADER_AND_ISR,
        7,
        controller_id=1,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        type=0,
        topic_states=[{"topic_name": TOPIC, "topic_id": wanted, "partition_states": [state]}],
        live_leaders=[],
    )


def error_of(response: Any) -> int:
    ((partition,),) = [topic.partition_errors for topic in response.topics]
    code: int = partition.error_code
    return code


def test_former_controllers_are_refused(client: RawClient, tree: Tree) -> None:
    sender = {"controller_id": 1, "controller_epoch": 0, "broker_epoch": UNKNOWN_EPOCH}
    stale = ErrorCode.stale_controller_epoch
    assert lead(client, topic_id(tree), controller_epoch=0).error_code == stale
    assert client.ask(apis.UPDATE_METADATA, 8, **sender, topic_states=[], live_brokers=[]).error_code == stale
    assert client.ask(apis.STOP_REPLICA, 4, **sender, topic_states=[]).error_code == stale


def test_requests_for_a_former_process_are_refused(client: RawClient, tree: Tree) -> None:
    epoch = epoch_of(tree)
    assert lead(client, topic_id(tree), broker_epoch=epoch - 1).error_code == ErrorCode.stale_broker_epoch
    assert lead(client, topic_id(tree), broker_epoch=epoch).error_code == ErrorCode.none


def test_unknown_partitions_are_not_led(client: RawClient, tree: Tree) -> None:
    assert error_of(lead(client, uuid4())) == ErrorCode.unknown_topic_or_partition
    assert error_of(lead(client, topic_id(tree), partition_index=1)) == ErrorCode.unknown_topic_or_partition


def test_leader_epochs_never_go_back(client: RawClient, tree: Tree) -> None:
    assert error_of(lead(client, topic_id(tree), leader_epoch=5)) == ErrorCode.none
    assert error_of(lead(client, topic_id(tree), leader_epoch=4)) == ErrorCode.stale_controller_epoch
    assert client.produce(TOPIC, 0, batch_of(b"ann")).error_code == ErrorCode.none


def test_a_stopped_partition_is_not_served(client: RawClient, tree: Tree) -> None:
    state = {"partition_index": 0, "leader_epoch": 0, "delete_partition": False}
    stopped = client.ask(
        apis.STOP_REPLICA,
        4,
        controller_id=1,
        controller_epoch=1,
        broker_epoch=UNKNOWN_EPOCH,
        topic_states=[{"topic_name": TOPIC, "partition_states": [state]}],
    )
    assert [partition.error_code for partition in stopped.partition_errors] == [ErrorCode.none]
    assert client.produce(TOPIC, 0, batch_of(b"ann")).error_code == ErrorCode.not_leader_or_follower
    assert error_of(lead(client, topic_id(tree), leader_epoch=1)) == ErrorCode.none
    assert client.produce(TOPIC, 0, batch_of(b"ann")).error_code == ErrorCode.none


def alter(client: RawClient, wanted: UUID, broker_epoch: int, isr: list[int]) -> Any:
    members = [{"broker_id": broker_id, "broker_epoch": UNKNOWN_EPOCH} for broker_id in isr]
    partition = {"partition_index": 0, "leader_epoch": 0, "new_isr_with_epochs": members, "partition_epoch": 0}
    return client.ask(
        apis.ALTER_PARTITION,
        3,
        broker_id=1,
        broker_epoch=broker_epoch,
        topics=[{"topic_id": wanted, "partitions": [partition]}],
    )


def test_in_sync_replicas_are_checked(client: RawClient, tree: Tree) -> None:
    assert alter(client, topic_id(tree), 1, [1]).error_code == ErrorCode.stale_broker_epoch
    ((same,),) = [topic.partitions for topic in alter(client, topic_id(tree), epoch_of(tree), [1]).topics]
    assert (same.error_code, same.leader_id, same.leader_epoch, same.isr, same.partition_epoch) == (0, 1, 0, (1,), 0)
    ((other,),) = [topic.partitions for topic in alter(client, topic_id(tree), epoch_of(tree), [1, 2]).topics]
    assert other.error_code == ErrorCode.invalid_request
    ((unknown,),) = [topic.partitions for topic in alter(client, uuid4(), epoch_of(tree), [1]).topics]
    assert unknown.error_code == ErrorCode.unknown_topic_id


def test_shutdown_leaves_single_replicas(client: RawClient, tree: Tree) -> None:
    ended = client.ask(apis.CONTROLLED_SHUTDOWN, 3, broker_id=1, broker_epoch=epoch_of(tree))
    assert (ended.error_code, ended.remaining_partitions) == (ErrorCode.none, ())
    stale = client.ask(apis.CONTROLLED_SHUTDOWN, 3, broker_id=1, broker_epoch=1)
    assert stale.error_code == ErrorCode.stale_broker_epoch


def test_a_controllers_request_may_be_large(client: RawClient) -> None:
    """It has all partitions of a cluster, unlike a client's, which may have 1 MiB and 20,000 elements."""
    state = {
        "controller_epoch": 0,
        "leader": 1,
        "leader_epoch": 0,
        "isr": (1, 2, 3),
        "zk_version": 0,
        "replicas": (1, 2, 3),
        "offline_replicas": (),
    }
    topic = {
        "topic_name": TOPIC,
        "topic_id": uuid4(),
        "partition_states": [{**state, "partition_index": index} for index in range(25_000)],
    }
    sender = {"controller_id": 1, "controller_epoch": 0, "broker_epoch": UNKNOWN_EPOCH}
    response = client.ask(apis.UPDATE_METADATA, 8, **sender, topic_states=[topic], live_brokers=[])
    assert response.error_code == ErrorCode.stale_controller_epoch


def test_producer_ids_for_other_brokers(client: RawClient, tree: Tree) -> None:
    stale = client.ask(apis.ALLOCATE_PRODUCER_IDS, 0, broker_id=1, broker_epoch=1)
    assert stale.error_code == ErrorCode.stale_broker_epoch
    blocks = [
        client.ask(apis.ALLOCATE_PRODUCER_IDS, 0, broker_id=1, broker_epoch=epoch_of(tree)) for _request in range(2)
    ]
    assert [(block.error_code, block.producer_id_start, block.producer_id_len) for block in blocks] == [
        (0, 0, 1000),
        (0, 1000, 1000),
    ]
    assert tree.json("/latest_producer_id_block")["block_end"] == "1999"


@pytest.fixture
def stranger(tree: Tree) -> int:
    """The id of a controller that never sends a request itself."""
    tree.write("/controller_epoch", "7")
    tree.write("/controller", '{"version":2,"brokerid":9,"timestamp":"0","kraftControllerEpoch":-1}', ephemeral=True)
    return 9


def test_a_late_event_hides_no_partition(
    new_broker: Callable[..., Broker], tree: Tree, stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller may ask for a new partition before ZooKeeper's event about the topic has been handled."""
    fire = Watch._fire

    def fire_unless_topic(watch: Watch, name: str | None = None) -> None:
        if name is None:
            fire(watch)

    monkeypatch.setattr(Watch, "_fire", fire_unless_topic)
    node = {"version": 3, "partitions": {"0": [1]}, "topic_id": "AAAAAAAAAAAAAAAAAAAABw"}
    tree.write_json(f"/brokers/topics/{TOPIC}", node)
    with new_broker() as broker, connected(broker.bootstrap_servers) as controller:
        assert error_of(lead(controller, topic_id(tree), controller_epoch=7)) == ErrorCode.none
        tree.write_json(f"/brokers/topics/{TOPIC}", {**node, "partitions": {"0": [1], "1": [1]}})
        assert error_of(lead(controller, topic_id(tree), controller_epoch=7, partition_index=1)) == ErrorCode.none


ASKED: list[tuple[int, int, dict[str, Any]]] = [
    (apis.METADATA, 7, {"topics": [], "allow_auto_topic_creation": False}),
    (apis.DESCRIBE_CLUSTER, 1, {"endpoint_type": 1, "include_cluster_authorized_operations": False}),
]


@pytest.mark.parametrize(("api", "version", "asked"), ASKED)
def test_no_client_sees_an_empty_cluster(
    new_broker: Callable[..., Broker], stranger: int, api: int, version: int, asked: dict[str, Any]
) -> None:
    """The response waits for the first UpdateMetadata: librdkafka never asks again after an empty one."""
    endpoint = {"host": "127.0.0.1", "port": 1234, "listener": "PLAINTEXT", "security_protocol": 0}
    named = {"controller_id": stranger, "controller_epoch": 7, "broker_epoch": UNKNOWN_EPOCH, "topic_states": []}
    with (
        new_broker() as broker,
        connected(broker.bootstrap_servers) as asking,
        connected(broker.bootstrap_servers) as controller,
    ):
        asking.send(api, version, **asked)
        live = [{"id": stranger, "endpoints": [endpoint], "rack": None}]
        assert controller.ask(apis.UPDATE_METADATA, 8, **named, live_brokers=live).error_code == ErrorCode.none
        described = asking.receive(api, version)
    assert described.controller_id == stranger
    assert [(shown.host, shown.port) for shown in described.brokers] == [("127.0.0.1", 1234)]


def test_clients_wait_shortly_for_a_controller(
    new_broker: Callable[..., Broker], stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "DESCRIBED_WITHIN_S", 0.01)
    with new_broker() as broker, connected(broker.bootstrap_servers) as client:
        for _ in range(2):
            described = client.ask(apis.METADATA, 7, topics=[], allow_auto_topic_creation=False)
            assert (described.controller_id, described.brokers) == (view.NO_BROKER, ())


def name_brokers(controller: RawClient, controller_id: int, *topic_states: dict[str, Any]) -> None:
    """Send UpdateMetadata with broker 1, as the controller."""
    endpoint = {"host": "127.0.0.1", "port": 1234, "listener": "PLAINTEXT", "security_protocol": 0}
    named = {"controller_id": controller_id, "controller_epoch": 7, "broker_epoch": UNKNOWN_EPOCH}
    live = [{"id": 1, "endpoints": [endpoint], "rack": None}]
    response = controller.ask(apis.UPDATE_METADATA, 8, **named, topic_states=list(topic_states), live_brokers=live)
    assert response.error_code == ErrorCode.none


@pytest.mark.parametrize("is_named", [True, False])
def test_clients_wait_shortly_for_new_leaders(
    new_broker: Callable[..., Broker], stranger: int, tree: Tree, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """The broker has read a new topic in ZooKeeper; the controller has not named its leader there yet."""
    monkeypatch.setattr(view, "TOPICS_DESCRIBED_WITHIN_S", 60 if is_named else 0.01)
    wanted = UUID(int=7)
    node = {"version": 3, "partitions": {"0": [1]}, "topic_id": encode_uuid(wanted)}
    with (
        new_broker() as broker,
        connected(broker.bootstrap_servers) as asking,
        connected(broker.bootstrap_servers) as controller,
    ):
        name_brokers(controller, stranger)
        tree.write_json(f"/brokers/topics/{TOPIC}", node)
        assert error_of(lead(controller, wanted, controller_epoch=7)) == ErrorCode.none
        asking.send(apis.METADATA, 7, topics=[{"name": TOPIC}], allow_auto_topic_creation=False)
        if is_named:
            others = controller.ask(apis.METADATA, 7, topics=[], allow_auto_topic_creation=False)
            assert others.topics == ()
            state = {"partition_index": 0, "controller_epoch": 7, "leader": 1, "leader_epoch": 0, "isr": [1]}
            state |= {"zk_version": 0, "replicas": [1], "offline_replicas": []}
            topic = {"topic_name": TOPIC, "topic_id": wanted, "partition_states": [state]}
            name_brokers(controller, stranger, topic)
        ((partition,),) = [topic.partitions for topic in asking.receive(apis.METADATA, 7).topics]
    expected = (ErrorCode.none, 1) if is_named else (ErrorCode.leader_not_available, -1)
    assert (partition.error_code, partition.leader_id) == expected
