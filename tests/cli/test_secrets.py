"""Passwords, keys and tokens are nowhere to be read: arguments of processes, logs, messages, exceptions, configs, data.

Not searched: the environment of a process, which only its own user and root can read, and the arguments of `-X`, whose
help recommends a file. Both are the user's choice.
"""

import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.hazmat.primitives.serialization import load_pem_private_key as load_key

from onceflow.cli import onceflow
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from tests.broker.raw_client import connected
from tests.broker.security.tokens import new_key, public, sign, write_keys
from tests.client.tls import Authority

HOST = "127.0.0.1"
KEY_PASSWORD, PLAIN, SCRAM, WRONG = (f"hush-{number}-3fa9c1" for number in range(4))
PASSWORDS = (KEY_PASSWORD, PLAIN, SCRAM, WRONG)
MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-512": "scram.ScramLoginModule"}


def private(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def encrypted(store: Path, password: str) -> Path:
    """Return a file with the key of `store` encrypted, and its certificates."""
    key, begin, chain = store.read_text().partition("-----BEGIN CERTIFICATE-----")
    form = BestAvailableEncryption(password.encode())
    text = load_key(key.encode(), None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, form).decode()
    return private(store.with_suffix(".encrypted.pem"), text + begin + chain)


class Place:
    """A broker in a process of its own, and all text that it and its clients have shown."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.store = encrypted(self.authority.issue(HOST), KEY_PASSWORD)
        self.signer = new_key()
        write_keys(directory / "jwks.json", public(self.signer, kid="one"))
        self.tokens = [sign(self.signer), sign(new_key())]
        self.shown: list[str] = []
        self.properties = self.settings("server.properties", KEY_PASSWORD)
        data = directory / "data"
        password = private(directory / "password", SCRAM)
        self.run("credential", "add", "eve", "--data", str(data), "--password-file", str(password))
        self.broker = BrokerProcess(data, 0, *self.arguments(self.properties))

    def settings(self, name: str, key_password: str) -> Path:
        users = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_ada="{PLAIN}";'
        lines = (
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            f"sasl.oauthbearer.jwks.endpoint.url={(self.directory / 'jwks.json').as_uri()}",
            f"listener.name.sasl_ssl.plain.sasl.jaas.config={users}",
            f"ssl.keystore.location={self.store}",
            f"ssl.key.password={key_password}",
            "connection.failed.authentication.delay.ms=0",
        )
        return private(self.directory / name, "\n".join(lines))

    def arguments(self, properties: Path) -> tuple[str, ...]:
        return "--config-file", str(properties), "--listen", f"SASL_SSL://{HOST}:0"

    def run(self, *words: str) -> int:
        """Run a command in this process; note its output, and its exception with all causes."""
        done = CliRunner().invoke(onceflow, words)
        self.shown.append(done.output)
        if done.exception is not None:
            self.shown += traceback.format_exception(done.exception)
        return done.exit_code

    def client(self, mechanism: str, login: str, *words: str) -> int:
        lines = [
            "security.protocol=SASL_SSL",
            f"ssl.truststore.location={self.authority.trusted}",
            f"sasl.mechanism={mechanism}",
            login,
            f"bootstrap={self.broker.bootstrap}",
        ]
        file = private(self.directory / "client.conf", "\n".join(lines))
        return self.run("--config-file", str(file), *words)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("place"))
    with place.broker:
        yield place


def log_in(place: Place) -> None:
    """Log in by every mechanism, rightly and wrongly, and with messages that are malformed."""
    for mechanism, user, right in (("PLAIN", "ada", PLAIN), ("SCRAM-SHA-512", "eve", SCRAM)):
        module = f"org.apache.kafka.common.security.{MODULES[mechanism]}"
        for password in (right, WRONG):
            login = f'sasl.jaas.config={module} required username="{user}" password="{password}";'
            assert (place.client(mechanism, login, "config", "broker", "--json") == 0) == (password == right)
        assert place.client(mechanism, f"sasl.jaas.config={module} required password={WRONG}", "topic", "list")
        assert place.client(mechanism, f'sasl.jaas.config={module} required code="{WRONG}";', "topic", "list")
    for number, token in enumerate(place.tokens):
        path = private(place.directory / "token", token)
        login = f"sasl.oauthbearer.token.endpoint.url={path.as_uri()}"
        assert (place.client("OAUTHBEARER", login, "topic", "list") == 0) == (number == 0)
    with connected(place.broker.bootstrap, place.authority.client()) as client:
        client.ask(apis.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        client.ask(apis.SASL_AUTHENTICATE, 1, auth_bytes=f"\0ada\0{PLAIN}".encode())
        asked = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        flags = {"include_synonyms": True, "include_documentation": True}
        place.shown.append(str(client.ask(apis.DESCRIBE_CONFIGS, 4, resources=[asked], **flags)))
        assert "ssl.key.password" in place.shown[-1]
    for mechanism, message in (
        ("PLAIN", f"\0ada\0{WRONG}\0more"),
        ("SCRAM-SHA-512", f"n,,n=eve,r={WRONG}, "),
        ("OAUTHBEARER", f"n,,\x01auth=Bearer {place.tokens[1]}"),
    ):
        with connected(place.broker.bootstrap, place.authority.client()) as client:
            client.ask(apis.SASL_HANDSHAKE, 1, mechanism=mechanism)
            response = client.ask(apis.SASL_AUTHENTICATE, 1, auth_bytes=message.encode())
            assert response.error_code
            place.shown.append(str(response))


def start_wrongly(place: Place) -> None:
    """Start brokers whose settings of secrets are wrong."""
    for properties in (
        place.settings("wrong.properties", WRONG),
        private(place.directory / "malformed.properties", f"plain.sasl.jaas.config=PlainLoginModule {WRONG}"),
        private(place.directory / "unknown.properties", f"ssl.key.pasword={WRONG}\nssl.keystore.key={WRONG}"),
    ):
        command = [sys.executable, "-m", "onceflow", "broker", "--data", str(place.directory / "other")]
        done = subprocess.run([*command, *place.arguments(properties)], capture_output=True, text=True, timeout=60)
        assert done.returncode in (1, 2), done
        place.shown += [done.stdout, done.stderr]


def test_secrets_are_not_shown(place: Place) -> None:
    log_in(place)
    start_wrongly(place)
    command_line = Path(f"/proc/{place.broker.pid}/cmdline")
    if command_line.exists():
        place.shown.append(command_line.read_bytes().decode())
        assert "--config-file" in place.shown[-1]
    place.shown.append(place.broker.log_path.read_text())
    assert "failed to authenticate" in place.shown[-1]
    key = place.authority.issue(HOST).read_text().split("\n")[1]
    secrets = (*PASSWORDS, *place.tokens, *(token.rpartition(".")[2] for token in place.tokens), key)
    for secret in secrets:
        assert not [text for text in place.shown if secret in text], secret
        stored = [file for file in place.broker.data.rglob("*") if file.is_file()]
        assert stored and not [file for file in stored if secret.encode() in file.read_bytes()], secret
