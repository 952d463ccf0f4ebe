"""Commands against a Kafka behind TLS, with settings from -X or the configuration file, and invalid settings.

SASL is tested with Apache Kafka (tests/compat/test_security.py).
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.client.addresses import Address
from onceflow.client.librdkafka import librdkafka_settings
from onceflow.client.security import read_security
from onceflow.testing import BrokerProcess
from tests.client.tls import Authority, TlsListener

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def behind_tls(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that requires TLS and client certificates."""
    with (
        TlsListener(authority.server(asks_for_certificates=True)) as listener,
        BrokerProcess(tmp_path_factory.mktemp("secured"), 0, "--advertise", str(listener.address)) as running,
    ):
        listener.upstream = Address("127.0.0.1", running.port)
        yield str(listener.address)


@pytest.fixture(scope="module")
def settings(authority: Authority) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(authority.trusted),
        "ssl.keystore.location": str(authority.issue("ada@example.test")),
    }


@pytest.fixture
def secured(run: Run, behind_tls: str, settings: dict[str, str]) -> Run:
    """Run a command with -X for each setting; it must succeed."""

    def run_secured(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        given = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        ended = run(*words, "--bootstrap", behind_tls, *given, stdin=stdin)
        assert ended.returncode == 0, ended
        return ended

    return run_secured


def test_topics_records_and_settings_through_tls(secured: Run, topic: str) -> None:
    secured("topic", "create", topic, "--partitions", "2")
    assert "1 record acknowledged" in secured("produce", topic, stdin="hello\n").stderr
    assert secured("consume", topic, "--exit-at-end").stdout == "hello\n"
    secured("config", "set", topic, "retention.ms=3600000")
    assert "3600000" in secured("config", "topic", topic).stdout
    assert topic in secured("topic", "list").stdout


def test_groups_and_transactions_through_tls(secured: Run, topic: str) -> None:
    secured("topic", "create", topic)
    secured("group", "reset", topic, "--topic", topic, "--to-earliest", "--execute")
    assert json.loads(secured("group", "describe", topic, "--json").stdout)["partitions"][0]["committed"] == 0
    assert secured("transaction", "list", "--json").stdout == "[]\n"


def test_events_through_tls(secured: Run, topic: str, tmp_path: Path) -> None:
    written = json.loads(secured("generate", "--topic", topic, "--count", "3", "--interval-ms", "0", "--json").stdout)
    assert written == {"topic": topic, "sent": 3, "complete": True}
    log = tmp_path / "clicks.jsonl"
    log.write_text('{"uid": "ada", "event_time": 1, "os_type": "x", "click_count": 2}\n')
    rejects = ("--rejects", str(tmp_path / "rejects.jsonl"))
    assert json.loads(secured("replay", str(log), "--topic", topic, "--json", *rejects).stdout)["sent"] == 1
    assert len(secured("consume", topic, "--exit-at-end").stdout.splitlines()) == 4


def test_options_override_the_security_file(
    run: Run, behind_tls: str, settings: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    lines = [f"{name}={value}\n" for name, value in (settings | {"ssl.truststore.location": "/nowhere"}).items()]
    file.write_text("".join(lines))
    words = ("--config-file", str(file), "topic", "list", "--bootstrap", behind_tls)
    wrong = run(*words)
    assert (wrong.returncode, "ssl.truststore.location=/nowhere: No such file" in wrong.stderr) == (2, True)
    right = run(*words, "-X", f"ssl.truststore.location={settings['ssl.truststore.location']}")
    assert right.returncode == 0, right


def test_missing_security_settings_are_explained(run: Run, behind_tls: str) -> None:
    ended = run("topic", "list", "--bootstrap", behind_tls)
    assert ended.returncode == 1
    assert "plain listener" in ended.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["security.protocl=SSL"],
            "security.protocl is not a supported setting of TLS or SASL; did you mean security.p",
        ),
        (["sasl.username=ada"], "that is librdkafka's name; Kafka's is sasl.jaas.config"),
        (["ssl.ca.location=/ca"], "that is librdkafka's name; Kafka's is ssl.truststore.location"),
        (["security.protocol"], "'security.protocol' is not NAME=VALUE, as in security.protocol=SASL_SSL"),
        (["security.protocol=SSL", "security.protocol=SSL"], "'security.protocol' is given twice"),
        (["sasl.mechanism=PLAIN"], "sasl.mechanism has no effect with security.protocol=PLAINTEXT"),
        (["security.protocol=SASL_PLAINTEXT"], "sasl.mechanism is required: one of PLAIN"),
    ],
)
@pytest.mark.parametrize("command", [("topic", "list"), ("generate",), ("verify",), ("dashboard",)])
def test_invalid_security_settings_are_wrong_usage(
    run: Run, command: tuple[str, ...], given: list[str], message: str
) -> None:
    ended = run(*command, *(word for setting in given for word in ("-X", setting)))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr


def test_errors_do_not_repeat_passwords(run: Run) -> None:
    login = "sasl.jaas.config=PlainLoginModule required password=hidden;"
    given = ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", login)
    words = [word for setting in given for word in ("-X", setting)]
    ended = run("topic", "list", *words)
    assert ended.returncode == 2
    assert "sasl.jaas.config is not in the form" in ended.stderr
    assert "hidden" not in ended.stderr


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {}),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": 'a.ScramLoginModule required username="ada" password="b c";',
            },
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "ada",
                "sasl.password": "b c",
            },
        ),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""},
            {
                "security.protocol": "SSL",
                "ssl.ca.location": "probe",
                "ssl.endpoint.identification.algorithm": "none",
            },
        ),
    ],
)
def test_librdkafka_settings_have_its_names(given: dict[str, str], wanted: dict[str, str]) -> None:
    assert librdkafka_settings(read_security(given)) == wanted


def test_librdkafka_gets_keys_and_certificates_as_text(authority: Authority) -> None:
    key, begin, chain = authority.issue("bob@example.test").read_text().partition("-----BEGIN CERTIFICATE-----")
    given = {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": authority.trusted.read_text(),
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": begin + chain,
    }
    converted = librdkafka_settings(read_security(given))
    assert (converted["ssl.key.pem"], converted["ssl.certificate.pem"]) == (key, begin + chain)
    assert converted["ssl.ca.pem"] == authority.trusted.read_text()
    assert "ssl.ca.location" not in converted
