"""Tokens of SASL/OAUTHBEARER that a JSON Web Key Set verifies: what is accepted, what is refused, and our clients."""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from onceflow.broker.config import Endpoint, SecurityConfig
from onceflow.broker.security.jwks import JwksValidator, UnusableKeys
from onceflow.client.authentication import AuthenticationFailed
from onceflow.client.cluster import Cluster
from onceflow.client.errors import InvalidSecurity
from onceflow.client.producer import EventWriter
from onceflow.client.security import Security, read_security
from onceflow.remedies import Remedy
from tests import remedies
from tests.broker.driven_broker import InnerBroker
from tests.broker.security.tokens import LATER, new_key, public, sign, write_keys

KEY = new_key()


@lru_cache(maxsize=1)
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    write_keys(path, public(KEY, kid="one"))
    return path


def validator(keys: Path, **settings: Any) -> JwksValidator:
    return JwksValidator("SASL_SSL", SecurityConfig(bearer_keys_file=str(keys), **settings))


def test_a_token_names_user_and_end(keys: Path) -> None:
    user, ends_at = validator(keys)(sign(KEY))
    assert user == "ada"
    assert ends_at == pytest.approx(time.time() + LATER, abs=60)


@pytest.mark.parametrize(
    ("signer", "algorithm"),
    [
        (rsa_key, "RS256"),
        (rsa_key, "PS512"),
        (lambda: ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (lambda: ec.generate_private_key(ec.SECP521R1()), "ES512"),
        (ed25519.Ed25519PrivateKey.generate, "EdDSA"),
    ],
)
def test_other_kinds_of_keys(keys: Path, signer: Any, algorithm: str) -> None:
    key = signer()
    write_keys(keys, public(KEY, kid="one"), public(key, kid="two"))
    assert validator(keys)(sign(key, "two", algorithm))[0] == "ada"


def test_claims_of_other_names(keys: Path) -> None:
    validate = validator(keys, bearer_user_claim="email", bearer_scope_claim="scp")
    assert validate(sign(KEY, email=" ada@example.org ", sub=None, scp=["read", "write"]))[0] == "ada@example.org"
    with pytest.raises(ValueError, match="its claim email names no user"):
        validate(sign(KEY))
    with pytest.raises(ValueError, match="has a scope twice"):
        validate(sign(KEY, email="ada", scp=["read", "read "]))


def test_audience_and_issuer(keys: Path) -> None:
    validate = validator(keys, bearer_audiences=("kafka", "other"), bearer_issuer="https://issuer")
    assert validate(sign(KEY, aud=["kafka", "web"], iss="https://issuer"))[0] == "ada"
    for claims in ({"aud": "kafka"}, {"iss": "https://issuer"}, {"aud": "kafka", "iss": "https://issuer/"}):
        with pytest.raises(ValueError):
            validate(sign(KEY, **claims))
    with pytest.raises(ValueError, match="Audience"):
        validate(sign(KEY, aud=["kafkas"], iss="https://issuer"))


def test_clock_skew(keys: Path) -> None:
    early = sign(KEY, nbf=int(time.time()) + 20)
    assert validator(keys)(early)[0] == "ada"
    with pytest.raises(ValueError, match="not yet valid"):
        validator(keys, bearer_clock_skew_seconds=0)(early)


def hs256(secret: bytes) -> str:
    """Return a token signed with HMAC; PyJWT refuses to create one with a public key."""

    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    claims = {"sub": "ada", "iat": int(time.time()), "exp": int(time.time()) + LATER}
    signed = part({"alg": "HS256", "kid": "one"}) + b"." + part(claims)
    signature = hmac.digest(secret, signed, hashlib.sha256)
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def with_public_key_as_secret() -> str:
    format_ = serialization.PublicFormat.SubjectPublicKeyInfo
    return hs256(KEY.public_key().public_bytes(serialization.Encoding.PEM, format_))


REFUSED: dict[str, Any] = {
    "no signature": lambda: sign("", algorithm="none"),
    "HMAC with the public key": with_public_key_as_secret,
    "another key": lambda: sign(new_key()),
    "another key id": lambda: sign(KEY, "two"),
    "another algorithm": lambda: sign(rsa_key(), algorithm="RS256"),
    "expired": lambda: sign(KEY, exp=int(time.time()) - 60),
    "not valid yet": lambda: sign(KEY, nbf=int(time.time()) + 60),
    "issued in the future": lambda: sign(KEY, iat=int(time.time()) + 60),
    "no end": lambda: sign(KEY, exp=None),
    "no time of issue": lambda: sign(KEY, iat=None),
    "no user": lambda: sign(KEY, sub=None),
    "empty user": lambda: sign(KEY, sub=" "),
    "unexpected audience": lambda: sign(KEY, aud="web"),
    "empty scope": lambda: sign(KEY, scope=""),
    "empty scopes": lambda: sign(KEY, scope=["a", ""]),
    "changed claims": lambda: ".".join((sign(KEY).split(".")[0], sign(KEY, sub="eve").split(".")[1], "AAAA")),
    "text": lambda: "ada",
    "deep nesting": lambda: base64.urlsafe_b64encode(b"[" * 90_000).decode() + ".e30.AAAA",
    "unknown critical header": lambda: (
        base64.urlsafe_b64encode(b'{"alg":"ES256","kid":"one","crit":["x"],"x":1}').decode() + ".e30.AAAA"
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_tokens_are_refused(keys: Path, case: str) -> None:
    token = REFUSED[case]()
    with pytest.raises(ValueError) as refused:
        validator(keys)(token)
    assert token.rpartition(".")[2] not in str(refused.value) or case == "no signature"


def test_a_token_without_a_key_id(keys: Path) -> None:
    """The first key that fits verifies it, as in jose4j's JwksVerificationKeyResolver."""
    other = new_key()
    write_keys(keys, public(rsa_key(), kid="two"), public(KEY, kid="one"), public(other, kid="three"))
    assert validator(keys)(sign(KEY, None))[0] == "ada"
    with pytest.raises(ValueError):
        validator(keys)(sign(other, None))


def test_own_algorithm_and_use_bind_a_key(keys: Path) -> None:
    write_keys(keys, public(rsa_key(), kid="two", alg="RS512"), public(KEY, kid="one", use="enc"))
    validate = validator(keys)
    assert validate(sign(rsa_key(), "two", "RS512"))[0] == "ada"
    for token in (sign(rsa_key(), "two", "RS256"), sign(KEY)):
        with pytest.raises(ValueError, match="has no key for kid="):
            validate(token)


def test_private_parts_of_keys_are_not_used(keys: Path) -> None:
    from jwt.algorithms import ECAlgorithm

    write_keys(keys, {**ECAlgorithm.to_jwk(KEY, as_dict=True), "kid": "one"})
    assert validator(keys)(sign(KEY))[0] == "ada"


def test_a_replaced_file_is_used_at_once(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be used changes nothing, and is logged once."""
    caplog.set_level(logging.INFO)
    validate, new = validator(keys), new_key()
    write_keys(keys, public(new, kid="two"))
    assert validate(sign(new, "two"))[0] == "ada"
    with pytest.raises(ValueError, match="has no key for kid='one'"):
        validate(sign(KEY))
    keys.write_text("{}")
    for _ in range(2):
        assert validate(sign(new, "two"))[0] == "ada"
    keys.unlink()
    assert validate(sign(new, "two"))[0] == "ada"
    wanted = ("loaded the keys of tokens", "is not a JSON Web Key Set", "No such file")
    for record, part in zip(caplog.records, wanted, strict=True):
        assert part in record.getMessage()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a JSON Web Key Set"),
        ("[]", "is not a JSON Web Key Set"),
        ('{"keys": 1}', "is not a JSON Web Key Set"),
        ('{"keys": ["x"]}', "is not a JSON Web Key Set"),
        ("[" * 100_000, "is not a JSON Web Key Set"),
        ('{"keys": [], "x": "' + " " * 1024**2 + '"}', "of at most 1 MiB"),
        ('{"keys": []}', "has no key that verifies signatures"),
        ('{"keys": [{"kty": "oct", "k": "AAAA", "kid": "one"}]}', "has no key that verifies signatures"),
        ('{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "kid": "one"}]}', "the key with kid='one' is invalid"),
        ('{"keys": [{"kty": "RSA", "e": "AQAB", "n": "' + "_w" * 60 + '"}]}', "RSA needs at least 2048"),
    ],
)
def test_unusable_files_stop_the_start(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(UnusableKeys, match=message):
        validator(path)
    with pytest.raises(UnusableKeys, match="cannot be read: No such file"):
        validator(tmp_path / "missing")


# A broker and clients


@pytest.fixture
def broker(tmp_path: Path, keys: Path) -> Iterator[InnerBroker]:
    security = SecurityConfig(sasl_mechanisms=("OAUTHBEARER",), bearer_keys_file=str(keys))
    listeners = (Endpoint(port=0, listener="SASL_PLAINTEXT"),)
    with InnerBroker(tmp_path / "data", listeners=listeners, security=security, failed_login_delay_ms=0) as running:
        yield running


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(sign(KEY) + "\n")
    return path


def bearer(token: Path) -> Security:
    return read_security(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;",
        }
    )


def test_clients_of_ours(broker: InnerBroker, token: Path) -> None:
    """Our own client, and our producer on librdkafka."""
    security = bearer(token)
    with Cluster(broker.bootstrap, security=security) as cluster:
        cluster.create_topic("visits", 1)
    with EventWriter(broker.bootstrap, "visits", security=security) as producer:
        producer.write(b"ada", b"click")
    assert producer.delivered == 1


@pytest.mark.remedy(Remedy.NEW_TOKEN)
def test_each_connection_reads_the_token(broker: InnerBroker, token: Path) -> None:
    token.write_text(sign(new_key()))
    security = bearer(token)
    with pytest.raises(AuthenticationFailed, match=r"refuses user 'ada' with OAUTHBEARER: .*invalid_token") as refused:
        Cluster(broker.bootstrap, security=security).topics()
    assert remedies.find(Remedy.NEW_TOKEN, refused.value) == {"file": str(token)}
    token.write_text(sign(KEY))
    with Cluster(broker.bootstrap, security=security) as cluster:
        assert "visits" not in cluster.topics()


def test_unusable_token_files_are_refused(tmp_path: Path, token: Path) -> None:
    with pytest.raises(InvalidSecurity, match="cannot be read: No such file"):
        bearer(tmp_path / "missing")
    token.chmod(0o644)
    with pytest.raises(InvalidSecurity, match=r"every user of this machine can read .*; its mode must be 600"):
        bearer(token)
    token.chmod(0o600)
    for text in ("", "hush", "hush.hush.hush", sign(KEY, exp=None), "hush." + "W1tb" * 9000 + ".x"):
        token.write_text(text)
        with pytest.raises(InvalidSecurity, match="expected a JWT with the claim exp") as refused:
            bearer(token)
        assert "hush" not in str(refused.value)
