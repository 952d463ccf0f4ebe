"""ACLs in ZooKeeper that Apache Kafka 3.9 or Onceflow's broker creates: the other one enforces them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.client.admin import Admin
from onceflow.client.admin_responses import read_acl
from onceflow.client.requests import acl_filter
from onceflow.wire import apis
from onceflow.wire.acls import (
    CLUSTER_NAME,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    PatternType,
    ResourceType,
)
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.test_security import STRANGER, create, entry
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.raw_client import RawClient, batch_of, milliseconds
from tests.client.tls import Authority
from tests.compat.broker_certificates import Certificates
from tests.compat.mixed_cluster import BROKERS, KAFKA, Mixed, mixed_cluster
from tests.compat.secured_cluster import ANONYMOUS, INSIDE, LISTENERS, acls_at, allowed, with_certificates

ONCEFLOW = 1
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
WRITE, READ, ALL = AclOperation.WRITE, AclOperation.READ, AclOperation.ALL


class Administrator:
    """The brokers' user at one of the brokers."""

    def __init__(self, mixed: Mixed, authority: Authority, certificates: Certificates, broker_id: int) -> None:
        self.client = RawClient(mixed.addresses[broker_id][INSIDE], authority.client(certificates.broker))

    def create(self, *acls: AclBinding) -> None:
        assert create(self.client, *acls) == [0] * len(acls)

    def delete(self, acl: AclBinding) -> None:
        wanted = AclFilter(*acl.pattern, acl.principal, acl.host, acl.operation, acl.permission)
        (result,) = self.client.ask(apis.DELETE_ACLS, 3, filters=[acl_filter(wanted)]).filter_results
        assert [read_acl(matched, matched) for matched in result.matching_acls] == [acl], result

    def create_topic(self, name: str, leader: int) -> None:
        """Create a topic with one partition; only the controller does it."""
        wanted = {"name": name, "num_partitions": -1, "replication_factor": -1, "configs": []}
        assignments = [{"partition_index": 0, "broker_ids": [leader]}]
        topics = [{**wanted, "assignments": assignments}]
        response = self.client.ask(
            apis.CREATE_TOPICS, 4, topics=topics, timeout=milliseconds(30_000), validate_only=False
        )
        assert response.topics[0].error_code == 0, response


class Case:
    """A broker that changes ACLs, and another one that leads a topic, with a stranger that writes to it."""

    def __init__(self, mixed: Mixed, creator: Administrator, topic: str, leader: int) -> None:
        self.topic = topic
        self.creator = creator
        self._mixed = mixed
        self._stranger = RawClient(mixed.bootstraps[leader], source=STRANGER)

    def close(self) -> None:
        self._stranger.close()

    def acl(
        self,
        permission: AclPermission,
        operation: AclOperation,
        *,
        kind: PatternType = LITERAL,
        name: str = "",
        principal: str = ANONYMOUS,
        host: str = WILDCARD,
    ) -> AclBinding:
        """Return an ACL about the topic, or topics of another name."""
        pattern = AclPattern(ResourceType.TOPIC, name or self.topic, kind)
        return AclBinding(pattern, principal, host, operation, permission)

    def await_outcome(self, code: ErrorCode) -> None:
        """Wait until the stranger's records get this response, and all brokers know the same ACLs."""
        tree = self._mixed.tree
        tree.await_that(lambda: self._stranger.produce(self.topic, 0, batch_of(b"ann")).error_code == code)
        tree.await_that(lambda: len({frozenset(acls_at(self._mixed, broker_id)) for broker_id in BROKERS}) == 1)


@pytest.fixture
def mixed(zookeeper: ZooKeeperProcess, certificates: Certificates, tmp_path: Path) -> Iterator[Mixed]:
    tree = Tree(zookeeper.address, "/mixed")
    security = with_certificates(certificates)
    try:
        with mixed_cluster(tree, tmp_path, security.settings, LISTENERS) as running:
            running.await_controller()
            with security.connected(running) as cluster:
                listing = allowed(ResourceType.CLUSTER, CLUSTER_NAME, AclOperation.DESCRIBE)
                Admin(cluster).create_acls([listing])
            tree.await_that(lambda: all(acls_at(running, broker_id) == {listing} for broker_id in BROKERS))
            yield running
    finally:
        tree.close()


@pytest.mark.timeout(600)
def test_each_enforces_the_others_acls(mixed: Mixed, authority: Authority, certificates: Certificates) -> None:
    administrators = {
        broker_id: Administrator(mixed, authority, certificates, broker_id) for broker_id in (KAFKA, ONCEFLOW)
    }
    try:
        for creator, leader in ((KAFKA, ONCEFLOW), (ONCEFLOW, KAFKA)):
            topic = f"visits-by-{creator}"
            mixed.elect_controller(creator)
            administrators[creator].create_topic(topic, leader)
            case = Case(mixed, administrators[creator], topic, leader)
            try:
                check_literal(case)
                check_prefixed(case)
            finally:
                case.close()
        check_changes_at_once(mixed, list(administrators.values()))
    finally:
        for administrator in administrators.values():
            administrator.client.close()


def check_literal(case: Case) -> None:
    """Create, change and delete the node of a topic, and that of all topics."""
    case.await_outcome(ErrorCode.topic_authorization_failed)
    granted = case.acl(ALLOW, WRITE)
    denied = case.acl(DENY, ALL, principal=WILDCARD_PRINCIPAL, host=STRANGER)
    elsewhere = case.acl(DENY, WRITE, host="127.0.0.3")
    case.creator.create(granted)
    case.await_outcome(ErrorCode.none)
    case.creator.create(denied, elsewhere)
    case.await_outcome(ErrorCode.topic_authorization_failed)
    case.creator.delete(denied)
    case.await_outcome(ErrorCode.none)
    case.creator.delete(granted)
    case.await_outcome(ErrorCode.topic_authorization_failed)
    case.creator.delete(elsewhere)
    everywhere = case.acl(ALLOW, WRITE, name=WILDCARD)
    case.creator.create(everywhere)
    case.await_outcome(ErrorCode.none)
    case.creator.delete(everywhere)
    case.await_outcome(ErrorCode.topic_authorization_failed)


def check_prefixed(case: Case) -> None:
    granted = case.acl(ALLOW, ALL, kind=PREFIXED, name="visits-")
    other = case.acl(ALLOW, READ, kind=PREFIXED, name="visits-")
    denied = case.acl(DENY, WRITE, kind=PREFIXED, host=STRANGER)
    case.creator.create(granted, other)
    case.await_outcome(ErrorCode.none)
    case.creator.create(denied)
    case.await_outcome(ErrorCode.topic_authorization_failed)
    case.creator.delete(denied)
    case.await_outcome(ErrorCode.none)
    case.creator.delete(granted)
    case.await_outcome(ErrorCode.topic_authorization_failed)
    case.creator.delete(other)


def check_changes_at_once(mixed: Mixed, administrators: list[Administrator]) -> None:
    """Both add ACLs to one node, and none is lost."""
    pattern = AclPattern(ResourceType.GROUP, "app", LITERAL)
    acls = [AclBinding(pattern, f"User:{number}", WILDCARD, READ, ALLOW) for number in range(40)]
    clients = [administrators[number % 2].client for number in range(len(acls))]
    for client, acl in zip(clients, acls, strict=True):
        client.send(apis.CREATE_ACLS, 3, creations=[entry(acl)])
    for client in clients:
        assert client.receive(apis.CREATE_ACLS, 3).results[0].error_code == 0
    mixed.tree.await_that(lambda: all(set(acls) <= acls_at(mixed, broker_id) for broker_id in BROKERS))
    assert len(mixed.tree.json("/kafka-acl/Group/app")["acls"]) == len(acls)
