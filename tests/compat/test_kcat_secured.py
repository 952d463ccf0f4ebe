"""kcat with TLS and each SASL mechanism: good and bad logins, ACLs."""

import json
import subprocess
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.compat.conftest import tool
from tests.compat.secured_broker import SecuredBroker

PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ADMIN = "SCRAM-SHA-512"


def settings(secured: SecuredBroker, mechanism: str, user: str = "ada", *, is_wrong: bool = False) -> dict[str, str]:
    """Return librdkafka's settings of a user."""
    given: dict[str, Any] = json.loads(secured.client(mechanism, user, is_wrong=is_wrong))
    return {
        "bootstrap.servers": secured.broker.bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": given["trusted"],
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": given["secret"],
    }


def command(login: dict[str, str], *arguments: str) -> list[str]:
    words = [word for name, value in login.items() for word in ("-X", f"{name}={value}")]
    return [tool("kcat", "apt install kcat"), *words, *arguments]


def kcat(login: dict[str, str], *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    words = command(login, *arguments)
    return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=90, check=False)


def create(secured: SecuredBroker, topic: str) -> AdminClient:
    admin = AdminClient({**settings(secured, ADMIN)})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    return admin


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_a_round_trip(secured: SecuredBroker, topic: str, mechanism: str) -> None:
    """Metadata, two records, read by offset and by a group, and an offset by time."""
    login = settings(secured, mechanism)
    create(secured, topic)
    assert f'topic "{topic}" with 1 partitions' in kcat(login, "-L").stdout
    written = kcat(login, "-P", "-t", topic, stdin="one\ntwo\n")
    assert written.returncode == 0, written.stderr
    assert kcat(login, "-C", "-t", topic, "-o", "beginning", "-e", "-q").stdout == "one\ntwo\n"
    group = ("-G", topic, "-X", "auto.offset.reset=earliest", "-c", "2", "-q", topic)
    assert kcat(login, *group).stdout == "one\ntwo\n"
    assert kcat(login, "-Q", "-t", f"{topic}:0:-1").stdout == f"{topic} [0] offset 2\n"


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_a_wrong_login_is_refused(secured: SecuredBroker, mechanism: str) -> None:
    refused = kcat(settings(secured, mechanism, is_wrong=True), "-L")
    assert refused.returncode == 1
    assert "SASL authentication error: Authentication failed" in refused.stderr


def test_an_unsigned_token_is_refused(secured: SecuredBroker) -> None:
    """kcat can be given no token: it can only write unsigned ones itself."""
    login = settings(secured, "OAUTHBEARER")
    login |= {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": "principal=ada"}
    refused = kcat(login, "-L")
    assert refused.returncode == 1
    assert "invalid_token" in refused.stderr


def test_an_unknown_authority_is_refused(secured: SecuredBroker) -> None:
    """Without the broker's authority kcat ends the handshake."""
    login = settings(secured, "PLAIN")
    del login["ssl.ca.location"]
    refused = kcat(login, "-L")
    assert refused.returncode == 1
    assert "certificate verify failed" in refused.stderr


def test_acls(secured: SecuredBroker, topic: str) -> None:
    """Everything is denied without ACLs; with two of them a group reads, and writing stays denied."""
    eve = settings(secured, "SCRAM-SHA-256", "eve")
    admin = create(secured, topic)
    assert kcat(settings(secured, ADMIN), "-P", "-t", topic, stdin="one\n").returncode == 0
    group = ("-G", topic, "-X", "auto.offset.reset=earliest", "-c", "1", "-q", topic)
    read, write = ("-C", "-t", topic, "-o", "beginning", "-c", "1", "-q"), ("-P", "-t", topic)
    for words, denied in ((read, "Topic"), (write, "Topic"), (group, "Group")):
        refused = kcat(eve, *words, stdin="two\n")
        assert refused.returncode == 1, words
        assert f"{denied} authorization failed" in refused.stderr
        assert refused.stdout == ""
    assert topic not in kcat(eve, "-L").stdout
    allowed = [
        AclBinding(
            kind, topic, ResourcePatternType.LITERAL, "User:eve", "*", AclOperation.READ, AclPermissionType.ALLOW
        )
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    for created in admin.create_acls(allowed).values():
        created.result(30)
    assert kcat(eve, *read).stdout == "one\n"
    assert kcat(eve, *group).stdout == "one\n"
    refused = kcat(eve, *write, stdin="two\n")
    assert refused.returncode == 1
    assert "Topic authorization failed" in refused.stderr
