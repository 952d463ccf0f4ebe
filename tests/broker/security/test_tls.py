"""TLS on a broker's listeners: clients of three families, certificates, what cannot be used, and hostile handshakes."""

import asyncio
import contextlib
import datetime
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from onceflow.broker.config import Endpoint, SecurityConfig
from onceflow.broker.network.tls_connection import TlsSocket
from onceflow.broker.security.principal import ANONYMOUS, KafkaPrincipal
from onceflow.broker.security.tls import InvalidTls, ListenerTls
from onceflow.cli import onceflow
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from tests.broker.driven_broker import DrivenBroker, InnerBroker, eventually
from tests.broker.raw_client import RawClient, batch_of, connected
from tests.client.tls import Authority

HOST = "127.0.0.1"
LISTENERS = tuple(Endpoint(port=0, listener=name) for name in ("SSL", "MUTUAL", "PLAINTEXT"))
PROTOCOLS = {"SSL": "SSL", "MUTUAL": "SSL", "PLAINTEXT": "PLAINTEXT"}
RULES = "RULE:^CN=(.*?),.*$/$1/L,DEFAULT"
RECORD_BYTES = 300_000
"""More than the connection's first buffer, a TLS record and a chunk of a file."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def settings_of(authority: Authority, **settings: Any) -> dict[str, Any]:
    key_store = str(authority.issue(HOST))
    trusted = str(authority.trusted)
    mutual = SecurityConfig(
        key_store_file=key_store, client_auth="required", trust_store_file=trusted, principal_rules=RULES
    )
    return {
        "listeners": LISTENERS,
        "listener_protocols": PROTOCOLS,
        "security": SecurityConfig(key_store_file=key_store),
        "listener_security": {"MUTUAL": mutual},
        **settings,
    }


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InnerBroker]:
    with InnerBroker(tmp_path_factory.mktemp("tls") / "data", **settings_of(authority)) as running:
        yield running


# Clients


def test_librdkafka(broker: InnerBroker, authority: Authority) -> None:
    certificate = str(authority.issue("ada"))
    settings = {
        "bootstrap.servers": broker.addresses["MUTUAL"],
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.trusted),
        "ssl.certificate.location": certificate,
        "ssl.key.location": certificate,
    }
    producer = Producer(settings)
    producer.produce("librdkafka", b"x" * RECORD_BYTES)
    assert producer.flush(15) == 0
    consumer = Consumer(settings | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["librdkafka"])
    received = consumer.poll(15)
    consumer.close()
    assert received is not None
    assert len(received.value() or b"") == RECORD_BYTES


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_kafka_python(broker: InnerBroker, authority: Authority) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    settings = {
        "bootstrap_servers": broker.addresses["SSL"],
        "security_protocol": "SSL",
        "ssl_cafile": str(authority.trusted),
    }
    with contextlib.closing(KafkaProducer(**settings)) as producer:
        producer.send("kafka-python", b"x" * RECORD_BYTES).get(15)
    with contextlib.closing(
        KafkaConsumer("kafka-python", auto_offset_reset="earliest", consumer_timeout_ms=15_000, **settings)
    ) as consumer:
        assert len(next(consumer).value) == RECORD_BYTES


def test_aiokafka(broker: InnerBroker, authority: Authority) -> None:
    settings = {
        "bootstrap_servers": broker.addresses["SSL"],
        "security_protocol": "SSL",
        "ssl_context": authority.client(),
    }

    async def run() -> int:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait("aiokafka", b"x" * RECORD_BYTES)
        async with AIOKafkaConsumer("aiokafka", auto_offset_reset="earliest", **settings) as consumer:
            return len((await asyncio.wait_for(consumer.getone(), 15)).value)

    assert asyncio.run(run()) == RECORD_BYTES


def test_many_large_responses_and_requests(broker: InnerBroker, authority: Authority) -> None:
    """Pipelined requests fill the buffers on both sides: bytes wait in OpenSSL, and slices of files are sent."""
    with connected(broker.addresses["SSL"], authority.client()) as client:
        client.create_topic("large", 1)
        for number in range(8):
            client.send_batch("large", 0, batch_of(bytes([number]) * RECORD_BYTES))
        assert [client.receive_produced().error_code for _ in range(8)] == [0] * 8
        for _ in range(4):
            client.send_fetch([("large", 0, 0)])
        sizes = {len(client.receive_fetched()[0].records) for _ in range(4)}
        assert min(sizes) > 8 * RECORD_BYTES
        for _ in range(300):
            client.send(apis.METADATA, 4, topics=(), allow_auto_topic_creation=False)
        assert [client.receive(apis.METADATA, 4).controller_id for _ in range(300)] == [1] * 300


def test_a_record_larger_than_the_buffer(broker: InnerBroker, authority: Authority) -> None:
    """The rest of the one record is in OpenSSL: the socket has nothing more to read."""
    with connected(broker.addresses["SSL"], authority.client()) as client:
        client.create_topic("record")
    with connected(broker.addresses["SSL"], authority.client()) as client:
        assert client.produce("record", 0, batch_of(bytes(12_000))).error_code == 0


# Certificates


def principals(broker: InnerBroker) -> set[KafkaPrincipal]:
    """Return the principals of the open connections."""
    server = broker._broker
    assert server is not None
    listener = server._listener
    assert listener is not None
    return broker.call(lambda _node: {connection.principal for connection in listener._connections})


def ask(client: RawClient) -> int:
    """Return the controller's id, 1, from the response to a request."""
    return int(client.ask(apis.METADATA, 4, topics=(), allow_auto_topic_creation=False).controller_id)


def test_the_certificate_is_the_principal(broker: InnerBroker, authority: Authority) -> None:
    certificate = authority.issue("ada", common_name="Ada", organization_name="Engine")
    with connected(broker.addresses["MUTUAL"], authority.client(certificate)) as client:
        assert ask(client) == 1
        assert KafkaPrincipal("User", "ada") in principals(broker)


def test_a_client_without_certificate_is_refused(broker: InnerBroker, authority: Authority) -> None:
    with pytest.raises(OSError), connected(broker.addresses["MUTUAL"], authority.client()) as client:
        ask(client)
    with connected(broker.addresses["SSL"], authority.client()) as client:
        assert ask(client) == 1
        assert ANONYMOUS in principals(broker)


def test_another_authority_is_refused(broker: InnerBroker, authority: Authority, tmp_path: Path) -> None:
    context = authority.client(Authority(tmp_path).issue("eve"))
    with pytest.raises(OSError), connected(broker.addresses["MUTUAL"], context) as client:
        ask(client)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_old_versions_are_refused(broker: InnerBroker, authority: Authority) -> None:
    old = authority.client()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError), connected(broker.addresses["SSL"], old):
        raise AssertionError("TLS 1.1 was accepted")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = authority.client()
        context.minimum_version = context.maximum_version = version
        with connected(broker.addresses["SSL"], context) as client:
            assert ask(client) == 1
            assert isinstance(client.socket, ssl.SSLSocket)
            assert client.socket.compression() is None


def test_a_changed_file_is_loaded(authority: Authority, tmp_path: Path) -> None:
    def serial(address: str) -> str:
        with connected(address, authority.client()) as client:
            assert isinstance(client.socket, ssl.SSLSocket)
            return str((client.socket.getpeercert() or {})["serialNumber"])

    with InnerBroker(tmp_path / "data", **settings_of(authority)) as broker:
        before = serial(broker.addresses["SSL"])
        path = authority.issue(HOST)
        eventually(lambda: serial(broker.addresses["SSL"]) != before, "the new certificate")
        after = serial(broker.addresses["SSL"])
        path.write_text("-----BEGIN NONSENSE-----")
        server = broker._broker
        assert server is not None
        broker.call(lambda _node: server.reload_certificates())
        assert serial(broker.addresses["SSL"]) == after, "what cannot be used changes nothing"


def test_sighup_loads_certificates(authority: Authority, tmp_path: Path) -> None:
    options = ("--listen", f"SSL://{HOST}:0", "--ssl-keystore-location", str(authority.issue(HOST)))
    with BrokerProcess(tmp_path / "data", 0, *options) as broker:
        os.kill(broker.pid, signal.SIGHUP)
        eventually(lambda: "loaded the certificates of listener SSL" in broker.log_path.read_text(), "the log line")
        with connected(broker.bootstrap, authority.client()) as client:
            assert ask(client) == 1


# What cannot be used


def text_of(path: Path) -> tuple[str, str]:
    """Return the key and the certificates of a file."""
    key, begin, rest = path.read_text().partition("-----BEGIN CERTIFICATE-----")
    return key, begin + rest


def test_keys_as_text(authority: Authority) -> None:
    key, certificates = text_of(authority.issue(HOST))
    for texts in ((key, certificates), (key.replace("\n", " "), certificates.replace("\n", " "))):
        security = SecurityConfig(key=texts[0], certificates=texts[1], trusted=authority.trusted.read_text())
        assert ListenerTls("A", security).context.cert_store_stats()["x509_ca"] == 1


NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def unusable(authority: Authority, directory: Path) -> dict[str, SecurityConfig]:
    """Return configurations that cannot be used, by a part of the message."""
    good = authority.issue(HOST)
    key, certificates = text_of(good)
    other_key, _ = text_of(authority.issue("other"))
    expired = authority.issue("old", not_before=NOW - 2 * DAY, not_after=NOW - DAY)
    early = authority.issue("early", not_before=NOW + DAY, not_after=NOW + 2 * DAY)
    java = directory / "store.jks"
    java.write_bytes(b"\xfe\xed\xfe\xed")
    only_key = directory / "key.pem"
    only_key.touch(0o600)
    only_key.write_text(key)
    only_certificate = directory / "authority.pem"
    only_certificate.touch(0o600)
    only_certificate.write_text(certificates)
    return {
        "authority.pem has no private key": SecurityConfig(key_store_file=str(only_certificate)),
        "TLS needs ssl.keystore.location": SecurityConfig(),
        "ssl.keystore.key and ssl.keystore.certificate.chain": SecurityConfig(key=key),
        "exclude each other": SecurityConfig(key_store_file=str(good), key=key),
        "cannot be read: No such file": SecurityConfig(key_store_file=str(directory / "missing.pem")),
        "store.jks is not PEM; 'keytool": SecurityConfig(key_store_file=str(java)),
        "key.pem has no certificate": SecurityConfig(key_store_file=str(only_key)),
        "key values mismatch": SecurityConfig(key=other_key, certificates=certificates),
        "expired at": SecurityConfig(key_store_file=str(expired)),
        "is valid only from": SecurityConfig(key_store_file=str(early)),
        "ssl.client.auth=required needs": SecurityConfig(key_store_file=str(good), client_auth="required"),
        "missing.pem cannot be read": SecurityConfig(
            key_store_file=str(good), trust_store_file=str(directory / "missing.pem")
        ),
        "ssl.truststore.certificates cannot be used": SecurityConfig(
            key_store_file=str(good), trusted="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
        ),
    }


def test_what_cannot_be_used_is_refused(authority: Authority, tmp_path: Path) -> None:
    for message, security in unusable(authority, tmp_path).items():
        with pytest.raises(InvalidTls) as refused:
            ListenerTls("A", security)
        assert message in str(refused.value)
        assert "PRIVATE" not in str(refused.value)


def test_comments_of_authorities_may_have_any_letter(authority: Authority, tmp_path: Path) -> None:
    """Bundles have names in them. A damaged certificate is refused, also while the broker runs."""
    certificate = authority.trusted.read_text()
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# NetLock Arany Főtanúsítvány\n{certificate}", encoding="utf-8")
    security = SecurityConfig(key_store_file=str(authority.issue(HOST)), trust_store_file=str(bundle))
    tls = ListenerTls("A", security)
    assert len(tls.context.get_ca_certs()) == 1
    bundle.write_text(certificate.replace("MII", "MIő"), encoding="utf-8")
    loaded = tls.context
    tls.reload_if_changed()
    assert tls.context is loaded
    with pytest.raises(InvalidTls, match=r"bundle\.pem cannot be used"):
        ListenerTls("A", security)


def test_the_start_stops_with_one_message(authority: Authority, tmp_path: Path) -> None:
    options = ("--listen", f"SSL://{HOST}:0", "--ssl-keystore-location", str(tmp_path / "missing.pem"))
    refused = CliRunner().invoke(onceflow, ["broker", "--data", str(tmp_path / "data"), *options])
    assert "missing.pem cannot be read: No such file" in str(refused.exception or refused.stderr)
    assert refused.exit_code != 0


def test_a_forked_child_sends_nothing(authority: Authority) -> None:
    """It closes its copies of the descriptors; the connection is its parent's."""
    ours, theirs = socket.socketpair()
    context = ListenerTls("A", SecurityConfig(key_store_file=str(authority.issue(HOST)))).context
    options: dict[str, Any] = {"do_handshake_on_connect": False, "suppress_ragged_eofs": False}
    with contextlib.closing(authority.client().wrap_socket(theirs, server_hostname=HOST, **options)) as client:
        server = TlsSocket(ours, context)
        shaking = threading.Thread(target=client.do_handshake)
        shaking.start()
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
        server.do_handshake()
        shaking.join()
        server.close_descriptor()
        with pytest.raises(ssl.SSLEOFError):
            client.recv(1)


# Hostile handshakes


def silent(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=15)


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_plain_text_is_refused(broker: InnerBroker) -> None:
    with contextlib.closing(silent(broker.addresses["SSL"])) as client:
        client.sendall(b"\x00\x00\x00\x10" + b"\x00\x12\x00\x00" + bytes(12))
        with contextlib.suppress(ConnectionError):
            assert client.recv(100)[:1] in (b"", b"\x15"), "an alert at most"


def test_a_stalled_handshake_is_closed(authority: Authority, tmp_path: Path) -> None:
    with (
        DrivenBroker(tmp_path / "data", **settings_of(authority)) as broker,
        contextlib.closing(silent(broker.addresses["SSL"])) as stalled,
        connected(broker.addresses["SSL"], authority.client()) as client,
    ):
        assert ask(client) == 1
        broker.clock.advance_ms(11_000)
        assert is_closed(stalled)
        assert ask(client) == 1


def test_too_many_handshakes_close_the_oldest(authority: Authority, tmp_path: Path) -> None:
    settings = settings_of(authority, unauthenticated_connections_max=5)
    with DrivenBroker(tmp_path / "data", **settings) as broker, contextlib.ExitStack() as stack:
        stalled = [stack.enter_context(contextlib.closing(silent(broker.addresses["SSL"]))) for _ in range(20)]
        client = stack.enter_context(connected(broker.addresses["SSL"], authority.client()))
        assert ask(client) == 1
        assert all(map(is_closed, stalled[:15]))
        assert len(principals(broker)) == 1


def test_damaged_records_end_the_connection(broker: InnerBroker, authority: Authority) -> None:
    with connected(broker.addresses["SSL"], authority.client()) as client:
        assert ask(client) == 1
        raw = socket.socket(fileno=client.socket.detach())
    with contextlib.closing(raw):
        raw.settimeout(15)
        raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        with contextlib.suppress(ConnectionError):
            while raw.recv(4096):
                pass


def test_only_unauthenticated_listeners_are_warned_of(authority: Authority, tmp_path: Path) -> None:
    key_store = (
        "--ssl-keystore-location",
        str(authority.issue(HOST)),
        "--ssl-truststore-location",
        str(authority.trusted),
    )
    listen = ("--listen", "SSL://0.0.0.0:0", "--advertise", "SSL://127.0.0.1:9")
    with BrokerProcess(tmp_path / "open", 0, *listen, *key_store) as broker:
        assert "open to other machines without authentication: every" in broker.log_path.read_text()
    with BrokerProcess(tmp_path / "mutual", 0, *listen, *key_store, "--ssl-client-auth", "required") as broker:
        assert "open to other machines" not in broker.log_path.read_text()
