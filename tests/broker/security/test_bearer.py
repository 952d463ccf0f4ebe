"""SASL/OAUTHBEARER with a validator of the operator's: three clients, wrong tokens, and their end."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import KafkaException, Producer

from onceflow.broker.config import Endpoint, SecurityConfig
from onceflow.broker.security.sasl import AuthenticationFailed, BearerServer, UnusableValidator
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import DrivenBroker, InnerBroker
from tests.broker.raw_client import RawClient, connected
from tests.broker.security.bearer import END_OF_TIME, validate

VALIDATOR = "tests.broker.security.bearer:validate"
LISTENERS = (Endpoint(port=0, listener="SASL_PLAINTEXT"),)
SECURITY = SecurityConfig(sasl_mechanisms=("OAUTHBEARER",), bearer_validator=VALIDATOR)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DrivenBroker]:
    with DrivenBroker(tmp_path / "data", listeners=LISTENERS, security=SECURITY, failed_login_delay_ms=0) as running:
        yield running


def test_librdkafka(broker: DrivenBroker) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _config: ("ada", time.time() + 3600),
    }
    producer = Producer(settings)
    assert len(producer.list_topics(timeout=15).brokers) == 1
    wrong = Producer(settings | {"oauth_cb": lambda _config: ("-ada", time.time() + 3600), "log_level": 0})
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=0.5)


def test_aiokafka(broker: DrivenBroker) -> None:
    class Provider(AbstractTokenProvider):
        async def token(self) -> str:
            return "ada"

    async def run() -> bool:
        settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, sasl_oauth_token_provider=Provider(), **settings
        ) as producer:
            return bool(producer.client.cluster.brokers())

    assert asyncio.run(run())


def log_in(client: RawClient, token: str) -> Any:
    client.ask(apis.SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER")
    first = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    return client.ask(apis.SASL_AUTHENTICATE, 1, auth_bytes=first)


def test_a_session_ends_with_its_token(broker: DrivenBroker) -> None:
    end = broker.clock.now_ms() / 1000 + 60
    with connected(broker.bootstrap) as client:
        granted = log_in(client, f"ada:{end}")
        assert (granted.error_code, granted.session_lifetime.total_seconds()) == (0, 60)
        assert client.ask(apis.METADATA, 4, topics=(), allow_auto_topic_creation=False).controller_id == 1
        broker.clock.advance_ms(61_000)
        client.send(apis.METADATA, 4, topics=(), allow_auto_topic_creation=False)
        assert client.receive_frame() == b""


@pytest.mark.parametrize("token", ["-ada", "ada:1"])
def test_a_wrong_token_gets_the_standards_error(broker: DrivenBroker, token: str) -> None:
    """The client acknowledges the error with one byte, and is refused then (RFC 7628, section 3.2.3)."""
    with connected(broker.bootstrap) as client:
        refused = log_in(client, token)
        assert (refused.error_code, refused.auth_bytes) == (0, b'{"status":"invalid_token"}')
        ended = client.ask(apis.SASL_AUTHENTICATE, 1, auth_bytes=b"\x01")
        assert ended.error_code == ErrorCode.sasl_authentication_failed
        assert client.receive_frame() == b""


def test_a_broken_validator_admits_no_client(broker: DrivenBroker) -> None:
    with connected(broker.bootstrap) as client:
        client.ask(apis.SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER")
        client.send(apis.SASL_AUTHENTICATE, 1, auth_bytes=b"n,,\x01auth=Bearer broken\x01\x01")
        assert client.receive_frame() == b""


@pytest.mark.parametrize("path", ["tests.broker.security.bearer:NOT_A_FUNCTION", "no.such:thing", "tests:missing"])
def test_an_unusable_validator_stops_the_start(tmp_path: Path, path: str) -> None:
    security = SecurityConfig(sasl_mechanisms=("OAUTHBEARER",), bearer_validator=path)
    with (
        pytest.raises(UnusableValidator, match=path),
        InnerBroker(tmp_path / "d", listeners=LISTENERS, security=security),
    ):
        pytest.fail("it started")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic ada\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01other=Bearer ada\x01\x01",
        b"y,,\x01auth=Bearer ada\x01\x01",
        b"n,,\x01auth=Bearer ada\x01",
        b"n,a=eve,\x01auth=Bearer ada\x01\x01",
    ],
)
def test_other_first_messages_are_refused(message: bytes) -> None:
    server = BearerServer(validate, lambda: 0.0)
    with pytest.raises(AuthenticationFailed):
        server.respond(message)
    assert server.user is None


def test_extensions_are_ignored() -> None:
    server = BearerServer(validate, lambda: 0.0)
    assert server.respond(b"n,a=ada,\x01auth=bearer ada\x01key=value\x01\x01") == b""
    assert (server.user, server.valid_until) == ("ada", END_OF_TIME)
