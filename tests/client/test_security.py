"""TLS with real certificates in front of a real broker, and what the settings of TLS and SASL say when they are wrong.
SASL itself is tried on Apache Kafka (tests/compat/test_security.py).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from onceflow.client.addresses import Address
from onceflow.client.authentication import AuthenticationFailed, authenticate
from onceflow.client.cluster import Cluster
from onceflow.client.errors import BrokerUnreachable, InvalidSecurity, NotKafka, NotTrusted
from onceflow.client.requests import Build
from onceflow.client.security import Sasl, Security, read_security
from onceflow.remedies import Remedy
from onceflow.testing import BrokerProcess
from onceflow.wire.apis import SASL_HANDSHAKE
from onceflow.wire.errors import ErrorCode
from tests import remedies
from tests.client.tls import Authority, TlsListener

Secured = Callable[..., Cluster]

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ada" password="a\\"b;";'
PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
BEARER = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
TLS = {"security.protocol": "SSL"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def listener(authority: Authority) -> Iterator[TlsListener]:
    with TlsListener(authority.server()) as listening:
        yield listening


@pytest.fixture
def broker(listener: TlsListener, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that its clients reach through the listener alone."""
    with BrokerProcess(tmp_path / "data", 0, "--advertise", str(listener.address)) as running:
        listener.upstream = Address("127.0.0.1", running.port)
        yield running


def security(authority: Authority, **settings: str) -> Security:
    return read_security({**TLS, "ssl.truststore.location": str(authority.trusted), **settings})


@pytest.mark.usefixtures("broker")
def test_everything_goes_through_tls_over_one_connection(listener: TlsListener, authority: Authority) -> None:
    with Cluster(str(listener.address), security=security(authority)) as cluster:
        cluster.create_topic("clicks", 2)
        for _ in range(3):
            assert cluster.list_offsets("clicks", {0: -1, 1: -2})[0].offset == 0
    assert listener.accepted == 1


@pytest.mark.usefixtures("broker")
@pytest.mark.remedy(Remedy.TRUSTED_FILE)
def test_unknown_certificate_is_not_trusted(listener: TlsListener, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path)
    with pytest.raises(NotTrusted, match=r"certificate of localhost:\d+ is not trusted: .*; ") as raised:
        Cluster(str(listener.address), security=security(stranger)).topics()
    remedies.find(Remedy.TRUSTED_FILE, raised.value)
    with Cluster(str(listener.address), security=security(authority)) as cluster:
        assert "nothing" not in cluster.topics()


def test_certificate_of_another_host(authority: Authority, tmp_path: Path) -> None:
    with (
        TlsListener(authority.server("elsewhere.test")) as listener,
        BrokerProcess(tmp_path / "data", 0, "--advertise", str(listener.address)) as running,
    ):
        listener.upstream = Address("127.0.0.1", running.port)
        with pytest.raises(NotTrusted, match="is not trusted: Hostname mismatch"):
            Cluster(str(listener.address), security=security(authority)).topics()
        any_name = read_security(
            {
                **TLS,
                "ssl.truststore.certificates": authority.trusted.read_text(),
                "ssl.endpoint.identification.algorithm": "",
            }
        )
        with Cluster(str(listener.address), security=any_name) as cluster:
            assert "nothing" not in cluster.topics()


def test_client_certificate(authority: Authority, tmp_path: Path) -> None:
    own = authority.issue("ada@example.test")
    key, begin, chain = own.read_text().partition("-----BEGIN CERTIFICATE-----")
    with (
        TlsListener(authority.server(asks_for_certificates=True)) as listener,
        BrokerProcess(tmp_path / "data", 0, "--advertise", str(listener.address)) as running,
    ):
        listener.upstream = Address("127.0.0.1", running.port)
        for settings in (
            {"ssl.keystore.location": str(own)},
            {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": begin + chain},
        ):
            with Cluster(str(listener.address), security=security(authority, **settings)) as cluster:
                assert "nothing" not in cluster.topics()
        with pytest.raises(BrokerUnreachable, match=r"(certificate required|does not respond like a Kafka broker)"):
            Cluster(str(listener.address), security=security(authority)).topics()


@pytest.mark.remedy(Remedy.LISTENER_PORT)
def test_plain_and_tls_listeners_are_distinguished(
    broker: BrokerProcess, listener: TlsListener, authority: Authority
) -> None:
    with pytest.raises((NotKafka, BrokerUnreachable)) as raised:
        Cluster(str(listener.address)).topics()
    assert remedies.find(Remedy.LISTENER_PORT, raised.value) == {"kind": "plain"}
    with Cluster(f"localhost:{broker.port}") as cluster:
        assert "nothing" not in cluster.topics()
    with pytest.raises((NotKafka, BrokerUnreachable), match=r"(TLS listener|ended the TLS handshake)"):
        Cluster(f"localhost:{broker.port}", security=security(authority)).topics()


@pytest.mark.remedy(Remedy.USER_PASSWORD)
def test_a_wrong_password() -> None:
    def ask(api_key: int, version: int, build: Build) -> SimpleNamespace:
        """Run a broker whose user ada has the password `right`."""
        if api_key == SASL_HANDSHAKE:
            return SimpleNamespace(error_code=ErrorCode.none, mechanisms=("PLAIN",))
        is_right = build(version).auth_bytes == b"\0ada\0right"
        code = ErrorCode.none if is_right else ErrorCode.sasl_authentication_failed
        return SimpleNamespace(error_code=code, error_message=None, auth_bytes=b"")

    def log_in(password: str) -> None:
        jaas = JAAS.replace('a\\"b;', password)
        sasl = read_security({**PLAIN, "sasl.jaas.config": jaas}).sasl
        assert sasl is not None
        authenticate(ask, Address("h", 1), sasl)

    with pytest.raises(AuthenticationFailed, match="refuses user 'ada'") as raised:
        log_in("wrong")
    remedies.find(Remedy.USER_PASSWORD, raised.value)
    log_in("right")


def test_name_and_password_as_java_quotes_them() -> None:
    security = read_security({**PLAIN, "sasl.jaas.config": JAAS})
    assert security == Security(None, Sasl("PLAIN", "ada", 'a"b;'))
    assert 'a"b' not in repr(security)


WRONG: list[tuple[dict[str, str], str]] = [
    (
        {"security.protocl": "SSL"},
        "security.protocl is not a supported setting of TLS .*; did you mean security.protocol",
    ),
    ({"security.protocol": "TLS"}, "security.protocol='TLS' is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ({"ssl.key.password": "x"}, "ssl.key.password has no effect with security.protocol=PLAINTEXT"),
    (TLS | {"sasl.mechanism": "PLAIN"}, "sasl.mechanism has no effect with security.protocol=SSL"),
    ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism is required: one of PLAIN, SCRAM-SHA-256"),
    (PLAIN | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism='GSSAPI' is not one of PLAIN"),
    (PLAIN, "sasl.jaas.config is not in the form .*PlainLoginModule required username="),
    (PLAIN | {"sasl.jaas.config": JAAS[:-1]}, "sasl.jaas.config is not in the form"),
    (
        PLAIN | {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS},
        "names .*PlainLoginModule, but .* requires",
    ),
    (PLAIN | {"sasl.jaas.config": JAAS.replace("username", "user")}, "has password, user; it requires"),
    (
        PLAIN | {"sasl.oauthbearer.token.endpoint.url": "file:///t", "sasl.jaas.config": JAAS},
        "token.endpoint.url has no effect with sasl.mechanism=PLAIN",
    ),
    (BEARER, "sasl.oauthbearer.token.endpoint.url is required: the URL of a file"),
    (BEARER | {"sasl.oauthbearer.token.endpoint.url": "https://h/t"}, "='https://h/t' is not the URL of a file"),
    (
        BEARER | {"sasl.jaas.config": JAAS},
        "names .*, but .* requires .*OAuthBearerLoginModule required;",
    ),
    (BEARER | {"sasl.jaas.config": 'OAuthBearerLoginModule required scope="x";'}, "options without effect: scope"),
    (TLS | {"ssl.truststore.type": "JKS"}, "ssl.truststore.type=JKS is not PEM; 'keytool -importkeystore"),
    (TLS | {"ssl.truststore.location": "/nowhere"}, "ssl.truststore.location=/nowhere: No such file"),
    (TLS | {"ssl.truststore.certificates": "x"}, "ssl.truststore or ssl.keystore cannot be used"),
    (TLS | {"ssl.keystore.key": "x"}, "ssl.keystore.key and ssl.keystore.certificate.chain belong together"),
    (TLS | {"ssl.endpoint.identification.algorithm": "x"}, "='x' is neither https nor empty"),
]


@pytest.mark.parametrize(("config", "message"), WRONG)
def test_unusable_settings_are_refused(config: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSecurity, match=message) as caught:
        read_security(config)
    assert 'a\\"b' not in str(caught.value), "a password"


def test_java_key_store_error_has_remedy(tmp_path: Path, authority: Authority) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed" + bytes(100))
    with pytest.raises(InvalidSecurity, match=r"ssl.keystore.location=.*store.jks is not PEM; 'keytool"):
        security(authority, **{"ssl.keystore.location": str(store)})
