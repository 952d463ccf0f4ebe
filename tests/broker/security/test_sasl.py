"""SASL on a broker's listeners: clients of three families, what is served when, and the end of sessions."""

import asyncio
import contextlib
import dataclasses
import logging
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scramp
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from onceflow.broker.config import Endpoint, SecurityConfig
from onceflow.broker.network import connection
from onceflow.broker.security.credentials import CredentialKey, credential_of
from onceflow.broker.security.principal import KafkaPrincipal
from onceflow.broker.topics.records import UserScramRecord
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import encode_request, request_class
from onceflow.wire.scram import BY_NAME, salted_password
from tests.broker.driven_broker import DrivenBroker, InnerBroker, eventually
from tests.broker.raw_client import RawClient, connected
from tests.broker.security.damaged_logins import STOLEN, frames_of
from tests.client.tls import Authority
from tests.wire.messages import build

HOST = "127.0.0.1"
PASSWORD = 'a "b"=c,d'
SALT = b"0123456789abcdef"
NAMES = ("SASL_PLAINTEXT", "SASL_SSL", "PLAINTEXT")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def security_of(authority: Authority, **settings: Any) -> SecurityConfig:
    return SecurityConfig(
        key_store_file=str(authority.issue(HOST)),
        sasl_mechanisms=MECHANISMS,
        plain_passwords={"ada": PASSWORD},
        **settings,
    )


def add_user(broker: InnerBroker, user: str, password: str) -> None:
    """Store the credentials of a user for all SCRAM mechanisms."""
    records = []
    for mechanism in BY_NAME.values():
        salted = salted_password(mechanism, password, SALT, 4096)
        key = CredentialKey(user, mechanism.number)
        records.append(UserScramRecord(key, credential_of(mechanism, salted, SALT, 4096)))
    broker.call(lambda node: node.metadata.record(records))


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InnerBroker]:
    listeners = tuple(Endpoint(port=0, listener=name) for name in NAMES)
    data = tmp_path_factory.mktemp("sasl") / "data"
    with InnerBroker(data, listeners=listeners, security=security_of(authority), failed_login_delay_ms=1) as running:
        add_user(running, "ada", PASSWORD)
        yield running


# Clients

EACH = [(protocol, mechanism) for protocol in NAMES[:2] for mechanism in MECHANISMS]


def test_pipelined_login(broker: InnerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not wait for responses is admitted while its next bytes wait for a turn among newcomers."""
    monkeypatch.setattr(connection, "TURN_SECONDS", 0.0)
    topics = [{"name": f"{number:0200d}"} for number in range(100)]
    requests: list[tuple[int, int, dict[str, Any]]] = [
        (apis.API_VERSIONS, 0, {}),
        (apis.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}),
        (apis.SASL_AUTHENTICATE, 1, {"auth_bytes": f"\0ada\0{PASSWORD}".encode()}),
        (apis.METADATA, 4, {"topics": topics, "allow_auto_topic_creation": False}),
    ]
    with connected(broker.addresses["SASL_PLAINTEXT"]) as client:
        client.socket.sendall(
            b"".join(
                encode_request(key, version, number, "pipelined", build(request_class(key, version), fields))
                for number, (key, version, fields) in enumerate(requests)
            )
        )
        for key, version, _ in requests:
            response = client.receive(key, version)
        assert len(response.topics) == len(topics)


@pytest.mark.parametrize(("protocol", "mechanism"), EACH)
def test_librdkafka(broker: InnerBroker, authority: Authority, protocol: str, mechanism: str) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.addresses[protocol],
        "security.protocol": protocol,
        "ssl.ca.location": str(authority.trusted),
        "sasl.mechanism": mechanism,
        "sasl.username": "ada",
        "sasl.password": PASSWORD,
    }
    topic = f"librdkafka-{protocol}-{mechanism}"
    producer = Producer(settings)
    producer.produce(topic, b"x" * 100_000)
    assert producer.flush(15) == 0
    consumer = Consumer(settings | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    received = consumer.poll(15)
    consumer.close()
    assert received is not None
    assert len(received.value() or b"") == 100_000
    errors: list[Any] = []
    wrong = AdminClient(settings | {"sasl.password": "wrong", "error_cb": errors.append, "log_level": 0})
    eventually(lambda: wrong.poll(0.05) or errors, "the refusal")
    assert "Authentication failed" in str(errors[0])


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
@pytest.mark.parametrize(("protocol", "mechanism"), EACH)
def test_kafka_python(broker: InnerBroker, authority: Authority, protocol: str, mechanism: str) -> None:
    from kafka import KafkaProducer

    settings = {
        "bootstrap_servers": broker.addresses[protocol],
        "security_protocol": protocol,
        "ssl_cafile": str(authority.trusted),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "ada",
        "sasl_plain_password": PASSWORD,
    }
    with contextlib.closing(KafkaProducer(**settings)) as producer:
        assert producer.send("kafka-python", b"x").get(15).offset >= 0


def test_kafka_python_with_a_wrong_password(broker: InnerBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Runs in a process of its own: a client whose constructor fails leaves its sockets open."""
    script = (
        "from kafka import KafkaProducer\n"
        f"KafkaProducer(bootstrap_servers={broker.addresses['SASL_PLAINTEXT']!r}, security_protocol='SASL_PLAINTEXT',"
        " sasl_mechanism='PLAIN', sasl_plain_username='ada', sasl_plain_password='wrong', bootstrap_timeout_ms=500)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "KafkaTimeoutError" in ended.stderr
    assert "Invalid username or password" in caplog.text


@pytest.mark.parametrize(("protocol", "mechanism"), EACH)
def test_aiokafka(broker: InnerBroker, authority: Authority, protocol: str, mechanism: str) -> None:
    from aiokafka.errors import KafkaError

    settings = {
        "bootstrap_servers": broker.addresses[protocol],
        "security_protocol": protocol,
        "ssl_context": authority.client(),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "ada",
        "sasl_plain_password": PASSWORD,
    }

    async def run() -> bytes:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(f"aiokafka-{protocol}", b"x")
        wrong = AIOKafkaProducer(**settings | {"sasl_plain_password": "wrong"})
        try:
            with pytest.raises(KafkaError):
                await wrong.start()
        finally:
            await wrong.stop()
        async with AIOKafkaConsumer(f"aiokafka-{protocol}", auto_offset_reset="earliest", **settings) as consumer:
            return (await asyncio.wait_for(consumer.getone(), 15)).value or b""

    assert asyncio.run(run()) == b"x"


# Requests in each state


@pytest.fixture
def client(broker: InnerBroker) -> Iterator[RawClient]:
    with connected(broker.addresses["SASL_PLAINTEXT"]) as opened:
        yield opened


def token_of(password: str = PASSWORD, user: str = "ada") -> bytes:
    return f"\0{user}\0{password}".encode()


def handshake(client: RawClient, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return client.ask(apis.SASL_HANDSHAKE, version, mechanism=mechanism)


def authenticate(client: RawClient, token: bytes, version: int = 2) -> Any:
    return client.ask(apis.SASL_AUTHENTICATE, version, auth_bytes=token)


def controller(client: RawClient) -> int:
    return int(client.ask(apis.METADATA, 4, topics=(), allow_auto_topic_creation=False).controller_id)


def login(client: RawClient, **names: str) -> Any:
    assert handshake(client).error_code == 0
    return authenticate(client, token_of(**names))


def is_closed(client: RawClient) -> bool:
    try:
        return client.receive_frame() == b""
    except ConnectionError:
        return True


def test_every_api_waits_for_authentication(broker: InnerBroker) -> None:
    for api in apis.APIS.values():
        if api.key not in (apis.API_VERSIONS, apis.SASL_HANDSHAKE):
            with connected(broker.addresses["SASL_PLAINTEXT"]) as client:
                header = struct.pack(">hhih", api.key, api.version_max, 1, -1) + bytes(40)
                client.socket.sendall(struct.pack(">i", len(header)) + header)
                assert is_closed(client), api.name


def test_api_versions_once(client: RawClient) -> None:
    assert client.ask(apis.API_VERSIONS, 0).error_code == 0
    client.send(apis.API_VERSIONS, 0)
    assert is_closed(client)


def test_unsupported_api_versions_can_be_repeated(client: RawClient) -> None:
    frame = struct.pack(">hhih", apis.API_VERSIONS, 99, 7, -1) + bytes(1)
    client.socket.sendall(struct.pack(">i", len(frame)) + frame)
    assert client.receive(apis.API_VERSIONS, 0).error_code == ErrorCode.unsupported_version
    assert client.ask(apis.API_VERSIONS, 0).error_code == 0
    assert login(client).error_code == 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_each_version_of_authenticate(client: RawClient, version: int) -> None:
    assert tuple(handshake(client).mechanisms) == MECHANISMS
    assert authenticate(client, token_of(), version).error_code == 0
    assert controller(client) == 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_tokens_without_requests(client: RawClient, mechanism: str) -> None:
    """Clients before Kafka 1.0 send bare tokens after SaslHandshake 0."""
    assert handshake(client, mechanism, version=0).error_code == 0

    def exchange(token: bytes) -> bytes:
        client.socket.sendall(struct.pack(">i", len(token)) + token)
        return client.receive_frame()

    if mechanism == "PLAIN":
        assert exchange(token_of()) == b""
    else:
        scram = scramp.ScramClient([mechanism], "ada", PASSWORD)
        scram.set_server_first(exchange(scram.get_client_first().encode()).decode())
        scram.set_server_final(exchange(scram.get_client_final().encode()).decode())
    assert controller(client) == 1


def test_a_wrong_bare_token_is_closed(client: RawClient) -> None:
    assert handshake(client, version=0).error_code == 0
    client.socket.sendall(struct.pack(">i", 4) + b"\0a\0b")
    assert is_closed(client)


def test_wrong_passwords_get_kafkas_error(client: RawClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        refused = login(client, password="wr0ng-secret")
        assert is_closed(client)
    assert refused.error_code == ErrorCode.sasl_authentication_failed
    assert refused.error_message == "Authentication failed: Invalid username or password"
    assert "failed to authenticate: Authentication failed" in caplog.text
    assert "wr0ng-secret" not in caplog.text


def test_an_unknown_mechanism(client: RawClient) -> None:
    refused = handshake(client, "GSSAPI")
    assert (refused.error_code, tuple(refused.mechanisms)) == (ErrorCode.unsupported_sasl_mechanism, MECHANISMS)
    assert is_closed(client)


def test_requests_sent_ahead_are_not_served(broker: InnerBroker, client: RawClient) -> None:
    """All requests arrive together, before the response to the failed login."""
    wrong = {"mechanism": "PLAIN", "auth_bytes": token_of("wrong")}
    ahead = {"topics": [{"name": "ahead"}], "allow_auto_topic_creation": True}
    requests: list[tuple[int, int, dict[str, Any]]] = [
        (apis.SASL_HANDSHAKE, 1, wrong),
        (apis.SASL_AUTHENTICATE, 1, wrong),
        (apis.METADATA, 4, ahead),
    ]
    frames = []
    for number, (api_key, version, fields) in enumerate(requests):
        known = {field.name for field in dataclasses.fields(request_class(api_key, version))}
        payload = build(request_class(api_key, version), {name: fields[name] for name in known})
        frames.append(encode_request(api_key, version, number, "raw", payload))
    client.socket.sendall(b"".join(frames))
    assert client.receive(apis.SASL_HANDSHAKE, 1).error_code == 0
    assert client.receive(apis.SASL_AUTHENTICATE, 1).error_code == ErrorCode.sasl_authentication_failed
    assert is_closed(client)
    assert broker.call(lambda node: "ahead" not in node.topics.by_name)


def test_large_frames_wait_for_authentication(
    broker: InnerBroker, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.socket.sendall(struct.pack(">i", 600_000))
    assert is_closed(client)
    assert "a frame of 600000 bytes; before authentication it has 2 to 524288 bytes" in caplog.text
    with connected(broker.addresses["SASL_PLAINTEXT"]) as other:
        login(other)
        names = [{"name": f"{number:0200}"} for number in range(200)]
        assert len(other.ask(apis.METADATA, 4, topics=names, allow_auto_topic_creation=False).topics) == 200


def test_the_user_is_the_principal(broker: InnerBroker, client: RawClient) -> None:
    login(client)
    server = broker._broker
    assert server is not None
    listener = server._listener
    assert listener is not None
    principals = broker.call(lambda _node: {connection.principal for connection in listener._connections})
    assert KafkaPrincipal("User", "ada") in principals


def test_sasl_without_need_of_it(broker: InnerBroker) -> None:
    with connected(broker.addresses["PLAINTEXT"]) as client:
        assert handshake(client).error_code == ErrorCode.illegal_sasl_state
        assert authenticate(client, token_of()).error_code == ErrorCode.illegal_sasl_state
        assert controller(client) == 1


# The end of a session, and delays


@pytest.fixture
def timed(authority: Authority, tmp_path: Path) -> Iterator[DrivenBroker]:
    security = security_of(authority, reauthentication_ms_max=60_000)
    listeners = (Endpoint(port=0, listener="SASL_PLAINTEXT"),)
    with DrivenBroker(tmp_path / "data", listeners=listeners, security=security, failed_login_delay_ms=0) as running:
        add_user(running, "ada", PASSWORD)
        yield running


def test_a_session_ends_without_new_login(timed: DrivenBroker) -> None:
    with connected(timed.bootstrap) as client:
        granted = login(client)
        assert granted.session_lifetime.total_seconds() == 60
        timed.clock.advance_ms(59_000)
        assert controller(client) == 1
        timed.clock.advance_ms(2_000)
        client.send(apis.METADATA, 4, topics=(), allow_auto_topic_creation=False)
        assert is_closed(client)


def test_a_client_authenticates_again(timed: DrivenBroker) -> None:
    with connected(timed.bootstrap) as client:
        login(client)
        for _ in range(3):
            timed.clock.advance_ms(59_000)
            assert login(client).error_code == 0
            assert controller(client) == 1
        assert handshake(client).error_code == ErrorCode.illegal_sasl_state, "not twice in a second"


def test_a_new_login_keeps_user_and_mechanism(timed: DrivenBroker, authority: Authority) -> None:
    add_user(timed, "eve", "other")
    with connected(timed.bootstrap) as client:
        login(client)
        timed.clock.advance_ms(2_000)
        handshake(client, "SCRAM-SHA-256")
        refused = authenticate(client, b"n,,n=ada,r=x")
        assert "not supported for re-authentication" in refused.error_message
        assert is_closed(client)
    with connected(timed.bootstrap) as client:
        scrammed(client, "ada", PASSWORD)
        timed.clock.advance_ms(2_000)
        refused = scrammed(client, "eve", "other")
        assert refused.error_message.startswith("Cannot change principals during re-authentication")
        assert is_closed(client)


def scrammed(client: RawClient, user: str, password: str) -> Any:
    """Log in with SCRAM-SHA-256; return the last response."""
    handshake(client, "SCRAM-SHA-256")
    scram = scramp.ScramClient(["SCRAM-SHA-256"], user, password)
    scram.set_server_first(authenticate(client, scram.get_client_first().encode()).auth_bytes.decode())
    return authenticate(client, scram.get_client_final().encode())


def test_other_requests_during_a_new_login(timed: DrivenBroker) -> None:
    with connected(timed.bootstrap) as client:
        login(client)
        timed.clock.advance_ms(2_000)
        handshake(client)
        client.send(apis.METADATA, 4, topics=(), allow_auto_topic_creation=False)
        assert is_closed(client)


def test_a_stalled_login_is_closed(timed: DrivenBroker) -> None:
    with connected(timed.bootstrap) as stalled, connected(timed.bootstrap) as client:
        handshake(stalled)
        login(client)
        timed.clock.advance_ms(11_000)
        assert is_closed(stalled)
        assert controller(client) == 1


# Credentials


def test_admin_clients_change_credentials(broker: InnerBroker, authority: Authority) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.addresses["SASL_PLAINTEXT"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": PASSWORD,
    }
    admin = AdminClient(settings)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 5000)
    done = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"first")])
    done["bob"].result(15)
    described = describe(admin, "bob").result(15)
    assert [(entry.mechanism, entry.iterations) for entry in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_512, 5000)
    ]
    assert AdminClient(settings | {"sasl.username": "bob", "sasl.password": "first"}).list_topics(timeout=15)
    deleted = admin.alter_user_scram_credentials([UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_512)])
    deleted["bob"].result(15)
    with pytest.raises(KafkaException, match="does not exist"):
        describe(admin, "bob").result(15)


def describe(admin: AdminClient, user: str) -> Any:
    """Return the future of one user's description."""
    futures: Any = admin.describe_user_scram_credentials([user])
    return futures[user]


def alter(client: RawClient, *, deletions: Any = (), upsertions: Any = ()) -> dict[str, tuple[int, str | None]]:
    response = client.ask(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=deletions, upsertions=upsertions)
    return {result.user: (result.error_code, result.error_message) for result in response.results}


def upsertion(name: str, iterations: int = 4096, mechanism: int = 1) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": SALT,
        "salted_password": b"x" * 32,
    }


def test_wrong_changes_are_refused(broker: InnerBroker) -> None:
    with connected(broker.addresses["PLAINTEXT"]) as client:
        entries = [upsertion("few", 1), upsertion("many", 16385), upsertion("odd", mechanism=3), upsertion("")]
        codes = alter(client, upsertions=[*entries, upsertion("ok"), upsertion("two"), upsertion("two", 5000)])
        assert codes == {
            "few": (ErrorCode.unacceptable_credential, "Too few iterations"),
            "many": (ErrorCode.unacceptable_credential, "Too many iterations"),
            "odd": (ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"),
            "": (ErrorCode.unacceptable_credential, "Username must not be empty"),
            "ok": (0, None),
            "two": (ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"),
        }
        assert alter(client, deletions=[{"name": "ok", "mechanism": 1}, {"name": "ok2", "mechanism": 1}]) == {
            "ok": (0, None),
            "ok2": (ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"),
        }
        asked = [{"name": "ada"}, {"name": "ada"}, {"name": "nobody-here"}]
        described = client.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=asked).results
        assert {result.user: result.error_code for result in described} == {
            "ada": ErrorCode.duplicate_resource,
            "nobody-here": ErrorCode.resource_not_found,
        }
        every = client.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None).results
        assert [result.user for result in every] == ["ada"]
        assert [info.mechanism for info in every[0].credential_infos] == [1, 2]


def test_changes_of_a_request_are_limited(broker: InnerBroker) -> None:
    with connected(broker.addresses["PLAINTEXT"]) as client:
        entries = [upsertion(f"user-{number}") for number in range(1001)]
        codes = alter(client, upsertions=[*entries, {**upsertion("salty"), "salt": bytes(1001)}])
        assert [user for user, (code, _message) in codes.items() if code] == ["user-1000", "salty"]
        assert codes["user-1000"][1] == "a request changes at most 1000 credentials"
        assert codes["salty"][1] == "the salt has more than 1000 bytes"
        alter(client, deletions=[{"name": f"user-{number}", "mechanism": 1} for number in range(1000)])


def play(broker: InnerBroker, seeds: range) -> None:
    """Send damaged logins: none is served, and the broker serves others."""
    for seed in seeds:
        # The broker may have closed the connection already.
        with connected(broker.addresses["SASL_PLAINTEXT"]) as client, contextlib.suppress(OSError):
            client.socket.sendall(frames_of(seed))
            client.socket.shutdown(socket.SHUT_WR)
            while client.socket.recv(65536):
                pass
    assert broker.call(lambda node: STOLEN not in node.topics.by_name)
    with connected(broker.addresses["SASL_PLAINTEXT"]) as client:
        assert login(client).error_code == 0
        assert controller(client) == 1


def test_damaged_logins_are_not_served(broker: InnerBroker) -> None:
    play(broker, range(150))


@pytest.mark.campaign
def test_many_damaged_logins_are_not_served(broker: InnerBroker) -> None:
    """20,000 damaged logins over TCP: none is served, and an honest client is."""
    play(broker, range(1_000_000, 1_020_000))


def test_credentials_survive_a_restart(authority: Authority, tmp_path: Path) -> None:
    listeners = (Endpoint(port=0, listener="SASL_PLAINTEXT"),)
    broker = InnerBroker(tmp_path / "data", listeners=listeners, security=security_of(authority))
    with broker:
        add_user(broker, "ada", PASSWORD)
        with connected(broker.bootstrap) as client:
            assert scrammed(client, "ada", PASSWORD).error_code == 0
    with broker, connected(broker.bootstrap) as client:
        assert scrammed(client, "ada", PASSWORD).error_code == 0
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert b"ada" in stored
    assert PASSWORD.encode() not in stored
