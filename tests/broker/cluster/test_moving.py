"""A cluster from the data directory of a broker without ZooKeeper: nothing is lost, even by an interrupted move."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from onceflow.broker.cluster.metadata import RegistryMetadata
from onceflow.broker.security.client_quotas import CLIENT_ID, PRODUCER_BYTE_RATE, USER
from onceflow.broker.settings.authorization import STANDARD_AUTHORIZER
from onceflow.broker.topics.logs import TopicLogs
from onceflow.broker.topics.records import MetadataRecord
from onceflow.log.errors import DataDirectoryRefused
from onceflow.remedies import Remedy
from onceflow.testing import Broker
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests import remedies
from tests.broker.cluster.conftest import NewBroker, Tree
from tests.broker.cluster.test_security import SETTINGS, acl, acls_of, create, node_of, shown
from tests.broker.groups.raw_group import RawGroup
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds
from tests.broker.security.test_quotas import alter as alter_quotas
from tests.broker.security.test_sasl import alter as alter_users
from tests.broker.security.test_sasl import upsertion
from tests.broker.transactions.transactional_client import TransactionalClient, committed_values, patiently

NONE = ErrorCode.none


def fill(path: Path) -> int:
    """Give a broker alone topics, records and offsets; return its last producer id."""
    with Broker(path) as broker, connected(broker.bootstrap_servers) as client:
        broker.create_topic("clicks", 2, configs={"retention.ms": "77"})
        broker.create_topic("deleted")
        assert client.produce("clicks", 1, batch_of(b"ann", b"ben")).error_code == NONE
        with RawGroup(broker.bootstrap_servers, "visitors") as group:
            assert group.commit("clicks", 7) == NONE
        client.ask(apis.DELETE_TOPICS, 1, topic_names=["deleted"], timeout=milliseconds(1000))
        return producer_id(client)


def producer_id(client: RawClient) -> int:
    response = client.ask(apis.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout=milliseconds(60_000))
    assert response.error_code == NONE
    return int(response.producer_id)


def check(broker: Broker, tree: Tree, path: Path, last_producer_id: int) -> None:
    with connected(broker.bootstrap_servers) as client:
        tree.await_that(lambda: client.fetch([("clicks", 1, 0)])[0].error_code == NONE)
        (fetched,) = client.fetch([("clicks", 1, 0)])
        assert fetched.high_watermark == 2
        assert client.produce("clicks", 0, batch_of(b"more")).error_code == NONE
        assert producer_id(client) > last_producer_id
    with RawGroup(broker.bootstrap_servers, "visitors") as group:
        tree.await_that(lambda: group.describe().error_code == NONE)
        assert group.offsets() == {("clicks", 0): (7, 0)}
        assert group.commit("clicks", 8) == NONE
    assert tree.json("/config/topics/clicks")["config"] == {"retention.ms": "77"}
    assert tree.children("/brokers/topics") == ["__consumer_offsets", "__transaction_state", "clicks"]
    assert not (path / "__cluster_metadata-0").exists()


def test_own_topics_move_to_a_cluster(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    last_producer_id = fill(tmp_path)
    with new_broker(tmp_path) as broker:
        check(broker, tree, tmp_path, last_producer_id)
    with (
        new_broker(tmp_path) as broker,
        RawGroup(broker.bootstrap_servers, "visitors") as group,
    ):
        tree.await_that(lambda: group.describe().error_code == NONE)
        assert group.offsets() == {("clicks", 0): (8, 0)}


def test_open_transaction_continues_in_a_cluster(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, connected(broker.bootstrap_servers) as client:
        broker.create_topic("clicks")
        alone = TransactionalClient(client, "visitors")
        alone.init_until_done()
        assert patiently(lambda: alone.add(("clicks", 0))) == NONE
        assert patiently(lambda: alone.produce("clicks", b"before")) == NONE
        assert patiently(lambda: alone.add_offsets("visitors")) == NONE
        assert patiently(lambda: alone.commit_offset("visitors", "clicks", 7)) == NONE
    with new_broker(tmp_path) as broker, connected(broker.bootstrap_servers) as client:
        moved = TransactionalClient(client, "visitors")
        moved.producer, moved.sequences = alone.producer, alone.sequences
        tree.await_that(lambda: client.fetch([("clicks", 0, 0)])[0].error_code == NONE)
        assert patiently(lambda: moved.produce("clicks", b"after")) == NONE
        assert patiently(lambda: moved.end(commit=True)) == NONE
        tree.await_that(lambda: committed_values(client, "clicks") == [b"before", b"after"])
        with RawGroup(broker.bootstrap_servers, "visitors") as group:
            tree.await_that(lambda: group.offsets() == {("clicks", 0): (7, 0)})


def fail_after(left: int, record: Any) -> Any:

    def fail(metadata: RegistryMetadata, records: list[MetadataRecord], **options: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("the power is cut")
        record(metadata, records, **options)

    return fail


def test_interrupted_move_is_completed(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    """Between two topics, then before the log is deleted."""
    last_producer_id = fill(tmp_path)
    record = fail_after(1, RegistryMetadata.record)
    cut = OSError("the power is cut")
    with patch.object(RegistryMetadata, "record", record), pytest.raises(OSError, match="the power is cut"):
        new_broker(tmp_path).start()
    with patch.object(TopicLogs, "delete_metadata", side_effect=cut), pytest.raises(OSError, match="the power is cut"):
        new_broker(tmp_path).start()
    with new_broker(tmp_path) as broker:
        check(broker, tree, tmp_path, last_producer_id)


def secure(path: Path) -> tuple[Any, Any, Any]:
    """Give a broker alone ACLs, a user and quotas; return them."""
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    with Broker(path, settings=settings) as broker, connected(broker.bootstrap_servers) as client:
        assert create(client, acl("visits", "User:ada"), acl("visits", "User:ben")) == [0, 0]
        assert alter_users(client, upsertions=[upsertion("ada")]) == {"ada": (0, None)}
        of_ada: list[tuple[str, str | None]] = [(USER, "ada")]
        for entity in (of_ada, [*of_ada, (CLIENT_ID, None)]):
            assert alter_quotas(client, entity, (PRODUCER_BYTE_RATE, 1000)) == (NONE, None)
        return security_of(broker)


def security_of(broker: Broker) -> tuple[Any, Any, Any]:
    node = node_of(broker)
    return acls_of(broker), dict(node.credentials.by_key), dict(node.throttling.quotas.by_entity)


@pytest.mark.parametrize("records_before_a_cut", [None, 3, 5, 6])
def test_security_moves_to_a_cluster(
    new_broker: NewBroker, tree: Tree, tmp_path: Path, records_before_a_cut: int | None
) -> None:
    """A cut leaves the first ACL, the user or its first quota in ZooKeeper; two topics are before them."""
    own = secure(tmp_path)
    if records_before_a_cut is not None:
        record = fail_after(records_before_a_cut, RegistryMetadata.record)
        with patch.object(RegistryMetadata, "record", record), pytest.raises(OSError, match="the power is cut"):
            new_broker(tmp_path, **SETTINGS).start()
    with new_broker(tmp_path, **SETTINGS) as broker:
        assert security_of(broker) == own
    assert sorted(tree.json("/kafka-acl/Topic/visits")["acls"], key=str) == [shown("User:ada"), shown("User:ben")]
    of_ada = tree.json("/config/users/ada")["config"]
    assert (of_ada.keys(), of_ada[PRODUCER_BYTE_RATE]) == ({"SCRAM-SHA-256", PRODUCER_BYTE_RATE}, "1000")
    assert tree.json("/config/users/ada/clients/<default>")["config"] == {PRODUCER_BYTE_RATE: "1000"}
    with new_broker(tmp_path, **SETTINGS) as broker:
        assert security_of(broker) == own


def test_acls_need_an_authorizer_to_move(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    secure(tmp_path)
    with pytest.raises(DataDirectoryRefused, match=r"its ACLs need authorizer\.class\.name"):
        new_broker(tmp_path).start()
    assert not tree.exists("/config/users/ada")
    assert (tmp_path / "__cluster_metadata-0").exists()


@pytest.mark.remedy(Remedy.OTHER_DATA)
def test_only_a_controller_moves_its_topics(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    with Broker(tmp_path / "own", settings={"node.id": "2"}) as broker:
        broker.create_topic("clicks")
    properties = dict(line.split("=") for line in (tmp_path / "own" / "meta.properties").read_text().splitlines())
    with (
        new_broker(tmp_path / "1", cluster_id=properties["cluster.id"]),
        pytest.raises(DataDirectoryRefused, match="another broker is the cluster's controller") as refused,
    ):
        new_broker(tmp_path / "own", broker_id=2).start()
    remedies.find(Remedy.OTHER_DATA, str(refused.value))
    assert not tree.exists("/brokers/topics/clicks")
