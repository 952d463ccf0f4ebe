"""`onceflow acl`, against a broker with an authorizer."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.remedies import Remedy
from onceflow.testing import Broker
from tests import remedies

Run = Callable[..., subprocess.CompletedProcess[str]]
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ada" password="secret";'


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker(settings=SETTINGS) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def acl(run: Run, address: str) -> Iterator[Run]:
    """A function that runs `onceflow acl` there; all ACLs are removed afterwards."""

    def run_acl(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return run("acl", *words, "--bootstrap", address, stdin=stdin)

    yield run_acl
    assert run_acl("remove", "--all", "--yes").returncode == 0


def shown(acl: Run, *words: str) -> list[tuple[str, ...]]:
    names = ("principal", "permission", "operation", "resource_type", "resource_name", "pattern_type")
    return [tuple(row[name] for name in names) for row in json.loads(acl("list", *words, "--json").stdout)]


def test_acls_are_added_listed_removed(acl: Run) -> None:
    read = ("--principal", "User:ada", "--operation", "read", "--topic", "clicks", "--group", "counters")
    assert acl("add", *read).stdout == "added 2 ACLs\n"
    assert acl("add", *read).returncode == 0
    assert acl("add", "--principal", "User:eve", "--topic", "cli", "--prefixed", "--deny").stdout == "added 1 ACL\n"
    ada = [
        ("User:ada", "Allow", "Read", "Group", "counters", "Literal"),
        ("User:ada", "Allow", "Read", "Topic", "clicks", "Literal"),
    ]
    eve = ("User:eve", "Deny", "All", "Topic", "cli", "Prefixed")
    assert sorted(shown(acl)) == sorted([*ada, eve])
    assert shown(acl, "--topic", "clicks") == [ada[1]]
    assert sorted(shown(acl, "--topic", "clicks", "--matching")) == [ada[1], eve]
    assert "User:eve" in acl("list").stdout
    assert acl("remove", "--principal", "User:ada", "--yes").stdout == "removed 2 ACLs\n"
    assert shown(acl) == [eve]


def test_removal_asks_first(acl: Run) -> None:
    acl("add", "--principal", "User:ada", "--cluster")
    declined = acl("remove", "--cluster", stdin="n\n")
    assert "Remove 1 ACL at" in declined.stderr
    assert "nothing was removed" in declined.stderr
    assert shown(acl) == [("User:ada", "Allow", "All", "Cluster", "kafka-cluster", "Literal")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "--principal", "User:ada"), "no resource is named"),
        (("add", "--principal", "ada", "--cluster"), "'ada' is not TYPE:NAME"),
        (("add", "--principal", "User:ada", "--cluster", "--operation", "Reed"), "'Reed' is not one of"),
        (("remove",), "specify which ACLs to remove"),
        (("remove", "--all", "--cluster"), "specify which ACLs to remove"),
    ],
)
def test_wrong_options_are_refused(acl: Run, words: tuple[str, ...], message: str) -> None:
    refused = acl(*words)
    assert refused.returncode == 2
    assert message in refused.stderr


def test_a_refusal_has_the_brokers_reason(acl: Run, run: Run, broker: object) -> None:
    refused = acl("add", "--principal", "User:ada", "--topic", "")
    assert (refused.returncode, "INVALID_REQUEST (Invalid empty resource name)" in refused.stderr) == (1, True)
    disabled = run("acl", "list")
    assert (disabled.returncode, "SECURITY_DISABLED" in disabled.stderr) == (1, True)


@pytest.mark.remedy(Remedy.ALLOW_IT)
def test_a_refused_user_is_allowed(run: Run, tmp_path: Path) -> None:
    with Broker(users={"ada": "secret"}, acls=["ada Alter cluster"]) as broker:
        broker.create_topic("visits")
        file = tmp_path / "ada.conf"
        file.touch(0o600)
        file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={JAAS}\n")

        def as_ada(*command: str) -> subprocess.CompletedProcess[str]:
            return run("--config-file", str(file), *command, "--bootstrap", broker.bootstrap_servers)

        refused = as_ada("consume", "visits", "--exit-at-end")
        assert refused.returncode == 1
        assert "TOPIC_AUTHORIZATION_FAILED" in refused.stderr
        remedies.find(Remedy.ALLOW_IT, refused.stderr)
        added = as_ada("acl", "add", "--principal", "User:ada", "--operation", "Read", "--topic", "visits")
        assert added.stdout == "added 1 ACL\n", added.stderr
        assert as_ada("consume", "visits", "--exit-at-end").returncode == 0
