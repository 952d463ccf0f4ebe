"""Validator of OAUTHBEARER's tokens: JWTs (RFC 7519) signed by a key of a JSON Web Key Set (RFC 7517) in a file.

The rules are those of Kafka's org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator: `exp`, `iat` and the
user's claim are required, and a token with `aud` needs an expected audience. PyJWT checks signatures and claims. Each
key verifies only the algorithms of its own kind. There is no key for `none` and HMAC: a set has public keys, which
everyone may know.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onceflow.broker.config import SecurityConfig
from onceflow.broker.security.file_state import file_state
from onceflow.errors import OnceflowError

logger = logging.getLogger(__name__)

JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
FILE_BYTES_MAX = 1024**2
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS: Mapping[tuple[str, str | None], tuple[str, ...]] = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""Kind of key and its curve → the signatures that it verifies (RFC 7518, RFC 8037)."""
RSA_BITS_MIN = 2048
"""RFC 7518, section 3.3."""
PRIVATE_PARTS = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth"))


class UnusableKeys(OnceflowError):
    """The file of a JSON Web Key Set cannot be read, or has no key that verifies signatures."""


class VerificationKey(NamedTuple):
    """Public key of a set."""

    key_id: str | None
    algorithms: tuple[str, ...]
    key: Any
    """Public key of the package cryptography."""


class JwksValidator:
    """Validator with the keys of one file. A changed file is loaded by the next login."""

    def __init__(self, listener: str, security: SecurityConfig) -> None:
        """Load the keys. Raises UnusableKeys, and ModuleNotFoundError without the package PyJWT."""
        assert security.bearer_keys_file is not None
        self._listener = listener
        self._security = security
        self._file = security.bearer_keys_file
        self._state = file_state(self._file)
        self._keys = _load(listener, self._file)

    def __call__(self, token: str) -> tuple[str, float]:
        """Return the user and the token's end in seconds since 1970. Raises ValueError with the reason."""
        import jwt

        self._reload_if_changed()
        security = self._security
        try:
            header = jwt.get_unverified_header(token)
            key = self._find(header)
            claims = jwt.decode(
                token,
                key.key,
                algorithms=list(key.algorithms),
                audience=security.bearer_audiences or None,
                issuer=security.bearer_issuer,
                leeway=security.bearer_clock_skew_seconds,
                options={"require": ["exp", "iat"]},
            )
        except jwt.PyJWTError as error:
            raise ValueError(str(error)) from error
        except RecursionError as error:
            raise ValueError("its JSON is nested too deeply") from error
        _check_scope(security.bearer_scope_claim, claims)
        return _user(security.bearer_user_claim, claims), float(claims["exp"])

    def _find(self, header: Mapping[str, Any]) -> VerificationKey:
        """Return the first key with the token's key id and algorithm. Raises ValueError."""
        key_id, algorithm = header.get("kid"), header.get("alg")
        for key in self._keys:
            if algorithm in key.algorithms and key_id in (None, key.key_id):
                return key
        raise ValueError(f"{self._file} has no key for kid={str(key_id)[:80]!r} and alg={str(algorithm)[:20]!r}")

    def _reload_if_changed(self) -> None:
        state = file_state(self._file)
        if state == self._state:
            return
        self._state = state
        try:
            self._keys = _load(self._listener, self._file)
        except UnusableKeys as error:
            logger.error("%s; new logins still use the keys loaded before", error)
        else:
            logger.info("loaded the keys of tokens of listener %s again", self._listener)


def _load(listener: str, file: str) -> tuple[VerificationKey, ...]:
    """Return the usable keys of a file. Raises UnusableKeys."""
    name = f"listener {listener}: {JWKS_URL}: {file}"
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UnusableKeys(f"{name} cannot be read: {error.strerror}") from error
    try:
        if len(text) > FILE_BYTES_MAX:
            raise ValueError("it is too large")
        entries = [dict(entry) for entry in json.loads(text)["keys"]]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise UnusableKeys(f'{name} is not a JSON Web Key Set: {{"keys": […]}} of at most 1 MiB') from error
    keys = tuple(key for entry in entries if (key := _read_key(name, entry)) is not None)
    if not keys:
        raise UnusableKeys(f"{name} has no key that verifies signatures: RSA, EC or Ed25519")
    return keys


def _read_key(name: str, entry: dict[str, Any]) -> VerificationKey | None:
    """Return a key of a set; None for one of another kind or use (RFC 7517, section 5). Raises UnusableKeys."""
    import jwt

    is_rsa, own = entry.get("kty") == "RSA", entry.get("alg")
    algorithms = ALGORITHMS.get((str(entry.get("kty")), None if is_rsa else str(entry.get("crv"))), ())
    if own is not None:
        algorithms = tuple(algorithm for algorithm in algorithms if algorithm == own)
    if not algorithms or entry.get("use", "sig") != "sig":
        return None
    public = {part: value for part, value in entry.items() if part not in PRIVATE_PARTS}
    shown = f"{name}: the key with kid={str(entry.get('kid'))[:80]!r}"
    try:
        key = jwt.PyJWK.from_dict(public, algorithms[0])
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise UnusableKeys(f"{shown} is invalid: {error}") from error
    if is_rsa and key.key.key_size < RSA_BITS_MIN:
        raise UnusableKeys(f"{shown} has {key.key.key_size} bits; RSA needs at least {RSA_BITS_MIN}")
    return VerificationKey(entry.get("kid"), algorithms, key.key)


def _check_scope(name: str, claims: Mapping[str, Any]) -> None:
    """Refuse an empty or repeated scope, as Kafka's ClaimValidationUtils does. Raises ValueError."""
    given = claims.get(name, [])
    scopes = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    if not all(isinstance(scope, str) and scope.strip() for scope in scopes):
        raise ValueError(f"its claim {name} has an empty scope")
    if len({scope.strip() for scope in scopes}) < len(scopes):
        raise ValueError(f"its claim {name} has a scope twice")


def _user(name: str, claims: Mapping[str, Any]) -> str:
    """Return the user that a claim names. Raises ValueError."""
    user = claims.get(name)
    if not isinstance(user, str) or not user.strip():
        raise ValueError(f"its claim {name} names no user")
    return user.strip()
