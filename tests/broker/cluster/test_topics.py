"""Topics of a broker on ZooKeeper: stored as Apache Kafka 3.9.1 stores them, and read at the next start."""

from pathlib import Path

import pytest

from onceflow.broker.cluster import registry
from onceflow.remedies import Remedy
from onceflow.testing import Broker
from onceflow.wire import apis
from onceflow.wire.batch import decode_batch
from onceflow.zookeeper import kazoo_session
from onceflow.zookeeper.nodes import DamagedNode
from tests import remedies
from tests.broker.cluster.conftest import NewBroker, Tree
from tests.broker.raw_client import batch_of, connected, milliseconds

EMPTY = (
    "/admin/delete_topics",
    "/brokers/seqid",
    "/config/brokers",
    "/config/clients",
    "/config/ips",
    "/config/users",
    "/consumers",
    "/isr_change_notification",
    "/log_dir_event_notification",
)


def names_of(broker: Broker) -> list[str]:
    with connected(broker.bootstrap_servers) as client:
        topics = client.ask(apis.METADATA, 4, topics=None, allow_auto_topic_creation=False).topics
    return sorted(topic.name for topic in topics if not topic.is_internal)


def delete(broker: Broker, topic: str) -> None:
    with connected(broker.bootstrap_servers) as client:
        responses = client.ask(apis.DELETE_TOPICS, 5, topic_names=[topic], timeout=milliseconds(10_000)).responses
    assert [response.error_code for response in responses] == [0]


def test_nodes_have_the_values_of_kafka(new_broker: NewBroker, tree: Tree) -> None:
    """Values are those that Apache Kafka 3.9.1 wrote for the same acts."""
    with new_broker(broker_id=3) as broker:
        broker.create_topic("visits", 2, {"retention.ms": "5000"})
        port = broker.bootstrap_servers.rpartition(":")[2]
        registered = tree.json("/brokers/ids/3")
        assert list(registered) == [
            "features",
            "listener_security_protocol_map",
            "endpoints",
            "jmx_port",
            "port",
            "host",
            "version",
            "timestamp",
        ]
        assert int(registered.pop("timestamp")) > 1_700_000_000_000
        assert registered == {
            "features": {},
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"],
            "jmx_port": -1,
            "port": int(port),
            "host": "127.0.0.1",
            "version": 5,
        }
        controller = tree.json("/controller")
        assert int(controller.pop("timestamp")) > 1_700_000_000_000
        assert controller == {"version": 2, "brokerid": 3, "kraftControllerEpoch": -1}
        topic = tree.json("/brokers/topics/visits")
        assert len(topic.pop("topic_id")) == 22
        assert topic == {
            "partitions": {"0": [3], "1": [3]},
            "adding_replicas": {},
            "removing_replicas": {},
            "version": 3,
        }
        state = '{"controller_epoch":1,"leader":3,"version":1,"leader_epoch":0,"isr":[3]}'
        assert [tree.text(f"/brokers/topics/visits/partitions/{index}/state") for index in range(2)] == [state] * 2
        assert tree.text("/config/topics/visits") == '{"version":1,"config":{"retention.ms":"5000"}}'
        assert tree.text("/controller_epoch") == "1"
        assert tree.json("/cluster/id")["version"] == "1"
        assert tree.text("/feature") == '{"features":{},"version":2,"status":1}'
        assert [tree.children(path) for path in EMPTY] == [[]] * len(EMPTY)
        assert not tree.exists("/latest_producer_id_block")
    assert not tree.exists("/brokers/ids/3")
    assert not tree.exists("/controller")


def test_restarted_broker_reads_its_topics(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    with new_broker(tmp_path / "data") as broker:
        broker.create_topic("visits", 3, {"retention.ms": "7"})
        with connected(broker.bootstrap_servers) as client:
            assert client.produce("visits", 2, batch_of(b"ann")).error_code == 0
    topic = tree.text("/brokers/topics/visits")
    with new_broker(tmp_path / "data") as broker, connected(broker.bootstrap_servers) as client:
        (fetched,) = client.fetch([("visits", 2, 0)])
        assert decode_batch(fetched.records)[0].value == b"ann"
        resources = [{"resource_type": 2, "resource_name": "visits", "configuration_keys": ["retention.ms"]}]
        (described,) = client.ask(apis.DESCRIBE_CONFIGS, 1, resources=resources, include_synonyms=False).results
        assert [entry.value for entry in described.configs] == ["7"]
    assert tree.text("/brokers/topics/visits") == topic
    assert tree.text("/controller_epoch") == "2"


def test_changes_are_written(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    with new_broker(tmp_path / "data") as broker, connected(broker.bootstrap_servers) as client:
        broker.create_topic("visits")
        topic_id = tree.json("/brokers/topics/visits")["topic_id"]
        more = [{"name": "visits", "count": 3, "assignments": None}]
        client.ask(apis.CREATE_PARTITIONS, 1, topics=more, timeout=milliseconds(10_000), validate_only=False)
        topic = tree.json("/brokers/topics/visits")
        assert topic["partitions"] == {"0": [1], "1": [1], "2": [1]}
        assert topic["topic_id"] == topic_id
        assert tree.json("/brokers/topics/visits/partitions/2/state")["leader"] == 1
        configs = [{"name": "retention.ms", "value": "7"}]
        resources = [{"resource_type": 2, "resource_name": "visits", "configs": configs}]
        client.ask(apis.ALTER_CONFIGS, 0, resources=resources, validate_only=False)
        assert tree.json("/config/topics/visits")["config"] == {"retention.ms": "7"}
        assert tree.children("/config/changes") == ["config_change_0000000000"]
        assert tree.text("/config/changes/config_change_0000000000") == '{"version":2,"entity_path":"topics/visits"}'
    with new_broker(tmp_path / "data") as broker, connected(broker.bootstrap_servers) as client:
        assert client.produce("visits", 2, batch_of(b"ann")).error_code == 0


def test_deleted_topic_leaves_no_node(new_broker: NewBroker, tree: Tree) -> None:
    with new_broker() as broker:
        broker.create_topic("visits", 2)
        delete(broker, "visits")
        tree.await_that(lambda: not tree.exists("/admin/delete_topics/visits"))
        assert not tree.exists("/brokers/topics/visits")
        assert not tree.exists("/config/topics/visits")
        broker.create_topic("visits", 1)
        assert tree.json("/brokers/topics/visits")["partitions"] == {"0": [1]}


@pytest.mark.parametrize("left", ["", "/partitions/0/state", "/partitions"])
def test_start_finishes_a_deletion(new_broker: NewBroker, tree: Tree, tmp_path: Path, left: str) -> None:
    """A crash may come before the files are deleted, or while the nodes are deleted."""
    with new_broker(tmp_path / "data") as broker:
        broker.create_topic("visits", 2)
    tree.write("/admin/delete_topics/visits", "")
    if left:
        tree.delete(f"/brokers/topics/visits{left}")
    with new_broker(tmp_path / "data") as broker:
        tree.await_that(lambda: not tree.exists("/admin/delete_topics/visits"))
        assert names_of(broker) == []
        assert not list((tmp_path / "data").glob("visits-*"))
        broker.create_topic("visits")


def test_start_finishes_a_creation(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    """A crash between the writes of a creation leaves a topic without states, or without its configuration."""
    with new_broker(tmp_path / "data") as broker:
        broker.create_topic("visits", 2)
        broker.create_topic("clicks", 2)
    tree.delete("/brokers/topics/visits/partitions/1/state")
    tree.delete("/brokers/topics/clicks/partitions")
    tree.delete("/config/topics/clicks")
    with new_broker(tmp_path / "data") as broker, connected(broker.bootstrap_servers) as client:
        for topic in ("visits", "clicks"):
            assert tree.json(f"/brokers/topics/{topic}/partitions/1/state")["leader"] == 1
            assert client.produce(topic, 1, batch_of(b"ann")).error_code == 0
        assert tree.text("/config/topics/clicks") == '{"version":1,"config":{}}'


@pytest.mark.remedy(Remedy.FIX_NODE)
def test_damaged_node_is_refused(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    with new_broker(tmp_path / "data") as broker:
        broker.create_topic("visits")
    topic = tree.text("/brokers/topics/visits")
    for damaged in ("{", '{"version":3}', topic.replace('"topic_id":"', '"topic_id":"!'), topic.replace('"0"', '"1"')):
        tree.write("/brokers/topics/visits", damaged)
        with pytest.raises(DamagedNode, match="/brokers/topics/visits") as refused:
            new_broker(tmp_path / "data").start()
        remedies.find(Remedy.FIX_NODE, str(refused.value))
    tree.write("/brokers/topics/visits", topic)
    tree.write("/config/topics/visits", '{"version":1,"config":{"compression.type":"zstd"}}')
    with pytest.raises(DamagedNode, match=r"/config/topics/visits in ZooKeeper .* only producer is supported"):
        new_broker(tmp_path / "data").start()
    tree.write("/config/topics/visits", '{"version":1,"config":{}}')
    with new_broker(tmp_path / "data") as broker:
        assert names_of(broker) == ["visits"]


def test_producer_ids_come_in_blocks(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    given = []
    for _start in range(2):
        with new_broker(tmp_path / "data") as broker, connected(broker.bootstrap_servers) as client:
            for _request in range(2):
                asked = {"transactional_id": None, "transaction_timeout": milliseconds(60_000)}
                given.append(client.ask(apis.INIT_PRODUCER_ID, 1, **asked).producer_id)
    assert given == [0, 1, 1000, 1001]
    block = '{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}'
    assert tree.text("/latest_producer_id_block") == block


def test_many_partitions_take_several_writes(
    new_broker: NewBroker, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "OPERATIONS_IN_A_WRITE", 2)
    monkeypatch.setattr(registry, "DELETIONS_IN_A_WRITE", 3)
    monkeypatch.setattr(kazoo_session, "READS_AT_ONCE", 2)
    with new_broker() as broker:
        broker.create_topic("visits", 5)
        assert [tree.json(f"/brokers/topics/visits/partitions/{index}/state")["leader"] for index in range(5)] == [
            1
        ] * 5
        delete(broker, "visits")
        tree.await_that(lambda: not tree.exists("/admin/delete_topics/visits"))
