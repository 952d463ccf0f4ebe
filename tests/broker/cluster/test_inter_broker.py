"""Connections between brokers with TLS and SASL: the whole cluster on them, and what is refused."""

import asyncio
import json
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.broker.cluster import security_nodes
from onceflow.broker.cluster.inter_broker import InterBroker, LoginRefused
from onceflow.broker.cluster.peer import Opened
from onceflow.broker.config import Endpoint
from onceflow.broker.security.credentials import credential_of
from onceflow.broker.security.tls import InvalidTls
from onceflow.broker.settings.authorization import ACL_AUTHORIZER
from onceflow.broker.settings.sources import Source, resolve
from onceflow.wire import apis
from onceflow.wire.scram import BY_NAME, salted_password
from tests.broker.cluster.configured_broker import ConfiguredBroker
from tests.broker.cluster.conftest import Tree
from tests.client.tls import Authority

PLAIN_LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="{}" '
SCRAM_LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="{}";'
PASSWORD = 'not "secret'
QUOTED = PASSWORD.replace('"', '\\"')

Settings = dict[str, str]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Settings:
    return {
        "ssl.keystore.location": str(authority.issue("127.0.0.1", common_name="broker")),
        "ssl.truststore.location": str(authority.trusted),
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]*).*$/$1/",
    }


def with_client_certificates(tls: Settings) -> Settings:
    return {
        "listener.security.protocol.map": "IN:SSL,OUT:PLAINTEXT",
        "listener.name.in.ssl.client.auth": "required",
        **tls,
    }


def with_plain(_tls: Settings) -> Settings:
    return {
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT,OUT:PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.in.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.in.plain.sasl.jaas.config": f'{PLAIN_LOGIN.format(QUOTED)} user_broker="{QUOTED}";',
    }


def with_scram(tls: Settings) -> Settings:
    return {
        "listener.security.protocol.map": "IN:SASL_SSL,OUT:PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.in.scram-sha-512.sasl.jaas.config": SCRAM_LOGIN.format(QUOTED),
        "connections.max.reauth.ms": "1000",
        **tls,
    }


def store_user(tree: Tree) -> None:
    """Store the brokers' user, as a tool does it before their first start."""
    mechanism, salt = BY_NAME["SCRAM-SHA-512"], b"salt of sixteen "
    credential = credential_of(mechanism, salted_password(mechanism, PASSWORD, salt, 4096), salt, 4096)
    value = {"version": 1, "config": {mechanism.name: security_nodes.credential_text(credential)}}
    tree.write("/config/users/broker", json.dumps(value))


def settings_of(tree: Tree, broker_id: int, more: Settings) -> Settings:
    return {
        "broker.id": str(broker_id),
        "zookeeper.connect": tree.connect,
        "zookeeper.session.timeout.ms": "20000",
        "controlled.shutdown.max.retries": "0",
        "listeners": "OUT://127.0.0.1:0,IN://127.0.0.1:0",
        "inter.broker.listener.name": "IN",
        "authorizer.class.name": ACL_AUTHORIZER,
        "super.users": "User:broker",
        "allow.everyone.if.no.acl.found": "true",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        **more,
    }


CLUSTER_ACL = {"principal": "User:nobody", "permissionType": "Allow", "operation": "ClusterAction", "host": "*"}
"""ACL after which other clients may do nothing with the cluster."""


def replicate(tree: Tree, brokers: dict[int, ConfiguredBroker]) -> None:
    """Create a topic with two replicas, and produce what both have to store."""
    bootstrap = ",".join(broker.addresses["OUT"] for broker in brokers.values())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"min.insync.replicas": "2"}
    tree.await_that(lambda: admin.list_topics(timeout=10).controller_id != -1)
    (created,) = admin.create_topics([NewTopic("visits", 4, 2, config=config)]).values()
    created.result(30)
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(40):
        producer.produce(
            "visits", b"%d" % number, partition=number % 4, on_delivery=lambda error, _: errors.append(error)
        )
    assert producer.flush(60) == 0
    assert errors == [None] * 40


def transact(bootstrap: str) -> None:
    """Commit a record in each partition: the coordinator sends markers to the other broker, and is asked by it."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "ada", "linger.ms": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(4):
        producer.produce("visits", b"committed", partition=partition)
    producer.commit_transaction(60)
    settings = {"group.id": "reader", "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition("visits", partition, 10) for partition in range(4)])
    values = [message.value() for message in consumer.consume(4, 60)]
    consumer.close()
    assert values == [b"committed"] * 4


@pytest.mark.parametrize("secured", [with_client_certificates, with_plain, with_scram], ids=lambda of: of.__name__)
def test_brokers_replicate(tree: Tree, tls: Settings, tmp_path: Path, secured: Callable[[Settings], Settings]) -> None:
    """Requests between brokers are those of the user `broker`; others may send none."""
    store_user(tree)
    tree.write("/kafka-acl/Cluster/kafka-cluster", json.dumps({"version": 1, "acls": [CLUSTER_ACL]}))
    with ConfiguredBroker(tmp_path / "1", settings_of(tree, 1, secured(tls))) as first:
        with ConfiguredBroker(tmp_path / "2", settings_of(tree, 2, secured(tls))) as second:
            replicate(tree, {1: first, 2: second})
            transact(f"{first.addresses['OUT']},{second.addresses['OUT']}")
            registered = tree.json("/brokers/ids/1")
            assert [endpoint.partition(":")[0] for endpoint in registered["endpoints"]] == ["OUT", "IN"]
        states = [tree.json(f"/brokers/topics/visits/partitions/{index}/state") for index in range(4)]
        assert {state["leader"] for state in states} == {1}, "the controller did not move the leaders"


def test_others_need_the_login(tree: Tree, tls: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker with another password is not followed by the controller, whose requests it refuses in turn."""
    tree.write("/kafka-acl/Cluster/kafka-cluster", json.dumps({"version": 1, "acls": [CLUSTER_ACL]}))
    wrong = {name: text.replace("secret", "wrong") for name, text in with_plain(tls).items()}
    with (
        ConfiguredBroker(tmp_path / "1", settings_of(tree, 1, with_plain(tls))),
        ConfiguredBroker(tmp_path / "2", settings_of(tree, 2, wrong)) as second,
    ):
        tree.await_that(lambda: "a connection to another broker at 127.0.0.1" in caplog.text)
        assert "Authentication failed: Invalid username or password" in caplog.text
        assert second.call(lambda node: node.cluster is not None and not node.cluster.view.brokers)
        assert PASSWORD not in caplog.text


def opened(settings: Settings, address: str, listener: str) -> Opened:
    """Connect to a listener as another broker with these settings does, and close the connection."""
    inter_broker = InterBroker(resolve(Source({"log.dirs": "/unused", "zookeeper.connect": "z:1", **settings})).config)
    host, _, port = address.rpartition(":")

    async def connect() -> Opened:
        try:
            connection = await inter_broker.connect(Endpoint(host, int(port), listener))
            connection.writer.close()
            await connection.writer.wait_closed()
            return connection._replace(used_until=connection.used_until - asyncio.get_running_loop().time())
        finally:
            # Let a refused connection end.
            for _turn in range(3):
                await asyncio.sleep(0)

    return asyncio.run(connect())


@pytest.fixture(scope="module")
def listening(tls: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfiguredBroker]:
    """A broker with a listener of each protocol, without a cluster."""
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "connections.max.reauth.ms": "100000",
        "plain.sasl.jaas.config": f'{PLAIN_LOGIN.format("")} user_broker="{QUOTED}";',
        **tls,
    }
    with ConfiguredBroker(tmp_path_factory.mktemp("listening"), settings) as running:
        yield running


def inside(protocol: str, **more: str) -> Settings:
    return {
        "listeners": f"{protocol}://127.0.0.1:9999",
        "security.inter.broker.protocol": protocol,
        **{name.replace("_", "."): text for name, text in more.items()},
    }


def plain(protocol: str, password: str = QUOTED) -> Settings:
    login = f'{PLAIN_LOGIN.format(password)} user_broker="{QUOTED}";'
    return inside(
        protocol,
        sasl_mechanism_inter_broker_protocol="PLAIN",
        sasl_enabled_mechanisms="PLAIN",
        plain_sasl_jaas_config=login,
    )


def test_sessions_are_not_used_until_their_end(listening: ConfiguredBroker) -> None:
    connection = opened(plain("SASL_PLAINTEXT"), listening.addresses["SASL_PLAINTEXT"], "SASL_PLAINTEXT")
    assert 80 < connection.used_until <= 85


@pytest.mark.parametrize(
    ("login", "message"),
    [
        (plain("SASL_PLAINTEXT", "wrong"), "Authentication failed: Invalid username or password"),
        (
            inside(
                "SASL_PLAINTEXT",
                sasl_mechanism_inter_broker_protocol="SCRAM-SHA-512",
            )
            | {"scram-sha-512.sasl.jaas.config": SCRAM_LOGIN.format(QUOTED)},
            "SCRAM-SHA-512 is refused; it has PLAIN, SCRAM-SHA-256",
        ),
        (
            inside("SASL_PLAINTEXT", sasl_mechanism_inter_broker_protocol="SCRAM-SHA-256")
            | {"scram-sha-256.sasl.jaas.config": SCRAM_LOGIN.format(QUOTED)},
            "invalid credentials with SASL mechanism SCRAM-SHA-256",
        ),
    ],
)
def test_refused_logins(listening: ConfiguredBroker, login: Settings, message: str) -> None:
    with pytest.raises(LoginRefused, match=message):
        opened(login, listening.addresses["SASL_PLAINTEXT"], "SASL_PLAINTEXT")


def test_certificates_are_verified(
    listening: ConfiguredBroker, authority: Authority, tls: Settings, tmp_path: Path
) -> None:
    trusted = {
        "ssl.truststore.location": tls["ssl.truststore.location"],
        "ssl.keystore.location": tls["ssl.keystore.location"],
    }
    address = listening.addresses["SSL"]
    assert opened(inside("SSL") | trusted, address, "SSL")
    other = Authority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="CERTIFICATE_VERIFY_FAILED"):
        opened(inside("SSL") | trusted | {"ssl.truststore.location": str(other.trusted)}, address, "SSL")
    named = address.replace("127.0.0.1", "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        opened(inside("SSL") | trusted, named, "SSL")
    assert opened(inside("SSL") | trusted | {"ssl.endpoint.identification.algorithm": ""}, named, "SSL")
    with pytest.raises(InvalidTls, match="cannot be read"):
        opened(inside("SSL") | trusted | {"ssl.truststore.location": "/missing.pem"}, address, "SSL")


def test_costly_salts_are_refused() -> None:
    """A false broker cannot let this one compute hashes for hours."""
    settings = inside("SASL_PLAINTEXT", sasl_mechanism_inter_broker_protocol="SCRAM-SHA-256")
    settings["scram-sha-256.sasl.jaas.config"] = SCRAM_LOGIN.format(QUOTED)
    is_over = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _request in range(2):
            (size_bytes,) = struct.unpack(">i", await reader.readexactly(4))
            request = await reader.readexactly(size_bytes)
            api_key, _version, correlation_id = struct.unpack_from(">hhi", request)
            if api_key == apis.SASL_HANDSHAKE:
                body = struct.pack(">hi", 0, 0)
            else:
                nonce = request[request.index(b"r=") + 2 :].rstrip(b"\0")
                first = b"r=" + nonce + b"x,s=c2FsdA==,i=2000000000"
                body = (
                    b"\0"
                    + struct.pack(">h", 0)
                    + b"\0"
                    + bytes([len(first) + 1])
                    + first
                    + struct.pack(">q", 0)
                    + b"\0"
                )
            response = struct.pack(">i", correlation_id) + body
            writer.write(struct.pack(">i", len(response)) + response)
        await reader.read()
        writer.close()
        is_over.set()

    async def run() -> None:
        config = resolve(Source({"log.dirs": "/unused", "zookeeper.connect": "z:1", **settings})).config
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(LoginRefused, match="up to 16384 iterations"):
                await InterBroker(config).connect(Endpoint("127.0.0.1", port, "SASL_PLAINTEXT"))
            await is_over.wait()

    asyncio.run(run())
