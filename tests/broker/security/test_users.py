"""ACLs and quotas of authenticated users, as librdkafka sees them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from onceflow.broker.config import Endpoint, SecurityConfig
from onceflow.broker.settings.authorization import STANDARD_AUTHORIZER
from onceflow.wire import apis
from tests.broker.driven_broker import InnerBroker
from tests.broker.raw_client import RawClient, connected

PASSWORD = "not secret"
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InnerBroker]:
    """A broker on which the user admin may do everything."""
    passwords = {"admin": PASSWORD, "ada": PASSWORD}
    with InnerBroker(
        tmp_path / "data",
        listeners=(Endpoint(port=0, listener="SASL_PLAINTEXT"),),
        security=SecurityConfig(sasl_mechanisms=("PLAIN",), plain_passwords=passwords),
        authorizer_class=STANDARD_AUTHORIZER,
        super_users=("User:admin",),
    ) as running:
        yield running


def settings(broker: InnerBroker, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def produced(broker: InnerBroker, topic: str) -> Any:
    """Produce one record with a producer of ada's; return its error, which a producer remembers."""
    errors: list[Any] = []
    producer = Producer(settings(broker, "ada"))
    producer.produce(topic, b"v", on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(15) == 0
    return errors[0] if errors[0] is None else errors[0].code()


def allow(
    admin: AdminClient, kind: ResourceType, name: str, pattern: ResourcePatternType, *operations: AclOperation
) -> None:
    acls = [
        AclBinding(kind, name, pattern, "User:ada", "*", operation, AclPermissionType.ALLOW) for operation in operations
    ]
    for created in admin.create_acls(acls).values():
        created.result(15)


def test_a_user_may_do_what_acls_allow(broker: InnerBroker) -> None:
    admin = AdminClient(settings(broker, "admin"))
    for created in admin.create_topics([NewTopic("clicks", 1, 1), NewTopic("other", 1, 1)]).values():
        created.result(15)
    assert produced(broker, "clicks") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow(admin, ResourceType.TOPIC, "cli", PREFIXED, AclOperation.WRITE, AclOperation.READ)
    assert produced(broker, "clicks") is None
    assert produced(broker, "other") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert set(AdminClient(settings(broker, "ada")).list_topics(timeout=15).topics) == {"clicks"}
    allow(admin, ResourceType.GROUP, "g", LITERAL, AclOperation.READ)
    consumer = Consumer(settings(broker, "ada", group_id="g", auto_offset_reset="earliest"))
    consumer.subscribe(["clicks"])
    message = consumer.poll(15)
    assert message is not None
    assert message.value() == b"v"
    consumer.close()
    stranger = Consumer(settings(broker, "ada", group_id="h"))
    stranger.subscribe(["clicks"])
    refused = stranger.poll(15)
    assert refused is not None
    error = refused.error()
    assert error is not None
    assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    stranger.close()


def logged_in(broker: InnerBroker, user: str) -> RawClient:
    client = RawClient(broker.bootstrap)
    assert client.ask(apis.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == 0
    token = f"\0{user}\0{PASSWORD}".encode()
    assert client.ask(apis.SASL_AUTHENTICATE, 2, auth_bytes=token).error_code == 0
    return client


def test_a_quota_belongs_to_the_user(broker: InnerBroker) -> None:
    admin, ada = logged_in(broker, "admin"), logged_in(broker, "ada")
    entry = {
        "entity": [{"entity_type": "user", "entity_name": "ada"}],
        "ops": [{"key": "request_percentage", "value": 1e-9, "remove": False}],
    }
    for client, code in ((ada, KafkaError.CLUSTER_AUTHORIZATION_FAILED), (admin, 0)):
        response = client.ask(apis.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)
        assert response.entries[0].error_code == code
    for client, is_throttled in ((ada, True), (admin, False)):
        response = client.ask(apis.METADATA, 4, topics=(), allow_auto_topic_creation=False)
        assert bool(response.throttle_time) == is_throttled
        client.close()


def test_super_users_alone_may_begin(broker: InnerBroker) -> None:
    """Without an ACL nothing is allowed, not even to list the groups of others."""
    ada = logged_in(broker, "ada")
    assert ada.ask(apis.METADATA, 1, topics=None).topics == ()
    ada.close()
    with connected(broker.bootstrap) as stranger:
        stranger.send(apis.METADATA, 1, topics=None)
        assert stranger.receive_frame() == b""
