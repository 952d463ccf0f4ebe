"""Changes of topics that other programs write to ZooKeeper, as Kafka's tools before 3.0 do."""

import base64
import json
import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.cluster import nodes
from onceflow.broker.cluster.notices import NOTICE_MS_MAX
from onceflow.broker.cluster.watch import Seen, Watch
from onceflow.log.clock import SystemClock
from onceflow.testing import Broker, ManualClock
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.zookeeper.kazoo_session import ZooKeeper
from tests.broker.cluster.conftest import NewBroker, Tree
from tests.broker.cluster.link import Link
from tests.broker.raw_client import batch_of, connected, milliseconds


def topic_node(replicas: Sequence[Sequence[int]], topic_id: str = "") -> str:
    partitions = {str(index): brokers for index, brokers in enumerate(replicas)}
    new_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    return json.dumps({"version": 3, "partitions": partitions, "topic_id": topic_id or new_id})


def create(tree: Tree, name: str, *replicas: Sequence[int], configs: Mapping[str, str] | None = None) -> None:
    tree.write(f"/config/topics/{name}", json.dumps({"version": 1, "config": dict(configs or {})}))
    tree.write(f"/brokers/topics/{name}", topic_node(replicas or [[1]]))


def notify(tree: Tree, entity: str) -> None:
    value = json.dumps({"version": 2, "entity_path": entity}).encode()
    tree.client.create(f"{tree.chroot}/config/changes/config_change_", value, sequence=True)


def is_served(broker: Broker, topic: str, partition: int = 0) -> bool:
    with connected(broker.bootstrap_servers) as client:
        return client.produce(topic, partition, batch_of(b"ann")).error_code == 0


def config_of(broker: Broker, topic: str, name: str) -> Any:
    resources = [{"resource_type": 2, "resource_name": topic, "configuration_keys": [name]}]
    with connected(broker.bootstrap_servers) as client:
        (described,) = client.ask(apis.DESCRIBE_CONFIGS, 1, resources=resources, include_synonyms=False).results
    return described.configs[0].value


def test_created_topic_is_served(new_broker: NewBroker, tree: Tree) -> None:
    with new_broker() as broker:
        create(tree, "visits", [1], [1], configs={"retention.ms": "7"})
        tree.await_that(lambda: is_served(broker, "visits", 1))
        assert config_of(broker, "visits", "retention.ms") == "7"
        assert tree.json("/brokers/topics/visits/partitions/1/state")["leader"] == 1


def test_topic_without_an_id_gets_one(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    """Kafka's tools write none."""
    with new_broker(tmp_path / "data") as broker:
        tree.write("/brokers/topics/visits", '{"version":3,"partitions":{"0":[1]}}')
        tree.await_that(lambda: is_served(broker, "visits"))
        topic_id = tree.json("/brokers/topics/visits")["topic_id"]
        assert f"topic_id: {topic_id}" in (tmp_path / "data" / "visits-0" / "partition.metadata").read_text()
        tree.write("/brokers/topics/visits", '{"version":3,"partitions":{"0":[1],"1":[1]}}')
        tree.await_that(lambda: is_served(broker, "visits", 1))
        assert tree.json("/brokers/topics/visits")["topic_id"] == topic_id
    tree.write("/brokers/topics/clicks", '{"version":3,"partitions":{"0":[1]}}')
    with new_broker(tmp_path / "data") as broker:
        assert is_served(broker, "clicks")


KAFKAS_STATE_TOPIC = {
    "compression.type": "uncompressed",
    "cleanup.policy": "compact",
    "min.insync.replicas": "1",
    "segment.bytes": "104857600",
    "unclean.leader.election.enable": "false",
}
"""Configuration of `__transaction_state` that Apache Kafka writes (TransactionStateManager.transactionTopicConfigs)."""


def test_kafkas_state_topic_is_served(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    """Its type of compression is that of our coordinator, while it runs and at its start."""

    def has_coordinator(broker: Broker) -> bool:
        with connected(broker.bootstrap_servers) as client:
            fields = {"transactional_id": "ada", "transaction_timeout": milliseconds(60_000)}
            return client.ask(apis.INIT_PRODUCER_ID, 1, **fields).error_code == ErrorCode.none

    with new_broker(tmp_path / "data") as broker:
        create(tree, "__transaction_state", [1], configs=KAFKAS_STATE_TOPIC)
        tree.await_that(lambda: has_coordinator(broker))
    with new_broker(tmp_path / "data") as broker:
        tree.await_that(lambda: has_coordinator(broker))


def test_controller_resigns_after_a_conflict(new_broker: NewBroker, tree: Tree) -> None:
    """A controller that cannot create a topic, since its node exists, resigns and is elected again."""
    with new_broker() as broker, connected(broker.bootstrap_servers) as client:
        create(tree, "visits", configs={"compression.type": "gzip"})
        topic = {"name": "visits", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        fields = {"topics": [topic], "timeout": milliseconds(30_000), "validate_only": False}
        assert client.ask(apis.CREATE_TOPICS, 4, **fields).topics[0].error_code == ErrorCode.not_controller
        tree.await_that(lambda: tree.controller() == 1 and tree.text("/controller_epoch") == "2")
        create(tree, "clicks")
        tree.await_that(lambda: is_served(broker, "clicks"))


def test_added_partition_is_served(new_broker: NewBroker, tree: Tree) -> None:
    with new_broker() as broker:
        broker.create_topic("visits")
        topic_id = tree.json("/brokers/topics/visits")["topic_id"]
        tree.write("/brokers/topics/visits", topic_node([[1], [1], [1]], topic_id))
        tree.await_that(lambda: is_served(broker, "visits", 2))
        assert tree.json("/brokers/topics/visits/partitions/2/state")["leader"] == 1


def test_changed_configuration_is_applied(new_broker: NewBroker, tree: Tree) -> None:
    with new_broker() as broker:
        broker.create_topic("visits", configs={"retention.ms": "7", "flush.ms": "9"})
        # The broker has looked at its own topic when it serves this one.
        create(tree, "clicks")
        tree.await_that(lambda: is_served(broker, "clicks"))
        tree.write("/config/topics/visits", '{"version":1,"config":{"retention.ms":"8"}}')
        notify(tree, "topics/visits")
        tree.await_that(lambda: config_of(broker, "visits", "retention.ms") == "8")
        assert config_of(broker, "visits", "flush.ms") != "9"


def test_marked_topic_is_deleted(new_broker: NewBroker, tree: Tree) -> None:
    with new_broker() as broker:
        broker.create_topic("visits", 2)
        for _time in range(2):
            tree.await_that(lambda: is_served(broker, "visits"))
            tree.write("/admin/delete_topics/visits", "")
            tree.await_that(lambda: not tree.exists("/admin/delete_topics/visits"))
            assert not tree.exists("/brokers/topics/visits")
            assert not list(broker.path.glob("visits-*"))
            create(tree, "visits")


def test_deletion_can_be_disabled(new_broker: NewBroker, tree: Tree) -> None:
    with new_broker(delete_topic_enable=False) as broker:
        broker.create_topic("visits")
        tree.write("/admin/delete_topics/visits", "")
        tree.await_that(lambda: not tree.exists("/admin/delete_topics/visits"))
        assert is_served(broker, "visits")


def test_internal_topic_is_kept(new_broker: NewBroker, tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    with new_broker() as broker:
        with connected(broker.bootstrap_servers) as client:
            client.ask(apis.FIND_COORDINATOR, 3, key="g", key_type=0)
        tree.await_that(lambda: tree.exists("/brokers/topics/__consumer_offsets/partitions/3/state"))
        tree.write("/admin/delete_topics/__consumer_offsets", "")
        tree.await_that(lambda: not tree.exists("/admin/delete_topics/__consumer_offsets"))
        assert tree.exists("/brokers/topics/__consumer_offsets")
    assert "topic __consumer_offsets, marked for deletion in ZooKeeper, is not deleted" in caplog.text


def test_other_topics_stay_served(new_broker: NewBroker, tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    reason = "/brokers/topics/clicks in ZooKeeper holds"
    with new_broker() as broker:
        tree.write("/brokers/topics/clicks", "{")
        create(tree, "visits")
        tree.await_that(lambda: is_served(broker, "visits"))
        assert not is_served(broker, "clicks")
        broker.create_topic("pages")
    assert f"a change in ZooKeeper by another program is not followed: {reason}" in caplog.text


def test_unusable_topics_are_left_out(new_broker: NewBroker, tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    unusable = {
        "nested": ('{"x":' + "[" * 100_000, "maximum recursion depth"),
        "__cluster_metadata": (topic_node([[1]]), "'__cluster_metadata' is not the name of a topic"),
        "a b": (topic_node([[1]]), "'a b' is not the name of a topic"),
        "empty": (topic_node([[1], []]), "a partition has no replicas"),
        "pages": (topic_node([[1]]), "/brokers/topics/pages/partitions/0/state in ZooKeeper holds"),
    }
    with new_broker() as broker:
        tree.write("/brokers/topics/pages/partitions/0/state", "{")
        for name, (value, _reason) in unusable.items():
            tree.write(f"/brokers/topics/{name}", value)
        create(tree, "visits")
        tree.await_that(lambda: is_served(broker, "visits"))
        tree.await_that(lambda: all(reason in caplog.text for _value, reason in unusable.values()))
        assert not any(is_served(broker, name) for name in unusable)
        broker.create_topic("clicks")


def test_left_configuration_is_replaced(new_broker: NewBroker, tree: Tree) -> None:
    """A tool writes the configuration first, and may not come to the topic."""
    with new_broker() as broker:
        tree.write("/config/topics/visits", '{"version":1,"config":{"retention.ms":"8"}}')
        broker.create_topic("visits", configs={"flush.ms": "9"})
        assert is_served(broker, "visits")
        assert tree.json("/config/topics/visits")["config"] == {"flush.ms": "9"}


def test_unsupported_change_is_not_applied(new_broker: NewBroker, tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    with new_broker() as broker:
        broker.create_topic("visits", configs={"retention.ms": "7"})
        tree.write("/config/topics/visits", '{"version":1,"config":{"compression.type":"zstd"}}')
        notify(tree, "topics/visits")
        tree.write("/brokers/topics/pages", topic_node([[1]]))
        tree.await_that(lambda: is_served(broker, "pages"))
        assert config_of(broker, "visits", "retention.ms") == "7"
        notify(tree, "brokers/1")
        tree.await_that(lambda: "the configuration of brokers/1 in ZooKeeper has no effect" in caplog.text)
    assert "/config/topics/visits in ZooKeeper" in caplog.text


def test_changes_during_an_expired_session(new_broker: NewBroker, tree: Tree, link: Link) -> None:
    settings = {"zookeeper_connect": f"{link.address}{tree.chroot}", "zookeeper_session_timeout_ms": 500}
    with new_broker(**settings) as broker:
        broker.create_topic("visits")
        topic_id = tree.json("/brokers/topics/visits")["topic_id"]
        link.cut()
        tree.await_that(lambda: not tree.exists("/controller"))
        create(tree, "clicks")
        tree.write("/brokers/topics/visits", topic_node([[1], [1]], topic_id))
        link.open()
        tree.await_that(lambda: is_served(broker, "clicks") and is_served(broker, "visits", 1))


def test_own_and_other_changes_are_kept(new_broker: NewBroker, tree: Tree) -> None:
    """A look is repeated if the broker has changed something meanwhile."""
    with new_broker() as broker:
        for number in range(15):
            create(tree, f"theirs-{number}")
            broker.create_topic(f"ours-{number}")
            tree.write(f"/config/topics/ours-{number}", '{"version":1,"config":{"retention.ms":"8"}}')
            notify(tree, f"topics/ours-{number}")
        tree.await_that(lambda: all(is_served(broker, f"theirs-{number}") for number in range(15)))
        tree.await_that(lambda: config_of(broker, "ours-14", "retention.ms") == "8")
        assert {config_of(broker, f"ours-{number}", "retention.ms") for number in range(15)} == {"8"}


def test_look_before_an_own_change_is_repeated(
    new_broker: NewBroker, tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A difference that the broker itself caused meanwhile is not another program's."""
    reading, go_on = threading.Event(), threading.Event()
    look = Watch.look

    def held(watch: Watch, on_damaged: Any) -> Seen:
        seen = look(watch, on_damaged)
        if "visits" in seen.changed:
            reading.set()
            assert go_on.wait(60)
        return seen

    caplog.set_level(logging.INFO)
    with new_broker() as broker:
        broker.create_topic("visits", configs={"retention.ms": "7"})
        create(tree, "clicks")
        tree.await_that(lambda: is_served(broker, "clicks"))
        caplog.clear()
        monkeypatch.setattr(Watch, "look", held)
        notify(tree, "topics/visits")
        assert reading.wait(60)
        assert broker._run is not None and broker._run._server is not None
        topic = broker._run._server.node.topics.by_name["visits"]
        with connected(broker.bootstrap_servers) as client:
            configs = [{"name": "retention.ms", "value": "8"}]
            resources = [{"resource_type": 2, "resource_name": "visits", "configs": configs}]
            client.send(apis.ALTER_CONFIGS, 0, resources=resources, validate_only=False)
            tree.await_that(lambda: topic.configs == {"retention.ms": "8"})
            go_on.set()
            assert [result.error_code for result in client.receive(apis.ALTER_CONFIGS, 0).responses] == [0]
        assert config_of(broker, "visits", "retention.ms") == "8"
        create(tree, "pages")
        tree.await_that(lambda: is_served(broker, "pages"))
    assert "topic visits was changed in ZooKeeper by another program" not in caplog.text


def test_old_notices_are_deleted(tree: Tree) -> None:
    zookeeper = ZooKeeper(tree.connect, session_timeout_ms=10_000, connection_timeout_ms=10_000)
    zookeeper.open()
    try:
        for path in nodes.PERSISTENT:
            zookeeper.ensure(path)
        notify(tree, "topics/visits")
        Watch(zookeeper, SystemClock(), lambda: None, lambda _name: uuid.uuid4()).look(lambda error: None)
        assert len(tree.children("/config/changes")) == 1
        later = ManualClock(SystemClock().now_ms() + NOTICE_MS_MAX + 60_000)
        Watch(zookeeper, later, lambda: None, lambda _name: uuid.uuid4()).look(lambda error: None)
        assert tree.children("/config/changes") == []
    finally:
        zookeeper.close()
