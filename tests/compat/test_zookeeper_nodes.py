"""The nodes in ZooKeeper after the same acts on Apache Kafka 3.9 and on Onceflow's broker, compared one by one."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_acl

from benchmarks import kafka
from onceflow import services
from onceflow.broker.security.client_quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from onceflow.broker.settings.authorization import ACL_AUTHORIZER
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.testing import Broker
from onceflow.wire import apis
from onceflow.wire.acls import AclOperation, AclPermission, PatternType, ResourceType
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.raw_client import RawClient, connected, milliseconds
from tests.broker.security.test_quotas import alter as alter_quotas
from tests.broker.security.test_sasl import alter as alter_users
from tests.broker.security.test_sasl import upsertion
from tests.compat.broker_certificates import PRINCIPAL, Certificates
from tests.compat.conftest import kafka_jars
from tests.conformance.guarded import creation, describing

VERSION = "3.9.1"
PROPERTIES = """\
broker.id=1
listeners={listeners}
zookeeper.connect={connect}
log.dirs={directory}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
authorizer.class.name={authorizer}
super.users=User:ANONYMOUS
"""

Nodes = dict[str, tuple[bool, Any, list[Any]]]
"""Path → whether it is ephemeral, its value and its ACL."""


class KafkaOnZooKeeper(kafka.KafkaProcess):
    """An Apache Kafka that stores its topics in ZooKeeper."""

    properties = PROPERTIES

    def __init__(
        self,
        directory: Path,
        classpath: Path,
        connect: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        listeners: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Configure a broker: `listeners` are further ports by the listener's name."""
        super().__init__(directory, classpath, settings, listeners=listeners)
        self._connect = connect

    def format(self) -> None:
        self.directory.mkdir(parents=True)
        text = self.properties.format(
            listeners=",".join(f"{name}://127.0.0.1:{port}" for name, port in self.listeners.items()),
            connect=self._connect,
            directory=self.directory / "data",
            authorizer=ACL_AUTHORIZER,
        )
        # Of two values for a name, the later one counts.
        more = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in self.settings.items()]
        self._properties.write_text(text + "".join(more))


def knows_brokers(bootstrap: str, count: int) -> bool:
    """Return whether the broker knows of `count` brokers, itself among them; before, Kafka refuses topics."""
    with connected(bootstrap) as client:
        return len(client.ask(apis.METADATA, 4, topics=[], allow_auto_topic_creation=False).brokers) == count


def act(bootstrap: str, tree: Tree) -> None:
    """Change topics, ACLs, users and quotas in every way."""
    tree.await_that(lambda: knows_brokers(bootstrap, 1))
    with Cluster(bootstrap) as cluster, connected(bootstrap) as client:
        cluster.create_topic("visits", 2, configs={"retention.ms": "7", "cleanup.policy": "compact"})
        cluster.create_topic("plain", 1)
        cluster.create_topic("deleted", 1)
        Admin(cluster).alter_topic_configs("visits", set={"retention.ms": "8"})
        Admin(cluster).create_partitions("visits", 3)
        client.ask(apis.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout=milliseconds(60_000))
        cluster.delete_topic("deleted")
        act_on_security(client)
        tree.await_that(lambda: not tree.exists("/admin/delete_topics/deleted"))
        tree.await_that(lambda: tree.exists("/brokers/topics/visits/partitions/2/state"))


def act_on_security(client: RawClient) -> None:
    """Change ACLs, users and quotas."""
    for of, name, kind in (
        (ResourceType.TOPIC, "visits", PatternType.LITERAL),
        (ResourceType.TOPIC, "gone", PatternType.LITERAL),
        (ResourceType.GROUP, "app-", PatternType.PREFIXED),
        (ResourceType.TRANSACTIONAL_ID, "*", PatternType.LITERAL),
        (ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL),
    ):
        grant = AclOperation.DESCRIBE_CONFIGS, of, name, kind, AclPermission.DENY
        (created,) = client.ask(apis.CREATE_ACLS, 3, creations=[creation(grant, "127.0.0.9", "User:ada")]).results
        assert not created.error_code, created
    client.ask(apis.DELETE_ACLS, 3, filters=[describing(resource_name_filter="gone", pattern_type_filter=3)])
    altered = alter_users(client, upsertions=[upsertion("a d*~é"), upsertion("gone")])
    altered |= alter_users(client, deletions=[{"name": "gone", "mechanism": 1}])
    assert not any(code for code, _message in altered.values())
    changes: list[tuple[list[tuple[str, str | None]], str, float | None]] = [
        ([(USER, "ben"), (CLIENT_ID, "app")], PRODUCER_BYTE_RATE, 1000),
        ([(USER, "a d*~é")], REQUEST_PERCENTAGE, 12.5),
        ([(USER, None)], CONTROLLER_MUTATION_RATE, 5),
        ([(USER, None), (CLIENT_ID, None)], CONSUMER_BYTE_RATE, 7),
        ([(CLIENT_ID, "a/b")], CONSUMER_BYTE_RATE, 2**40),
        ([(IP, "127.0.0.9")], CONNECTION_CREATION_RATE, 10),
        ([(CLIENT_ID, "gone")], CONSUMER_BYTE_RATE, 1),
        ([(CLIENT_ID, "gone")], CONSUMER_BYTE_RATE, None),
        ([(USER, "gone"), (CLIENT_ID, "gone")], CONSUMER_BYTE_RATE, 1),
        ([(USER, "gone"), (CLIENT_ID, "gone")], CONSUMER_BYTE_RATE, None),
    ]
    for entity, key, value in changes:
        code, message = alter_quotas(client, entity, (key, value))
        assert not code, message


def nodes_of(tree: Tree, port: int) -> Nodes:
    """Return the nodes without those of internal topics; ids, times and the port are replaced by words."""
    nodes: Nodes = {}
    paths = [""]
    while paths:
        path = paths.pop()
        value, stat = tree.client.get(tree.chroot + path)
        acl = sorted(tree.client.get_acls(tree.chroot + path)[0])
        nodes[path or "/"] = (stat.ephemeralOwner != 0, comparable((value or b"").decode(), port), acl)
        paths += [f"{path}/{name}" for name in tree.children(path) if not name.startswith("__")]
    return nodes


def comparable(text: str, port: int) -> Any:
    for pattern, word in (
        (r'"timestamp":"\d+"', '"timestamp":"TIME"'),
        (r'"(topic_id|id)":"[\w-]{22}"', r'"\1":"ID"'),
        (rf"\b{port}\b", "1"),
    ):
        text = re.sub(pattern, word, text)
    return json.loads(text) if text.startswith("{") else text


def compare(theirs: Tree, ours: Tree, directory: Path, more: Mapping[str, str] = MappingProxyType({})) -> Nodes:
    """Return the nodes after the acts, which are the same on both brokers."""
    with KafkaOnZooKeeper(directory / "kafka", kafka_jars(VERSION), theirs.connect, more) as running:
        act(running.bootstrap, theirs)
        expected = nodes_of(theirs, running.port)
    settings = {
        "zookeeper.connect": ours.connect,
        "authorizer.class.name": ACL_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        **more,
    }
    with Broker(settings=settings, port=services.free_port()) as broker:
        act(broker.bootstrap_servers, ours)
        shown = nodes_of(ours, int(broker.bootstrap_servers.rpartition(":")[2]))
    assert shown == expected
    return shown


def test_nodes_are_those_of_kafka(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    trees = [Tree(zookeeper.address, chroot) for chroot in ("/theirs", "/ours")]
    try:
        nodes = compare(trees[0], trees[1], tmp_path)
    finally:
        for tree in trees:
            tree.close()
    assert all(acl == OPEN_ACL_UNSAFE for _is_ephemeral, _value, acl in nodes.values())


def test_secured_nodes_are_those_of_kafka(secured_address: str, certificates: Certificates, tmp_path: Path) -> None:
    """Compare the ACLs that zookeeper.set.acl gives the nodes."""
    trees = [Tree(secured_address, chroot, **certificates.kazoo) for chroot in ("/theirs", "/ours")]
    try:
        nodes = compare(trees[0], trees[1], tmp_path, {**certificates.zookeeper_settings, "zookeeper.set.acl": "true"})
    finally:
        for tree in trees:
            tree.close()
    acls = {path: acl for path, (_is_ephemeral, _value, acl) in nodes.items()}
    assert acls["/consumers"] == OPEN_ACL_UNSAFE
    owner = make_acl("x509", PRINCIPAL.removeprefix("User:"), all=True)
    assert acls["/config/users/ben/clients/app"] == [owner]
    assert set(acls["/kafka-acl/Topic/visits"]) == {owner, *READ_ACL_UNSAFE}
