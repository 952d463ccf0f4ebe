"""Each file with a secret is refused if every user of the machine can read it."""

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from onceflow.broker.config import SecurityConfig
from onceflow.broker.security.tls import ListenerTls
from onceflow.broker.settings.sources import from_file
from onceflow.cli import config_file
from onceflow.cli.kafka.credentials import _password
from onceflow.clicks.ingest.access import read_keys
from onceflow.client.bearer import Bearer
from onceflow.client.security import read_security
from onceflow.dashboard.login import read_token
from onceflow.private_files import MODE, is_exposed
from tests.broker.security.tokens import new_key, sign
from tests.client.tls import Authority

LOGIN = 'PlainLoginModule required username="ada" password="hush";'


def text(content: str) -> Callable[[Path], str]:
    return lambda _directory: content


def key(directory: Path) -> str:
    return Authority(directory).issue("127.0.0.1").read_text()


def use(path: Path) -> None:
    with click.Context(click.Command("onceflow")):
        config_file.use(path)


def broker_key(path: Path) -> None:
    ListenerTls("SSL", SecurityConfig(key_store_file=str(path)))


def client_key(path: Path) -> None:
    read_security({"security.protocol": "SSL", "ssl.keystore.location": str(path)})


KINDS: dict[str, tuple[Callable[[Path], str], Callable[[Path], object]]] = {
    "broker's key": (key, broker_key),
    "client's key": (key, client_key),
    "token of OAUTHBEARER": (lambda _directory: sign(new_key()), lambda path: Bearer(str(path)).read()),
    "server.properties": (text('plain.sasl.jaas.config=PlainLoginModule required user_ada="hush";'), from_file),
    "a listener's settings": (text("listener.name.a.ssl.key.password=hush"), from_file),
    "Kafka's login of brokers": (text(f"listener.name.a.scram-sha-256.sasl.jaas.config={LOGIN}"), from_file),
    "onceflow.conf": (text(f"security.protocol=SASL_SSL\nsasl.jaas.config={LOGIN}"), use),
    "address of Redis": (text("redis=rediss://:hush@127.0.0.1:1/0"), use),
    "password of a user": (text("hush"), _password),
    "token of the page": (text("0123456789abcdef"), read_token),
    "keys of serve": (text('[keys.web]\nkey = "hush"'), read_keys),
}


@pytest.mark.parametrize("kind", KINDS)
def test_exposed_files_are_refused(tmp_path: Path, kind: str) -> None:
    content, read = KINDS[kind]
    path = tmp_path / "secret"
    path.write_text(content(tmp_path))
    for mode in (0o644, 0o604):
        path.chmod(mode)
        with pytest.raises(Exception, match=MODE) as refused:
            read(path)
        assert str(path) in str(refused.value)
        assert "hush" not in str(refused.value)
    for mode in (0o600, 0o640):
        path.chmod(mode)
        read(path)


@pytest.mark.parametrize("content", ["log.dirs=/data\nnum.partitions=2", "ssl.keystore.location=/etc/broker.pem"])
def test_settings_without_a_secret_may_be_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "server.properties"
    path.write_text(content)
    path.chmod(0o644)
    assert from_file(path).given


def test_pipes_have_no_mode(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o644)
    assert not is_exposed(path)
