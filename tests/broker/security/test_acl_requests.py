"""ACL requests of real clients, their durability, and their effect on running clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from onceflow.testing import Broker, FaultyDisk
from onceflow.wire import acls, apis
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import InnerBroker
from tests.broker.raw_client import RawClient, batch_of, connected
from tests.conformance.guarded import SETTINGS, admit_admin, allow, creation, describing

SUPER = {"authorizer.class.name": SETTINGS["authorizer.class.name"], "super.users": "User:ANONYMOUS"}
CLIENT = "127.0.0.2"
WRITE, TOPIC = acls.AclOperation.WRITE, acls.ResourceType.TOPIC


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    """A broker on which everyone is a super user."""
    with Broker(settings=SUPER) as broker:
        yield broker


def confluent_acl(name: str, kind: ResourcePatternType, operation: AclOperation) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, name, kind, "User:ada", "*", operation, AclPermissionType.ALLOW)


def test_librdkafkas_admin_client(secured: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": secured.bootstrap_servers})
    literal = confluent_acl("rd-clicks", ResourcePatternType.LITERAL, AclOperation.READ)
    prefixed = confluent_acl("rd-", ResourcePatternType.PREFIXED, AclOperation.WRITE)
    for created in admin.create_acls([literal, prefixed]).values():
        created.result()
    anything: Any = None
    kinds = (ResourcePatternType.MATCH, anything, anything, AclOperation.ANY, AclPermissionType.ANY)
    matching = AclBindingFilter(ResourceType.TOPIC, "rd-clicks", *kinds)
    assert set(admin.describe_acls(matching).result()) == {literal, prefixed}
    (deleted,) = admin.delete_acls([matching]).values()
    assert set(deleted.result()) == {literal, prefixed}
    assert admin.describe_acls(matching).result() == []


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_kafka_pythons_admin_client(secured: Broker) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import ACL, ACLFilter, ResourcePattern, ResourcePatternFilter
    from kafka.admin import ACLOperation as Operation
    from kafka.admin import ACLPermissionType as Permission
    from kafka.admin import ResourceType as Kind

    admin = KafkaAdminClient(bootstrap_servers=secured.bootstrap_servers)
    pattern = ResourcePattern(Kind.GROUP, "kp-group")
    acl = ACL(
        principal="User:bob", host="10.0.0.1", operation=Operation.READ, permission_type=Permission.DENY,
        resource_pattern=pattern,
    )  # fmt: skip
    assert len(admin.create_acls([acl])["succeeded"]) == 1
    wanted = ACLFilter(
        principal="User:bob", host=None, operation=Operation.ANY, permission_type=Permission.ANY,
        resource_pattern=ResourcePatternFilter(Kind.GROUP, "kp-group", pattern.pattern_type),
    )  # fmt: skip
    assert admin.describe_acls(wanted)[0] == [acl]
    admin.delete_acls([wanted])
    assert admin.describe_acls(wanted)[0] == []
    admin.close()


def test_acls_without_authorizer_are_refused(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    acl = confluent_acl("x", ResourcePatternType.LITERAL, AclOperation.READ)
    for result in (*admin.create_acls([acl]).values(), *admin.delete_acls([as_filter(acl)]).values()):
        with pytest.raises(KafkaException, match="SECURITY_DISABLED"):
            result.result()
    with connected(bootstrap) as client:
        assert client.ask(apis.DESCRIBE_ACLS, 3, **describing()).error_code == ErrorCode.security_disabled


def as_filter(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )


def create(client: RawClient, *entries: dict[str, Any]) -> list[tuple[ErrorCode, str | None]]:
    response = client.ask(apis.CREATE_ACLS, 3, creations=entries)
    return [(ErrorCode(result.error_code), result.error_message) for result in response.results]


ENTRY = creation(allow(WRITE, TOPIC, "t"), "*", "User:ada")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"permission_type": 99}, "Invalid permissionType UNKNOWN"),
        ({"principal": "ada"}, "Could not parse principal from `ada`"),
    ],
)
def test_invalid_acls_are_refused_alone(secured: Broker, change: dict[str, Any], message: str) -> None:
    with connected(secured.bootstrap_servers) as client:
        valid, invalid = create(client, ENTRY, ENTRY | change)
    assert valid == (ErrorCode.none, "")
    assert invalid[0] == ErrorCode.invalid_request
    assert (invalid[1] or "").startswith(message)


@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
def test_code_of_unknown_closes_the_connection(secured: Broker, field: str) -> None:
    with connected(secured.bootstrap_servers) as client:
        client.send(apis.CREATE_ACLS, 3, creations=[ENTRY | {field: 0}])
        assert client.receive_frame() == b""


def listed(client: RawClient, **wanted: Any) -> set[tuple[Any, ...]]:
    response = client.ask(apis.DESCRIBE_ACLS, 3, **describing(**wanted))
    return {
        (resource.resource_name, acl.principal, acl.host, acl.operation, acl.permission_type)
        for resource in response.resources
        for acl in resource.acls
    }


def test_acknowledged_acls_survive_a_power_cut(tmp_path: Path) -> None:
    data = tmp_path / "disk"
    data.mkdir()
    settings: dict[str, Any] = {"authorizer_class": SUPER["authorizer.class.name"], "super_users": ("User:ANONYMOUS",)}
    with InnerBroker(data, disk=FaultyDisk(data), reserve_bytes=4096, **settings) as broker:
        with connected(broker.bootstrap) as client:
            create(client, ENTRY, ENTRY | {"principal": "User:bob"}, ENTRY | {"resource_name": "other"})
            client.ask(apis.DELETE_ACLS, 3, filters=[describing(principal_filter="User:bob")])
            before = listed(client)
        broker.power_cycle(1, drop_all=True)
        with connected(broker.bootstrap) as client:
            assert listed(client) == before == {(name, "User:ada", "*", 4, 3) for name in ("t", "other")}


def test_overlapping_filters_delete_once(secured: Broker) -> None:
    with connected(secured.bootstrap_servers) as client:
        create(client, ENTRY | {"resource_name": "twice"})
        wanted = describing(resource_type_filter=2, resource_name_filter="twice")
        response = client.ask(apis.DELETE_ACLS, 3, filters=[wanted, wanted, describing(operation=99)])
        assert [len(result.matching_acls) for result in response.filter_results] == [1, 1, 0]
        assert [result.error_code for result in response.filter_results] == [0, 0, ErrorCode.invalid_request]
        assert not listed(client, resource_name_filter="twice")


def test_a_known_producer_is_checked_again() -> None:
    """A Produce request of a form that was accepted before is refused once the permission is revoked."""
    with Broker(settings=SETTINGS) as broker:
        admit_admin(broker.bootstrap_servers)
        broker.create_topic("t", 2)
        with connected(broker.bootstrap_servers) as admin:
            producer = RawClient(broker.bootstrap_servers, source=CLIENT)
            codes = []
            create(admin, creation(allow(WRITE, TOPIC, "t"), CLIENT))
            for _ in range(3):
                codes.append(producer.produce("t", 0, batch_of(b"a")).error_code)
            admin.ask(apis.DELETE_ACLS, 3, filters=[describing(host_filter=CLIENT)])
            codes.append(producer.produce("t", 0, batch_of(b"a")).error_code)
            producer.close()
    refused = ErrorCode.topic_authorization_failed
    assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.none, refused]


def test_a_fetch_waits_beside_refused_topics() -> None:
    """Refused topics come last and do not end the wait for the others."""
    with Broker(settings=SETTINGS) as broker:
        admit_admin(broker.bootstrap_servers)
        broker.create_topic("allowed")
        broker.create_topic("other")
        with connected(broker.bootstrap_servers) as admin:
            create(admin, creation(allow(acls.AclOperation.READ, TOPIC, "allowed"), CLIENT))
            reader = RawClient(broker.bootstrap_servers, source=CLIENT)
            reader.send_fetch([("other", 0, 0), ("allowed", 0, 0)], wait_ms=10_000)
            admin.produce("allowed", 0, batch_of(b"a"))
            allowed, other = reader.receive_fetched()
            reader.close()
    assert (allowed.error_code, bool(allowed.records)) == (ErrorCode.none, True)
    assert (other.topic, other.error_code) == ("other", ErrorCode.topic_authorization_failed)
