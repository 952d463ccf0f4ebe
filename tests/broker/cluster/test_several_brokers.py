"""Several brokers in one cluster: partitions led by different brokers, one controller, and its successor."""

import logging
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from onceflow import services
from onceflow.broker.cluster.registry import Registry
from onceflow.testing import Broker
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.conftest import Brokers, NewBroker, Tree, create_on
from tests.broker.cluster.link import Link
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds

PARTITIONS = 6


def send(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Send each value to the partition of its number, with acks=all."""
    failures: list[Any] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "allow.auto.create.topics": False, "linger.ms": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert not failures


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Read the topic from its start, without a group's partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [value for message in consumer.consume(count, 0.2) if (value := message.value()) is not None]
    consumer.close()
    return sorted(values)


def test_partitions_are_spread_and_served(brokers: Brokers, tree: Tree) -> None:
    brokers.create("clicks", PARTITIONS)
    leaders = brokers.leaders("clicks", from_broker=2)
    assert sorted(leaders.values()) == [1, 1, 2, 2, 3, 3]
    assert leaders == brokers.leaders("clicks", from_broker=3)
    assert brokers.controller(from_broker=3) == 1
    values = [b"%03d" % number for number in range(60)]
    send(brokers.running[3].bootstrap_servers, "clicks", values)
    assert read(brokers.running[2].bootstrap_servers, "clicks", 60) == values
    assert {tree.json(f"/brokers/topics/clicks/partitions/{index}/state")["leader"] for index in leaders} == {1, 2, 3}


def test_groups_are_served_from_any_broker(brokers: Brokers) -> None:
    brokers.create("clicks", PARTITIONS)
    settings = {"bootstrap.servers": brokers.running[3].bootstrap_servers, "group.id": "visitors"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe(["clicks"])
    send(brokers.bootstrap, "clicks", [b"ann"] * PARTITIONS)
    values: list[bytes | None] = []
    deadline = time.monotonic() + 60
    while len(values) < PARTITIONS and time.monotonic() < deadline:
        values += [message.value() for message in consumer.consume(PARTITIONS, 0.2)]
    consumer.commit(asynchronous=False)
    places = [TopicPartition("clicks", index) for index in range(PARTITIONS)]
    assert [place.offset for place in consumer.committed(places, timeout=30)] == [1] * PARTITIONS
    consumer.close()
    admin = AdminClient({"bootstrap.servers": brokers.running[2].bootstrap_servers})
    groups = admin.list_consumer_groups().result(30)
    assert [group.group_id for group in groups.valid] == ["visitors"]
    assert not groups.errors


def test_a_broker_leaves_and_returns(brokers: Brokers, tree: Tree) -> None:
    brokers.create("clicks", PARTITIONS)
    values = [b"%03d" % number for number in range(60)]
    send(brokers.bootstrap, "clicks", values)
    hosted = [index for index, leader in brokers.leaders("clicks", from_broker=1).items() if leader == 3]
    brokers.stop(3)
    state = f"/brokers/topics/clicks/partitions/{hosted[0]}/state"
    tree.await_that(lambda: tree.json(state)["leader"] == -1)
    tree.await_that(lambda: brokers.leaders("clicks", from_broker=2)[hosted[0]] == -1)
    brokers.start(3)
    tree.await_that(lambda: brokers.leaders("clicks", from_broker=2)[hosted[0]] == 3)
    assert tree.json(state)["leader_epoch"] == 2
    send(brokers.bootstrap, "clicks", values)
    assert read(brokers.running[1].bootstrap_servers, "clicks", 120) == sorted(values * 2)


def test_another_controller_is_elected(brokers: Brokers, tree: Tree) -> None:
    brokers.create("clicks", PARTITIONS)
    values = [b"%03d" % number for number in range(60)]
    send(brokers.bootstrap, "clicks", values)
    brokers.stop(1)
    tree.await_that(lambda: tree.controller() in (2, 3))
    assert tree.text("/controller_epoch") == "2"
    for broker_id in (2, 3):
        tree.await_that(lambda broker_id=broker_id: brokers.controller(broker_id) in (2, 3))  # type: ignore[misc]
    brokers.create("visits", PARTITIONS)
    assert set(brokers.leaders("visits", from_broker=2).values()) == {2, 3}
    brokers.start(1)
    brokers.await_leaders("clicks", from_broker=1)
    assert read(brokers.running[1].bootstrap_servers, "clicks", 60) == values
    assert tree.json("/controller")["brokerid"] in (2, 3)


def test_topics_are_changed_by_the_controller(
    brokers: Brokers, tree: Tree, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    brokers.create("clicks", 3)
    wanted = {"name": "visits", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    with connected(brokers.running[2].bootstrap_servers) as client:
        creation = {"topics": [wanted], "timeout": milliseconds(1000), "validate_only": False}
        response = client.ask(apis.CREATE_TOPICS, 4, **creation)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.not_controller]
    admin = brokers.admin()
    (added,) = admin.create_partitions([NewPartitions("clicks", PARTITIONS)]).values()
    added.result(30)
    tree.await_that(lambda: sorted(brokers.leaders("clicks", from_broker=3).values()) == [1, 1, 2, 2, 3, 3])
    send(brokers.bootstrap, "clicks", [b"ann"] * PARTITIONS)
    brokers.delete("clicks")
    tree.await_that(lambda: not tree.exists("/admin/delete_topics/clicks"))
    assert not tree.exists("/brokers/topics/clicks")
    assert not list(tmp_path.glob("?/clicks-*"))
    brokers.create("clicks", PARTITIONS)
    send(brokers.bootstrap, "clicks", [b"ben"] * PARTITIONS)
    assert read(brokers.bootstrap, "clicks", PARTITIONS) == [b"ben"] * PARTITIONS
    assert "by another program" not in caplog.text


def test_deletion_waits_for_absent_brokers(brokers: Brokers, tree: Tree, tmp_path: Path) -> None:
    brokers.create("clicks", PARTITIONS)
    brokers.stop(3)
    brokers.delete("clicks")
    tree.await_that(lambda: not list(tmp_path.glob("2/clicks-*")))
    assert tree.exists("/admin/delete_topics/clicks")
    with pytest.raises(KafkaException, match="being deleted"):
        brokers.create("clicks", PARTITIONS)
    brokers.start(3)
    tree.await_that(lambda: not tree.exists("/admin/delete_topics/clicks"))
    assert not list(tmp_path.glob("3/clicks-*"))


def test_others_refuse_records(brokers: Brokers) -> None:
    brokers.create("clicks", 1)
    (leader,) = brokers.leaders("clicks", from_broker=1).values()
    other = next(broker_id for broker_id in (2, 3) if broker_id != leader)
    with connected(brokers.running[other].bootstrap_servers) as client:
        assert client.produce("clicks", 0, batch_of(b"ann")).error_code == ErrorCode.not_leader_or_follower
        assert client.produce("clicks", 1, batch_of(b"ann")).error_code == ErrorCode.unknown_topic_or_partition


def test_any_broker_changes_configurations(brokers: Brokers, tree: Tree) -> None:
    """Kafka's admin client sends a change of a topic's configuration to any broker."""
    brokers.create("clicks", PARTITIONS)
    alter = {"resource_type": 2, "resource_name": "clicks"}
    change = {"name": "retention.ms", "config_operation": 0, "value": "7000"}
    with connected(brokers.running[2].bootstrap_servers) as client:
        response = client.ask(
            apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[{**alter, "configs": [change]}], validate_only=False
        )
        assert [result.error_code for result in response.responses] == [0]
    assert tree.json("/config/topics/clicks")["config"] == {"retention.ms": "7000"}
    for broker in brokers.running.values():
        tree.await_that(lambda broker=broker: retention_of(broker, "clicks") == "7000")  # type: ignore[misc]


def retention_of(broker: Broker, topic: str) -> str | None:
    with connected(broker.bootstrap_servers) as client:
        resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": ["retention.ms"]}
        response = client.ask(
            apis.DESCRIBE_CONFIGS, 1, resources=[resource], include_synonyms=False, include_documentation=False
        )
        (entry,) = response.results[0].configs
        value: str | None = entry.value
        return value


def test_any_broker_has_topics_created(brokers: Brokers) -> None:
    """A broker lets the controller create a topic that its client asks for."""
    with connected(brokers.running[3].bootstrap_servers) as client:
        deadline = time.monotonic() + 60
        while True:
            response = client.ask(apis.METADATA, 4, topics=[{"name": "pages"}], allow_auto_topic_creation=True)
            partitions = response.topics[0].partitions
            if response.topics[0].error_code == 0 and partitions and partitions[0].error_code == 0:
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_elections_are_the_controllers(brokers: Brokers) -> None:
    brokers.create("clicks", 3)
    wanted = {"election_type": 0, "topic_partitions": [{"topic": "clicks", "partitions": [0, 9]}]}
    codes = {}
    for broker_id in (1, 2):
        with connected(brokers.running[broker_id].bootstrap_servers) as client:
            response = client.ask(apis.ELECT_LEADERS, 1, timeout=milliseconds(1000), **wanted)
            (topic,) = response.replica_election_results
            codes[broker_id] = [partition.error_code for partition in topic.partition_result]
    assert codes[1] == [ErrorCode.election_not_needed, ErrorCode.unknown_topic_or_partition]
    assert codes[2] == [ErrorCode.not_controller] * 2


def states(tree: Tree, topic: str) -> list[dict[str, Any]]:
    """Return the states of a topic's partitions in ZooKeeper."""
    names = tree.children(f"/brokers/topics/{topic}/partitions")
    return [tree.json(f"/brokers/topics/{topic}/partitions/{name}/state") for name in names]


def test_leaders_move_before_a_stop(
    new_broker: NewBroker, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They move back when the preferred replica is in sync again."""
    leaders_at_end: list[set[int]] = []
    close = Registry.close

    def close_later(registry: Registry) -> None:
        leaders_at_end.append({state["leader"] for state in states(tree, "clicks")})
        close(registry)

    monkeypatch.setattr(Registry, "close", close_later)
    brokers = Brokers(new_broker, tmp_path)
    balance = {"leader_imbalance_check_interval_seconds": 1, "leader_imbalance_per_broker_percentage": 0}
    with ExitStack() as stack:
        stack.callback(lambda: [broker.stop() for broker in brokers.running.values()])
        for broker_id in (1, 2, 3):
            brokers.start(broker_id, **balance)
        brokers.create("clicks", PARTITIONS, replication_factor=3)
        preferred = brokers.leaders("clicks", from_broker=1)
        for stopped in (3, 1):
            brokers.stop(stopped)
            assert not leaders_at_end[-1] & {-1, stopped}
            assert all(stopped not in state["isr"] for state in states(tree, "clicks"))
            brokers.start(stopped, **balance)
            tree.await_that(lambda: brokers.leaders("clicks", from_broker=2) == preferred)
        assert all(len(state["isr"]) == 3 for state in states(tree, "clicks"))


def test_metrics_of_a_cluster(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    brokers = Brokers(new_broker, tmp_path)
    with ExitStack() as stack:
        stack.callback(lambda: [broker.stop() for broker in brokers.running.values()])
        port = services.free_port()
        brokers.start(1, metrics_port=port)
        brokers.start(2)
        assert cluster_metrics(port) == (1, 0, 0)
        brokers.create("clicks", PARTITIONS, replication_factor=2)
        brokers.create("visits", 2)
        brokers.stop(2)
        tree.await_that(lambda: cluster_metrics(port) == (1, 1, PARTITIONS))


def cluster_metrics(port: int) -> tuple[float, ...]:
    """Return whether the broker is the controller, the offline and the under-replicated partitions."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    names = ("active_controller", "offline_partitions", "under_replicated_partitions")
    return tuple(float(values[f"onceflow_broker_{name}"]) for name in names)


def test_default_replication_factor(new_broker: NewBroker, tree: Tree) -> None:
    wanted = {"name": "clicks", "num_partitions": 2, "replication_factor": -1, "assignments": [], "configs": []}
    with new_broker(default_replication_factor=2) as first, connected(first.bootstrap_servers) as client:
        creation = {"topics": [wanted], "timeout": milliseconds(1000), "validate_only": False}
        (refused,) = client.ask(apis.CREATE_TOPICS, 5, **creation).topics
        assert refused.error_code == ErrorCode.invalid_replication_factor
        with new_broker(broker_id=2):
            tree.await_that(lambda: len(first_brokers(client)) == 2)
            (created,) = client.ask(apis.CREATE_TOPICS, 5, **creation).topics
            assert (created.error_code, created.replication_factor) == (0, 2)
            assert all(
                sorted(replicas) == [1, 2] for replicas in tree.json("/brokers/topics/clicks")["partitions"].values()
            )


def first_brokers(client: RawClient) -> list[int]:
    response = client.ask(apis.METADATA, 4, topics=[], allow_auto_topic_creation=False)
    return [broker.node_id for broker in response.brokers]


def test_a_deposed_controller_forgets_new_topics(new_broker: NewBroker, tree: Tree, link: Link, tmp_path: Path) -> None:
    """A creation that it could not write is refused, and repeated by the next controller."""
    brokers = Brokers(new_broker, tmp_path)
    with ExitStack() as stack:
        stack.callback(lambda: [broker.stop() for broker in brokers.running.values()])
        behind_link = f"{link.address}{tree.chroot}"
        brokers.start(1, zookeeper_connect=behind_link, zookeeper_session_timeout_ms=2000)
        brokers.start(2)
        create_on(brokers, "visits", [1])
        clients = {
            broker_id: stack.enter_context(connected(broker.bootstrap_servers))
            for broker_id, broker in brokers.running.items()
        }
        link.cut()
        wanted = {"name": "clicks", "num_partitions": 1, "replication_factor": 2, "assignments": [], "configs": []}
        creation = {"topics": [wanted], "timeout": milliseconds(60_000), "validate_only": False}
        clients[1].send(apis.CREATE_TOPICS, 5, **creation)
        tree.await_that(lambda: tree.controller() == 2)
        link.open()
        (refused,) = clients[1].receive(apis.CREATE_TOPICS, 5).topics
        assert refused.error_code == ErrorCode.not_controller
        tree.await_that(lambda: len(first_brokers(clients[2])) == 2)
        assert not tree.exists("/brokers/topics/clicks")
        (created,) = clients[2].ask(apis.CREATE_TOPICS, 5, **creation).topics
        assert created.error_code == ErrorCode.none
        tree.await_that(lambda: brokers.leaders("clicks", from_broker=1) != {0: -1})
        producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all"})
        for topic in ("visits", "clicks"):
            producer.produce(topic, b"ann", partition=0)
        assert producer.flush(60) == 0
        assert tree.controller() == 2


def test_a_deposed_controller_drops_its_decisions(
    new_broker: NewBroker, tree: Tree, link: Link, tmp_path: Path
) -> None:
    """An election that it could not write is not an obstacle to serve under the next controller."""
    brokers = Brokers(new_broker, tmp_path)
    with ExitStack() as stack:
        stack.callback(lambda: [broker.stop() for broker in brokers.running.values()])
        behind_link = f"{link.address}{tree.chroot}"
        brokers.start(1, zookeeper_connect=behind_link, zookeeper_session_timeout_ms=2000)
        brokers.start(2)
        create_on(brokers, "clicks", [2, 1])
        brokers.stop(2)
        tree.await_that(lambda: states(tree, "clicks")[0]["leader"] == 1)
        brokers.start(2)
        tree.await_that(lambda: sorted(states(tree, "clicks")[0]["isr"]) == [1, 2])
        client = stack.enter_context(connected(brokers.running[1].bootstrap_servers))
        link.cut()
        wanted = [{"topic": "clicks", "partitions": [0]}]
        client.send(apis.ELECT_LEADERS, 1, election_type=0, topic_partitions=wanted, timeout=milliseconds(1000))
        tree.await_that(lambda: tree.controller() == 2)
        link.open()
        (topic,) = client.receive(apis.ELECT_LEADERS, 1).replica_election_results
        assert topic.partition_result[0].error_code == ErrorCode.not_controller
        tree.await_that(lambda: sorted(states(tree, "clicks")[0]["isr"]) == [1, 2])
        producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all"})
        producer.produce("clicks", b"ann", partition=0)
        assert producer.flush(60) == 0
        assert tree.json("/controller")["brokerid"] == 2
        assert tree.exists("/brokers/ids/1")
