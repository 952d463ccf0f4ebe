"""The same tokens of OAUTHBEARER to Apache Kafka and to Onceflow's broker, with the same key set."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kafka
from onceflow import services
from onceflow.broker.config import Endpoint, SecurityConfig
from onceflow.wire import apis
from tests.broker.driven_broker import InnerBroker
from tests.broker.raw_client import connected
from tests.broker.security.test_jwks import KEY, REFUSED
from tests.broker.security.tokens import public, sign, write_keys
from tests.compat.conftest import kafka_jars, tool

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
LISTENER = "SASL_PLAINTEXT"
TOKENS: dict[str, Callable[[], str]] = {
    "right": lambda: sign(KEY),
    "without a key id": lambda: sign(KEY, None),
    "two scopes": lambda: sign(KEY, scope=["a", "b"]),
    "a number as scope": lambda: sign(KEY, scope=5),
    "a scope twice": lambda: sign(KEY, scope=["a", "a "]),
    "expired a moment ago": lambda: sign(KEY, exp=int(time.time()) - 10),
    "valid in a moment": lambda: sign(KEY, nbf=int(time.time()) + 10),
    "any issuer": lambda: sign(KEY, iss="x"),
    "spaces around the user": lambda: sign(KEY, sub=" ada "),
    **REFUSED,
}
DIFFERENCES = {
    "issued in the future": "Kafka accepts it (docs/security.md)",
    "unknown critical header": "Kafka's refusal has another form",
}


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    """Return the addresses of Kafka and of ours."""
    tool("java", "apt install default-jdk-headless")
    directory = tmp_path_factory.mktemp("tokens")
    keys = directory / "jwks.json"
    write_keys(keys, public(KEY, kid="one"))
    prefix = "listener.name.sasl_plaintext.oauthbearer.sasl."
    settings = {
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}jaas.config": f"{PACKAGE}.OAuthBearerLoginModule required ;",
        f"{prefix}server.callback.handler.class": f"{PACKAGE}.OAuthBearerValidatorCallbackHandler",
        # With the listener's prefix it has no effect. DefaultJwtValidator accepted wrong signatures.
        "sasl.oauthbearer.jwt.validator.class": f"{PACKAGE}.BrokerJwtValidator",
        f"{prefix}oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "connection.failed.authentication.delay.ms": "0",
    }
    port = services.free_port()
    with pytest.MonkeyPatch.context() as patch:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}"
        patch.setenv("JAVA_TOOL_OPTIONS", allowed)
        running = kafka.KafkaProcess(
            directory / "kafka", kafka_jars(kafka.VERSION), settings, listeners={LISTENER: port}
        )
        with running, ours(directory, keys) as broker:
            yield f"127.0.0.1:{port}", broker.bootstrap


def ours(directory: Path, keys: Path) -> InnerBroker:
    security = SecurityConfig(sasl_mechanisms=("OAUTHBEARER",), bearer_keys_file=str(keys))
    listeners = (Endpoint(port=0, listener=LISTENER),)
    return InnerBroker(directory / "data", listeners=listeners, security=security, failed_login_delay_ms=0)


def outcome(address: str, token: str) -> tuple[Any, ...]:
    """Log in; return all fields of the responses, and of a session's time whether there is one."""
    with connected(address) as client:
        client.ask(apis.SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER")
        response = client.ask(apis.SASL_AUTHENTICATE, 2, auth_bytes=f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        has_time = response.session_lifetime.total_seconds() > 0
        first = (response.error_code, response.error_message, bytes(response.auth_bytes), has_time)
        if not response.auth_bytes:
            return first
        ended = client.ask(apis.SASL_AUTHENTICATE, 2, auth_bytes=b"\x01")
        return *first, ended.error_code, ended.error_message


@pytest.mark.parametrize("case", TOKENS)
def test_kafka_responds_the_same(addresses: Sequence[str], case: str) -> None:
    token = TOKENS[case]()
    theirs, own = (outcome(address, token) for address in addresses)
    assert (theirs == own) == (case not in DIFFERENCES), (theirs, own)
