"""Kafka's own Java clients and tools on a broker with TLS and SASL: each mechanism, good and bad credentials."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceflow.broker.config import Endpoint, SecurityConfig
from tests.broker.driven_broker import InnerBroker
from tests.broker.security.tokens import new_key, public, sign, write_keys
from tests.client.tls import Authority, java_key
from tests.compat.conftest import CLIENT_VERSIONS, kafka_jars, tool
from tests.compat.java_programs import environment
from tests.compat.kafka_tools import PACKAGES

HOST = "127.0.0.1"
PASSWORD = "correct horse"
LOGIN = "org.apache.kafka.common.security.{}LoginModule required"
MODULES = {"PLAIN": "plain.Plain", "SCRAM-SHA-256": "scram.Scram", "SCRAM-SHA-512": "scram.Scram"}
NAMES = {"PLAINTEXT": "PLAINTEXT", "SASL_PLAINTEXT": "SASL_PLAINTEXT", "SASL_SSL": "SASL_SSL", "MUTUAL": "SSL"}


OAUTH = "org.apache.kafka.common.security.oauthbearer"
ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
KEY = new_key()


@dataclass(frozen=True)
class Secured:
    """A broker with a listener for each protocol, and Kafka's tools of one version."""

    broker: InnerBroker
    authority: Authority
    jars: Path
    directory: Path

    def run(self, name: str, listener: str, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        package = PACKAGES.get(name, "org.apache.kafka.tools")
        if name == "ConsoleProducer" and not list(self.jars.glob("kafka-tools-4*")):
            package = "kafka.tools"  # before Kafka 4
        address = ("--bootstrap-server", self.broker.addresses[listener])
        command = ["java", f"-D{ALLOWED_URLS}={self.token_url}", "-cp", f"{self.jars}/*", f"{package}.{name}"]
        command += [*address, *words]
        return subprocess.run(
            command, input=given, capture_output=True, text=True, env=environment(), timeout=90, check=False
        )

    @property
    def token_url(self) -> str:
        """The only URL from which Kafka's clients may read a token."""
        return (self.directory / "token").as_uri()

    def bearer(self, token: str) -> str:
        """Write the token and a client.properties; return its path."""
        path = self.directory / "token"
        path.touch(0o600)
        path.write_text(token)
        return self.settings(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_jaas_config=f"{LOGIN.format('oauthbearer.OAuthBearer')};",
            sasl_login_callback_handler_class=f"{OAUTH}.OAuthBearerLoginCallbackHandler",
            sasl_oauthbearer_token_endpoint_url=self.token_url,
        )

    def settings(self, **given: str) -> str:
        """Write a client.properties; return its path."""
        path = self.directory / f"{abs(hash(frozenset(given.items())))}.properties"
        path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in given.items()))
        return str(path)

    def sasl(self, listener: str, mechanism: str, password: str = PASSWORD) -> str:
        trust = {"ssl_truststore_type": "PEM", "ssl_truststore_location": str(self.authority.trusted)}
        return self.settings(
            security_protocol=listener,
            sasl_mechanism=mechanism,
            sasl_jaas_config=f'{LOGIN.format(MODULES[mechanism])} username="ada" password="{password}";',
            **(trust if listener == "SASL_SSL" else {}),
        )

    def round_trip(self, listener: str, settings: str, topic: str) -> list[str]:
        """Write two records and read them; return what was read."""
        produced = self.run(
            "ConsoleProducer", listener, "--topic", topic, "--producer.config", settings, given="a\nb\n"
        )
        assert produced.returncode == 0, produced.stderr
        limits = ("--from-beginning", "--max-messages", "2", "--timeout-ms", "20000")
        read = self.run("ConsoleConsumer", listener, "--topic", topic, "--consumer.config", settings, *limits)
        return read.stdout.splitlines()


@pytest.fixture(scope="module", params=CLIENT_VERSIONS)
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    tool("java", "apt install default-jdk-headless")
    jars = kafka_jars(request.param)
    directory = tmp_path_factory.mktemp(f"secured-{request.param}")
    authority = Authority(directory)
    write_keys(directory / "jwks.json", public(KEY, kid="one"))
    security = SecurityConfig(
        key_store_file=str(authority.issue(HOST)),
        sasl_mechanisms=(*MODULES, "OAUTHBEARER"),
        bearer_keys_file=str(directory / "jwks.json"),
        plain_passwords={"ada": PASSWORD},
        reauthentication_ms_max=3_000,
    )
    mutual = SecurityConfig(
        key_store_file=str(authority.issue(HOST)), client_auth="required", trust_store_file=str(authority.trusted)
    )
    listeners = tuple(Endpoint(port=0, listener=name) for name in NAMES)
    with InnerBroker(
        directory / "data",
        listeners=listeners,
        listener_protocols=NAMES,
        security=security,
        listener_security={"MUTUAL": mutual},
    ) as broker:
        running = Secured(broker, authority, jars, directory)
        user = ("--entity-type", "users", "--entity-name", "ada")
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            added = f"{mechanism}=[iterations=8192,password={PASSWORD}]"
            done = running.run("ConfigCommand", "PLAINTEXT", "--alter", *user, "--add-config", added)
            assert done.returncode == 0, done.stderr
        yield running


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MODULES)
def test_java_clients_with_sasl(secured: Secured, listener: str, mechanism: str) -> None:
    settings = secured.sasl(listener, mechanism)
    assert secured.round_trip(listener, settings, f"{listener}-{mechanism}") == ["a", "b"]


def test_java_clients_with_a_token(secured: Secured) -> None:
    """Kafka's login handler reads the token from a file, and our key set verifies it."""
    assert secured.round_trip("SASL_PLAINTEXT", secured.bearer(sign(KEY)), "token") == ["a", "b"]
    wrong = secured.bearer(sign(new_key()))
    refused = secured.run("TopicCommand", "SASL_PLAINTEXT", "--command-config", wrong, "--list")
    assert refused.returncode == 1
    assert "invalid_token" in refused.stdout + refused.stderr


def test_java_clients_with_a_certificate(secured: Secured) -> None:
    settings = secured.settings(
        security_protocol="SSL",
        ssl_truststore_type="PEM",
        ssl_truststore_location=str(secured.authority.trusted),
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(java_key(secured.authority.issue("ada"))),
    )
    assert secured.round_trip("MUTUAL", settings, "mutual") == ["a", "b"]


@pytest.mark.parametrize("mechanism", MODULES)
def test_a_wrong_password_is_kafkas_exception(secured: Secured, mechanism: str) -> None:
    settings = secured.sasl("SASL_SSL", mechanism, "wrong")
    refused = secured.run("TopicCommand", "SASL_SSL", "--command-config", settings, "--list")
    assert refused.returncode == 1
    assert "Authentication failed" in refused.stdout + refused.stderr


def test_a_java_client_authenticates_again(secured: Secured) -> None:
    """Its session lasts 3 s; a consumer that waits longer keeps its connection and then gets records."""
    settings = secured.sasl("SASL_PLAINTEXT", "SCRAM-SHA-512")
    topic = "again"
    assert secured.round_trip("SASL_PLAINTEXT", settings, topic) == ["a", "b"]
    limits = ("--from-beginning", "--max-messages", "3", "--timeout-ms", "9000")
    read = secured.run("ConsoleConsumer", "SASL_PLAINTEXT", "--topic", topic, "--consumer.config", settings, *limits)
    assert read.stdout.splitlines() == ["a", "b"]
    assert "AuthenticationException" not in read.stderr
