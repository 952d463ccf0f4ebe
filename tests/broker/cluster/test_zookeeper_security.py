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
from onceflow.client.errors import ClientError
from onceflow.private_files import MODE
from onceflow.spark import connections
from onceflow.spark.errors import WrongOption
from onceflow.spark.reader.options import read_options
from onceflow.spark.reader.stream import StreamReader
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
OF_CLIENTS = ("zookeeper.ssl.", "zookeeper.digest", "zookeeper.connection.")
"""Beginnings of the settings that a client has too."""
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
    file = properties(tmp_path / "server.properties", settings)
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
    given = {name: text for name, text in settings_of(secured, authority).items() if name.startswith(OF_CLIENTS)}
    file = properties(tmp_path / "consumer.properties", given)
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


@pytest.fixture
def _sessions_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the sessions that the source keeps for its process."""
    sessions: dict[Any, Any] = {}
    monkeypatch.setattr(connections, "_sessions", sessions)
    yield
    for session in sessions.values():
        session.close()


@pytest.mark.usefixtures("_sessions_end")
def test_spark_source_uses_tls_and_digest(secured: str, authority: Authority, tmp_path: Path) -> None:
    """It commits below a node that only the user of the digest may change, and reads what only that user may read."""
    settings = settings_of(secured, authority, zookeeper_connect=f"{secured}/spark")
    given = {name: text for name, text in settings.items() if name.startswith(OF_CLIENTS)}
    file = properties(tmp_path / "spark.properties", given)
    admin: Any = KazooClient(secured, use_ssl=True, ca=str(authority.trusted), timeout=20)
    with ConfiguredBroker(tmp_path / "data", settings) as broker:
        write(broker.bootstrap, "orders", {0: [b"a", b"b", b"c"]}, partitions=1)
        options = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": "orders",
            "startingOffsets": "committed",
            "startingOffsetsIfNoneCommitted": "earliest",
            "zookeeperConnect": f"{secured}/spark",
            "zookeeperConfig": str(file),
        }
        admin.start(20)
        try:
            admin.add_auth("digest", DIGEST)
            owner = [make_digest_acl(*DIGEST.split(":", 1), all=True)]
            admin.create("/spark/consumers/new", acl=owner)
            assert batch_of_query({**options, "groupId": "new"}) == [b"a", b"b", b"c"]
            assert admin.get("/spark/consumers/new/offsets/orders/0")[0] == b"3"
            admin.create("/spark/consumers/old/offsets/orders/0", b"1", acl=owner, makepath=True)
            assert batch_of_query({**options, "groupId": "old"}) == [b"b", b"c"]
            del given["zookeeper.digest"]
            properties(file, given)
            with pytest.raises(ClientError, match=r"of group old in ZooKeeper are not available: .* do not allow"):
                batch_of_query({**options, "groupId": "old"})
            given["zookeeper.ssl.truststore.location"] = "/missing.pem"
            properties(file, given)
            with pytest.raises(WrongOption, match=r"option zookeeperConfig: zookeeper\.ssl\.tru.*/missing\.pem cannot"):
                batch_of_query({**options, "groupId": "old"})
        finally:
            admin.stop()
            admin.close()


def properties(file: Path, settings: Settings) -> Path:
    file.touch(0o600)
    file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    return file


def batch_of_query(options: dict[str, str]) -> list[bytes]:
    """Return the values of the first batch of a fresh query, which is committed."""
    reader = StreamReader(read_options(options, "stream"))
    start = reader.initialOffset()
    reader.partitions(start, start)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    values = [value for task in tasks for rows in reader.read(task) for value in rows["value"].to_pylist()]
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    return values


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
