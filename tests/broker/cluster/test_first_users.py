"""`onceflow credential` with --zookeeper: the users of a cluster before its first start, as docs/security.md has it."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow import services
from onceflow.cli import onceflow
from onceflow.properties import parse_properties
from onceflow.remedies import Remedy
from tests import remedies
from tests.broker.cluster.configured_broker import ConfiguredBroker
from tests.broker.cluster.conftest import NewBroker, Tree
from tests.broker.cluster.test_security import node_of
from tests.cli.kafka.test_credentials import listed, run
from tests.client.tls import Authority

PAGE = Path(__file__).parents[3] / "docs" / "security.md"


def test_users_are_stored_as_kafkas_tool_does(tree: Tree) -> None:
    place = ("--zookeeper", tree.connect)
    remedies.find(Remedy.OTHER_CHROOT, run("list", *place).exception)
    assert run("add", "a da", *place, "--password-file", "-", given="hush\n").exit_code == 0
    assert run("add", "ben", *place, "--mechanism", "SCRAM-SHA-512", "--password-file", "-", given="x\n").exit_code == 0
    assert listed(*place) == [(user, name, 4096) for user, name in USERS]
    stored = tree.json("/config/users/a%20da")
    assert (stored["version"], stored["config"].keys()) == (1, {"SCRAM-SHA-256", "SCRAM-SHA-512"})
    form = r"salt=[\w+/=]+,stored_key=[\w+/=]+,server_key=[\w+/=]+,iterations=4096"
    assert all(re.fullmatch(form, value) for value in stored["config"].values())
    notices = [tree.json(f"/config/changes/{name}") for name in tree.children("/config/changes")]
    assert notices == [{"version": 2, "entity_path": f"users/{name}"} for name in ("a%20da", "ben")]
    assert run("remove", "a da", *place).exit_code == 0
    assert tree.children("/config/users") == ["ben"]
    assert "'a da' has no credential of SCRAM-SHA-256" in str(run("remove", "a da", *place).exception)
    refused = run("add", "..", *place, "--password-file", "-", given="x\n")
    assert "no user in ZooKeeper can have the name '..'" in str(refused.exception)


def test_a_wrong_port_is_refused_at_once(caplog: pytest.LogCaptureFixture) -> None:
    refused = run("list", "--zookeeper", f"127.0.0.1:{services.free_port()}/kafka")
    remedies.find(Remedy.START_ZOOKEEPER, refused.exception)
    assert "Connection refused" in str(refused.exception)
    assert not caplog.records


USERS = [("a da", "SCRAM-SHA-256"), ("a da", "SCRAM-SHA-512"), ("ben", "SCRAM-SHA-512")]


def test_running_brokers_follow(new_broker: NewBroker, tree: Tree) -> None:
    with new_broker() as broker:
        assert run("add", "ada", "--zookeeper", tree.connect, "--password-file", "-", given="x\n").exit_code == 0
        tree.await_that(lambda: len(node_of(broker).credentials.of_user("ada")) == 2)


def test_contradictions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("retention=1\n")
    file = ("--zookeeper-config", str(tmp_path / "server.properties"))
    for words, message in (
        (file, "--zookeeper-config has no effect without --zookeeper"),
        (("--zookeeper", "z:1", "--data", "d"), "specify either --data or --zookeeper"),
        (("--zookeeper", "z:1", *file), "retention is not a setting of this broker"),
    ):
        done = run("list", *words)
        assert (done.exit_code, message in done.output) == (2, True), done.output


def test_the_page_starts_a_cluster(tree: Tree, tmp_path: Path) -> None:
    """The brokers' first user is stored, and two brokers replicate with the page's settings."""
    section = PAGE.read_text().partition("\n## A cluster\n")[2].partition("\n## ")[0]
    (command,) = re.findall(r"```sh\nonceflow (.*)\n```", section)
    (properties,) = re.findall(r"```properties\n(.*?)```", section, re.DOTALL)
    password_file = tmp_path / "broker.password"
    password_file.touch(0o600)
    password_file.write_text("secret\n")
    given = {"zookeeper.internal:2181/kafka": tree.connect, password_file.name: str(password_file)}
    added = CliRunner().invoke(onceflow, [given.get(word, word) for word in shlex.split(command)])
    assert added.exit_code == 0, added.output
    authority = Authority(tmp_path)
    settings = {
        **parse_properties(properties),
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "ssl.keystore.location": str(authority.issue("127.0.0.1")),
        "ssl.truststore.location": str(authority.trusted),
        "zookeeper.connect": tree.connect,
        "controlled.shutdown.max.retries": "0",
    }
    del settings["advertised.listeners"]
    with (
        ConfiguredBroker(tmp_path / "1", {**settings, "broker.id": "1"}) as first,
        ConfiguredBroker(tmp_path / "2", {**settings, "broker.id": "2"}) as second,
    ):
        client: dict[str, Any] = {
            "bootstrap.servers": f"{first.addresses['OUTSIDE']},{second.addresses['OUTSIDE']}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority.trusted),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "broker",
            "sasl.password": "secret",
        }
        admin = AdminClient(client)
        tree.await_that(lambda: len(admin.list_topics(timeout=10).brokers) == 2)
        (created,) = admin.create_topics([NewTopic("visits", 1, 2, config={"min.insync.replicas": "2"})]).values()
        created.result(30)
        errors: list[object] = []
        producer = Producer(client)
        producer.produce("visits", b"ann", on_delivery=lambda error, _message: errors.append(error))
        assert producer.flush(60) == 0
        assert errors == [None]
