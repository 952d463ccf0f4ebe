"""ACLs, users and quotas of a cluster: nodes in ZooKeeper, changed at one broker and followed by the others."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.cluster import security_nodes
from onceflow.broker.node import Node
from onceflow.broker.security.client_quotas import CLIENT_ID, CONSUMER_BYTE_RATE, IP, PRODUCER_BYTE_RATE, USER
from onceflow.broker.settings.authorization import ACL_AUTHORIZER
from onceflow.testing import Broker
from onceflow.wire import apis, fetch
from onceflow.wire.acls import AclBinding, AclOperation, AclPattern, AclPermission, PatternType, ResourceType
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.conftest import Brokers, NewBroker, Tree
from tests.broker.cluster.link import Link
from tests.broker.raw_client import FETCH_VERSION, RawClient, batch_of, connected, fetch_request
from tests.broker.security.test_quotas import alter as alter_quotas
from tests.broker.security.test_sasl import alter as alter_users
from tests.broker.security.test_sasl import upsertion
from tests.conformance.guarded import allow, creation, describing

SETTINGS = {"authorizer_class_name": ACL_AUTHORIZER, "allow_everyone_if_no_acl_found": "true"}
STRANGER = "127.0.0.2"
"""Address of a client that ACLs are about; brokers and other clients are at another one."""
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def node_of(broker: Broker) -> Node:
    assert broker._run is not None and broker._run._server is not None
    return broker._run._server.node


@pytest.fixture
def pair(new_broker: NewBroker, tmp_path: Path) -> Iterator[Brokers]:
    """Broker 1, the controller, and broker 2."""
    opened = Brokers(new_broker, tmp_path)
    try:
        for broker_id in (1, 2):
            opened.start(broker_id, **SETTINGS)
        opened.await_controller(2)
        yield opened
    finally:
        for broker in opened.running.values():
            broker.stop()


def acl(name: str, principal: str, kind: PatternType = LITERAL) -> AclBinding:
    pattern = AclPattern(ResourceType.TOPIC, name, kind)
    return AclBinding(pattern, principal, "*", AclOperation.READ, AclPermission.ALLOW)


def acls_of(broker: Broker) -> set[AclBinding]:
    return set(node_of(broker).acls.by_id.values())


def entry(wanted: AclBinding) -> dict[str, Any]:
    """Return an entry of CreateAcls."""
    (resource_type, name, kind), principal, host, operation, permission = wanted
    return creation((operation, resource_type, name, kind, permission), host, principal)


def create(client: RawClient, *wanted: AclBinding) -> list[int]:
    response = client.ask(apis.CREATE_ACLS, 3, creations=[entry(binding) for binding in wanted])
    return [result.error_code for result in response.results]


def shown(principal: str) -> dict[str, str]:
    return {"principal": principal, "permissionType": "Allow", "operation": "Read", "host": "*"}


def notify(tree: Tree, directory: str, value: str) -> None:
    tree.client.create(f"{tree.chroot}{directory}", value.encode(), sequence=True)


def test_acls_hold_on_every_broker(pair: Brokers, tree: Tree) -> None:
    wanted = [acl("visits", "User:ada"), acl("visits", "User:ben"), acl("vis", "User:cat", PREFIXED)]
    first, second = pair.running.values()
    with connected(second.bootstrap_servers) as client:
        assert create(client, *wanted) == [0, 0, 0]
    tree.await_that(lambda: acls_of(first) == acls_of(second) == set(wanted))
    assert tree.json("/kafka-acl/Topic/visits") == {"version": 1, "acls": [shown("User:ada"), shown("User:ben")]}
    assert tree.json("/kafka-acl-extended/prefixed/Topic/vis") == {"version": 1, "acls": [shown("User:cat")]}
    assert tree.text("/kafka-acl-changes/acl_changes_0000000000") == "TOPIC:visits"
    third = pair.start(3, **SETTINGS)
    assert acls_of(third) == set(wanted)
    with connected(first.bootstrap_servers) as client:
        client.ask(apis.DELETE_ACLS, 3, filters=[describing(principal_filter="User:cat")])
        client.ask(apis.DELETE_ACLS, 3, filters=[describing(principal_filter="User:ben")])
    tree.await_that(lambda: acls_of(second) == acls_of(third) == {wanted[0]})
    assert tree.json("/kafka-acl/Topic/visits") == {"version": 1, "acls": [shown("User:ada")]}
    assert tree.children("/kafka-acl-extended/prefixed/Topic") == []


def test_an_acl_denies_on_the_other_broker(pair: Brokers, tree: Tree) -> None:
    pair.create("visits", 1)
    leader = pair.running[pair.leaders("visits", 1)[0]]
    other = next(broker for broker in pair.running.values() if broker is not leader)
    stranger = RawClient(leader.bootstrap_servers, source=STRANGER)
    try:
        tree.await_that(lambda: stranger.produce("visits", 0, batch_of(b"ann")).error_code == ErrorCode.none)
        everyone = acl("visits", "User:*")._replace(permission=AclPermission.DENY, operation=AclOperation.WRITE)
        with connected(other.bootstrap_servers) as client:
            assert create(client, everyone._replace(host=STRANGER)) == [0]
        tree.await_that(lambda: bool(acls_of(leader)))
        denied = stranger.produce("visits", 0, batch_of(b"ben"))
        assert denied.error_code == ErrorCode.topic_authorization_failed
    finally:
        stranger.close()


def test_brokers_add_acls_to_one_node(pair: Brokers, tree: Tree) -> None:
    """Each merges its own with those of the other, which it does not know yet."""
    clients = [RawClient(broker.bootstrap_servers) for broker in pair.running.values()]
    wanted = [acl("visits", f"User:{number}") for number in range(20)]
    try:
        for number, binding in enumerate(wanted):
            client = clients[number % 2]
            client.send(apis.CREATE_ACLS, 3, creations=[entry(binding)])
        for number in range(20):
            assert clients[number % 2].receive(apis.CREATE_ACLS, 3).results[0].error_code == 0
    finally:
        for client in clients:
            client.close()
    assert len(tree.json("/kafka-acl/Topic/visits")["acls"]) == 20
    tree.await_that(lambda: all(acls_of(broker) == set(wanted) for broker in pair.running.values()))


def test_acls_of_tools_are_followed(pair: Brokers, tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    first, second = pair.running.values()
    tree.write("/kafka-acl/Topic/visits", json.dumps({"version": 1, "acls": [shown("User:ada")]}))
    notify(tree, "/kafka-acl-changes/acl_changes_", "Topic:visits")
    tree.await_that(lambda: acls_of(first) == acls_of(second) == {acl("visits", "User:ada")})
    tree.write("/kafka-acl/Topic/visits", json.dumps({"acls": [{**shown("User:ada"), "operation": "Fly"}]}))
    notify(tree, "/kafka-acl-changes/acl_changes_", "Topic:visits")
    notify(tree, "/kafka-acl-changes/acl_changes_", "Plane:visits")
    tree.await_that(lambda: "Plane" in caplog.text and caplog.text.count("'fly' is not an operation") >= 2)
    assert acls_of(first) == acls_of(second) == {acl("visits", "User:ada")}
    with connected(second.bootstrap_servers) as client:
        assert create(client, acl("visits", "User:ben")) == [0]
    assert tree.json("/kafka-acl/Topic/visits")["acls"] == [shown("User:ada"), shown("User:ben")]


def test_names_of_nodes_are_checked(new_broker: NewBroker, tree: Tree) -> None:
    with new_broker(**SETTINGS) as broker, connected(broker.bootstrap_servers) as client:
        for name in ("a/b", "..", ".", "a\0b"):
            group = allow(AclOperation.READ, ResourceType.GROUP, name)
            (refused,) = client.ask(apis.CREATE_ACLS, 3, creations=[creation(group, "*")]).results
            assert (refused.error_code, refused.error_message) == (ErrorCode.invalid_request, "Failed to create ACL")
            is_path = name in (".", "..")
            (code, _message) = alter_users(client, upsertions=[upsertion(name)])[name]
            assert code == (ErrorCode.unacceptable_credential if is_path else ErrorCode.none)
            (code, _message) = alter_quotas(client, [(CLIENT_ID, name)], (PRODUCER_BYTE_RATE, 1))
            assert code == (ErrorCode.invalid_request if is_path else ErrorCode.none)
        assert tree.children("/kafka-acl/Group") == []
        assert tree.children("/config/users") == tree.children("/config/clients") == ["a%00b", "a%2Fb"]


def test_too_many_acls_are_refused(new_broker: NewBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_nodes, "VALUE_BYTES_MAX", 250)
    with new_broker(**SETTINGS) as broker, connected(broker.bootstrap_servers) as client:
        assert create(client, acl("visits", "User:ada"), acl("visits", "User:ben")) == [0, 0]
        assert create(client, acl("visits", "User:cat")) == [ErrorCode.policy_violation]
        assert len(acls_of(broker)) == 2


def test_users_are_changed_by_the_controller(pair: Brokers, tree: Tree) -> None:
    first, second = pair.running.values()
    with connected(second.bootstrap_servers) as client:
        assert alter_users(client, upsertions=[upsertion("ada")])["ada"][0] == ErrorCode.not_controller
    with connected(first.bootstrap_servers) as client:
        assert alter_users(client, upsertions=[upsertion("a da"), upsertion("ben")]) == {
            "a da": (0, None),
            "ben": (0, None),
        }
        tree.await_that(lambda: len(node_of(second).credentials.by_key) == 2)
        assert node_of(second).credentials.by_key == node_of(first).credentials.by_key
        stored = tree.json("/config/users/a%20da")["config"]["SCRAM-SHA-256"]
        assert stored.startswith("salt=") and stored.endswith(",iterations=4096")
        assert alter_users(client, deletions=[{"name": "a da", "mechanism": 1}]) == {"a da": (0, None)}
    tree.await_that(lambda: len(node_of(second).credentials.by_key) == 1)
    assert tree.children("/config/users") == ["ben"]


def test_users_of_tools_are_followed(pair: Brokers, tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    _first, second = pair.running.values()
    secret = "c2VjcmV0"
    good = f"salt={secret},stored_key={secret},server_key={secret},iterations=4096"
    tree.write("/config/users/ada", json.dumps({"version": 1, "config": {"SCRAM-SHA-512": good}}))
    notify(tree, "/config/changes/config_change_", json.dumps({"version": 2, "entity_path": "users/ada"}))
    tree.await_that(lambda: bool(node_of(second).credentials.of_user("ada")))
    assert node_of(second).credentials.of_user("ada")[2].stored_key == b"secret"
    tree.write("/config/users/ben", json.dumps({"version": 1, "config": {"SCRAM-SHA-512": good[5:]}}))
    notify(tree, "/config/changes/config_change_", json.dumps({"version": 2, "entity_path": "users/ben"}))
    tree.await_that(lambda: "its credential of SCRAM-SHA-512 is damaged" in caplog.text)
    assert secret not in caplog.text


def test_quotas_hold_on_every_broker(pair: Brokers, tree: Tree) -> None:
    first, second = pair.running.values()
    of_both: list[tuple[str, str | None]] = [(USER, "ada"), (CLIENT_ID, "app")]
    entities: list[tuple[list[tuple[str, str | None]], str, str]] = [
        (of_both, "/config/users/ada/clients/app", PRODUCER_BYTE_RATE),
        ([(USER, None)], "/config/users/<default>", CONSUMER_BYTE_RATE),
        ([(CLIENT_ID, "a/b")], "/config/clients/a%2Fb", CONSUMER_BYTE_RATE),
        ([(IP, "127.0.0.9")], "/config/ips/127.0.0.9", "connection_creation_rate"),
    ]
    with connected(second.bootstrap_servers) as client:
        for entity, _path, key in entities:
            assert alter_quotas(client, entity, (key, 1000)) == (ErrorCode.none, None)
    quotas = {frozenset(entity): {key: 1000.0} for entity, _path, key in entities}
    tree.await_that(lambda: node_of(first).throttling.quotas.by_entity == quotas)
    for _entity, path, key in entities:
        assert tree.json(path) == {"version": 1, "config": {key: "1000"}}
    with connected(first.bootstrap_servers) as client:
        assert alter_quotas(client, of_both, (PRODUCER_BYTE_RATE, None)) == (ErrorCode.none, None)
    tree.await_that(lambda: frozenset(of_both) not in node_of(second).throttling.quotas.by_entity)
    assert tree.children("/config/users") == ["<default>"]


def test_a_new_session_reads_everything(new_broker: NewBroker, tree: Tree, link: Link) -> None:
    settings = {"zookeeper_connect": f"{link.address}{tree.chroot}", "zookeeper_session_timeout_ms": 500}
    with new_broker(**SETTINGS, **settings) as broker:
        with connected(broker.bootstrap_servers) as client:
            assert create(client, acl("visits", "User:ada")) == [0]
            assert alter_users(client, upsertions=[upsertion("ada")]) == {"ada": (0, None)}
        link.cut()
        tree.await_that(lambda: not tree.exists("/controller"))
        tree.delete("/kafka-acl/Topic/visits")
        tree.delete("/config/users/ada")
        tree.write("/kafka-acl/Topic/clicks", json.dumps({"version": 1, "acls": [shown("User:ben")]}))
        link.open()
        tree.await_that(lambda: acls_of(broker) == {acl("clicks", "User:ben")})
        assert not node_of(broker).credentials.by_key


def check_refusals(stranger: RawClient) -> None:
    """Send every request of a broker to another one; none is allowed."""
    controller = {"controller_id": 1, "controller_epoch": 1, "broker_epoch": -1}
    requests: dict[tuple[int, int], dict[str, Any]] = {
        (apis.LEADER_AND_ISR, 7): {**controller, "type": 0, "topic_states": [], "live_leaders": []},
        (apis.UPDATE_METADATA, 8): {**controller, "topic_states": [], "live_brokers": []},
        (apis.STOP_REPLICA, 4): {**controller, "topic_states": []},
        (apis.ALTER_PARTITION, 3): {"broker_id": 2, "broker_epoch": -1, "topics": []},
        (apis.CONTROLLED_SHUTDOWN, 3): {"broker_id": 2, "broker_epoch": -1},
        (apis.ALLOCATE_PRODUCER_IDS, 0): {"broker_id": 2, "broker_epoch": -1},
        (apis.ADD_PARTITIONS_TO_TXN, 4): {"transactions": []},
    }
    assert {api_key for api_key, _version in requests} >= apis.INTER_BROKER_APIS.keys()
    for (api_key, version), fields in requests.items():
        refused = stranger.ask(api_key, version, **fields)
        assert refused.error_code == ErrorCode.cluster_authorization_failed, api_key
    following = fetch_request([("visits", 0, 0)])._replace(replica_id=2)
    stranger.socket.sendall(fetch.encode_request(FETCH_VERSION, 0, "stranger", following))
    (fetched,) = stranger.receive_fetched()
    assert fetched.error_code == ErrorCode.topic_authorization_failed


def test_strangers_may_not_send_brokers_requests(pair: Brokers) -> None:
    """Each needs ClusterAction, which the other broker and the controller have."""
    with connected(pair.running[1].bootstrap_servers) as client:
        cluster = (AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster", LITERAL, AclPermission.ALLOW)
        entries = [creation(cluster, "127.0.0.1"), creation(cluster, STRANGER, "User:ada")]
        assert [result.error_code for result in client.ask(apis.CREATE_ACLS, 3, creations=entries).results] == [0, 0]
    stranger = RawClient(pair.running[1].bootstrap_servers, source=STRANGER)
    try:
        check_refusals(stranger)
    finally:
        stranger.close()
    pair.create("visits", 2, 2)
