"""SASL mechanisms, the server's side: tokens in, tokens out, and at the end a user's name.

PLAIN is RFC 4616, OAUTHBEARER is RFC 7628. SCRAM is RFC 5802 with the limits of Kafka's implementation: no channel
binding, extensions are ignored (org.apache.kafka.common.security.plain.internals.PlainSaslServer,
org.apache.kafka.common.security.scram.internals.ScramSaslServer and ScramMessages).
"""

import base64
import hashlib
import hmac
import importlib
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from onceflow.broker.security.credentials import Credential
from onceflow.errors import OnceflowError
from onceflow.wire.scram import ITERATIONS_MIN, Mechanism

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
INVENTED_SALT_BYTES = 16
INVALID_TOKEN = '{"status":"invalid_token"}'
_INVENTING_KEY = secrets.token_bytes(32)

_SASL_NAME = r"(?:[\x01-\x7f](?<![=,])|=2C|=3D)+"
_VALUE = r"[\x01-\x7f](?<!,)"
_PRINTABLE = r"(?:[\x21-\x7e](?<!,))+"
_BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS = rf"(?:,[A-Za-z]+=(?:{_VALUE})+)*"
_CLIENT_FIRST = re.compile(
    rf"(n,(?:a=({_SASL_NAME}))?,)((?:m=(?:{_VALUE})+,)?n=({_SASL_NAME}),r=({_PRINTABLE})({_EXTENSIONS}))"
)
_BEARER_FIRST = re.compile(rf"n,(?:a=({_SASL_NAME}))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)+)\x01")
_CLIENT_FINAL = re.compile(rf"(c=({_BASE64}),r=({_PRINTABLE})({_EXTENSIONS})),p=({_BASE64})")


class AuthenticationFailed(OnceflowError):
    """A client's token was refused; the text may be sent to the client.

    `reason` is for the log: what a client that is not authenticated must not know.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


class UnusableValidator(OnceflowError):
    """The validator of OAUTHBEARER cannot be imported, or is not a function."""


class SaslServer(Protocol):
    """One authentication by one mechanism."""

    @property
    def user(self) -> str | None:
        """Name of the user; None until it is authenticated."""
        ...

    @property
    def valid_until(self) -> float | None:
        """End of the user's credential, in seconds since 1970; None: no end."""
        ...

    def respond(self, token: bytes) -> bytes:
        """Return the response to a token. Raises AuthenticationFailed."""
        ...


class PlainServer:
    """PLAIN: one token with name and password."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.user: str | None = None
        self.valid_until: float | None = None

    def respond(self, token: bytes) -> bytes:
        """Check name and password. Raises AuthenticationFailed with Kafka's message."""
        tokens = token.decode("utf-8", errors="replace").split("\0")
        if len(tokens) != 3:
            raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(tokens), 4)}")
        identity, user, password = tokens
        if not user or not password:
            missing = "password" if user else "username"
            raise AuthenticationFailed(f"Authentication failed: {missing} not specified")
        expected = self._passwords.get(user)
        # Compare for an unknown user too: the time must not show which users exist.
        is_right = hmac.compare_digest((expected or "").encode(), password.encode())
        if expected is None or not is_right:
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        _check_identity(identity, user)
        self.user = user
        return b""


class ScramServer:
    """SCRAM: the client proves that it knows the password, and the broker that it knows the credential.

    A user that does not exist is refused like a wrong password, at the end (RFC 5802 leaves this open; Kafka refuses
    at once): the exchange does not show which users exist.

    librdkafka before 2.6.1 repeats its own nonce before the one that the server has sent. That is accepted, as by Kafka
    3.9: the message still belongs to this exchange.
    """

    def __init__(self, mechanism: Mechanism, find: Callable[[str], Credential | None]) -> None:
        """`find` returns the credential of a user."""
        self._mechanism = mechanism
        self._find = find
        self._credential: Credential | None = None
        self._is_known = False
        self.valid_until: float | None = None
        self._name = self._header = self._client_first = self._server_first = ""
        self._client_nonce = self._nonce = ""
        self.user: str | None = None

    def respond(self, token: bytes) -> bytes:
        """Return the server's first or final message. Raises AuthenticationFailed."""
        text = token.decode("utf-8", errors="replace")
        return (self._first(text) if self._credential is None else self._final(text, self._credential)).encode()

    def _first(self, text: str) -> str:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise self._refusal("the first message is malformed")
        self._header, identity, self._client_first, name, self._client_nonce, _extensions = match.groups()
        self._name = _decoded(name)
        credential = self._find(self._name)
        self._is_known = credential is not None
        if credential is None:
            credential = _invented(self._name)
        if credential.iterations < ITERATIONS_MIN:
            raise self._refusal(f"its credential has only {credential.iterations} iterations")
        _check_identity(_decoded(identity or ""), self._name)
        self._credential = credential
        self._nonce = self._client_nonce + secrets.token_urlsafe(24)
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return self._server_first

    def _final(self, text: str, credential: Credential) -> str:
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None or self.user is not None:
            raise self._refusal("the final message is malformed")
        without_proof, channel, nonce, _extensions, proof = match.groups()
        if (
            nonce not in (self._nonce, self._client_nonce + self._nonce)
            or base64.b64decode(channel) != self._header.encode()
        ):
            raise self._refusal("the final message belongs to another exchange")
        signed = f"{self._client_first},{self._server_first},{without_proof}".encode()
        hash_name = self._mechanism.hash_name
        signature = hmac.digest(credential.stored_key, signed, hash_name)
        proven = base64.b64decode(proof)
        client_key = bytes(left ^ right for left, right in zip(signature, proven, strict=False))
        stored_key = hashlib.new(hash_name, client_key).digest()
        if not self._is_known:
            raise self._refusal("there is no such user")
        if len(proven) != len(signature) or not hmac.compare_digest(stored_key, credential.stored_key):
            raise self._refusal("the password is wrong")
        self.user = self._name
        return f"v={base64.b64encode(hmac.digest(credential.server_key, signed, hash_name)).decode()}"

    def _refusal(self, reason: str) -> AuthenticationFailed:
        """Return Kafka's one message for all reasons."""
        message = (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism"
            f" {self._mechanism.name}"
        )
        return AuthenticationFailed(message, f"{message}: {reason}")


Validate = Callable[[str], tuple[str, float]]
"""Return the user of a valid token, and its end in seconds since 1970. Raises ValueError, with the reason for the log.

The reason must not have the token in it.
"""


class BearerServer:
    """OAUTHBEARER: one token, which a function of the operator validates (RFC 7628)."""

    def __init__(self, validate: Validate, now_s: Callable[[], float]) -> None:
        self._validate = validate
        self._now_s = now_s
        self._reason: str | None = None
        self.user: str | None = None
        self.valid_until: float | None = None

    def respond(self, token: bytes) -> bytes:
        """Return nothing for a valid token; for another one the error, which the client must acknowledge.

        Raises AuthenticationFailed after that, and for a malformed message. Other errors of the validator end the
        connection.
        """
        if self._reason is not None:
            raise AuthenticationFailed(INVALID_TOKEN, self._reason)
        match = _BEARER_FIRST.fullmatch(token.decode("utf-8", errors="replace"))
        pairs = dict(pair.split("=", 1) for pair in match[2].split("\x01")[:-1]) if match is not None else {}
        scheme, _, bearer = pairs.get("auth", "").partition(" ")
        if match is None or scheme.lower() != "bearer" or not bearer.strip():
            raise AuthenticationFailed("Invalid OAUTHBEARER client first message")
        try:
            user, valid_until = self._validate(bearer.strip())
        except ValueError as error:
            self._reason = f"the validator refuses the token: {error}"
            return INVALID_TOKEN.encode()
        if not (isinstance(user, str) and user and isinstance(valid_until, int | float)):
            raise TypeError("the validator returned no user, or no end")
        if valid_until <= self._now_s():
            self._reason = "the token has expired"
            return INVALID_TOKEN.encode()
        _check_identity(_decoded(match[1] or ""), user)
        self.user, self.valid_until = user, float(valid_until)
        return b""


def load_validator(path: str) -> Validate:
    """Import a validator, `MODULE:NAME`. Raises UnusableValidator."""
    module, _, name = path.partition(":")
    try:
        validator = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UnusableValidator(f"sasl.oauthbearer.validator={path} cannot be imported: {error}") from error
    if not callable(validator):
        raise UnusableValidator(f"sasl.oauthbearer.validator={path} is not a function")
    return cast(Validate, validator)


def _invented(name: str) -> Credential:
    """Return a credential of a user that does not exist, always the same one."""
    salt = hmac.digest(_INVENTING_KEY, name.encode(), "sha256")[:INVENTED_SALT_BYTES]
    return Credential(salt, b"", b"", ITERATIONS_MIN)


def _check_identity(identity: str, user: str) -> None:
    """Refuse an identity to act as that is not the user's own. Raises AuthenticationFailed."""
    if identity not in ("", user):
        raise AuthenticationFailed(
            "Authentication failed: Client requested an authorization id that is different from username"
        )


def _decoded(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
