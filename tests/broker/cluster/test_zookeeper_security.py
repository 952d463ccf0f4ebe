"""A ZooKeeper with TLS: digest, ACLs on the nodes, and what a start refuses."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl

from onceflow.broker.settings.kinds import SettingRefused
from onceflow.broker.settings.sources import Source, resolve
from onceflow.cli import onceflow
from onceflow.private_files import MODE
from onceflow.wire import apis
from onceflow.zookeeper.kazoo_session import ZooKeeperRefused, ZooKeeperUnavailable
from onceflow.zookeeper.security import InvalidZooKeeperTls
from tests.broker.cluster.configured_broker import ConfiguredBroker
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess, jars, secured_zookeeper
from tests.broker.raw_client import connected
from tests.broker.security.test_sasl import alter as alter_users
from tests.broker.security.test_sasl import upsertion
from tests.cli.kafka.test_credentials import listed, run
from tests.clicks.counted import write
from tests.client.tls import Authority

DIGEST = "broker:hush:hush"
Settings = dict[str, str]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured(
    zookeeper: ZooKeeperProcess, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of the secure port. `zookeeper` is there if Java and the jars are."""
    classpath = jars()
    assert classpath is not None and zookeeper.port
    with secured_zookeeper(tmp_path_factory.mktemp("secured"), classpath, authority) as address:
        yield address


def settings_of(secured: str, authority: Authority, **more: str) -> Settings:
    return {
        "zookeeper.connect": f"{secured}/kafka",
        "zookeeper.connection.timeout.ms": "20000",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": str(authority.trusted),
        "zookeeper.digest": DIGEST,
        "zookeeper.set.acl": "true",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        **{name.replace("_", "."): text for name, text in more.items()},
    }


def test_only_the_brokers_change_nodes(
    secured: str, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger: Any = KazooClient(secured, use_ssl=True, ca=str(authority.trusted), timeout=20)
    with ConfiguredBroker(tmp_path / "data", settings_of(secured, authority)) as broker:
        with connected(broker.bootstrap) as client:
            assert alter_users(client, upsertions=[upsertion("ada")]) == {"ada": (0, None)}
            topic = {"name": "visits", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
            created = client.ask(apis.CREATE_TOPICS, 4, topics=[topic], validate_only=False)
            assert created.topics[0].error_code == 0
        stranger.start(20)
        try:
            assert stranger.get("/kafka/brokers/topics/visits")[0]
            for path in ("/kafka/brokers/topics/visits", "/kafka/controller_epoch", "/kafka/brokers/ids/1"):
                with pytest.raises(NoAuthError):
                    stranger.set(path, b"")
            with pytest.raises(NoAuthError):
                stranger.create("/kafka/brokers/topics/clicks", b"")
            with pytest.raises(NoAuthError):
                stranger.get("/kafka/config/users/ada")
            stranger.create("/kafka/consumers/old", b"")
        finally:
            stranger.stop()
            stranger.close()
    assert "hush" not in caplog.text
    with pytest.raises(ZooKeeperRefused, match="ACLs do not allow this user") as refused:
        ConfiguredBroker(tmp_path / "other", settings_of(secured, authority, zookeeper_digest="eve:hush")).start()
    assert "hush" not in str(refused.value)


def test_a_first_user_is_secret(secured: str, authority: Authority, tmp_path: Path) -> None:
    """It is stored with the security of a broker's settings, as by a broker."""
    settings = settings_of(secured, authority, zookeeper_connect=f"{secured}/fresh", log_dirs="data")
    file = tmp_path / "server.properties"
    file.touch(0o600)
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    place = ("--zookeeper", f"{secured}/fresh", "--zookeeper-config", str(file))
    assert run("add", "ada", *place, "--password-file", "-", given="x\n").exit_code == 0
    assert [user for user, _mechanism, _iterations in listed(*place)] == ["ada", "ada"]
    stranger: Any = KazooClient(secured, use_ssl=True, ca=str(authority.trusted), timeout=20)
    stranger.start(20)
    try:
        with pytest.raises(NoAuthError):
            stranger.get("/fresh/config/users/ada")
    finally:
        stranger.stop()
        stranger.close()


def test_consumers_use_tls_and_digest(secured: str, authority: Authority, tmp_path: Path) -> None:
    """Only the user of the digest may write below /consumers."""
    file = tmp_path / "consumer.properties"
    file.touch(0o600)
    of_both = ("zookeeper.ssl.", "zookeeper.digest", "zookeeper.connection.")
    given = {name: text for name, text in settings_of(secured, authority).items() if name.startswith(of_both)}
    file.write_text("".join(f"{name}={text}\n" for name, text in given.items()))
    place = ("--zookeeper", f"{secured}/kafka", "--zookeeper-config", str(file))
    admin: Any = KazooClient(secured, use_ssl=True, ca=str(authority.trusted), timeout=20)
    with ConfiguredBroker(tmp_path / "data", settings_of(secured, authority)) as broker:
        write(broker.bootstrap, "clicks", {0: [b"m"]}, partitions=1)
        admin.start(20)
        try:
            user, _, password = DIGEST.partition(":")
            admin.set_acls("/kafka/consumers", [make_digest_acl(user, password, all=True)])
            with pytest.raises(NoAuthError):
                admin.create("/kafka/consumers/other", b"")
            read = CliRunner().invoke(onceflow, ["consume", "clicks", *place, "--group", "g", "--count", "1"])
            assert (read.exit_code, read.stdout) == (0, "m\n"), read.exception
        finally:
            admin.stop()
            admin.close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_zookeepers_certificate_is_verified(secured: str, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    settings = settings_of(secured, other, zookeeper_connection_timeout_ms="500")
    with pytest.raises(ZooKeeperUnavailable, match=r"no session within 0\.5 s"):
        ConfiguredBroker(tmp_path / "data", settings).start()
    assert not (tmp_path / "data").exists()
    # kazoo does not close the socket of a failed handshake.
    gc.collect()


def test_unusable_files_stop_the_start(authority: Authority, tmp_path: Path) -> None:
    def start(**more: str) -> None:
        ConfiguredBroker(tmp_path / "data", settings_of("127.0.0.1:1", authority, **more)).start()

    with pytest.raises(InvalidZooKeeperTls, match=r"zookeeper\.ssl\.truststore\.location=/missing\.pem cannot be used"):
        start(zookeeper_ssl_truststore_location="/missing.pem")
    with pytest.raises(InvalidZooKeeperTls, match=r"zookeeper\.ssl\.keystore\.location=.*cannot be used"):
        start(zookeeper_ssl_keystore_location=str(authority.trusted))
    key = authority.issue("exposed")
    key.chmod(0o644)
    with pytest.raises(InvalidZooKeeperTls, match=MODE):
        start(zookeeper_ssl_keystore_location=str(key))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zookeeper.set.acl": "true"}, "needs zookeeper.digest or zookeeper.ssl.keystore.location"),
        ({"zookeeper.ssl.keystore.location": "/k"}, "has no effect without zookeeper.ssl.client.enable=true"),
        ({"zookeeper.digest": "hush"}, "zookeeper.digest is not USER:PASSWORD"),
        ({"zookeeper.ssl.keystore.type": "JKS"}, "must be PEM"),
        ({"zookeeper.ssl.crl.enable": "true"}, "PEM files and OpenSSL's choice"),
    ],
)
def test_wrong_settings_are_refused(given: Settings, message: str) -> None:
    with pytest.raises(SettingRefused) as refused:
        resolve(Source({"log.dirs": "x", "zookeeper.connect": "z:1", **given}))
    assert message in str(refused.value) and "hush" not in str(refused.value)
